#include "spec/reject.h"

#include <math.h>

#include "kernels/philox.h"

/* Keys of the uniform numbers: digits of pi, so that no seed of a draw is likely to be another's. */
#define KEY_ACCEPT UINT64_C(0x243F6A8885A308D3)
#define KEY_REST   UINT64_C(0x13198A2E03707344)

/* (0, 1), 64 bits of which a double keeps 53. */
static double uniform(uint64_t key, uint32_t out_pos, uint32_t choice)
{
    uint64_t high = philox_word(key, 0, out_pos, choice),
             low = philox_word(key, 1, out_pos, choice);
    return ((double)((high << 32 | low) >> 11) + 0.5) * 0x1p-53;
}

/* softmax(l / temperature): the largest logit, and the sum of exp((l - top) / temperature). */
struct softmax {
    const float *l;
    double top, sum, inv;
};

static struct softmax softmax_of(const float *l, int vocab, float temperature)
{
    struct softmax s = {.l = l, .top = -INFINITY, .inv = 1.0 / (double)temperature};

    for (int v = 0; v < vocab; v++)
        if ((double)l[v] > s.top)
            s.top = (double)l[v];
    for (int v = 0; v < vocab; v++)
        if (l[v] > -INFINITY)
            s.sum += exp(((double)l[v] - s.top) * s.inv);
    return s;
}

static double probability(const struct softmax *s, int32_t v)
{
    double l = (double)s->l[v];
    return s->l[v] > -INFINITY ? exp((l - s->top) * s->inv) / s->sum : 0; /* NaN is not larger */
}

/* From max(p - q, 0), by the inverse of its sums; from p if nothing is left but rounding. */
static int32_t rest(const struct softmax *p, const struct softmax *q, int vocab, double u)
{
    enum { LEFT, WHOLE };
    int32_t last = 0;

    for (int which = LEFT; which <= WHOLE; which++) {
        double mass = 0, sum = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int32_t v = 0; v < vocab; v++) {
                double w = probability(p, v);
                if (w > 0 && which == LEFT)
                    w = fmax(w - probability(q, v), 0);
                if (w <= 0)
                    continue;
                if (pass == 0) {
                    mass += w;
                    continue;
                }
                sum += w;
                last = v;
                if (sum > u * mass)
                    return v;
            }
        if (mass > 1e-12) /* rounding missed the end */
            return last;
    }
    return last;
}

int spec_reject(const struct spec_reject_args *a, int32_t *bonus)
{
    for (int j = 0; j < a->n_draft; j++) {
        uint32_t at = a->out_pos + (uint32_t)j;
        int64_t row = (int64_t)j * a->vocab;
        struct softmax p = softmax_of(a->target + row, a->vocab, a->temperature);
        struct softmax q = softmax_of(a->draft + row, a->vocab, a->temperature);
        double u = uniform(a->seed ^ KEY_ACCEPT, at, a->choice);
        if (u * probability(&q, a->id[j]) < probability(&p, a->id[j]))
            continue;
        *bonus = rest(&p, &q, a->vocab, uniform(a->seed ^ KEY_REST, at, a->choice));
        return j;
    }
    *bonus = -1;
    return a->n_draft;
}
