/* memory.c - a table of call ids over a list of turns, least recently used first.
 *
 * What costs time (comparing JSON, decoding, the disk) is done without the lock: a reader holds a
 * reference, and a turn does not change. */
#include "base/rng.h"
#include "chat/memory_inside.h"
#include "chat/protocol.h"

enum { BUCKETS_MAX = 1 << 20 };

enum fst_status memory_no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory to remember a turn");
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* Marks that change who speaks.  A turn that holds one would put words into somebody's mouth, which
 * client text can never do. */
static bool is_role_mark(const struct tokenizer *t, int32_t id)
{
    const struct tokenizer_specials *s = tokenizer_specials(t);
    const int32_t marks[] = {
        s->bos,    s->eos,   s->user,      s->assistant, s->pad,   s->latest_reminder,
        s->action, s->query, s->authority, s->domain,    s->title, s->read_url};

    for (size_t i = 0; i < FST_COUNT(marks); i++)
        if (id == marks[i])
            return true;
    return tokenizer_is_special(t, id);
}

bool memory_ids_fine(const struct tokenizer *t, const int32_t *ids, size_t n)
{
    if (n == 0 || ids[n - 1] != tokenizer_specials(t)->eos)
        return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (!tokenizer_is_named(t, ids[i]) || is_role_mark(t, ids[i]))
            return false;
    return true;
}

static struct chat_str put_text(char **at, struct chat_str s)
{
    struct chat_str copy = {*at, s.len};

    if (s.len)
        memcpy(*at, s.data, s.len);
    (*at)[s.len] = 0;
    *at += s.len + 1;
    return copy;
}

enum fst_status memory_node_new(struct memory_node **out, const struct chat_turn *t)
{
    size_t text = t->content.len + t->reasoning.len + 2, size;
    struct memory_node *n;
    struct chat_call *calls;
    int32_t *ids;
    char *at;

    for (size_t i = 0; i < t->n_calls; i++)
        text += t->calls[i].id.len + t->calls[i].name.len + t->calls[i].arguments.len + 3;
    size =
        sizeof *n + t->n_calls * (sizeof *n->slots + sizeof *calls) + t->n_ids * sizeof *ids + text;
    *out = n = mem_alloc(size);
    if (!n)
        return memory_no_memory();
    *n = (struct memory_node){.turn = *t, .bytes = size, .record_bytes = memory_record_bytes(t)};
    atomic_init(&n->refs, 1);
    n->slots = (struct memory_slot *)(n + 1);
    calls = (struct chat_call *)(n->slots + t->n_calls);
    ids = (int32_t *)(calls + t->n_calls);
    at = (char *)(ids + t->n_ids);
    memcpy(ids, t->ids, t->n_ids * sizeof *ids);
    n->turn.ids = ids;
    n->turn.calls = calls;
    n->turn.content = put_text(&at, t->content);
    n->turn.reasoning = put_text(&at, t->reasoning);
    for (size_t i = 0; i < t->n_calls; i++) {
        calls[i].id = put_text(&at, t->calls[i].id);
        calls[i].name = put_text(&at, t->calls[i].name);
        calls[i].arguments = put_text(&at, t->calls[i].arguments);
        n->slots[i] = (struct memory_slot){.node = n, .call = (uint32_t)i};
    }
    return FST_OK;
}

void memory_node_unref(struct memory_node *n)
{
    if (atomic_fetch_sub(&n->refs, 1) == 1)
        mem_free(n);
}

void chat_turn_unref(const struct chat_turn *t)
{
    if (t)
        memory_node_unref((struct memory_node *)(uintptr_t)t);
}

bool memory_list_push(struct memory_list *l, struct memory_node *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 16;
        struct memory_node **more = mem_realloc(l->node, cap * sizeof *more);
        if (!more)
            return false;
        l->node = more;
        l->cap = cap;
    }
    atomic_fetch_add(&n->refs, 1);
    l->node[l->n++] = n;
    return true;
}

void memory_list_release(struct memory_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        memory_node_unref(l->node[i]);
    mem_free(l->node);
    *l = (struct memory_list){0};
}

/* ---- the table (the lock is held) ----------------------------------------------------------- */

static struct memory_slot **bucket_of(struct chat_memory *m, struct hash128 tenant,
                                      struct chat_str id)
{
    return &m->bucket[hash64(id.data, id.len, tenant.lo) & m->mask];
}

static struct memory_slot *find(struct chat_memory *m, struct hash128 tenant, struct chat_str id)
{
    for (struct memory_slot *s = *bucket_of(m, tenant, id); s; s = s->next) {
        const struct chat_str *have = &s->node->turn.calls[s->call].id;
        if (hash128_equal(s->node->turn.tenant, tenant) && have->len == id.len &&
            memcmp(have->data, id.data, id.len) == 0)
            return s;
    }
    return NULL;
}

static void list_remove(struct chat_memory *m, struct memory_node *n)
{
    *(n->older ? &n->older->newer : &m->oldest) = n->newer;
    *(n->newer ? &n->newer->older : &m->newest) = n->older;
    n->older = n->newer = NULL;
}

static void list_append(struct chat_memory *m, struct memory_node *n)
{
    n->older = m->newest;
    n->newer = NULL;
    *(m->newest ? &m->newest->newer : &m->oldest) = n;
    m->newest = n;
}

static void evict(struct chat_memory *m, struct memory_node *n)
{
    FST_ASSERT(n->held);
    for (size_t i = 0; i < n->turn.n_calls; i++) {
        struct memory_slot **at = bucket_of(m, n->turn.tenant, n->turn.calls[i].id);
        while (*at != &n->slots[i])
            at = &(*at)->next;
        *at = n->slots[i].next;
    }
    list_remove(m, n);
    m->stats.n_ids -= n->turn.n_calls;
    m->stats.n_bytes -= n->bytes;
    m->stats.n_turns--;
    m->stats.evicted++;
    if (n->in_file)
        m->live_bytes -= n->record_bytes;
    n->held = false;
    memory_node_unref(n);
}

void memory_insert(struct chat_memory *m, struct memory_node *n)
{
    for (size_t i = 0; i < n->turn.n_calls; i++) {
        struct memory_slot *s = find(m, n->turn.tenant, n->turn.calls[i].id);
        if (s)
            evict(m, s->node);
    }
    for (size_t i = 0; i < n->turn.n_calls; i++) {
        struct memory_slot **at = bucket_of(m, n->turn.tenant, n->turn.calls[i].id);
        n->slots[i].next = *at;
        *at = &n->slots[i];
    }
    list_append(m, n);
    n->held = true;
    m->stats.n_ids += n->turn.n_calls;
    m->stats.n_bytes += n->bytes;
    m->stats.n_turns++;
    m->stats.added++;
    if (n->in_file)
        m->live_bytes += n->record_bytes;
    while (m->stats.n_ids > m->o.max_ids || m->stats.n_bytes > m->o.max_bytes)
        evict(m, m->oldest);
}

/* ---- the interface -------------------------------------------------------------------------- */

void chat_memory_opts_default(struct chat_memory_opts *o)
{
    *o = (struct chat_memory_opts){.max_ids = 100000, .max_bytes = (size_t)256 << 20};
}

enum fst_status chat_memory_new(struct chat_memory **out, const struct chat_memory_opts *o)
{
    struct chat_memory *m = mem_calloc(1, sizeof *m);
    size_t n = 16;

    *out = NULL;
    if (!m)
        return memory_no_memory();
    m->o = *o;
    while (n < o->max_ids && n < BUCKETS_MAX)
        n *= 2;
    m->mask = n - 1;
    m->bucket = mem_calloc(n, sizeof(struct memory_slot *));
    if (!m->bucket) {
        mem_free(m);
        return memory_no_memory();
    }
    pthread_mutex_init(&m->lock, NULL);
    pthread_mutex_init(&m->file_lock, NULL);
    m->secret = (struct hash128){rng_os(), rng_os()};
    if (o->dir)
        memory_file_open(m);
    m->o.dir = NULL;
    *out = m;
    return FST_OK;
}

void chat_memory_free(struct chat_memory *m)
{
    if (!m)
        return;
    chat_memory_save(m);
    while (m->oldest)
        evict(m, m->oldest);
    memory_list_release(&m->waiting);
    file_log_release(&m->log);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->file_lock);
    mem_free(m->bucket);
    mem_free(m);
}

struct hash128 chat_memory_tenant(const struct chat_memory *m, const char *key, const char *salt)
{
    struct hash128 h = m->secret;

    /* Each text with its NUL, so that no two pairs run into one. */
    h = hash128(key ? key : "", key ? strlen(key) + 1 : 1, h);
    return hash128(salt ? salt : "", salt ? strlen(salt) + 1 : 1, h);
}

enum fst_status chat_memory_add(struct chat_memory *m, const struct chat_turn *turn)
{
    struct memory_node *n;

    if (turn->n_calls == 0 || turn->n_thought > turn->n_ids ||
        !memory_ids_fine(m->o.tokenizer, turn->ids, turn->n_ids))
        return fst_error(FST_EINVAL, "a turn of %zu ids and %zu calls is none to be repeated",
                         turn->n_ids, turn->n_calls);
    FST_TRY(memory_node_new(&n, turn));
    if (!memory_fits(m, n)) {
        enum fst_status rc = fst_error(
            FST_EBUDGET, "a turn of %zu calls and %zu bytes is too large", turn->n_calls, n->bytes);
        memory_node_unref(n);
        return rc;
    }
    pthread_mutex_lock(&m->lock);
    memory_insert(m, n);
    if (m->keeps) /* without memory for the list it is not written, that is all */
        memory_list_push(&m->waiting, n);
    pthread_mutex_unlock(&m->lock);
    return FST_OK;
}

const struct chat_turn *chat_memory_find(struct chat_memory *m, struct hash128 tenant,
                                         struct chat_str call_id)
{
    struct memory_node *n = NULL;
    struct memory_slot *s;

    pthread_mutex_lock(&m->lock);
    s = find(m, tenant, call_id);
    if (s) {
        n = s->node;
        atomic_fetch_add(&n->refs, 1);
        list_remove(m, n);
        list_append(m, n);
        m->stats.found++;
    } else
        m->stats.missed++;
    pthread_mutex_unlock(&m->lock);
    return n ? &n->turn : NULL;
}

enum fst_status chat_turn_close(const struct tokenizer *t, struct tokenizer_ids *ids)
{
    static const char end[] = "calls>"; /* of the block's tag, in each of its spellings */
    const size_t n_end = sizeof end - 1;
    struct buf text = {0};
    enum fst_status rc = tokenizer_decode(t, ids->id, ids->n, false, &text);
    size_t n = text.len;

    while (n && (text.data[n - 1] == '\n' || text.data[n - 1] == ' '))
        n--;
    if (rc == FST_OK && (n < n_end || memcmp(text.data + n - n_end, end, n_end) != 0)) {
        const char *close = PROTOCOL_CALLS_CLOSE;
        close += n < text.len && text.data[text.len - 1] == '\n'; /* the line break is there */
        rc = tokenizer_encode_text(t, close, strlen(close), true, ids);
    }
    buf_release(&text);
    return rc < 0 ? rc : tokenizer_ids_push(ids, tokenizer_specials(t)->eos);
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct chat_str trimmed(const char *s, size_t len)
{
    while (len && is_blank(*s)) {
        s++;
        len--;
    }
    while (len && is_blank(s[len - 1]))
        len--;
    return (struct chat_str){s, len};
}

static bool str_equal(struct chat_str a, struct chat_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Several clients trim what they show, and send that. */
static enum fst_status content_matches(struct chat_str have, const struct chat_message *m,
                                       bool *matches)
{
    struct buf sent = {0};
    enum fst_status rc = FST_OK;

    for (size_t i = 0; i < m->n_parts; i++) {
        if (!m->parts[i].is_text) {
            buf_release(&sent);
            *matches = false;
            return FST_OK;
        }
        buf_append(&sent, m->parts[i].text.data, m->parts[i].text.len);
    }
    if (sent.failed)
        rc = memory_no_memory();
    else
        *matches = str_equal(trimmed(have.data, have.len), trimmed(buf_str(&sent), sent.len));
    buf_release(&sent);
    return rc;
}

static enum fst_status arguments_match(struct chat_str have, struct chat_str sent, bool *matches)
{
    struct json_doc *a = NULL, *b = NULL;
    enum fst_status rc;

    *matches = str_equal(have, sent);
    if (*matches)
        return FST_OK;
    if (have.len == 0)
        have = (struct chat_str){"{}", 2};
    if (sent.len == 0)
        sent = (struct chat_str){"{}", 2};
    rc = json_parse(&a, have.data, have.len);
    if (rc == FST_OK)
        rc = json_parse(&b, sent.data, sent.len);
    if (rc == FST_OK)
        *matches = json_same(json_root(a), json_root(b));
    json_free(a);
    json_free(b);
    return rc == FST_ENOMEM ? rc : FST_OK; /* what is no JSON is not the same */
}

enum fst_status chat_turn_matches(const struct chat_turn *t, const struct chat_message *m,
                                  bool *matches)
{
    *matches = false;
    if (t->n_calls != m->n_calls)
        return FST_OK;
    for (size_t i = 0; i < m->n_calls; i++)
        if (!str_equal(t->calls[i].id, m->calls[i].id) ||
            !str_equal(t->calls[i].name, m->calls[i].name))
            return FST_OK;
    FST_TRY(content_matches(t->content, m, matches));
    for (size_t i = 0; *matches && i < m->n_calls; i++)
        FST_TRY(arguments_match(t->calls[i].arguments, m->calls[i].arguments, matches));
    return FST_OK;
}

enum fst_status chat_memory_text(const struct chat_memory *m, const int32_t *ids, size_t n,
                                 struct buf *out)
{
    return tokenizer_decode(m->o.tokenizer, ids, n, false, out);
}

void chat_memory_get_stats(struct chat_memory *m, struct chat_memory_stats *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->stats;
    out->on_disk = m->keeps;
    pthread_mutex_unlock(&m->lock);
}

void chat_memory_count(struct chat_memory *m, bool spliced)
{
    pthread_mutex_lock(&m->lock);
    m->stats.spliced += spliced;
    m->stats.changed += !spliced;
    pthread_mutex_unlock(&m->lock);
}
