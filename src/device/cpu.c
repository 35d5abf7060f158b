/* cpu.c - memory and streams; what a device does not do itself is done here, on the host. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/device.h"

enum { HUGE_PAGE = 2 << 20, LINE = 64 };

static void *host_alloc(size_t bytes)
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

void *device_alloc(const struct device *d, size_t bytes)
{
    return d ? d->alloc(FST_MAX(bytes, 1)) : host_alloc(bytes);
}

void device_free(const struct device *d, void *p, size_t bytes)
{
    (void)bytes;
    if (!d)
        mem_free(p);
    else if (p)
        d->free(p);
}

void *device_alloc_shared(const struct device *d, size_t bytes)
{
    return d ? d->alloc_shared(FST_MAX(bytes, 1)) : host_alloc(bytes);
}

void device_free_shared(const struct device *d, void *p, size_t bytes)
{
    (void)bytes;
    if (!d)
        mem_free(p);
    else if (p)
        d->free_shared(p);
}

enum fst_status device_copy(const struct device *d, void *to, const void *from, size_t bytes)
{
    if (!bytes) /* perhaps of nothing, from NULL */
        return FST_OK;
    if (d)
        return d->copy(to, from, bytes);
    memcpy(to, from, bytes);
    return FST_OK;
}

enum fst_status stream_init(struct stream *s, const struct device *d, struct pool *pool,
                            enum precision precision, size_t scratch_bytes)
{
    const char *early = getenv("FIRESTEEL_EARLY_LAUNCH");
    *s = (struct stream){.device = d,
                         .pool = pool,
                         .precision = precision,
                         .early = d && d->early && (!early || strcmp(early, "0") != 0)};
    if (d)
        FST_TRY(d->queue_new(&s->queue));
    if (!scratch_bytes)
        return FST_OK;
    s->scratch = device_alloc(d, scratch_bytes);
    if (!s->scratch) {
        stream_release(s);
        return fst_error(FST_ENOMEM, "stream scratch: %zu bytes", scratch_bytes);
    }
    s->scratch_bytes = scratch_bytes;
    return FST_OK;
}

void stream_release(struct stream *s)
{
    device_free(s->device, s->scratch, s->scratch_bytes);
    if (s->device && s->queue)
        s->device->queue_free(s->queue);
    *s = (struct stream){0};
}

enum fst_status stream_copy(struct stream *s, void *to, const void *from, size_t bytes)
{
    if (s->device)
        return bytes ? s->device->copy_queued(s->queue, to, from, bytes) : FST_OK;
    memcpy(to, from, bytes);
    return FST_OK;
}

enum fst_status stream_fill(struct stream *s, void *p, size_t bytes, const struct device_fill *f)
{
    FST_ASSERT((uintptr_t)p % 16 == 0);
    FST_ASSERT(bytes % 16 == 0);
    if (s->device)
        return s->device->fill(s->queue, p, bytes, f);
    for (uint64_t g = 0; g < bytes / 16; g++)
        fill_group(f, g, (uint32_t *)p + 4 * g);
    return FST_OK;
}

enum fst_status stream_sync(struct stream *s)
{
    return s->device ? s->device->sync(s->queue) : FST_OK;
}

enum fst_status stream_after(struct stream *s, struct stream *other)
{
    return s->device ? s->device->after(s->queue, other->queue) : FST_OK;
}

enum fst_status stream_mark(struct stream *s, int i)
{
    FST_ASSERT(i >= 0 && i < DEVICE_MARKS);
    return s->device && s->device->mark ? s->device->mark(s->queue, i) : FST_OK;
}

enum fst_status stream_between(struct stream *s, int from, int to, double *us)
{
    *us = 0;
    return s->device && s->device->between ? s->device->between(from, to, us) : FST_OK;
}

enum fst_status stream_capture_begin(struct stream *s)
{
    FST_ASSERT(stream_can_capture(s));
    return s->device->capture_begin(s->queue);
}

enum fst_status stream_capture_end(struct stream *s, void **graph)
{
    *graph = NULL;
    return s->device->capture_end(s->queue, graph);
}

enum fst_status stream_graph_launch(struct stream *s, void *graph)
{
    return s->device->graph_launch(s->queue, graph);
}

void stream_graph_free(struct stream *s, void *graph)
{
    if (graph)
        s->device->graph_free(graph);
}
