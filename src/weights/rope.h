/* rope.h - rotary frequencies of the two kinds of layer.
 *
 * angle(position p, pair i) = (float)p * f[i]: one float product, then cosf/sinf with full argument
 * reduction; interleaved pairs over the trailing rope_dim dims; no mscale.  The inverse rotation
 * takes -sin.  For the published bases (10000; 160000 with YaRN 16, 65536, 32, 1; rope_dim 64)
 * the tables are fixed bit patterns, because powf differs by an ulp between libraries; otherwise
 * they are computed in float as the reference inference code does, with a correctly rounded power. */
#ifndef FST_WEIGHTS_ROPE_H
#define FST_WEIGHTS_ROPE_H

#include "weights/config.h"

enum { WEIGHTS_ROPE_PAIRS = 32 }; /* config refuses rope_dim > 64 */

/* compressed: the table of ratio-4 and ratio-128 layers, else that of ratio-0 layers and drafts.
 * Fills rope_dim / 2 entries, the rest with 0. */
void weights_rope_table(float f[WEIGHTS_ROPE_PAIRS], const struct model_config *c, bool compressed);
/* The same without the fixed bit patterns: within 2 ulp of them for the published bases. */
void weights_rope_table_computed(float f[WEIGHTS_ROPE_PAIRS], const struct model_config *c,
                                 bool compressed);

#endif
