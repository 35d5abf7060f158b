/* reject.h - acceptance by classic rejection sampling (dspark.md 3.4), beside the coupled draws of spec.h.
 *
 * A draft x_j ~ q_j is accepted with probability min(1, p_j(x_j) / q_j(x_j)); behind the first one that is not, the
 * token is drawn from max(p_j - q_j, 0), normalised; behind a block that is accepted whole, from the target
 * itself.  What is emitted is distributed as the target's own draws (Leviathan et al., "Fast Inference from
 * Transformers via Speculative Decoding", 2023, A.1), if q is what the drafts were drawn from and whether a draft is verified
 * does not depend on its own value.  So a planner that reads confidences of this round must stop early (DSpark paper, Algorithm 1)
 * or use older ones; under coupled draws any may.
 *
 * Uniform numbers are counted like the noise of a draw, under keys of their own: Philox of (seed ^ constant;
 * word, output position, choice). */
#ifndef FST_SPEC_REJECT_H
#define FST_SPEC_REJECT_H

#include "base/base.h"

struct spec_reject_args {
    const float
        *target; /* (n_draft, vocab) logits of the rows that judge; -inf: outside of the kept set */
    const float
        *draft; /* (n_draft, vocab) logits that the drafts were drawn from, by Gumbel noise */
    const int32_t *id; /* (n_draft) drafts */
    int n_draft, vocab;
    float temperature; /* > 0 */
    uint64_t seed;
    uint32_t choice, out_pos; /* output position of the first draft */
};

/* Returns k, the drafts that are accepted.  *bonus: the token behind them; -1 when k is n_draft: then it is the
 * target's own draw of the next row.  NaN among the draft's logits counts as probability 0.  Thread-safe. */
int spec_reject(const struct spec_reject_args *a, int32_t *bonus);

#endif
