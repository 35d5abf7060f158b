/* linear.h - y = W x from stored weights, inside one file width (the .inl files include it).
 *
 * Input rows are prepared once per launch (lin_input): put on the E4M3 grid where the weight is
 * coded, and laid out in the order in which the weight's decoder produces its values.  A job is a
 * matrix against prepared rows; lin_run spreads jobs over outputs and rows.
 *
 * Order of an output, the same for every number of rows: K in chunks, lane by lane, one fused step
 * each; coded weights are summed per scale block and then scaled; then the inner-first tree of
 * simd.h.  With LIN_SEGMENTS K is cut into KERN_SEGMENTS parts (or as many as there are chunks; then
 * 128-bit groups of lanes are the segments), added pairwise. */
#ifndef FST_KERNELS_CPU_LINEAR_H
#define FST_KERNELS_CPU_LINEAR_H

#include "kernels/cpu/simd.h"

enum lin_layout {
    LIN_FLOAT, /* floats as they are (F32; on AVX2 BF16 too) */
    LIN_BF16,  /* bf16, in order */
    LIN_FP8,   /* AVX-512: bf16, per 64; AVX2: floats, per 32: even elements, odd elements */
    LIN_FP4,   /* AVX-512: bf16, per 128; AVX2: floats, per 64: elements 0 mod 4, 1 mod 4, ... */
    LIN_LAYOUTS
};

enum lin_flags { LIN_ROUND = 1, LIN_SEGMENTS = 2 };

/* Rows of one input, prepared on demand; [1]: quantised. */
struct lin_input {
    const float *x;
    const int32_t *pick; /* (n_rows) rows of x; NULL: all in order */
    int64_t ldx;
    int n_rows, n_in;
    const uint8_t *rows[LIN_LAYOUTS][2];
};

struct lin_job {
    const struct mat *w;
    const uint8_t *x; /* prepared rows */
    int64_t ldx;      /* bytes */
    const int32_t *pick_x, *pick_y;
    float *y;
    int64_t ldy;
    int n_rows, first, n_out; /* y[., o] is output row first + o */
    unsigned flags;
};

enum lin_layout SIMD_NAME(lin_layout)(const struct mat *w);
int64_t SIMD_NAME(lin_row_bytes)(enum lin_layout layout, int n_in);
/* Upper bound of lin_row_bytes over the layouts. */
static inline int64_t lin_row_bytes_max(int64_t n_in)
{
    return round_up(4 * n_in, 64) + 64;
}
/* x[n_in] to one prepared row at out. */
void SIMD_NAME(lin_prepare)(enum lin_layout layout, bool quantise, const float *x, int n_in,
                            uint8_t *out);
/* A job of `in` against w (quantise: the input grid in front of FP8 and FP4 weights), all outputs;
 * prepares the rows if no earlier call did.  y, ldy, flags as given. */
struct lin_job SIMD_NAME(lin_job)(struct stream *s, struct cut *c, struct lin_input *in,
                                  const struct mat *w, bool quantise, float *y, int64_t ldy,
                                  unsigned flags);
/* Rows r0..r1-1 through outputs o0..o1-1 of a job, on this thread.  o0 is a multiple of 8. */
void SIMD_NAME(lin_part)(const struct lin_job *j, int r0, int r1, int o0, int o1);
void SIMD_NAME(lin_run)(struct stream *s, const struct lin_job *jobs, int n_jobs);

#define lin_layout_of SIMD_NAME(lin_layout)
#define lin_row_bytes SIMD_NAME(lin_row_bytes)
#define lin_prepare   SIMD_NAME(lin_prepare)
#define lin_make      SIMD_NAME(lin_job)
#define lin_part      SIMD_NAME(lin_part)
#define lin_run       SIMD_NAME(lin_run)

/* Row `id` of a BF16 or F32 table. */
SIMD_INLINE void lin_table_row(const struct mat *m, int64_t id, float *out)
{
    FST_ASSERT(id >= 0);
    FST_ASSERT(id < m->n_out);
    int n = m->n_in, i = 0;
    if (m->fmt == WEIGHT_F32) {
        memcpy(out, (const uint8_t *)m->data + id * n * 4, (size_t)n * 4);
        return;
    }
    FST_ASSERT(m->fmt == WEIGHT_BF16);
    const uint8_t *p = (const uint8_t *)m->data + id * n * 2;
    for (; i + VL <= n; i += VL)
        v_store(out + i, v_load_bf16(p + 2 * i));
    for (; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        out[i] = s_float((uint32_t)h << 16);
    }
}

static inline bool lin_there(const struct mat *m)
{
    return m && m->fmt != WEIGHT_NONE;
}

#endif
