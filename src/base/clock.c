/* clock.c - the clocks, and dates without time zones. */
#include "base/clock.h"

#define NS_PER_S INT64_C(1000000000)

static int64_t read_clock(clockid_t id)
{
    struct timespec t;
    FST_ASSERT(clock_gettime(id, &t) == 0);
    return t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t clock_ns(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall_ns(void)
{
    return read_clock(CLOCK_REALTIME);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

void clock_iso(char out[CLOCK_ISO_SIZE], int64_t wall_ns)
{
    time_t s = (time_t)floor_div(wall_ns, NS_PER_S);
    int ms = (int)((wall_ns - s * NS_PER_S) / 1000000);
    struct tm tm;

    FST_ASSERT(gmtime_r(&s, &tm) != NULL);
    snprintf(out, CLOCK_ISO_SIZE, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ",
             (tm.tm_year + 1900) % 10000, (tm.tm_mon + 1) % 100, tm.tm_mday % 100, tm.tm_hour % 100,
             tm.tm_min % 100, tm.tm_sec % 100, ms);
}
