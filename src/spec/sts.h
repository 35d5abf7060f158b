/* sts.h - sequential temperature scaling of the confidence head (dspark.md §4.4).
 *
 * The head's logits, through a sigmoid, say how likely a draft is right when those before it were; their
 * products say too much at depth.  One temperature for each position, fitted from left to right on rounds
 * whose result is known, makes them what they claim.  The label of a round is the number of leading drafts
 * that equalled the target's own draws, at temperature > 0 too: that is what acceptance is here.
 *
 * Pure but for the files; any thread. */
#ifndef FST_SPEC_STS_H
#define FST_SPEC_STS_H

#include "base/base.h"
#include "firesteel/engine.h"

struct spec_sts {
    int gamma;
    float temperature[FST_SPEC_MAX]; /* > 0 */
};

/* What the fit had to say; ece: expected calibration error of the products, 15 bins of equal width, on rounds
 * that were not fitted on. */
struct spec_sts_report {
    uint64_t n_fitted, n_held_out;
    double ece_before[FST_SPEC_MAX], ece_after[FST_SPEC_MAX];
};

/* A round in which all gamma drafts were verified. */
struct spec_round {
    float logit[FST_SPEC_MAX]; /* (gamma) of the confidence head */
    int8_t accepted;           /* leading drafts that were right, 0 .. gamma */
};

/* survive[j]: product of the first j + 1 confidences, what is no number counting as 0; sts NULL: as the
 * head says. */
void spec_survival(const struct spec_sts *sts, const float *logit, int n, double *survive);

/* Fits on three of four rounds and looks at the fourth.  41 temperatures in [0.1, 10].
 * FST_EINVAL: fewer than 400 rounds.  FST_EUNSUPPORTED: it does not lower the mean error of what was held out; *out
 * and *report are filled. */
enum fst_status spec_sts_fit(const struct spec_round *round, size_t n, int gamma,
                             struct spec_sts *out, struct spec_sts_report *report);

/* {"temperatures": [..], "dataset": "..", "num_samples": N, "ece_before": [..], "ece_after": [..]} */
enum fst_status spec_sts_save(const struct spec_sts *s, const struct spec_sts_report *report,
                              const char *dataset, const char *path);
/* FST_ENOTFOUND; FST_EFORMAT names the field; FST_EUNSUPPORTED: other gamma, or its own figures say that it does
 * not help. */
enum fst_status spec_sts_load(struct spec_sts *out, int gamma, const char *path);

#endif
