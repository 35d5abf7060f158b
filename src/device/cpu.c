/* cpu.c - device memory and streams on the CPU. */
#include <string.h>
#include <sys/mman.h>

#include "device/device.h"

enum { HUGE_PAGE = 2 << 20, LINE = 64 };

void *device_alloc(size_t bytes)
{
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE;
    if (bytes > (size_t)PTRDIFF_MAX - align)
        return NULL;
    size_t whole = (size_t)round_up((int64_t)FST_MAX(bytes, 1), (int64_t)align);
    void *p = mem_aligned(align, whole);
    if (!p)
        return NULL;
    if (align == HUGE_PAGE) /* advice; an old kernel without it only costs TLB misses */
        (void)madvise(p, whole, MADV_HUGEPAGE);
    /* Written here rather than left to first use: what does not fit fails at start, and no step
     * pays for page faults. */
    memset(p, 0, whole);
    return p;
}

void device_free(void *p, size_t bytes)
{
    (void)bytes;
    mem_free(p);
}

enum fst_status stream_init(struct stream *s, struct pool *pool, enum precision precision,
                            size_t scratch_bytes)
{
    *s = (struct stream){.pool = pool, .precision = precision, .scratch_bytes = scratch_bytes};
    if (!scratch_bytes)
        return FST_OK;
    s->scratch = device_alloc(scratch_bytes);
    if (!s->scratch) {
        s->scratch_bytes = 0;
        return fst_error(FST_ENOMEM, "stream scratch: %zu bytes", scratch_bytes);
    }
    return FST_OK;
}

void stream_release(struct stream *s)
{
    device_free(s->scratch, s->scratch_bytes);
    *s = (struct stream){0};
}
