/* mover.h - a snapshot's bytes between KV memory and chunks of host memory, all runs at once.
 *
 * A snapshot is some hundred runs of 4 bytes to 64 KB.  Without kernels each is a copy by the device of its
 * own.  With them (entry copy_pieces) one launch gathers or scatters them all: between KV memory and the
 * chunks where the device is the host, else between KV memory and a piece of the card's memory, which whole
 * chunks come from and go to by copies on a queue of their own.  So a snapshot that is taken keeps the
 * stream for one launch, and its way over the bus is nobody's wait.
 *
 * The engine's thread alone.  What has been taken is in the chunks after mover_settle, which every call here
 * begins with; who reads or gives away chunks otherwise calls it first. */
#ifndef FST_KV_MOVER_H
#define FST_KV_MOVER_H

#include "kv/kv.h"

struct kv_mover {
    const struct kv *kv;
    const struct kernels *kernels; /* borrowed; NULL: run by run */
    struct stream *stream;         /* borrowed; the steps' */
    struct stream side;            /* of a card: the copies of chunks */
    struct copy_piece *piece;      /* shared memory */
    int n_pieces;
    uint8_t *staging; /* of a card: one snapshot's bytes */
    int64_t staging_bytes;
    bool launched, sending; /* the stream may read the list and staging; the side reads staging */
};

/* Where a snapshot's bytes are kept: chunks of equal size, in order. */
struct mover_chunks {
    uint8_t *arena;
    const int32_t *next; /* of chunk i, numbered from 1 */
    int64_t chunk_bytes;
    int32_t first;
};

/* Kernels and stream both or neither.  FST_ENOMEM. */
enum fst_status mover_init(struct kv_mover *m, const struct kv *kv, const struct kernels *kernels,
                           struct stream *stream);
void mover_release(struct kv_mover *m); /* zero is fine */

/* The bytes of a slot's snapshot at n.  FST_EINTERNAL: the device cannot copy. */
enum fst_status mover_take(struct kv_mover *m, int slot, int64_t n, const struct mover_chunks *to);
enum fst_status mover_put(struct kv_mover *m, int slot, int64_t n, const struct mover_chunks *from);
/* What has been taken is in the chunks; the stream is not waited for. */
enum fst_status mover_sent(struct kv_mover *m);
/* Everything that was asked for is done. */
enum fst_status mover_settle(struct kv_mover *m);

#endif
