/* host.h - the tier in host memory: a store (store.h) of a fixed number of frames.
 *
 * A frame is as large as a page; a page takes one, a snapshot as many as it needs, wherever they are free.
 * One piece of memory is taken at open, frames and tables together, and nothing afterwards.
 *
 * Layouts say where the bytes of a frame lie and nothing else:
 *   page_first_direct  those of all layers together, so that a page is one run
 *   layer_first        those of a layer of all frames together, as in the pools
 *
 * What is put or got counts as used, and so does what it stands on.  When frames run short the least
 * recently used object goes: never one that others stand on, since those are older, and never one that was
 * used in the same call, since then what is put would stand on nothing: it is refused instead.  For what has
 * no parent here nothing goes either. */
#ifndef FST_KV_HOST_H
#define FST_KV_HOST_H

#include "device/device.h"
#include "kv/store.h"

enum host_layout { HOST_PAGE_FIRST_DIRECT, HOST_LAYER_FIRST };

struct host_opts {
    int64_t budget_bytes; /* all of the memory; at least one frame */
    enum host_layout layout;
    const int64_t *part_bytes; /* (n_parts) of a page in each layer, in the order of its payload */
    int n_parts;
    int64_t n_frames; /* without a budget: so many */
    /* Of a device whose memory runs may lie in: copies go over it, on the thread that calls put and get, and
     * those of put are over when it returns.  NULL: the host. */
    struct stream *stream;
};

/* FST_EINVAL names the wrong field; FST_ENOMEM when the machine has less than that: nothing is open then,
 * *out is NULL. */
enum fst_status host_open(struct store **out, const struct host_opts *o);
int64_t host_frames(const struct store *s);
int64_t host_bytes(const struct store *s); /* all of its memory */
/* Tests: every frame free or of one object, every object found and used later than what stands on it.
 * FST_EINTERNAL with the first contradiction.  Not during put, get or clear. */
enum fst_status host_check(const struct store *s);

#endif
