/* track.c - fading counts of what was accepted. */
#include "spec/track.h"

/* A request's counts lose a thirtieth each round, its band's a five-hundredth; a request that does not
 * draft forgets half of its own in 140 rounds.  PRIOR: before anything was seen, and of how many rounds
 * it and the band's share have the weight. */
static const float FADE = 0.97f, BAND_FADE = 0.998f, SKIP_FADE = 0.995f;
static const float PRIOR = 0.8f, PRIOR_ROUNDS = 4.0f, BAND_ROUNDS = 4.0f;

int spec_band_of(float temperature)
{
    if (temperature <= 0)
        return FST_SPEC_GREEDY;
    return temperature < 0.45f   ? FST_SPEC_COOL
           : temperature <= 0.8f ? FST_SPEC_MILD
           : temperature <= 1.2f ? FST_SPEC_WARM
                                 : FST_SPEC_HOT;
}

static void saw(struct spec_track *t, int n, int k, float fade)
{
    for (int j = 0; j < FST_SPEC_MAX; j++) {
        t->tried[j] *= fade;
        t->right[j] *= fade;
        if (j < n && j <= k)
            t->tried[j] += 1;
        if (j < k)
            t->right[j] += 1;
    }
}

void spec_track_saw(struct spec_track *t, struct spec_band *band, int n, int k)
{
    if (n <= 0)
        return;
    saw(t, n, k, FADE);
    saw(&band->track, n, k, BAND_FADE);
    band->rounds++;
    band->drafted += (uint64_t)n;
    band->accepted += (uint64_t)k;
}

void spec_track_skipped(struct spec_track *t)
{
    for (int j = 0; j < FST_SPEC_MAX; j++) {
        t->tried[j] *= SKIP_FADE;
        t->right[j] *= SKIP_FADE;
    }
}

void spec_track_expect(const struct spec_track *t, const struct spec_band *band, int gamma,
                       double *survive)
{
    double s = 1;
    for (int j = 0; j < gamma; j++) {
        const struct spec_track *b = &band->track;
        float all = (b->right[j] + PRIOR * PRIOR_ROUNDS) / (b->tried[j] + PRIOR_ROUNDS);
        s *= (double)((t->right[j] + all * BAND_ROUNDS) / (t->tried[j] + BAND_ROUNDS));
        survive[j] = s;
    }
}

static int bucket_of(int64_t second)
{
    return (int)(second % SPEC_WINDOW_S);
}

void spec_window_saw(struct spec_window *w, int64_t second, int k)
{
    int b = bucket_of(second);
    if (w->second[b] != second) {
        w->second[b] = second;
        w->rounds[b] = w->accepted[b] = 0;
    }
    w->rounds[b]++;
    w->accepted[b] += (uint32_t)k;
}

double spec_window_length(const struct spec_window *w, int64_t second)
{
    uint64_t rounds = 0, accepted = 0;
    for (int b = 0; b < SPEC_WINDOW_S; b++)
        if (w->second[b] > second - SPEC_WINDOW_S && w->second[b] <= second) {
            rounds += w->rounds[b];
            accepted += w->accepted[b];
        }
    return rounds ? (double)(accepted + rounds) / (double)rounds : 0;
}
