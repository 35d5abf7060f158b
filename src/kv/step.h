/* step.h - what the scheduler hands to the model: one step as one plain struct.
 *
 * A span names its slot and the offset of its first row from the slot's committed length; tokens
 * and positions follow from the slot's state (its known ids, its n_committed).  A step can be
 * recorded, replayed and compared between devices. */
#ifndef FST_KV_STEP_H
#define FST_KV_STEP_H

#include "base/base.h"

enum step_kind { STEP_PREFILL, STEP_DECODE, STEP_VERIFY };

/* Which rows of a span give logits. */
enum step_logits { STEP_LOGITS_NONE, STEP_LOGITS_LAST, STEP_LOGITS_ALL };

struct step_span {
    int32_t slot;
    int32_t n_rows;
    int32_t offset; /* of the first row from the slot's committed length; 0 today */
    uint8_t kind;   /* enum step_kind */
    uint8_t logits; /* enum step_logits */
};

struct step {
    int n_spans, n_rows;    /* n_rows: sum over spans */
    struct step_span *span; /* borrowed: (n_spans), at most one per slot */
};

#endif
