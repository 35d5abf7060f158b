/* kv.h - KV memory of all requests: rows, index keys, compressor states, pages, slots.
 *
 * Unified layouts: per layer one pool of rows, first the window rings of all slots, then compressed
 * rows in pages of 256 tokens (64 rows at ratio 4, 2 at ratio 128); formats and addresses are
 * kernels.h's.  Sizes are fixed at kv_init from one plan; nothing grows afterwards.
 *
 * A page is held by any number of slots and at most once by the prefix tree (tree.h), and is free when
 * nobody holds it.  What the tree keeps is full: a slot never writes to it, since it goes on behind it.
 *
 * Slots and pages are numbered from 0; slot and page 0 are the null ones (padding rows) and are
 * never handed out.  Rejected drafts need no copies: rings hold window + (gamma+1)*(1+lag) - 1 rows,
 * states 32 (ratio 4) and 256 (ratio 128) rows, everything is addressed by position, visibility
 * follows positions, and a row of a rejected position is rewritten before it can be seen.
 * So a slot needs no clearing when it changes hands either.
 *
 * Only the engine thread calls this.  kv knows no models: sizes and ratios come from the caller. */
#ifndef FST_KV_H
#define FST_KV_H

#include "base/base.h"
#include "kernels/kernels.h"
#include "kv/sizing.h"

enum { KV_LAYERS_MAX = 136, KV_STATE4 = 32, KV_STATE128 = 256 };

/* What the caller knows: one entry per target layer, then per draft stage (ratio 0). */
struct kv_spec {
    int n_layers;
    int ratio[KV_LAYERS_MAX];
    int head_dim, rope_dim, index_dim, window;
    int carry_floats;            /* a record of each of a slot's last `ring` positions; 0: none */
    const struct device *device; /* where rows and states live, borrowed; NULL: the host */
    int block;                   /* gamma + 1 rows of a verify step; 1 without drafting */
    int lag;                     /* steps the host may be behind: 0 on the CPU */
    enum row_format format;
    enum index_format index_format;
    int n_slots;            /* requests, without the null slot */
    int64_t n_pages;        /* pages of 256 tokens, without the null page */
    int64_t context_length; /* positions a slot can hold; page table width follows */
};

struct kv_plan { /* bytes, per kind; total is their sum */
    int64_t window_bytes, compressed_bytes, index_bytes, state_bytes, table_bytes, total_bytes;
    int64_t bytes_per_slot;      /* rings and states of one request */
    double bytes_per_full_token; /* compressed rows and index keys of one token */
};

/* What the prefix tree has to do with a page. */
enum kv_kept {
    KV_NOT_KEPT,
    KV_KEPT,  /* it holds the page, and lets go of it when pages run short */
    KV_PINNED /* it holds the page for a request that relies on it */
};

struct kv_slot {
    bool used;
    uint32_t generation; /* counts kv_slot_open: tells tenants apart */
    int64_t n_committed; /* positions 0 .. n_committed-1 hold final KV */
    int64_t n_restored;  /* of these came from a snapshot: rings know none before its window */
    int64_t n_pages;     /* pages held: positions below 256*n_pages have a place */
};

struct kv {
    struct kv_spec spec;
    struct kv_layer layer[KV_LAYERS_MAX];
    int ring;
    int page_stride;
    float *carry;                     /* (n_slots + 1, ring, carry_floats), the device's; NULL */
    int32_t *pages;                   /* (n_slots + 1, page_stride); 0 beyond a slot's pages */
    int32_t *far_pages, *sent_pages;  /* on a device: its copy for kernels, and what that holds */
    struct kv_slot *slots;            /* (n_slots + 1) */
    int32_t *free_pages, *free_slots; /* stacks */
    int32_t *page_refs;               /* (n_pages + 1) slots that hold it, and the tree */
    uint8_t *kept;                    /* (n_pages + 1) enum kv_kept */
    int64_t n_free_pages;
    int64_t n_idle_pages; /* KV_KEPT and held by nobody else: as good as free */
    /* Makes idle pages free until n_free_pages is at least n, which is no more than both together.
     * NULL: nobody keeps any. */
    void (*reclaim)(void *ud, int64_t n);
    void *reclaim_ud; /* borrowed */
    int n_free_slots;
    struct kv_block { /* owned: every array above and those of the layers */
        void *p;
        size_t bytes;
        bool shared; /* else the device's */
    } blocks[9 + 5 * KV_LAYERS_MAX];
    int n_blocks;
};

/* Sizes alone, without allocating.  FST_EINVAL names the wrong field. */
enum fst_status kv_plan(const struct kv_spec *spec, struct kv_plan *out);
/* The tight rule's classes and records of a spec that kv_plan accepts; stages count as layers. */
void kv_sizing(const struct kv_spec *spec, struct sizing_spec *out);
/* The most tokens in whole pages whose kv_plan, with this spec otherwise, stays within the budget; 0: none. */
int64_t kv_tokens_within(const struct kv_spec *spec, int64_t budget_bytes);
/* The same two of other rows or of another rule than kv_sizing's: of spec they take slots, pages, context
 * and device alone.  The published rule counts no tables. */
enum fst_status kv_plan_by(const struct kv_spec *spec, const struct sizing_spec *z,
                           struct kv_plan *out);
int64_t kv_tokens_by(const struct kv_spec *spec, const struct sizing_spec *z, int64_t budget_bytes);

enum fst_status kv_init(struct kv *kv, const struct kv_spec *spec);
void kv_release(struct kv *kv);

/* A slot for a new request, n_committed 0.  FST_EBUDGET: all taken. */
enum fst_status kv_slot_open(struct kv *kv, int *slot);
/* Give the slot and its hold on its pages back; the slot must be open. */
void kv_slot_close(struct kv *kv, int slot);
/* As just opened: no pages, n_committed 0; the tenant stays. */
void kv_slot_reset(struct kv *kv, int slot);
/* Pages for positions 0 .. n_positions-1; idle ones are reclaimed when the free ones do not suffice.
 * FST_EBUDGET: all of them together do not (nothing changes); FST_EINVAL: beyond context_length. */
enum fst_status kv_reserve(struct kv *kv, int slot, int64_t n_positions);
/* Are so many pages free or idle?  FST_EBUDGET: no. */
enum fst_status kv_room(const struct kv *kv, int64_t n_pages);
/* Before a step with rows of this slot: its row of the page table to where kernels read it, if that has
 * changed; enqueued on s, which must be idle.  Read in place, over the bus, the table cost 7 us of 22 in
 * attention of one row on an H200, and 37 of 54 in that of six. */
enum fst_status kv_send_pages(struct kv *kv, struct stream *s, int slot);
/* The table as kernels read it. */
const int32_t *kv_pages_for_kernels(const struct kv *kv);
/* Row of kv->carry that has a position's record. */
static inline int64_t kv_carry_row(const struct kv *kv, int slot, int64_t pos)
{
    return (int64_t)slot * kv->ring + pos % kv->ring;
}
/* Positions below n are final; n may not pass the reserved pages nor go down. */
void kv_commit(struct kv *kv, int slot, int64_t n);

/* An open slot without pages holds n_pages kept ones, in this order. */
void kv_share(struct kv *kv, int slot, const int32_t *pages, int64_t n_pages);
/* Page i of the slot becomes a kept one with the same contents. */
void kv_swap(struct kv *kv, int slot, int64_t i, int32_t page);
/* The tree's: hold a page that a slot holds (KV_KEPT), let go of it, pin it and back to KV_KEPT. */
void kv_keep(struct kv *kv, int32_t page);
void kv_unkeep(struct kv *kv, int32_t page);
void kv_pin(struct kv *kv, int32_t page, bool pinned);

/* Consistency (tests, idle check): every page is free or held as often as counted, no slot leaks.
 * FST_EINTERNAL with the first contradiction. */
enum fst_status kv_check(const struct kv *kv);

/* Decode one stored row to floats (head_dim): window row of (slot, pos) or compressed entry e.
 * For tests and tools, on the host alone. */
void kv_read_window(const struct kv *kv, int layer, int slot, int64_t pos, float *out);
void kv_read_entry(const struct kv *kv, int layer, int slot, int64_t entry, float *out);
void kv_read_index(const struct kv *kv, int layer, int slot, int64_t entry, float *out);

#endif
