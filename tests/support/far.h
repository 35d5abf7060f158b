/* far.h - a device whose memory the host cannot touch: for tests of the seam that a card stands behind.
 *
 * Its memory is ordinary memory that is unmapped for everybody but while a kernel of far_kernels or
 * a copy runs: a host access is a segmentation fault.  Kernels are those of a CPU set, on the
 * caller's thread.  As late as a card may be: launches and queued copies are kept, arguments by
 * value, and run when the queue is waited for, so that who reads without waiting sees what was there
 * before.  far_copy (device_copy) waits for nobody.  Between begin and end of a recording launches go
 * into the recording, and into the queue when that is launched.  One device at a time. */
#ifndef TESTS_SUPPORT_FAR_H
#define TESTS_SUPPORT_FAR_H

#include <sys/mman.h>

#include "device/device.h"
#include "kernels/kernels.h"

enum { FAR_REGIONS = 1024, FAR_ARGS = 256 };

/* A recorded launch, or (run NULL) copy. */
struct far_launch {
    enum fst_status (*run)(void *args, struct stream *s);
    struct stream *s;
    _Alignas(16) uint8_t args[FAR_ARGS];
    struct rows rows; /* what the arguments begin with a pointer to, in blocks that take rows */
    void *to;
    const void *from;
    size_t bytes;
};
struct far_graph {
    struct far_launch *launch; /* owned */
    int n;
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
    struct far_graph *recording;      /* NULL: none */
    struct far_graph pending;         /* what nobody has waited for yet */
    bool launching;
    struct kernels real;
} far_state;

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
    FST_ASSERT(!far_state.recording);
    if (far_state.fail_alloc && --far_state.fail_alloc == 0)
        return NULL;
    void *p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FST_ASSERT(p != MAP_FAILED);
    FST_ASSERT(far_state.n < FAR_REGIONS);
    far_state.region[far_state.n].p = p;
    far_state.region[far_state.n++].bytes = whole;
    return p;
}

static inline enum fst_status far_copy(void *to, const void *from, size_t bytes)
{
    FST_ASSERT(!far_state.recording);
    if (far_state.fail_copy && --far_state.fail_copy == 0)
        return fst_error(FST_EINTERNAL, "far: copy failed");
    far_state.calls++;
    far_open(PROT_READ | PROT_WRITE);
    memcpy(to, from, bytes);
    far_open(PROT_NONE);
    return FST_OK;
}

static inline enum fst_status far_sync(void *queue)
{
    FST_ASSERT(queue == &far_state);
    FST_ASSERT(!far_state.recording);
    struct far_graph *g = &far_state.pending;
    enum fst_status rc = FST_OK;
    far_open(PROT_READ | PROT_WRITE);
    far_state.launching = true;
    for (int i = 0; i < g->n && rc == FST_OK; i++) {
        struct far_launch *l = &g->launch[i];
        if (l->rows.slot)
            *(const struct rows **)(void *)l->args = &l->rows;
        rc = l->run ? l->run(l->args, l->s) : far_copy(l->to, l->from, l->bytes);
    }
    far_state.launching = false;
    far_open(PROT_NONE);
    free(g->launch);
    *g = (struct far_graph){0};
    return rc;
}

static inline void far_free(void *p)
{
    FST_ASSERT(far_sync(&far_state) == FST_OK); /* as a card does before it gives memory back */
    for (int i = 0; i < far_state.n; i++)
        if (far_state.region[i].p == p) {
            munmap(p, far_state.region[i].bytes);
            far_state.region[i] = far_state.region[--far_state.n];
            return;
        }
    FST_ASSERT(!"memory of this device");
}

static inline void *far_alloc_shared(size_t bytes)
{
    FST_ASSERT(!far_state.recording);
    return mem_calloc(1, bytes);
}

/* Room for one launch more, in the recording or else in the queue. */
static inline struct far_launch *far_record(void)
{
    struct far_graph *g = far_state.recording ? far_state.recording : &far_state.pending;
    g->launch = realloc(g->launch, (size_t)(g->n + 1) * sizeof *g->launch);
    FST_ASSERT(g->launch);
    return memset(&g->launch[g->n++], 0, sizeof *g->launch);
}

static inline enum fst_status far_copy_queued(void *queue, void *to, const void *from, size_t bytes)
{
    (void)queue;
    struct far_launch *l = far_record();
    l->to = to;
    l->from = from;
    l->bytes = bytes;
    return FST_OK;
}

static inline enum fst_status far_queue_new(void **queue)
{
    *queue = &far_state;
    return FST_OK;
}

static inline void far_queue_free(void *queue)
{
    FST_ASSERT(queue == &far_state);
}

static inline void far_graph_free(void *graph)
{
    struct far_graph *g = graph;
    free(g->launch);
    free(g);
    far_state.held--;
}

static inline enum fst_status far_capture_begin(void *queue)
{
    FST_ASSERT(queue == &far_state);
    FST_ASSERT(!far_state.recording);
    far_state.begun++;
    if (far_state.fail_begin && --far_state.fail_begin == 0)
        return fst_error(FST_EUNSUPPORTED, "far: no recording begins");
    far_state.recording = calloc(1, sizeof *far_state.recording);
    FST_ASSERT(far_state.recording);
    far_state.held++;
    return FST_OK;
}

static inline enum fst_status far_capture_end(void *queue, void **graph)
{
    FST_ASSERT(queue == &far_state);
    FST_ASSERT(far_state.recording);
    far_state.ended++;
    *graph = far_state.recording;
    far_state.recording = NULL;
    if (far_state.fail_end && --far_state.fail_end == 0) {
        far_graph_free(*graph);
        *graph = NULL;
        return fst_error(FST_EUNSUPPORTED, "far: the recording is of no use");
    }
    return FST_OK;
}

static inline enum fst_status far_graph_launch(void *queue, void *graph)
{
    struct far_graph *g = graph;
    FST_ASSERT(queue == &far_state);
    FST_ASSERT(!far_state.recording);
    if (far_state.fail_launch && --far_state.fail_launch == 0)
        return fst_error(FST_EUNSUPPORTED, "far: the recording does not start");
    far_state.launched++;
    for (int i = 0; i < g->n; i++)
        *far_record() = g->launch[i];
    return FST_OK;
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
    if (far_state.recording && far_state.fail_kernel && --far_state.fail_kernel == 0)
        return fst_error(FST_EINTERNAL, "far: %s: launch failed", entry);
    struct far_launch *l = far_record();
    FST_ASSERT(bytes <= sizeof l->args);
    l->run = run;
    l->s = s;
    memcpy(l->args, args, bytes);
    if (far_takes_rows(entry))
        l->rows = **(const struct rows *const *)args;
    return FST_OK;
}

static inline enum fst_status far_fill(void *queue, void *p, size_t bytes,
                                       const struct device_fill *f)
{
    struct stream host = {0};
    FST_TRY(far_sync(queue));
    far_state.calls++;
    far_open(PROT_READ | PROT_WRITE);
    enum fst_status rc = stream_fill(&host, p, bytes, f);
    far_open(PROT_NONE);
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
                                         .fill = far_fill,
                                         .capture_begin = far_capture_begin,
                                         .capture_end = far_capture_end,
                                         .graph_launch = far_graph_launch,
                                         .graph_free = far_graph_free,
                                         .kernels = far_kernels};

#endif
