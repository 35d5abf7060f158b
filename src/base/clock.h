/* clock.h - time: a monotonic clock for durations, the wall clock for people. */
#ifndef FST_CLOCK_H
#define FST_CLOCK_H

#include "base/base.h"

/* Nanoseconds of a clock that never goes back; its zero means nothing. */
int64_t clock_ns(void);
/* Nanoseconds since 1970-01-01T00:00:00Z; may jump. */
int64_t clock_wall_ns(void);

#define CLOCK_ISO_SIZE 32
/* "2026-11-29T16:15:43.123Z" (UTC, milliseconds, rounded down) of years 0000 to 9999. */
void clock_iso(char out[CLOCK_ISO_SIZE], int64_t wall_ns);

static inline double clock_seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

#endif
