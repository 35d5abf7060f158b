/* bench_ceilings.c - what this machine could do: measured on processors, from a table for cards.
 * Names device and the model's cost by exception. */
#include <immintrin.h>
#include <math.h>

#include "base/clock.h"
#include "tools/bench.h"

/* Sustained rates under the power cap, as measured: pure reads by plain 16-byte loads; bf16 and FP8
 * products of 8192^3.  Burst rates (800 and 1530) end after a tenth of a second. */
static bool known_card(struct bench_ceilings *m, const char *card)
{
    static const struct {
        const char *card;
        struct bench_ceilings m;
    } known[] = {{"NVIDIA H200", {4.60e12, 1250e12, 660e12}}};
    for (size_t i = 0; i < FST_COUNT(known); i++)
        if (!strcmp(known[i].card, card)) {
            *m = known[i].m;
            return true;
        }
    return false;
}

/* What copies of 128 MiB move, read and written, at best. */
static enum fst_status measure_copies(double *bytes_s, const struct device *d)
{
    enum { HALF = 128 << 20 };
    struct stream s;
    uint8_t *p = device_alloc(d, 2 * HALF);
    if (!p)
        return fst_error(FST_ENOMEM, "bench: %d bytes to measure the card's memory", 2 * HALF);
    enum fst_status rc = stream_init(&s, d, NULL, PRECISION_NATIVE, 0);
    for (int i = 0; i < 8 && rc == FST_OK; i++) {
        int64_t start = clock_ns();
        rc = stream_copy(&s, p, p + HALF, HALF);
        if (rc == FST_OK)
            rc = stream_sync(&s);
        *bytes_s = fmax(*bytes_s, 2.0 * HALF / clock_seconds(clock_ns() - start));
    }
    stream_release(&s);
    device_free(d, p, 2 * HALF);
    return rc;
}

enum fst_status bench_measure_card(struct bench *b, const struct device *d)
{
    snprintf(b->card, sizeof b->card, "%s", d->card);
    snprintf(b->driver, sizeof b->driver, "%s %s", d->name, d->driver);
    return known_card(&b->m, d->card) ? FST_OK : measure_copies(&b->m.read_bytes_s, d);
}

/* One pass over n bytes with the widest loads there are: 8-byte ones end at 48 GB/s of a core, below
 * what its caches give. */
__attribute__((target("avx2"))) static uint64_t read_avx2(const uint64_t *p, size_t n)
{
    __m256i s[4] = {0};
    uint64_t out[4];
    for (size_t i = 0; i < n / 8; i += 16)
        for (size_t k = 0; k < 4; k++)
            s[k] = _mm256_xor_si256(s[k], _mm256_load_si256((const void *)(p + i + 4 * k)));
    s[0] = _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3]));
    _mm256_storeu_si256((void *)out, s[0]);
    return out[0] ^ out[1] ^ out[2] ^ out[3];
}

static uint64_t read_plain(const uint64_t *p, size_t n)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i < n / 8; i += 16)
        for (size_t k = 0; k < 16; k++)
            s[k % 8] ^= p[i + k];
    return s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

/* Best of the passes of a quarter of a second over as many bytes as the model has: what is in reach of
 * a cache here is in reach of it there.  One thread; the caller multiplies by the threads in use, which
 * is an upper bound, so that no fraction is flattered. */
static double read_rate(size_t n)
{
    n -= n % 128;
    uint64_t *p = mem_aligned(64, n);
    volatile uint64_t sum = 0;
    double best = 0;
    if (!p)
        return 0;
    memset(p, 1, n);
    uint64_t (*f)(const uint64_t *, size_t) =
        __builtin_cpu_supports("avx2") ? read_avx2 : read_plain;
    for (int64_t end = clock_ns() + 250000000, t = 0; t < end;) {
        t = clock_ns();
        sum = sum + f(p, n);
        best = fmax(best, (double)n / clock_seconds(clock_ns() - t));
    }
    mem_free(p);
    return best;
}

enum { MAC_REPS = 400000 };

/* Multiply-adds of MAC_REPS rounds in registers alone: 12 chains hide the latency of 4 to 6 cycles
 * of two units.  Each returns how many it did. */
__attribute__((target("avx512f,avx512bf16"))) static double macs_avx512(void)
{
    __m512 s[12];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3C003C00), y = x;
    for (int i = 0; i < 12; i++)
        s[i] = _mm512_setzero_ps();
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] = _mm512_dpbf16_ps(s[i], x, y);
    float out = 0;
    for (int i = 0; i < 12; i++)
        out += _mm512_reduce_add_ps(s[i]);
    return out > 0 ? 12.0 * 32 * MAC_REPS : 0;
}

__attribute__((target("avx2,fma"))) static double macs_avx2(void)
{
    __m256 s[12], x = _mm256_set1_ps(0.01f);
    for (int i = 0; i < 12; i++)
        s[i] = _mm256_setzero_ps();
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] = _mm256_fmadd_ps(x, x, s[i]);
    float out[8], sum = 0;
    for (int i = 0; i < 12; i++) {
        _mm256_storeu_ps(out, s[i]);
        sum += out[0];
    }
    return sum > 0 ? 12.0 * 8 * MAC_REPS : 0;
}

static double macs_plain(void)
{
    float s[12] = {0};
    volatile float one = 0.01f;
    float x = one;
    for (int r = 0; r < MAC_REPS; r++)
        for (int i = 0; i < 12; i++)
            s[i] += x * x;
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += s[i];
    return sum > 0 ? 12.0 * MAC_REPS : 0;
}

/* With the instructions that the named kernels use. */
static double mac_rate(const char *kernels)
{
    double (*f)(void) = !strcmp(kernels, "avx512") ? macs_avx512
                        : !strcmp(kernels, "avx2") ? macs_avx2
                                                   : macs_plain;
    double best = 0;
    for (int pass = 0; pass < 5; pass++) {
        int64_t t = clock_ns();
        double n = f();
        best = fmax(best, n / clock_seconds(clock_ns() - t));
    }
    return best;
}

/* What was measured before stays when it was more: other programs may be in the way. */
void bench_measure_host(struct bench_ceilings *m, uint64_t bytes, const char *kernels, int threads)
{
    bytes = FST_MAX(bytes, (uint64_t)4 << 20);
    double read = read_rate((size_t)FST_MIN(bytes, (uint64_t)256 << 20));
    m->read_bytes_s = fmax(m->read_bytes_s, read * threads);
    m->bf16_s = fmax(m->bf16_s, 2 * mac_rate(kernels) * threads);
    m->fp8_s = m->bf16_s; /* no product of FP8 is faster than one of bf16 */
}
