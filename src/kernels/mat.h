/* mat.h - a stored weight matrix, in the form in which the checkpoint holds it.
 *
 * Weights are used in their stored form: nothing here owns memory, `data` and `scale` point into
 * the mapped shards (any alignment).  y = W x with W [n_out, n_in] row-major. */
#ifndef FST_KERNELS_MAT_H
#define FST_KERNELS_MAT_H

#include <stdint.h>

enum weight_format {
    WEIGHT_NONE, /* absent */
    WEIGHT_F32,  /* float */
    WEIGHT_BF16, /* bfloat16 */
    WEIGHT_FP8,  /* E4M3 codes; scale[ceil(n_out/128)][ceil(n_in/128)] E8M0: value * 2^(b-127) */
    WEIGHT_FP4,  /* E2M1, two per byte, even column in the low nibble; scale[n_out][n_in/32] E8M0 */
    WEIGHT_I32
};

struct mat {
    enum weight_format fmt;
    int n_out, n_in;
    const void *data;     /* borrowed */
    const uint8_t *scale; /* borrowed; FP8 and FP4 only */
};

#endif
