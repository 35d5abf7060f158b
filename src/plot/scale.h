/* scale.h - from values to places along an axis, and which values get a mark. */
#ifndef FST_PLOT_SCALE_H
#define FST_PLOT_SCALE_H

#include "base/base.h"

enum { SCALE_TICKS_MAX = 16 };

struct scale {
    bool log;
    double from, to;   /* values at the ends */
    double at, length; /* where that is, in pixels; length may be negative */
    double tick[SCALE_TICKS_MAX];
    int n_ticks;
};

/* Ends at round numbers around lo..hi; a linear scale of values at or above 0 begins at 0. */
void scale_init(struct scale *s, bool log, double lo, double hi, double at, double length);
double scale_place(const struct scale *s, double value);
/* "12", "1.5k", "0.25": short, for a tick. */
void scale_text(char out[32], double value);

#endif
