/* spec.h - what speculation decides: how many drafts a verify block accepts, and the statistics.
 *
 * Acceptance is by coupled draws: the drafter drew x_j with the noise of its output position; the
 * target draws with the same noise; a draft is accepted iff the two agree, and the first
 * disagreement's target draw is the bonus.  What is emitted are the target's own draws, so drafting
 * changes no token, whatever the drafter proposes (DSpark paper §3, with Gumbel coupling in place
 * of rejection sampling). */
#ifndef FST_SPEC_H
#define FST_SPEC_H

#include "base/base.h"
#include "firesteel/engine.h"

/* draft: (n_draft) proposed ids; draw: (n_draft + 1) the target's draws of the verify rows.
 * Returns k, the number of leading drafts that agree; the emitted tokens are draw[0..k]. */
int spec_accept(const int32_t *draft, const int32_t *draw, int n_draft);

/* One verify round of one request: n_draft proposed, k accepted. */
void spec_count(struct fst_spec_stats *s, int n_draft, int k);

/* Drafts that this round may propose: gamma, fewer where the context ends (rows n .. n+d must lie
 * below context_length).  Never limited by max_new_tokens: the verify block keeps one shape. */
int spec_room(int gamma, int64_t n_committed, int64_t context_length);

#endif
