/* snapshot.h - what a slot holds beside its full pages, and what a page holds, as runs of bytes.
 *
 * A snapshot at n, from which a request goes on at position n as if it had computed all before: for each
 * layer (target layers, then draft stages)
 *   window rows of positions max(0, n-window) .. n-1,
 *   at ratio 4 the compressor's and the indexer's inputs of max(0, 4*floor(n/4)-4) .. n-1 (where a page
 *   ends, of these the halves that the next group pools), at ratio 128 the compressor's of
 *   128*floor(n/128) .. n-1,
 *   the finished entries and index keys of the page that is not full: n mod 256 / ratio of each,
 * and then what the slot carries of position n-1.
 * Rows stand in the order of positions, so their ring may have another size where they are restored.
 * The bytes are those of sizing_snapshot_at.
 *
 * Rings overwrite: a snapshot at n can be taken until a position beyond n + kv_snapshot_slack - 1 is
 * written, be it by a draft that is rejected.  State rings are wide enough for the same slack, which
 * kv_plan sees to (block*(1+lag) at most 26).  The engine's thread alone.
 *
 * A full page is, for each layer in the same order, its entries and index keys: data rows, rope values or
 * scales, keys.  Any thread may ask for its runs; who reads or writes there holds the page. */
#ifndef FST_KV_SNAPSHOT_H
#define FST_KV_SNAPSHOT_H

#include "kv/kv.h"

/* One run of bytes in KV memory, which may be a device's. */
typedef enum fst_status kv_run_fn(void *ud, uint8_t *at, size_t bytes);

/* All runs of a slot at n >= 1, until one fails.  The slot holds the page of n-1.  Joined, they are the
 * same bytes in the same order whatever slot and pages; where one run ends and the next begins is not. */
enum fst_status kv_snapshot_runs(const struct kv *kv, int slot, int64_t n, kv_run_fn *f, void *ud);
int64_t kv_snapshot_bytes(const struct kv *kv, int64_t n);
/* How many positions from n on may have been written when a snapshot at n is taken. */
int64_t kv_snapshot_slack(const struct kv *kv);

/* All runs of a page, as many and as long whatever page, until one fails. */
enum fst_status kv_page_runs(const struct kv *kv, int32_t page, kv_run_fn *f, void *ud);
/* Bytes of a page; parts (n_layers, may be NULL): those of each layer. */
int64_t kv_page_bytes(const struct kv *kv, int64_t *parts);

#endif
