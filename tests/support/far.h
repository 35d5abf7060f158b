/* far.h - a device whose memory the host cannot touch: for tests of the seam that a card stands behind.
 *
 * Its memory is ordinary memory that is unmapped for everybody but while a kernel of far_kernels or
 * a copy runs: a host access is a segmentation fault.  Kernels are those of a CPU set, on the
 * caller's thread.  As late as a card may be: launches and queued copies are kept, arguments by
 * value, and run when their queue is waited for, so that who reads without waiting sees what was there
 * before, and so does another queue that was not told to run behind.  far_copy (device_copy) waits for
 * nobody.  Between begin and end of a recording launches go into the recording, and into the queue when
 * that is launched.  One device at a time; any thread. */
#ifndef TESTS_SUPPORT_FAR_H
#define TESTS_SUPPORT_FAR_H

#include <pthread.h>
#include <sys/mman.h>

#include "device/device.h"
#include "kernels/kernels.h"

enum { FAR_REGIONS = 8192, FAR_ARGS = 256, FAR_QUEUES = 16 };

struct far_queue;

/* A recorded launch, or (run NULL) copy, or (behind) wait. */
struct far_launch {
    enum fst_status (*run)(void *args, struct stream *s);
    struct stream *s;
    _Alignas(16) uint8_t args[FAR_ARGS];
    struct rows rows; /* what the arguments begin with a pointer to, in blocks that take rows */
    void *to;
    const void *from;
    size_t bytes;
    struct far_queue *behind; /* this one's first `until` */
    int64_t until;
};
struct far_graph {
    struct far_launch *launch; /* owned */
    int n;
};

struct far_queue {
    bool used;
    struct far_graph pending;    /* what nobody has waited for yet */
    struct far_graph *recording; /* NULL: none */
    int64_t n_put, n_run;        /* of all times */
};

static struct {
    struct {
        void *p;
        size_t bytes;
    } region[FAR_REGIONS];
    int n, calls;   /* calls: launches and copies so far */
    int fail_alloc; /* the how-manieth allocation fails, 0: none */
    int fail_copy, fail_begin, fail_end, fail_launch, fail_kernel;
    int begun, ended, launched, held; /* recordings: begins, ends, launches, those not freed */
    bool launching, recording;        /* recording: any queue */
    struct far_queue queue[FAR_QUEUES];
    struct kernels real;
} far_state;
static pthread_mutex_t far_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static inline void far_lock(void)
{
    pthread_mutex_lock(&far_mutex);
}

static inline void far_unlock(void)
{
    pthread_mutex_unlock(&far_mutex);
}

static inline void far_open(int protection)
{
    if (far_state.launching) /* open for all of a recording */
        return;
    for (int i = 0; i < far_state.n; i++)
        FST_ASSERT(mprotect(far_state.region[i].p, far_state.region[i].bytes, protection) == 0);
}

static inline void *far_alloc(size_t bytes)
{
    size_t whole = (size_t)round_up((int64_t)bytes, 4096);
    void *p = NULL;
    far_lock();
    if (!far_state.fail_alloc || --far_state.fail_alloc > 0) {
        p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        FST_ASSERT(p != MAP_FAILED);
        FST_ASSERT(far_state.n < FAR_REGIONS);
        far_state.region[far_state.n].p = p;
        far_state.region[far_state.n++].bytes = whole;
    }
    far_unlock();
    return p;
}

static inline enum fst_status far_copy(void *to, const void *from, size_t bytes)
{
    enum fst_status rc = FST_OK;
    far_lock();
    if (far_state.fail_copy && --far_state.fail_copy == 0) {
        rc = fst_error(FST_EINTERNAL, "far: copy failed");
    } else {
        far_state.calls++;
        far_open(PROT_READ | PROT_WRITE);
        memcpy(to, from, bytes);
        far_open(PROT_NONE);
    }
    far_unlock();
    return rc;
}

/* Memory is open, the lock held. */
static inline enum fst_status far_run(struct far_queue *q, int64_t until)
{
    enum fst_status rc = FST_OK;
    int64_t first = q->n_put - q->pending.n; /* number of the first that is pending */
    while (q->n_run < until && rc == FST_OK) {
        struct far_launch l = q->pending.launch[q->n_run++ - first];
        if (l.rows.slot)
            *(const struct rows **)(void *)l.args = &l.rows;
        if (l.behind)
            rc = far_run(l.behind, l.until);
        else
            rc = l.run ? l.run(l.args, l.s) : far_copy(l.to, l.from, l.bytes);
    }
    if (rc < 0)
        q->n_run = q->n_put;
    if (q->n_run == q->n_put) {
        free(q->pending.launch);
        q->pending = (struct far_graph){0};
    }
    return rc;
}

static inline enum fst_status far_sync(void *queue)
{
    struct far_queue *q = queue;
    far_lock();
    FST_ASSERT(q->used);
    FST_ASSERT(!q->recording);
    far_open(PROT_READ | PROT_WRITE);
    far_state.launching = true;
    enum fst_status rc = far_run(q, q->n_put);
    far_state.launching = false;
    far_open(PROT_NONE);
    far_unlock();
    return rc;
}

static inline void far_free(void *p)
{
    int at = 0;
    far_lock();
    for (int i = 0; i < FAR_QUEUES; i++) /* as a card does before it gives memory back */
        FST_ASSERT(!far_state.queue[i].used || far_sync(&far_state.queue[i]) == FST_OK);
    while (at < far_state.n && far_state.region[at].p != p)
        at++;
    FST_ASSERT(at < far_state.n);
    munmap(p, far_state.region[at].bytes);
    far_state.region[at] = far_state.region[--far_state.n];
    far_unlock();
}

static inline void *far_alloc_shared(size_t bytes)
{
    size_t whole = (size_t)round_up((int64_t)bytes, 64);
    void *p = mem_aligned(64, whole);
    return p ? memset(p, 0, whole) : NULL;
}

/* Room for one launch more, in the recording or else in the queue.  The lock is held. */
static inline struct far_launch *far_record(struct far_queue *q)
{
    struct far_graph *g = q->recording ? q->recording : &q->pending;
    g->launch = realloc(g->launch, (size_t)(g->n + 1) * sizeof *g->launch);
    FST_ASSERT(g->launch);
    q->n_put += !q->recording;
    return memset(&g->launch[g->n++], 0, sizeof *g->launch);
}

static inline enum fst_status far_copy_queued(void *queue, void *to, const void *from, size_t bytes)
{
    far_lock();
    struct far_launch *l = far_record(queue);
    l->to = to;
    l->from = from;
    l->bytes = bytes;
    far_unlock();
    return FST_OK;
}

static inline enum fst_status far_after(void *queue, void *other)
{
    far_lock();
    struct far_launch *l = far_record(queue);
    l->behind = other;
    l->until = l->behind->n_put;
    FST_ASSERT(!l->behind->recording);
    far_unlock();
    return FST_OK;
}

static inline enum fst_status far_queue_new(void **queue)
{
    int i = 0;
    far_lock();
    while (i < FAR_QUEUES && far_state.queue[i].used)
        i++;
    FST_ASSERT(i < FAR_QUEUES);
    far_state.queue[i].used = true; /* its counts go on: nobody waits for the one before */
    *queue = &far_state.queue[i];
    far_unlock();
    return FST_OK;
}

static inline void far_queue_free(void *queue)
{
    struct far_queue *q = queue;
    far_lock();
    (void)far_sync(q);
    q->used = false;
    far_unlock();
}

static inline void far_graph_free(void *graph)
{
    struct far_graph *g = graph;
    far_lock();
    free(g->launch);
    free(g);
    far_state.held--;
    far_unlock();
}

static inline enum fst_status far_capture_begin(void *queue)
{
    struct far_queue *q = queue;
    enum fst_status rc = FST_OK;
    far_lock();
    FST_ASSERT(!q->recording);
    far_state.begun++;
    if (far_state.fail_begin && --far_state.fail_begin == 0) {
        rc = fst_error(FST_EUNSUPPORTED, "far: no recording begins");
    } else {
        q->recording = calloc(1, sizeof *q->recording);
        FST_ASSERT(q->recording);
        far_state.recording = true;
        far_state.held++;
    }
    far_unlock();
    return rc;
}

static inline enum fst_status far_capture_end(void *queue, void **graph)
{
    struct far_queue *q = queue;
    enum fst_status rc = FST_OK;
    far_lock();
    FST_ASSERT(q->recording);
    far_state.ended++;
    *graph = q->recording;
    q->recording = NULL;
    far_state.recording = false;
    if (far_state.fail_end && --far_state.fail_end == 0) {
        far_graph_free(*graph);
        *graph = NULL;
        rc = fst_error(FST_EUNSUPPORTED, "far: the recording is of no use");
    }
    far_unlock();
    return rc;
}

static inline enum fst_status far_graph_launch(void *queue, void *graph)
{
    struct far_queue *q = queue;
    struct far_graph *g = graph;
    enum fst_status rc = FST_OK;
    far_lock();
    FST_ASSERT(!q->recording);
    if (far_state.fail_launch && --far_state.fail_launch == 0) {
        rc = fst_error(FST_EUNSUPPORTED, "far: the recording does not start");
    } else {
        far_state.launched++;
        for (int i = 0; i < g->n; i++)
            *far_record(q) = g->launch[i];
    }
    far_unlock();
    return rc;
}

/* Blocks whose arguments begin with their rows. */
static inline bool far_takes_rows(const char *entry)
{
    static const char *const name[] = {"kv_write", "ring_store", "index_topk", "attention"};
    for (size_t i = 0; i < FST_COUNT(name); i++)
        if (strcmp(entry, name[i]) == 0)
            return true;
    return false;
}

static inline enum fst_status far_keep(const char *entry, const void *args, size_t bytes,
                                       struct stream *s,
                                       enum fst_status (*run)(void *args, struct stream *s))
{
    struct far_queue *q = s->queue;
    enum fst_status rc = FST_OK;
    far_lock();
    if (q->recording && far_state.fail_kernel && --far_state.fail_kernel == 0) {
        rc = fst_error(FST_EINTERNAL, "far: %s: launch failed", entry);
    } else {
        struct far_launch *l = far_record(q);
        FST_ASSERT(bytes <= sizeof l->args);
        l->run = run;
        l->s = s;
        memcpy(l->args, args, bytes);
        if (far_takes_rows(entry))
            l->rows = **(const struct rows *const *)args;
    }
    far_unlock();
    return rc;
}

static inline enum fst_status far_fill(void *queue, void *p, size_t bytes,
                                       const struct device_fill *f)
{
    struct stream host = {0};
    FST_TRY(far_sync(queue));
    far_lock();
    far_state.calls++;
    far_open(PROT_READ | PROT_WRITE);
    enum fst_status rc = stream_fill(&host, p, bytes, f);
    far_open(PROT_NONE);
    far_unlock();
    return rc;
}

#define FAR_WRAP(entry, args)                                                                      \
    static inline enum fst_status far_run_##entry(void *a, struct stream *s)                       \
    {                                                                                              \
        far_state.calls++;                                                                         \
        far_open(PROT_READ | PROT_WRITE);                                                          \
        enum fst_status rc = far_state.real.entry(a, s);                                           \
        far_open(PROT_NONE);                                                                       \
        return rc;                                                                                 \
    }                                                                                              \
    static inline enum fst_status far_##entry(const args *a, struct stream *s)                     \
    {                                                                                              \
        return far_keep(#entry, a, sizeof *a, s, far_run_##entry);                                 \
    }
KERNELS_MAP(FAR_WRAP)
#undef FAR_WRAP

static inline bool far_kernels(void *table, size_t bytes, bool portable)
{
    (void)portable;
    struct kernels *k = table;
    FST_ASSERT(bytes == sizeof *k);
    kernels_init(&far_state.real, kernels_probe());
    *k = far_state.real;
#define FAR_FILL(entry, args) k->entry = far_##entry;
    KERNELS_MAP(FAR_FILL)
#undef FAR_FILL
    return true;
}

static const struct device far_device = {.name = "far",
                                         .card = "memory out of reach",
                                         .multiprocessors = 1,
                                         .total_bytes = 1 << 30,
                                         .free_bytes = 1 << 30,
                                         .alloc = far_alloc,
                                         .free = far_free,
                                         .alloc_shared = far_alloc_shared,
                                         .free_shared = mem_free,
                                         .copy = far_copy,
                                         .copy_queued = far_copy_queued,
                                         .queue_new = far_queue_new,
                                         .queue_free = far_queue_free,
                                         .sync = far_sync,
                                         .after = far_after,
                                         .fill = far_fill,
                                         .capture_begin = far_capture_begin,
                                         .capture_end = far_capture_end,
                                         .graph_launch = far_graph_launch,
                                         .graph_free = far_graph_free,
                                         .kernels = far_kernels};

#endif
