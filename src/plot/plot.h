/* plot.h - one chart as SVG: lines over numbers, bars over words, or bars across the page.
 *
 * Readable on light and dark pages (the style follows prefers-color-scheme) and without colour (each series has its mark and
 * its dash).  Text is text: title, axes with their units, a legend, and a caption that says what made the numbers. */
#ifndef FST_PLOT_PLOT_H
#define FST_PLOT_PLOT_H

#include "base/base.h"

enum plot_kind { PLOT_LINES, PLOT_BARS, PLOT_BARS_ACROSS };

enum { PLOT_SERIES_MAX = 8, PLOT_POINTS_MAX = 4096, PLOT_WORDS_MAX = 64 };

struct plot_axis {
    const char *label; /* with its unit */
    bool log;          /* all values above 0 */
};

struct plot_series {
    const char *name;
    const double *x; /* (n); of bars: NULL, the word's place */
    const double *y; /* (n); NaN: no value */
    size_t n;
};

/* Texts and numbers are borrowed. */
struct plot {
    enum plot_kind kind;
    const char *title, *caption;
    struct plot_axis x, y;    /* bars across: y is the axis of values, along the page */
    const char *const *words; /* of bars: (n_words) */
    size_t n_words;
    const struct plot_series *series; /* (n_series) */
    size_t n_series;
};

/* FST_EINVAL: nothing to draw, too much, or a value that its axis cannot hold.  FST_ENOMEM. */
enum fst_status plot_svg(struct buf *out, const struct plot *p);

#endif
