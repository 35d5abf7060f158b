/* progress.h - a progress line on stderr, for terminals only.
 *
 *     loading  ████████▌             42%  3.1 of 7.4 GB  2.80 GB/s  2 s left
 *
 * Nothing is written when stderr is no terminal, so logs and pipes stay clean.  Colour only without
 * NO_COLOR; the width is the terminal's.  progress_add may be called by any thread; the line is drawn
 * at most ten times a second, by whoever comes first. */
#ifndef FST_PROGRESS_H
#define FST_PROGRESS_H

#include <stdatomic.h>

#include "base/base.h"

enum progress_unit { PROGRESS_BYTES, PROGRESS_TOKENS, PROGRESS_ITEMS };

struct progress {
    const char *what; /* borrowed: "loading" */
    enum progress_unit unit;
    int64_t total; /* <= 0: not known */
    int64_t start_ns;
    _Atomic int64_t done;
    _Atomic int64_t next_draw_ns; /* INT64_MAX: never */
};

void progress_start(struct progress *p, const char *what, enum progress_unit unit, int64_t total);
void progress_add(struct progress *p, int64_t done);
void progress_end(struct progress *p); /* erases the line */

/* The line itself, without cursor movement: at most width columns. */
void progress_render(struct buf *out, const struct progress *p, int64_t done, int64_t elapsed_ns,
                     int width, bool color);

#endif
