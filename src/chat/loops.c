#include "chat/loops.h"

/* Odd, and of no pattern: digits of the golden ratio. */
#define STEP UINT64_C(0x9E3779B97F4A7C15)
/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
#define FNV_BASIS UINT64_C(0xCBF29CE484222325)
#define FNV_PRIME UINT64_C(0x100000001B3)

enum { EVERY = 8 };

static uint8_t byte_at(const struct loops *l, uint64_t n)
{
    return l->ring[n % LOOPS_RING];
}

/* Bytes that begin a character among the last `len`. */
static uint64_t chars_in(const struct loops *l, uint64_t len)
{
    uint64_t n = 0;

    for (uint64_t i = l->n - len; i < l->n; i++)
        n += (byte_at(l, i) & 0xC0) != 0x80;
    return n;
}

static uint64_t power(int n)
{
    uint64_t x = 1;

    while (n-- > 0)
        x *= STEP;
    return x;
}

/* Do the last bytes stand at the same window that ended at `before`?  Then they have a period. */
static void look(struct loops *l, uint64_t before)
{
    if (before == 0 || before >= l->n || l->n - before > LOOPS_PERIOD_MAX)
        return;
    for (uint64_t i = 1; i <= LOOPS_CHARS; i++)
        if (byte_at(l, l->n - i) != byte_at(l, before - i))
            return;
    l->period = l->n - before;
    l->period_chars = chars_in(l, l->period);
    l->chars = chars_in(l, l->period + LOOPS_CHARS);
}

static bool goes_round(const struct loops *l)
{
    uint64_t unit = FST_MAX(l->period_chars, (uint64_t)LOOPS_CHARS);

    return l->period && l->chars >= (LOOPS_TIMES - 1) * unit + LOOPS_CHARS;
}

void loops_reset_text(struct loops *l)
{
    l->n = l->hash = l->period = 0;
    memset(l->place, 0, sizeof l->place);
}

bool loops_text(struct loops *l, const char *text, size_t len)
{
    bool round = false;

    if (!l->out)
        l->out = power(LOOPS_CHARS);
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)text[i];
        l->hash = l->hash * STEP + c + 1;
        if (l->n >= LOOPS_CHARS)
            l->hash -= l->out * (byte_at(l, l->n - LOOPS_CHARS) + UINT64_C(1));
        l->ring[l->n % LOOPS_RING] = c;
        if (l->period && c == byte_at(l, l->n - l->period))
            l->chars += (c & 0xC0) != 0x80;
        else
            l->period = 0;
        if (++l->n < LOOPS_CHARS)
            continue;
        uint64_t *place = &l->place[(l->hash * STEP) >> 54];
        if (!l->period)
            look(l, *place);
        if (l->n % EVERY == 0)
            *place = l->n;
        round |= goes_round(l);
    }
    return round;
}

static void add(uint64_t *hash, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        *hash = (*hash ^ (uint8_t)text[i]) * FNV_PRIME;
}

void loops_call_begin(struct loops *l, const char *name)
{
    l->call = FNV_BASIS;
    add(&l->call, name, strlen(name) + 1);
}

void loops_call_args(struct loops *l, const char *text, size_t len)
{
    add(&l->call, text, len);
}

bool loops_call_end(struct loops *l)
{
    uint64_t known = FST_MIN(l->n_calls, (uint64_t)LOOPS_CALLS);

    for (uint64_t i = 0; i < known; i++)
        if (l->seen[i].hash == l->call)
            return ++l->seen[i].count >= LOOPS_TIMES;
    l->seen[l->n_calls % LOOPS_CALLS].hash = l->call;
    l->seen[l->n_calls++ % LOOPS_CALLS].count = 1;
    return false;
}
