/* memory_file.c - the turns of a call memory on disk, in one file that grows at its end.
 *
 *     header   64 bytes: magic, version, byte order, vocabulary, secret of tenants, checksum
 *     record   24 bytes: magic, length, 0, checksum; then the turn: 12 numbers, 3 lengths for each
 *              call, ids, texts
 *
 * Nothing in it is trusted: a record counts only with its checksum, its sizes adding up, and ids that
 * the vocabulary has.  After damage the next record is looked for byte by byte, so that one bad byte
 * costs one turn; a torn end is such damage.  What was damaged, evicted or replaced is dead; the file is
 * written anew, beside it, when more than half is.  The vocabulary is part of the file's name, so that
 * models can share a folder.  The order of the records is the order of use when it is read.
 *
 * Appended records are not flushed to the disk one by one: a crash of the machine may cost the last. */
#include "base/log.h"
#include "chat/memory_inside.h"

enum { VERSION = 1, BYTE_ORDER_MARK = 0x01020304, BATCH_BYTES = 1 << 20 };

static const char file_magic[8] = {'F', 'S', 'T', 'C', 'A', 'L', 'L', 'S'};
/* Bytes that no text holds: they are no UTF-8. */
static const uint64_t record_magic = UINT64_C(0xF5C1FEED00FFC0F8);

struct file_header {
    char magic[8];
    uint32_t version, byte_order, header_bytes, reserved;
    struct hash128 vocabulary, secret;
    uint64_t checksum; /* of all before it */
};
_Static_assert(sizeof(struct file_header) == 64, "a header has no holes");

struct record_header {
    uint64_t magic;
    uint32_t len, reserved;
    uint64_t checksum; /* of the bytes that follow, seeded by their number */
};
_Static_assert(sizeof(struct record_header) == 24, "a record's header has no holes");

struct record_turn {
    struct hash128 tenant;
    uint32_t start, n_thought, n_ids, n_calls, content_len, reasoning_len;
};
_Static_assert(sizeof(struct record_turn) == 40, "a record has no holes");

struct record_call {
    uint32_t id_len, name_len, arguments_len;
};

static struct hash128 vocabulary_of(const struct tokenizer *t)
{
    struct hash128 h = {0};

    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        size_t len;
        const char *s = tokenizer_bytes(t, id, &len);
        h = hash128(s, len + 1, h);
    }
    return h;
}

static uint64_t header_sum(const struct file_header *h)
{
    return hash64(h, offsetof(struct file_header, checksum), VERSION);
}

/* ---- one record ----------------------------------------------------------------------------- */

size_t memory_record_bytes(const struct chat_turn *t)
{
    size_t n = sizeof(struct record_header) + sizeof(struct record_turn) +
               t->n_calls * sizeof(struct record_call) + t->n_ids * sizeof(int32_t) +
               t->content.len + t->reasoning.len;

    for (size_t i = 0; i < t->n_calls; i++)
        n += t->calls[i].id.len + t->calls[i].name.len + t->calls[i].arguments.len;
    return n;
}

static void put_record(struct buf *b, const struct memory_node *n)
{
    const struct chat_turn *t = &n->turn;
    struct record_header h = {.magic = record_magic};
    struct record_turn r = {.tenant = t->tenant,
                            .start = (uint32_t)t->start,
                            .n_thought = (uint32_t)t->n_thought,
                            .n_ids = (uint32_t)t->n_ids,
                            .n_calls = (uint32_t)t->n_calls,
                            .content_len = (uint32_t)t->content.len,
                            .reasoning_len = (uint32_t)t->reasoning.len};
    size_t at = b->len;

    h.len = (uint32_t)(n->record_bytes - sizeof h);
    buf_append(b, &h, sizeof h);
    buf_append(b, &r, sizeof r);
    for (size_t i = 0; i < t->n_calls; i++) {
        const struct chat_call *k = &t->calls[i];
        struct record_call c = {(uint32_t)k->id.len, (uint32_t)k->name.len,
                                (uint32_t)k->arguments.len};
        buf_append(b, &c, sizeof c);
    }
    buf_append(b, t->ids, t->n_ids * sizeof *t->ids);
    buf_append(b, t->content.data, t->content.len);
    buf_append(b, t->reasoning.data, t->reasoning.len);
    for (size_t i = 0; i < t->n_calls; i++) {
        buf_append(b, t->calls[i].id.data, t->calls[i].id.len);
        buf_append(b, t->calls[i].name.data, t->calls[i].name.len);
        buf_append(b, t->calls[i].arguments.data, t->calls[i].arguments.len);
    }
    if (b->failed)
        return;
    FST_ASSERT(b->len - at == n->record_bytes);
    h.checksum = hash64(b->data + at + sizeof h, h.len, h.len);
    memcpy(b->data + at, &h, sizeof h);
}

static struct chat_str take_text(const char **at, size_t len)
{
    struct chat_str s = {*at, len};

    *at += len;
    return s;
}

/* A node of the payload; FST_EFORMAT when it is none that this program wrote. */
static enum fst_status read_turn(const struct chat_memory *m, struct memory_node **out,
                                 const char *p, size_t len)
{
    struct record_turn r;
    struct record_call c;
    struct chat_turn t;
    struct chat_call *calls = NULL;
    int32_t *ids = NULL;
    const char *at, *end = p + len;
    uint64_t sum;
    enum fst_status rc = FST_EFORMAT;

    if (len < sizeof r)
        return rc;
    memcpy(&r, p, sizeof r);
    p += sizeof r;
    sum = (uint64_t)r.n_calls * sizeof c + (uint64_t)r.n_ids * sizeof *ids + r.content_len +
          r.reasoning_len;
    if (sum > (uint64_t)(end - p) || r.n_calls == 0 || r.n_thought > r.n_ids ||
        r.start > CHAT_START_CALL)
        return rc;
    for (size_t i = 0; i < r.n_calls; i++) {
        memcpy(&c, p + i * sizeof c, sizeof c);
        sum += (uint64_t)c.id_len + c.name_len + c.arguments_len;
    }
    if (sum != (uint64_t)(end - p))
        return rc;
    calls = mem_calloc(r.n_calls, sizeof *calls);
    ids = mem_calloc(r.n_ids, sizeof *ids); /* in the file they are not aligned */
    if (!calls || !ids) {
        rc = memory_no_memory();
        goto out;
    }
    at = p + r.n_calls * sizeof c;
    memcpy(ids, at, r.n_ids * sizeof *ids);
    at += r.n_ids * sizeof *ids;
    t = (struct chat_turn){.tenant = r.tenant,
                           .start = (enum chat_start)r.start,
                           .ids = ids,
                           .n_ids = r.n_ids,
                           .n_thought = r.n_thought,
                           .calls = calls,
                           .n_calls = r.n_calls};
    t.content = take_text(&at, r.content_len);
    t.reasoning = take_text(&at, r.reasoning_len);
    for (size_t i = 0; i < r.n_calls; i++) {
        memcpy(&c, p + i * sizeof c, sizeof c);
        calls[i].id = take_text(&at, c.id_len);
        calls[i].name = take_text(&at, c.name_len);
        calls[i].arguments = take_text(&at, c.arguments_len);
    }
    if (memory_ids_fine(m->o.tokenizer, ids, t.n_ids))
        rc = memory_node_new(out, &t);
out:
    mem_free(calls);
    mem_free(ids);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The whole record at p, or 0 bytes. */
static size_t record_at(const char *p, size_t left)
{
    struct record_header h;

    if (left < sizeof h)
        return 0;
    memcpy(&h, p, sizeof h);
    if (h.magic != record_magic || h.reserved || h.len > left - sizeof h ||
        h.checksum != hash64(p + sizeof h, h.len, h.len))
        return 0;
    return sizeof h + h.len;
}

/* Returns the bytes that are no good. */
static size_t read_records(struct chat_memory *m, const char *p, size_t len)
{
    size_t at = sizeof(struct file_header), lost = 0;

    while (at < len) {
        size_t n = record_at(p + at, len - at);
        struct memory_node *node;
        enum fst_status rc;

        if (!n) {
            const char *next = memmem(p + at + 1, len - at - 1, &record_magic, sizeof record_magic);
            n = next ? (size_t)(next - (p + at)) : len - at;
            lost += n;
            at += n;
            continue;
        }
        rc = read_turn(m, &node, p + at + sizeof(struct record_header),
                       n - sizeof(struct record_header));
        if (rc == FST_OK && memory_fits(m, node)) {
            node->in_file = true;
            memory_insert(m, node);
        } else if (rc == FST_OK)
            memory_node_unref(node);
        else
            lost += n;
        at += n;
    }
    return lost;
}

static enum fst_status write_header(struct chat_memory *m, struct file_log *l, const char *path,
                                    struct hash128 vocabulary)
{
    struct file_header h = {.version = VERSION,
                            .byte_order = BYTE_ORDER_MARK,
                            .header_bytes = sizeof h,
                            .vocabulary = vocabulary,
                            .secret = m->secret};

    memcpy(h.magic, file_magic, sizeof h.magic);
    h.checksum = header_sum(&h);
    return file_log_append(l, path, &h, sizeof h);
}

static bool header_fine(const struct file_header *h, struct hash128 vocabulary)
{
    return memcmp(h->magic, file_magic, sizeof h->magic) == 0 && h->version == VERSION &&
           h->byte_order == BYTE_ORDER_MARK && h->header_bytes == sizeof *h &&
           h->checksum == header_sum(h) && hash128_equal(h->vocabulary, vocabulary);
}

static enum fst_status load(struct chat_memory *m, struct hash128 vocabulary)
{
    char v[PATH_MAX + 16];
    struct file_header h;
    struct file_map map;
    size_t lost = 0;
    enum fst_status rc = file_map_open(&map, m->path);

    if (rc < 0)
        return rc;
    if (map.size >= sizeof h)
        memcpy(&h, map.data, sizeof h);
    if (map.size >= sizeof h && header_fine(&h, vocabulary)) {
        m->secret = h.secret;
        lost = read_records(m, (const char *)map.data, map.size);
        m->damaged = lost > 0;
        if (lost)
            log_warn("call memory damaged", "path=%s skipped_bytes=%zu turns=%zu",
                     log_value(v, sizeof v, m->path, strlen(m->path)), lost, m->stats.n_turns);
    } else {
        if (map.size)
            log_warn("call memory not used",
                     "path=%s bytes=%zu why=\"its header is not one of this version\"",
                     log_value(v, sizeof v, m->path, strlen(m->path)), map.size);
        rc = file_log_cut(&m->log, m->path, 0);
        if (rc == FST_OK)
            rc = write_header(m, &m->log, m->path, vocabulary);
    }
    file_map_release(&map);
    return rc;
}

/* The one warning: from here on the memory is without a file. */
static void give_up(struct chat_memory *m)
{
    char why[1100];

    pthread_mutex_lock(&m->lock);
    m->keeps = false;
    memory_list_release(&m->waiting);
    pthread_mutex_unlock(&m->lock);
    file_log_release(&m->log);
    log_warn("call memory off the disk", "why=%s",
             log_value(why, sizeof why, fst_error_text(), strlen(fst_error_text())));
}

void memory_file_open(struct chat_memory *m)
{
    struct hash128 v = vocabulary_of(m->o.tokenizer);
    char name[64];
    enum fst_status rc;

    snprintf(name, sizeof name, "calls-%016llx.fst", (unsigned long long)v.lo);
    rc = file_make_folder(m->o.dir);
    if (rc == FST_OK)
        rc = file_join(m->path, sizeof m->path, m->o.dir, name);
    if (rc == FST_OK)
        rc = file_log_open(&m->log, m->path);
    if (rc == FST_OK)
        rc = load(m, v);
    if (rc < 0) {
        give_up(m);
        return;
    }
    m->keeps = true;
    log_info("call memory", "ids=%zu turns=%zu bytes=%zu file_bytes=%llu", m->stats.n_ids,
             m->stats.n_turns, m->stats.n_bytes, (unsigned long long)m->log.size);
}

/* ---- writing (the file's lock is held) ------------------------------------------------------ */

/* Appends the nodes, in pieces of about a megabyte. */
static enum fst_status append(struct file_log *l, const char *path, const struct memory_list *list)
{
    enum fst_status rc = FST_OK;
    struct buf b = {0};

    for (size_t i = 0; rc == FST_OK && i < list->n; i++) {
        put_record(&b, list->node[i]);
        if (b.failed)
            rc = memory_no_memory();
        else if (b.len >= BATCH_BYTES || i + 1 == list->n) {
            rc = file_log_append(l, path, b.data, b.len);
            buf_reset(&b);
        }
    }
    buf_release(&b);
    return rc;
}

/* The nodes are in the file now. */
static void mark(struct chat_memory *m, const struct memory_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        struct memory_node *n = list->node[i];
        if (n->held && !n->in_file)
            m->live_bytes += n->record_bytes;
        n->in_file = true;
    }
}

static enum fst_status write_waiting(struct chat_memory *m)
{
    struct memory_list list, out = {0};
    enum fst_status rc = FST_OK;

    pthread_mutex_lock(&m->lock);
    list = m->waiting;
    m->waiting = (struct memory_list){0};
    for (size_t i = 0; i < list.n; i++) /* evicted meanwhile, or written by a compaction */
        if (list.node[i]->held && !list.node[i]->in_file)
            if (!memory_list_push(&out, list.node[i]))
                rc = memory_no_memory();
    pthread_mutex_unlock(&m->lock);
    if (rc == FST_OK && out.n)
        rc = append(&m->log, m->path, &out);
    if (rc == FST_OK) {
        pthread_mutex_lock(&m->lock);
        mark(m, &out);
        pthread_mutex_unlock(&m->lock);
    }
    memory_list_release(&out);
    memory_list_release(&list);
    return rc;
}

static enum fst_status compact(struct chat_memory *m)
{
    struct memory_list list = {0};
    struct file_log fresh = {0};
    char beside[PATH_MAX + 8];
    enum fst_status rc = FST_OK;

    pthread_mutex_lock(&m->lock);
    for (struct memory_node *n = m->oldest; n && rc == FST_OK; n = n->newer)
        if (!memory_list_push(&list, n))
            rc = memory_no_memory();
    pthread_mutex_unlock(&m->lock);
    snprintf(beside, sizeof beside, "%s.new", m->path);
    if (rc == FST_OK)
        rc = file_log_open(&fresh, beside);
    if (rc == FST_OK)
        rc = file_log_cut(&fresh, beside, 0);
    if (rc == FST_OK)
        rc = write_header(m, &fresh, beside, vocabulary_of(m->o.tokenizer));
    if (rc == FST_OK)
        rc = append(&fresh, beside, &list);
    if (rc == FST_OK)
        rc = file_log_rename(&fresh, beside, m->path);
    if (rc == FST_OK) {
        file_log_release(&m->log);
        m->log = fresh;
        m->damaged = false;
        pthread_mutex_lock(&m->lock);
        mark(m, &list);
        pthread_mutex_unlock(&m->lock);
    } else {
        if (fresh.is_open)
            file_remove(beside);
        file_log_release(&fresh);
    }
    memory_list_release(&list);
    return rc;
}

void chat_memory_save(struct chat_memory *m)
{
    enum fst_status rc;
    uint64_t live;

    pthread_mutex_lock(&m->file_lock);
    if (!m->log.is_open) {
        pthread_mutex_unlock(&m->file_lock);
        return;
    }
    rc = write_waiting(m);
    pthread_mutex_lock(&m->lock);
    live = m->live_bytes + sizeof(struct file_header);
    pthread_mutex_unlock(&m->lock);
    if (rc == FST_OK && (m->damaged || m->log.size > 2 * live))
        rc = compact(m);
    if (rc < 0 && rc != FST_ENOMEM) /* memory comes back: what was to be written now is not */
        give_up(m);
    pthread_mutex_lock(&m->lock);
    m->stats.file_bytes = m->log.size;
    pthread_mutex_unlock(&m->lock);
    pthread_mutex_unlock(&m->file_lock);
}
