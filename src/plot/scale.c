#include "plot/scale.h"

#include <math.h>

/* The nearest of 1, 2, 5 times a power of ten at or above x. */
static double round_step(double x)
{
    double power = pow(10, floor(log10(x))), f = x / power;
    return power * (f <= 1.0000001 ? 1 : f <= 2.0000001 ? 2 : f <= 5.0000001 ? 5 : 10);
}

static void linear_ticks(struct scale *s, double lo, double hi)
{
    enum { INTERVALS = 6 };
    if (lo >= 0)
        lo = 0;
    if (hi <= lo)
        hi = lo + 1;
    double step = round_step((hi - lo) / INTERVALS);
    s->from = step * floor(lo / step + 1e-9);
    s->to = step * ceil(hi / step - 1e-9);
    for (double x = s->from; x <= s->to + step / 2 && s->n_ticks < SCALE_TICKS_MAX; x += step)
        s->tick[s->n_ticks++] = fabs(x) < step / 1e6 ? 0 : x;
}

/* Powers of two while there are few of them, else of ten. */
static void log_ticks(struct scale *s, double lo, double hi)
{
    enum { TWOS = 11 };
    double base = log2(hi / lo) <= TWOS ? 2 : 10, l = log(base);
    double first = floor(log(lo) / l + 1e-9), last = ceil(log(hi) / l - 1e-9);
    if (last <= first)
        last = first + 1;
    double every = ceil((last - first + 1) / SCALE_TICKS_MAX);
    s->from = pow(base, first);
    s->to = pow(base, last);
    for (double e = first; e <= last + 0.5 && s->n_ticks < SCALE_TICKS_MAX; e += every)
        s->tick[s->n_ticks++] = pow(base, e);
}

void scale_init(struct scale *s, bool log, double lo, double hi, double at, double length)
{
    *s = (struct scale){.log = log, .at = at, .length = length};
    if (log)
        log_ticks(s, lo, hi);
    else
        linear_ticks(s, lo, hi);
}

double scale_place(const struct scale *s, double value)
{
    double part = s->log ? log(value / s->from) / log(s->to / s->from)
                         : (value - s->from) / (s->to - s->from);
    return s->at + s->length * part;
}

void scale_text(char out[32], double value)
{
    double a = fabs(value);
    if (a >= 1e9)
        snprintf(out, 32, "%.4gG", value * 1e-9);
    else if (a >= 1e6)
        snprintf(out, 32, "%.4gM", value * 1e-6);
    else if (a >= 1e4)
        snprintf(out, 32, "%.4gk", value * 1e-3);
    else
        snprintf(out, 32, "%.4g", value);
}
