/* far.h - a device whose memory the host cannot touch: for tests of the seam that a card stands behind.
 *
 * Its memory is ordinary memory that is unmapped for everybody but while a kernel of far_kernels or
 * a copy runs: a host access is a segmentation fault.  Kernels are those of a CPU set, on the
 * caller's thread.  One device at a time. */
#ifndef TESTS_SUPPORT_FAR_H
#define TESTS_SUPPORT_FAR_H

#include <sys/mman.h>

#include "device/device.h"
#include "kernels/kernels.h"

enum { FAR_REGIONS = 1024 };

static struct {
    struct {
        void *p;
        size_t bytes;
    } region[FAR_REGIONS];
    int n, calls;   /* calls: launches and copies so far */
    int fail_alloc; /* the how-manieth allocation fails, 0: none */
    int fail_copy;
    struct kernels real;
} far_state;

static inline void far_open(int protection)
{
    for (int i = 0; i < far_state.n; i++)
        FST_ASSERT(mprotect(far_state.region[i].p, far_state.region[i].bytes, protection) == 0);
}

static inline void *far_alloc(size_t bytes)
{
    size_t whole = (size_t)round_up((int64_t)bytes, 4096);
    if (far_state.fail_alloc && --far_state.fail_alloc == 0)
        return NULL;
    void *p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FST_ASSERT(p != MAP_FAILED);
    FST_ASSERT(far_state.n < FAR_REGIONS);
    far_state.region[far_state.n].p = p;
    far_state.region[far_state.n++].bytes = whole;
    return p;
}

static inline void far_free(void *p)
{
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
    return mem_calloc(1, bytes);
}

static inline enum fst_status far_copy(void *to, const void *from, size_t bytes)
{
    if (far_state.fail_copy && --far_state.fail_copy == 0)
        return fst_error(FST_EINTERNAL, "far: copy failed");
    far_state.calls++;
    far_open(PROT_READ | PROT_WRITE);
    memcpy(to, from, bytes);
    far_open(PROT_NONE);
    return FST_OK;
}

static inline enum fst_status far_copy_queued(void *queue, void *to, const void *from, size_t bytes)
{
    (void)queue;
    return far_copy(to, from, bytes);
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

static inline enum fst_status far_sync(void *queue)
{
    FST_ASSERT(queue == &far_state);
    return FST_OK;
}

static inline enum fst_status far_fill(void *queue, void *p, size_t bytes,
                                       const struct device_fill *f)
{
    struct stream host = {0};
    (void)queue;
    far_state.calls++;
    far_open(PROT_READ | PROT_WRITE);
    enum fst_status rc = stream_fill(&host, p, bytes, f);
    far_open(PROT_NONE);
    return rc;
}

#define FAR_WRAP(entry, args)                                                                      \
    static inline enum fst_status far_##entry(const args *a, struct stream *s)                     \
    {                                                                                              \
        far_state.calls++;                                                                         \
        far_open(PROT_READ | PROT_WRITE);                                                          \
        enum fst_status rc = far_state.real.entry(a, s);                                           \
        far_open(PROT_NONE);                                                                       \
        return rc;                                                                                 \
    }
KERNELS_MAP(FAR_WRAP)
#undef FAR_WRAP

static inline bool far_kernels(void *table, size_t bytes)
{
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
                                         .kernels = far_kernels};

#endif
