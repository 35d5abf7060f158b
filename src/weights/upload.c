/* upload.c - a checkpoint's values to device memory.
 *
 * On the device all values lie in one slab in the order in which they lie in the files, so that reading goes
 * through each file once.  The slab is cut into stages of a few MiB; several threads take stages, read
 * what belongs there from the files straight into pinned memory and let the device fetch it, one copy a
 * stage, while they read the next into their second buffer.  A single thread that copies tensor by tensor
 * from a mapping moves a few GB/s; a card takes 55 over its bus. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "weights/store.h"
#include "weights/weights.h"

enum { LINE = 256, STAGE = 4 << 20, BUFFERS = 2, THREADS_MAX = 16 };

/* One tensor: where it is and where it goes. */
struct piece {
    const void **pointer;          /* in the tree: to point to the slab in the end */
    const uint8_t *from;           /* in a mapping, or widened on the host */
    const struct weights_map *map; /* NULL: on the host */
    const char *path;
    int64_t bytes, at; /* at: in the slab */
};

struct worker {
    struct stream stream[BUFFERS];
    uint8_t *buffer[BUFFERS]; /* shared memory */
    int n, next;              /* streams that are open; buffer of the next stage */
};

struct upload {
    const struct device *device;
    struct piece *piece; /* by place in the slab */
    int64_t n, total, stage;
    uint8_t *slab;
    struct worker worker[THREADS_MAX];
    _Atomic int64_t done; /* bytes */
    const struct weights_upload_opts *opts;
    pthread_mutex_t lock;
    _Atomic int rc;
    char text[512]; /* of the first failure */
};

/* ---- what there is to do --------------------------------------------------------------------- */
static int by_source(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    bool host_x = !x->map, host_y = !y->map;
    if (host_x != host_y)
        return host_x - host_y;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void find_source(const struct weights *w, struct piece *p)
{
    const struct shards *s = &w->store->checkpoint.shards;
    for (int i = 0; i < s->n_shards; i++) {
        const struct weights_map *m = &s->shard[i].map;
        if (p->from < m->data || p->from >= m->data + m->bytes)
            continue;
        p->map = m;
        p->path = s->shard[i].path;
    }
}

static enum fst_status list_pieces(struct weights *w, struct upload *u)
{
    int64_t n = w->store->checkpoint.inventory.n, at = 0;
    u->piece = mem_calloc((size_t)n + 1, sizeof *u->piece);
    if (!u->piece)
        return fst_error(FST_ENOMEM, "weights: no memory for a list of %lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        struct piece *p = &u->piece[u->n];
        p->pointer = store_pointer_of(w, i, &p->bytes);
        if (!p->pointer)
            continue;
        p->from = *p->pointer;
        find_source(w, p);
        u->n++;
    }
    qsort(u->piece, (size_t)u->n, sizeof *u->piece, by_source);
    for (int64_t i = 0; i < u->n; i++) {
        u->piece[i].at = at;
        at += round_up(u->piece[i].bytes, LINE);
    }
    u->total = at;
    return FST_OK;
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* The first piece that ends behind `at`. */
static int64_t first_piece(const struct upload *u, int64_t at)
{
    int64_t low = 0, high = u->n;
    while (low < high) {
        int64_t mid = (low + high) / 2;
        if (u->piece[mid].at + u->piece[mid].bytes > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static enum fst_status read_stage(const struct upload *u, int64_t begin, int64_t end, uint8_t *to)
{
    for (int64_t i = first_piece(u, begin); i < u->n && u->piece[i].at < end; i++) {
        const struct piece *p = &u->piece[i];
        int64_t from = FST_MAX(begin - p->at, 0), left = FST_MIN(p->bytes, end - p->at) - from;
        uint8_t *at = to + (p->at + from - begin);
        if (!p->map)
            memcpy(at, p->from + from, (size_t)left);
        else
            FST_TRY(weights_map_read(p->map, p->path, at, p->from + from - p->map->data, left));
    }
    return FST_OK;
}

/* Buffers are made by the thread that fills them: pinning them takes longer than a stage. */
static enum fst_status open_worker(struct upload *u, struct worker *k)
{
    for (; k->n < BUFFERS; k->n++) {
        int i = k->n;
        FST_TRY(stream_init(&k->stream[i], u->device, NULL, PRECISION_NATIVE, 0));
        k->buffer[i] = device_alloc_shared(u->device, (size_t)u->stage);
        if (!k->buffer[i]) {
            stream_release(&k->stream[i]);
            return fst_error(FST_ENOMEM, "weights: no pinned memory for %lld bytes of staging",
                             (long long)u->stage);
        }
    }
    return FST_OK;
}

static enum fst_status do_stage(struct upload *u, struct worker *k, int64_t stage)
{
    int64_t begin = stage * u->stage, end = FST_MIN(begin + u->stage, u->total);
    int i = k->next;
    FST_TRY(open_worker(u, k));
    FST_TRY(stream_sync(&k->stream[i])); /* its last copy */
    FST_TRY(read_stage(u, begin, end, k->buffer[i]));
    FST_TRY(stream_copy(&k->stream[i], u->slab + begin, k->buffer[i], (size_t)(end - begin)));
    k->next = (i + 1) % BUFFERS;
    atomic_fetch_add(&u->done, end - begin);
    return FST_OK;
}

static void fail(struct upload *u, enum fst_status rc)
{
    pthread_mutex_lock(&u->lock);
    if (atomic_load(&u->rc) == FST_OK) {
        snprintf(u->text, sizeof u->text, "%s", fst_error_text());
        atomic_store(&u->rc, (int)rc);
    }
    pthread_mutex_unlock(&u->lock);
}

static void stages(void *ud, int64_t first, int64_t last, int worker)
{
    struct upload *u = ud;
    for (int64_t s = first; s < last && atomic_load(&u->rc) == FST_OK; s++) {
        enum fst_status rc = do_stage(u, &u->worker[worker], s);
        if (rc < 0)
            fail(u, rc);
    }
    if (worker == 0 && u->opts->on_load) /* the caller's thread */
        u->opts->on_load(u->opts->on_load_ud, (uint64_t)atomic_load(&u->done), (uint64_t)u->total);
}

static void close_workers(struct upload *u)
{
    for (int w = 0; w < THREADS_MAX; w++)
        for (int i = 0; i < u->worker[w].n; i++) {
            enum fst_status rc = stream_sync(&u->worker[w].stream[i]);
            if (rc < 0)
                fail(u, rc);
            device_free_shared(u->device, u->worker[w].buffer[i], (size_t)u->stage);
            stream_release(&u->worker[w].stream[i]);
        }
}

static enum fst_status run_stages(struct upload *u, int n_threads)
{
    struct pool *pool = NULL;
    FST_TRY(pool_new(&pool, n_threads));
    pool_run(pool, div_up(u->total, u->stage), 1, stages, u);
    close_workers(u);
    pool_free(pool);
    return u->rc < 0 ? fst_error((enum fst_status)u->rc, "%s", u->text) : FST_OK;
}

static int threads_for(const struct weights_upload_opts *o, int64_t n_stages)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = o->n_threads ? o->n_threads : (int)FST_MIN(FST_MAX(cores, 1), 8);
    return (int)FST_MAX(1, FST_MIN(FST_MIN(n, (int)THREADS_MAX), n_stages));
}

enum fst_status weights_upload(struct weights *w, const struct device *d,
                               const struct weights_upload_opts *opts)
{
    static const struct weights_upload_opts plain = {0};
    struct weights_store *st = w->store;
    struct upload *u = mem_calloc(1, sizeof *u);
    FST_ASSERT(!st->slab);
    if (!u)
        return fst_error(FST_ENOMEM, "weights: no memory");
    u->device = d;
    u->opts = opts ? opts : &plain;
    u->stage = u->opts->stage_bytes ? u->opts->stage_bytes : STAGE;
    pthread_mutex_init(&u->lock, NULL);
    enum fst_status rc = list_pieces(w, u);
    if (rc == FST_OK) {
        st->device = d;
        st->slab_bytes = (size_t)u->total;
        u->slab = st->slab = device_alloc(d, st->slab_bytes);
        if (!u->slab)
            rc = fst_error(
                FST_ENOMEM, "weights: %.2f GiB do not fit on %s (%.2f GiB free at start)",
                (double)u->total / 1073741824.0, d->card, (double)d->free_bytes / 1073741824.0);
    }
    if (rc == FST_OK)
        rc = run_stages(u, threads_for(u->opts, div_up(u->total, u->stage)));
    for (int64_t i = 0; rc == FST_OK && i < u->n; i++)
        *u->piece[i].pointer = u->slab + u->piece[i].at;
    pthread_mutex_destroy(&u->lock);
    mem_free(u->piece);
    mem_free(u);
    return rc;
}
