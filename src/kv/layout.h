/* layout.h - sizes of one layer's KV memory, shared by the plan and the allocation. */
#ifndef FST_KV_LAYOUT_H
#define FST_KV_LAYOUT_H

#include "kv/kv.h"

struct kv_layer_sizes {
    int ring, state_ring;
    int64_t window_rows, rows;                     /* rows: rings and pages, null ones included */
    int64_t row;                                   /* bytes of a row in both areas */
    int64_t nope, rope, index, state, index_state; /* bytes */
    int64_t index_page, state_slot, index_state_slot; /* bytes of one page, of one slot */
};

/* spec has passed kv_plan. */
void kv_layer_sizes(const struct kv_spec *spec, int layer, struct kv_layer_sizes *out);

#endif
