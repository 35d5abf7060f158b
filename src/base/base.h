/* base.h - what every folder stands on: assertions, memory, byte buffers, small maths.
 *
 * Further headers of this folder (each the interface of one file): json.h (JSON in and out),
 * options.h (one table for flags, environment and help), log.h, pool.h (worker threads), file.h
 * (whole files and mappings), utf8.h, number.h (numbers as text), hash.h, arena.h, rng.h, clock.h,
 * progress.h.  base knows no model, device or HTTP. */
#ifndef FST_BASE_H
#define FST_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/banned.h"
#include "firesteel/status.h"

/* Our own mistakes stop the program with file, line and text; the world's are statuses. */
#define FST_ASSERT(cond)                                                                           \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0))                                                          \
            base_assert_failed(__FILE__, __LINE__, #cond);                                         \
    } while (0)
#ifdef __cplusplus /* kernels are C++ */
[[noreturn]]
#else
_Noreturn
#endif
void base_assert_failed(const char *file, int line, const char *text);

#define FST_COUNT(a)  (sizeof(a) / sizeof *(a))
#define FST_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FST_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t round_up(int64_t a, int64_t b)
{
    return div_up(a, b) * b;
}

/* Heap memory.  mem_alloc and mem_calloc return NULL only on failure (size 0 gives a unique pointer);
 * overflow of n * size is a failure.  All of them go through one door so that a test can let the
 * N-th allocation fail: mem_fail_at(n) makes allocation n (1-based, counted from now) return NULL
 * once; 0 switches it off.  mem_count() is the number of allocations so far (for "nobody allocates
 * on the step path").  Thread-safe. */
void *mem_alloc(size_t size);
void *mem_calloc(size_t n, size_t size);
void *mem_realloc(void *p, size_t size);
void *mem_aligned(size_t alignment, size_t size); /* freed by mem_free too */
char *mem_strdup(const char *s);
void mem_free(void *p);
void mem_fail_at(uint64_t n);
uint64_t mem_count(void);
/* Bytes of the machine's memory that may be had without pushing anybody out, within the control group's
 * limit; 4 GiB where the system does not say. */
uint64_t mem_available_bytes(void);

/* A growing byte buffer with a limit.  Zero is a valid start (limit 0 means 1 GiB).  After a failed
 * append `failed` stays set and further appends do nothing, so that a writer checks once, at the
 * end.  data is always followed by a NUL byte that len does not count (data may be NULL when len is
 * 0 and nothing was ever appended: use buf_str). */
struct buf {
    char *data; /* owned */
    size_t len, cap, limit;
    bool failed;
};
void buf_release(struct buf *b);              /* frees, back to zero */
void buf_reset(struct buf *b);                /* keeps the memory */
bool buf_reserve(struct buf *b, size_t more); /* room for `more` bytes; false when it failed */
void buf_append(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *buf_str(const struct buf *b); /* never NULL */
char *buf_detach(struct buf *b); /* caller owns the NUL-terminated bytes; NULL on failure */

#endif
