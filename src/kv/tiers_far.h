/* tiers_far.h - a batch of pages between a card's memory and what stores read and write.
 *
 * All runs of all pages of a batch in one launch (entry copy_pieces), to or from a piece of the card's memory where
 * each page is one run; a copy of that in host memory for stores that know no card.  The tiers' thread alone. */
#ifndef FST_KV_TIERS_FAR_H
#define FST_KV_TIERS_FAR_H

#include "kv/kv.h"

/* Batches that may be under way at once: what is enqueued for one runs while the next is asked for, and the
 * host waits for the stream at every fourth. */
enum { TIERS_FAR_LANES = 4 };

struct tiers_far {
    const struct kv *kv; /* borrowed; NULL: KV memory is the host's, nothing here is used */
    const struct kernels *kernels; /* borrowed */
    struct stream *stream;         /* borrowed, the tiers' own */
    struct copy_piece *piece;      /* (TIERS_FAR_LANES, n_pieces) shared memory */
    uint8_t *far;                  /* (TIERS_FAR_LANES, batch, page_bytes) card's memory */
    uint8_t *near;                 /* (batch, page_bytes) shared */
    int64_t page_bytes, n_pieces;
    int batch, lane; /* of the batch in hand */
    bool is_near;    /* what was gathered has been copied to near */
};

/* FST_ENOMEM. */
enum fst_status tiers_far_init(struct tiers_far *f, const struct kv *kv,
                               const struct kernels *kernels, struct stream *stream, int batch);
void tiers_far_release(struct tiers_far *f); /* zero is fine */

/* The next batch begins: its places and its list are free. */
enum fst_status tiers_far_turn(struct tiers_far *f);
/* n pages to places 0 .. n-1 of far; done when a copy on the stream, or tiers_far_near, is. */
enum fst_status tiers_far_gather(struct tiers_far *f, const int32_t *page, int n);
/* What was gathered in near too; done on return. */
enum fst_status tiers_far_near(struct tiers_far *f, int n);
/* Places of which `use` says so to their pages, first from near to far where from_near says so; near is free on
 * return, the pages are whole when the stream is done. */
enum fst_status tiers_far_scatter(struct tiers_far *f, const int32_t *page, int n, const bool *use,
                                  const bool *from_near);

static inline uint8_t *tiers_far_place(const struct tiers_far *f, int i, bool near)
{
    return (near ? f->near : f->far + (int64_t)f->lane * f->batch * f->page_bytes) +
           i * f->page_bytes;
}

#endif
