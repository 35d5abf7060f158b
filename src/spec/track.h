/* track.h - what acceptance to expect: of a request by its own rounds, at first by those of others of its
 * kind; and counts by kind for metrics.
 *
 * Kinds are bands of temperature.  An estimate of P(draft j accepted | those before it were) is a share of
 * counts that fade, with the band's share as so many rounds' worth of belief beside it; a request that is
 * not drafting forgets its own counts slowly and so comes back to its band's. */
#ifndef FST_SPEC_TRACK_H
#define FST_SPEC_TRACK_H

#include "base/base.h"
#include "firesteel/engine.h"

struct spec_track {
    float tried[FST_SPEC_MAX], right[FST_SPEC_MAX]; /* fading counts by position */
};

struct spec_band {
    struct spec_track track;
    uint64_t rounds, drafted, accepted;
};

int spec_band_of(float temperature); /* enum fst_spec_band */

/* A round of a request in which n drafts were verified and k of them accepted. */
void spec_track_saw(struct spec_track *t, struct spec_band *band, int n, int k);
/* A round without drafts. */
void spec_track_skipped(struct spec_track *t);
/* survive[j], j < gamma: P(the first j + 1 drafts are accepted); never grows. */
void spec_track_expect(const struct spec_track *t, const struct spec_band *band, int gamma,
                       double *survive);

/* Accept length over the last minute: buckets of a second, which the caller counts. */
enum { SPEC_WINDOW_S = 60 };
struct spec_window {
    int64_t second[SPEC_WINDOW_S]; /* of the bucket; zero is the first */
    uint32_t rounds[SPEC_WINDOW_S], accepted[SPEC_WINDOW_S];
};
void spec_window_saw(struct spec_window *w, int64_t second, int k);
double spec_window_length(const struct spec_window *w, int64_t second); /* 0: no rounds */

#endif
