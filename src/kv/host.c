/* host.c - objects in frames of host memory.
 *
 * An object has the number of its first frame, from 1; 0 is none.  Whoever looks an object up holds the
 * lock, bytes are copied without it: frames that are being written are nobody's yet, and those that are
 * read stay, since the thread that reads is the only one that evicts.
 *
 * Order of use.  An object enters the list just behind those that it stands on, the last of which go to its
 * end: so in the list everything comes before what it stands on, as in the tree (tree.c), and the least
 * recently used object carries no other. */
#include <pthread.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kv/chain.h"
#include "kv/host.h"

struct object {
    struct store_key key, parent;
    uint64_t salt[4];
    int64_t n, bytes;
    uint64_t used_by; /* number of the call that used it last */
    int32_t n_ids, n_frames;
    int32_t newer, older; /* by use; object 0 is the list's head */
    int32_t chain;        /* next object of the same bucket */
    int32_t tail_chain;   /* next snapshot of the same bucket of parents */
    uint8_t kind;         /* enum store_kind; 0: not in use */
};

struct host {
    struct store store;
    pthread_mutex_t lock;
    enum host_layout layout;
    struct stream *stream; /* borrowed; NULL: the host's memory alone */
    int64_t frame_bytes, n_frames, n_buckets, n_free;
    int32_t free; /* first of the chain of free frames */
    int n_parts;
    uint64_t calls;
    /* Over the stream: the copy that the next piece may go on from.  A page is 1 MB; frames that follow each other,
     * as those of one prompt's pages do, go as one.  The other end of a call's pieces is one allocation. */
    struct {
        uint8_t *to;
        const uint8_t *from;
        size_t bytes;
    } due;
    bool orphans;          /* this call has used something whose parent is not there */
    struct object *object; /* (n_frames + 1) */
    int64_t *part;         /* (n_parts + 1) where parts begin in a frame, and its end */
    int32_t *ids;          /* (n_frames + 1, 256) */
    int32_t *next;         /* (n_frames + 1) next frame of an object, or free one */
    int32_t *bucket;       /* (n_buckets) of objects by key */
    int32_t *tail_bucket;  /* (n_buckets) of snapshots by parent */
    uint8_t *bytes;        /* (n_frames, frame_bytes), as the layout says */
    /* Snapshots without a parent are those of all short prompts: too many for one chain. */
    int32_t root_tails[KERN_PAGE];
};

static struct host *of(struct store *s)
{
    return (struct host *)s; /* its first member */
}

/* ------------------------------------------------------------------ bytes */

struct run_at { /* a place in a list of runs */
    const struct store_run *run;
    size_t done;
};

static size_t payload(const struct store_run *runs, int32_t n)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < n; i++)
        bytes += runs[i].bytes;
    return bytes;
}

/* What is due is on its way. */
static enum fst_status send(struct host *h)
{
    size_t bytes = h->due.bytes;
    h->due.bytes = 0;
    return bytes ? stream_copy(h->stream, h->due.to, h->due.from, bytes) : FST_OK;
}

static enum fst_status copy_far(struct host *h, uint8_t *to, const uint8_t *from, size_t bytes)
{
    if (to != h->due.to + h->due.bytes || from != h->due.from + h->due.bytes) {
        FST_TRY(send(h));
        h->due.to = to;
        h->due.from = from;
    }
    h->due.bytes += bytes;
    return FST_OK;
}

/* The next `bytes` of the runs from or to one piece of a frame. */
static enum fst_status copy_piece(struct host *h, struct run_at *at, uint8_t *piece, size_t bytes,
                                  bool out)
{
    while (bytes > 0) {
        size_t here = FST_MIN(bytes, at->run->bytes - at->done);
        uint8_t *p = at->run->at + at->done;
        if (h->stream)
            FST_TRY(copy_far(h, out ? p : piece, out ? piece : p, here));
        else
            memcpy(out ? p : piece, out ? piece : p, here);
        at->done += here;
        piece += here;
        bytes -= here;
        if (at->done == at->run->bytes)
            *at = (struct run_at){at->run + 1, 0};
    }
    return FST_OK;
}

static uint8_t *piece_of(const struct host *h, int32_t frame, int part)
{
    int64_t size = h->part[part + 1] - h->part[part], f = frame - 1;
    if (h->layout == HOST_LAYER_FIRST)
        return h->bytes + h->n_frames * h->part[part] + f * size;
    return h->bytes + f * h->frame_bytes + h->part[part];
}

/* False: the device could not. */
static bool copy(struct host *h, int32_t frame, const struct store_run *runs, size_t bytes,
                 bool out)
{
    struct run_at at = {runs, 0};
    bool parts = h->layout == HOST_LAYER_FIRST; /* else they lie together */
    for (; bytes > 0; frame = h->next[frame])
        for (int i = 0; i < (parts ? h->n_parts : 1) && bytes > 0; i++) {
            int64_t size = parts ? h->part[i + 1] - h->part[i] : h->frame_bytes;
            size_t here = FST_MIN(bytes, (size_t)size);
            if (copy_piece(h, &at, piece_of(h, frame, i), here, out) < 0)
                return false;
            bytes -= here;
        }
    return true;
}

/* What put has begun to copy is done. */
static bool copied(struct host *h)
{
    return !h->stream || (send(h) == FST_OK && stream_sync(h->stream) == FST_OK);
}

/* ------------------------------------------------------------------ find; the lock is held */

static bool same_key(const struct store_key *a, const struct store_key *b)
{
    return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

static bool is_root(const struct store_key *parent)
{
    return (parent->word[0] | parent->word[1]) == 0;
}

static int32_t *bucket_of(const struct host *h, int32_t *table, const struct store_key *key)
{
    return table + (key->word[0] & (uint64_t)(h->n_buckets - 1));
}

static int32_t find(const struct host *h, const struct store_key *key, enum store_kind kind)
{
    int32_t i = *bucket_of(h, h->bucket, key);
    while (i && (h->object[i].kind != kind || !same_key(&h->object[i].key, key)))
        i = h->object[i].chain;
    return i;
}

static bool same_name(const struct host *h, int32_t i, const struct store_name *n)
{
    const struct object *x = &h->object[i];
    return x->n == n->n && x->n_ids == n->n_ids && same_key(&x->parent, &n->parent) &&
           memcmp(x->salt, n->salt, sizeof x->salt) == 0 &&
           memcmp(h->ids + (int64_t)i * KERN_PAGE, n->ids, (size_t)n->n_ids * sizeof *n->ids) == 0;
}

/* ------------------------------------------------------------------ order of use; the lock is held */

static void list_remove(struct host *h, int32_t i)
{
    struct object *o = h->object;
    o[o[i].older].newer = o[i].newer;
    o[o[i].newer].older = o[i].older;
}

static void list_put(struct host *h, int32_t i, int32_t older)
{
    struct object *o = h->object;
    o[i].older = older;
    o[i].newer = o[older].newer;
    o[o[i].newer].older = i;
    o[older].newer = i;
}

static int32_t parent_of(const struct host *h, int32_t i)
{
    const struct store_key *up = &h->object[i].parent;
    return is_root(up) ? 0 : find(h, up, STORE_PAGE);
}

/* An object of the list, with what it stands on, is used in this call.  What the call has used already stays
 * where it is, unless a parent may come behind its children: then that has to be the newest of all. */
static void use(struct host *h, int32_t i)
{
    int32_t top = i, at = i;
    for (; top && (h->orphans || h->object[top].used_by != h->calls); top = parent_of(h, top)) {
        h->object[top].used_by = h->calls;
        list_remove(h, top);
        at = top;
    }
    h->orphans |= !top && !is_root(&h->object[at].parent);
    at = h->object[top].older; /* the end where top is 0 */
    for (; i != top; i = parent_of(h, i)) {
        list_put(h, i, at);
        at = i;
    }
}

/* ------------------------------------------------------------------ make, remove; the lock is held */

static struct chain_pool frame_pool(struct host *h)
{
    return (struct chain_pool){h->next, &h->free, &h->n_free};
}

static void hang_tail(struct host *h, int32_t i)
{
    struct object *x = &h->object[i];
    if (is_root(&x->parent)) {
        h->root_tails[x->n_ids]++;
        return;
    }
    int32_t *first = bucket_of(h, h->tail_bucket, &x->parent);
    x->tail_chain = *first;
    *first = i;
}

static void drop_tail(struct host *h, int32_t i)
{
    const struct object *x = &h->object[i];
    if (is_root(&x->parent)) {
        h->root_tails[x->n_ids]--;
        return;
    }
    int32_t *link = bucket_of(h, h->tail_bucket, &x->parent);
    while (*link != i)
        link = &h->object[*link].tail_chain;
    *link = x->tail_chain;
}

static void remove_object(struct host *h, int32_t i)
{
    struct object *x = &h->object[i];
    int32_t *link = bucket_of(h, h->bucket, &x->key);
    while (*link != i)
        link = &h->object[*link].chain;
    *link = x->chain;
    if (x->kind == STORE_SNAPSHOT)
        drop_tail(h, i);
    list_remove(h, i);
    h->store.stats.n_objects--;
    h->store.stats.bytes -= (uint64_t)x->bytes;
    chain_give(frame_pool(h), i, x->n_frames);
    *x = (struct object){0};
}

/* So many free frames, if those that this call has not used are enough for them. */
static bool make_room(struct host *h, int64_t n)
{
    int64_t have = h->n_free;
    for (int32_t i = h->object[0].newer; have < n && i && h->object[i].used_by != h->calls;
         i = h->object[i].newer)
        have += h->object[i].n_frames;
    if (have < n)
        return false;
    while (h->n_free < n) {
        remove_object(h, h->object[0].newer);
        h->store.stats.n_evicted++;
    }
    return true;
}

static void add_object(struct host *h, int32_t i, int32_t n_frames, const struct store_name *n,
                       size_t bytes)
{
    int32_t *first = bucket_of(h, h->bucket, &n->key);
    h->object[i] = (struct object){.key = n->key,
                                   .parent = n->parent,
                                   .n = n->n,
                                   .bytes = (int64_t)bytes,
                                   .n_ids = n->n_ids,
                                   .n_frames = n_frames,
                                   .chain = *first,
                                   .kind = (uint8_t)n->kind};
    memcpy(h->object[i].salt, n->salt, sizeof n->salt);
    memcpy(h->ids + (int64_t)i * KERN_PAGE, n->ids, (size_t)n->n_ids * sizeof *n->ids);
    *first = i;
    if (n->kind == STORE_SNAPSHOT)
        hang_tail(h, i);
    list_put(h, i, h->object[0].older);
    use(h, i);
    h->store.stats.n_objects++;
    h->store.stats.bytes += bytes;
}

/* ------------------------------------------------------------------ the store */

static bool host_has(struct store *s, const struct store_key *key, enum store_kind kind)
{
    struct host *h = of(s);
    pthread_mutex_lock(&h->lock);
    bool found = find(h, key, kind) != 0;
    pthread_mutex_unlock(&h->lock);
    return found;
}

static void host_tails(struct store *s, const struct store_key *parent, uint64_t bits[4])
{
    struct host *h = of(s);
    pthread_mutex_lock(&h->lock);
    if (is_root(parent))
        for (int n = 0; n < KERN_PAGE; n++)
            bits[n / 64] |= (uint64_t)(h->root_tails[n] > 0) << n % 64;
    else
        for (int32_t i = *bucket_of(h, h->tail_bucket, parent); i; i = h->object[i].tail_chain)
            if (same_key(&h->object[i].parent, parent))
                bits[h->object[i].n_ids / 64] |= (uint64_t)1 << h->object[i].n_ids % 64;
    pthread_mutex_unlock(&h->lock);
}

/* Frames for an object that is not there; 0: it is, or there are none. */
static int32_t begin_put(struct host *h, struct store_put *p, size_t bytes, int32_t *n_frames)
{
    int32_t at = find(h, &p->name.key, p->name.kind);
    bool root = is_root(&p->name.parent);
    int32_t parent = root ? 0 : find(h, &p->name.parent, STORE_PAGE);
    int64_t n = FST_MAX(1, div_up((int64_t)bytes, h->frame_bytes));
    if (at) {
        p->kept = same_name(h, at, &p->name); /* a key is not enough: the one that is there stays */
        h->store.stats.n_refused += !p->kept;
        use(h, at);
        return 0;
    }
    if (parent)
        use(h, parent);
    /* Nothing goes for what stands on nothing here: the rest of a path whose front was too long. */
    if (n > h->n_free && (!(root || parent) || !make_room(h, n))) {
        h->store.stats.n_refused++;
        return 0;
    }
    *n_frames = (int32_t)n;
    return chain_take(frame_pool(h), *n_frames);
}

static void host_clear(struct store *s)
{
    struct host *h = of(s);
    pthread_mutex_lock(&h->lock);
    while (h->object[0].newer)
        remove_object(h, h->object[0].newer);
    pthread_mutex_unlock(&h->lock);
}

static void host_put(struct store *s, struct store_put *p, int n)
{
    struct host *h = of(s);
    bool fine = true;
    h->calls++;
    h->orphans = false;
    for (int i = 0; i < n; i++) {
        size_t bytes = payload(p[i].runs, p[i].n_runs);
        int32_t n_frames = 0;
        FST_ASSERT(p[i].name.n_ids <= KERN_PAGE);
        FST_ASSERT(p[i].name.kind == STORE_PAGE || p[i].name.n_ids < KERN_PAGE);
        p[i].kept = false;
        pthread_mutex_lock(&h->lock);
        int32_t at = begin_put(h, &p[i], bytes, &n_frames);
        pthread_mutex_unlock(&h->lock);
        if (!at)
            continue;
        fine &= copy(h, at, p[i].runs, bytes, false);
        pthread_mutex_lock(&h->lock);
        add_object(h, at, n_frames, &p[i].name, bytes);
        pthread_mutex_unlock(&h->lock);
        p[i].kept = true;
        s->stats.n_put++;
        s->stats.put_bytes += bytes;
    }
    if (copied(h) && fine)
        return;
    host_clear(s); /* nobody knows what came of it */
    for (int i = 0; i < n; i++)
        p[i].kept = false;
}

static void host_get(struct store *s, struct store_get *g, int n)
{
    struct host *h = of(s);
    h->calls++;
    h->orphans = false;
    for (int i = 0; i < n; i++) {
        size_t bytes = payload(g[i].runs, g[i].n_runs);
        pthread_mutex_lock(&h->lock);
        int32_t at = find(h, &g[i].name.key, g[i].name.kind);
        g[i].found = at && same_name(h, at, &g[i].name) && h->object[at].bytes == (int64_t)bytes;
        if (g[i].found)
            use(h, at);
        pthread_mutex_unlock(&h->lock);
        s->stats.n_missed += !g[i].found;
        if (!g[i].found)
            continue;
        g[i].found = copy(h, at, g[i].runs, bytes, true);
        s->stats.n_got++;
        s->stats.got_bytes += bytes;
    }
    if (send(h) == FST_OK)
        return;
    for (int i = 0; i < n; i++)
        g[i].found = false;
}

static void host_flush(struct store *s)
{
    (void)s;
}

static void host_close(struct store *s)
{
    struct host *h = of(s);
    struct stream *stream = h->stream;
    pthread_mutex_destroy(&h->lock);
    if (stream)
        device_free_shared(stream->device, h, (size_t)host_bytes(s));
    else
        mem_free(h);
}

/* ------------------------------------------------------------------ open */

/* A block being divided; without one (at NULL) its size is counted. */
struct carve {
    uint8_t *at;
    int64_t bytes;
};

static void *carve(struct carve *c, int64_t n, size_t size)
{
    int64_t from = round_up(c->bytes, 64);
    c->bytes = from + n * (int64_t)size;
    return c->at ? c->at + from : NULL;
}

static int64_t place(struct host *h, uint8_t *block)
{
    struct carve c = {block, sizeof *h};
    int64_t n = h->n_frames + 1;
    h->object = carve(&c, n, sizeof *h->object);
    h->part = carve(&c, h->n_parts + 1, sizeof *h->part);
    h->ids = carve(&c, n, KERN_PAGE * sizeof *h->ids);
    h->next = carve(&c, n, sizeof *h->next);
    h->bucket = carve(&c, h->n_buckets, sizeof *h->bucket);
    h->tail_bucket = carve(&c, h->n_buckets, sizeof *h->tail_bucket);
    h->bytes = carve(&c, h->n_frames, (size_t)h->frame_bytes);
    return c.bytes;
}

/* Bytes of everything with so many frames. */
static int64_t size_with(struct host *h, int64_t n_frames)
{
    h->n_frames = n_frames;
    for (h->n_buckets = 1; h->n_buckets < n_frames;)
        h->n_buckets *= 2;
    return place(h, NULL);
}

static enum fst_status check_opts(const struct host_opts *o, int64_t *frame_bytes)
{
    *frame_bytes = 0;
    for (int i = 0; i < o->n_parts; i++) {
        if (o->part_bytes[i] < 0)
            return fst_error(FST_EINVAL, "host: part_bytes[%d] is %lld, expected 0 or more", i,
                             (long long)o->part_bytes[i]);
        *frame_bytes += o->part_bytes[i];
    }
    if (*frame_bytes <= 0)
        return fst_error(FST_EINVAL, "host: part_bytes are %lld together, expected more than 0",
                         (long long)*frame_bytes);
    if (o->layout != HOST_PAGE_FIRST_DIRECT && o->layout != HOST_LAYER_FIRST)
        return fst_error(FST_EINVAL, "host: layout is %d, expected one of enum host_layout",
                         (int)o->layout);
    return FST_OK;
}

static const struct store_ops ops = {.has = host_has,
                                     .tails = host_tails,
                                     .put = host_put,
                                     .get = host_get,
                                     .clear = host_clear,
                                     .flush = host_flush,
                                     .close = host_close};

enum fst_status host_open(struct store **out, const struct host_opts *o)
{
    struct host plan = {.layout = o->layout, .n_parts = o->n_parts, .stream = o->stream};
    int64_t low = 0, high, available = (int64_t)FST_MIN(mem_available_bytes(), INT64_MAX);
    *out = NULL;
    FST_TRY(check_opts(o, &plan.frame_bytes));
    if (!o->budget_bytes && (o->n_frames < 0 || o->n_frames >= INT32_MAX))
        return fst_error(FST_EINVAL, "host: n_frames is %lld, expected 1 to %d",
                         (long long)o->n_frames, INT32_MAX - 1);
    if (!o->budget_bytes)
        low = o->n_frames;
    for (high = o->budget_bytes / plan.frame_bytes, high = FST_MIN(high, INT32_MAX - 1);
         low < high;) {
        int64_t n = high - (high - low) / 2; /* the most frames within the budget */
        if (size_with(&plan, n) <= o->budget_bytes)
            low = n;
        else
            high = n - 1;
    }
    if (low < 1)
        return fst_error(FST_EINVAL, "host: budget_bytes is %lld, expected %lld or more",
                         (long long)o->budget_bytes, (long long)size_with(&plan, 1));
    int64_t bytes = size_with(&plan, low);
    uint8_t *block = NULL;
    if (bytes <= available)
        block = o->stream ? device_alloc_shared(o->stream->device, (size_t)bytes)
                          : mem_aligned(64, (size_t)bytes);
    if (!block)
        return fst_error(FST_ENOMEM, "host: no memory for %lld MiB of kept prefixes, %lld are left",
                         (long long)(bytes >> 20), (long long)(available >> 20));
    struct host *h = (struct host *)(void *)block;
    *h = plan;
    place(h, block);
    memset(block + sizeof *h, 0, (size_t)(h->bytes - block) - sizeof *h); /* the tables */
    for (int i = 0; i < o->n_parts; i++)
        h->part[i + 1] = h->part[i] + o->part_bytes[i];
    for (int64_t i = h->n_frames; i > 0; i--) { /* the lowest number is used first */
        h->next[i] = h->free;
        h->free = (int32_t)i;
    }
    h->n_free = h->n_frames;
    h->store = (struct store){.ops = &ops, .name = "host", .far = o->stream != NULL};
    pthread_mutex_init(&h->lock, NULL);
    *out = &h->store;
    return FST_OK;
}

int64_t host_frames(const struct store *s)
{
    return ((const struct host *)s)->n_frames;
}

int64_t host_bytes(const struct store *s)
{
    struct host h = *(const struct host *)s;
    return place(&h, NULL);
}

/* ------------------------------------------------------------------ check */

static enum fst_status fault(const char *what, int64_t i)
{
    return fst_error(FST_EINTERNAL, "host: %s (%lld)", what, (long long)i);
}

static enum fst_status check_object(const struct host *h, int32_t i, int64_t *n_frames)
{
    const struct object *x = &h->object[i];
    int32_t frame = i;
    if (!x->kind)
        return fault("what is used is no object", i);
    if (find(h, &x->key, x->kind) != i)
        return fault("a lookup finds another object, or none", i);
    if (h->object[x->newer].older != i)
        return fault("the order of use is torn", i);
    if (x->n_frames != FST_MAX(1, div_up(x->bytes, h->frame_bytes)))
        return fault("an object has more or fewer frames than it needs", i);
    for (int32_t k = 0; k < x->n_frames; k++, frame = h->next[frame])
        if (frame < 1 || frame > h->n_frames)
            return fault("a chain of frames is too short", i);
    if (frame)
        return fault("a chain of frames is too long", i);
    for (int32_t up = parent_of(h, i), k = up ? h->object[up].older : 0; up && k != i;
         k = h->object[k].older)
        if (!k)
            return fault("an object would go before one that stands on it", up);
    *n_frames += x->n_frames;
    return FST_OK;
}

enum fst_status host_check(const struct store *s)
{
    const struct host *h = (const struct host *)s;
    int64_t n = 0, n_frames = 0, n_free = 0, tails = 0, root = 0;
    for (int32_t i = h->object[0].newer; i; i = h->object[i].newer, n++) {
        if (n > h->n_frames)
            return fault("the order of use has no end", i);
        FST_TRY(check_object(h, i, &n_frames));
        tails += h->object[i].kind == STORE_SNAPSHOT;
    }
    for (int32_t i = h->free; i && n_free <= h->n_frames; i = h->next[i])
        n_free++;
    if (n_free != h->n_free || n_free + n_frames != h->n_frames)
        return fault("frames are neither free nor an object's", h->n_frames - n_free - n_frames);
    if (n != (int64_t)s->stats.n_objects)
        return fault("objects, counted otherwise", n);
    for (int i = 0; i < KERN_PAGE; i++)
        root += h->root_tails[i];
    for (int64_t b = 0; b < h->n_buckets; b++)
        for (int32_t i = h->tail_bucket[b]; i; i = h->object[i].tail_chain)
            root++;
    return root == tails ? FST_OK : fault("snapshots, found otherwise by their parents", root);
}
