/* device.h - where kernels run: a stream, its worker threads and its scratch memory.
 *
 * On the CPU a launch runs to its end before the launcher returns, on the threads of the stream's
 * pool.  Memory that kernels read and write comes from device_alloc, once, from one plan at start;
 * nothing is allocated while steps run.  Another device (CUDA) implements the same calls in a
 * module of its own; a launcher there only enqueues. */
#ifndef FST_DEVICE_H
#define FST_DEVICE_H

#include "base/base.h"
#include "base/pool.h"

/* How exact the arithmetic is (model-level switch, the same for all kernels of a run). */
enum precision {
    PRECISION_NATIVE,   /* the published numerics: bf16 activations, FP8 activation and KV grids,
                           FP4 indexer (DeepSeek-V4 reference inference, kernel.py) */
    PRECISION_REFERENCE /* fp32 everywhere, nothing quantised but the weights; ref kernels only */
};

struct stream {
    struct pool *pool; /* borrowed; NULL: the caller's thread alone */
    enum precision precision;
    uint8_t *scratch; /* 64-byte aligned; contents do not survive a launch */
    size_t scratch_bytes;
};

/* Zero-filled, 64-byte aligned (2 MiB aligned and advised as huge pages from 2 MiB up). NULL: no
 * memory.  Freed with device_free and the same size. */
void *device_alloc(size_t bytes);
void device_free(void *p, size_t bytes);

/* Take ownership of nothing: pool is borrowed, scratch is allocated.  FST_ENOMEM. */
enum fst_status stream_init(struct stream *s, struct pool *pool, enum precision precision,
                            size_t scratch_bytes);
void stream_release(struct stream *s);

#endif
