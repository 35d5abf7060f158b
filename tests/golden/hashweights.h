/* hashweights.h - checkpoints whose weights come from a hash of the tensor names.
 *
 * Goldens then hold token ids and results only: any test rebuilds the weights.  Value i of tensor
 * `name` is u = (mix(fnv1a64(stream) + (i + 1) * 0x9E3779B97F4A7C15) >> 40) / 2^23 - 1 with
 * splitmix64's mix and stream = name (seed 0) or "SEED/name"; then by kind: norms 1 + 0.17u,
 * *_scale 0.75 + 0.25u, biases 0.85u, other vectors, ape, embed and markov_w1 1.7u, matrices
 * 2.6u / sqrt(in); all rounded to bfloat16.  Files are bit-identical to those of
 * tools/golden/make_checkpoint.py. */
#ifndef FST_TESTS_GOLDEN_HASHWEIGHTS_H
#define FST_TESTS_GOLDEN_HASHWEIGHTS_H

#include "weights/inventory.h"

enum hashweights_format {
    HASHWEIGHTS_F32,  /* all F32 */
    HASHWEIGHTS_BF16, /* linears and norms BF16, the rest F32, no scales */
    HASHWEIGHTS_FP8,  /* published dtypes, experts FP8 (as base checkpoints) */
    HASHWEIGHTS_FP4   /* published dtypes */
};

struct hashweights_spec {
    struct model_config config;
    enum inventory_draft draft;
    enum hashweights_format format;
    int n_shards;   /* 1: model.safetensors */
    uint64_t seed;  /* 0: streams are the bare names */
    bool unaligned; /* data in order of the names behind a header of odd length */
};

/* The tiny models.  T1: 8 layers of every kind, 12 M parameters, window 16, top-k 8 of 16-head
 * indexers.  T2: head_dim 512 in 8-head groups, window 128, as real kernels want it; 33 M.  Both
 * with a classic MTP block; unquantised F32, one file.  DSpark: T1 with three draft stages on
 * layers 5, 6, 7, block 5, rank 64, noise token 511. */
struct hashweights_spec hashweights_t1(void);
struct hashweights_spec hashweights_t2(void);
struct hashweights_spec hashweights_dspark(void);

/* Write config.json and the shards into `dir`, made if it is not there. */
enum fst_status hashweights_write(const char *dir, const struct hashweights_spec *spec);
/* Remove what hashweights_write made (best effort). */
void hashweights_remove(const char *dir);

/* n token ids below vocab from stream "tokens" (seed as above). */
void hashweights_tokens(int32_t *ids, int n, int vocab, uint64_t seed);
/* The n values of stream `name`, in [-1, 1). */
void hashweights_stream(float *u, int64_t n, const char *name, uint64_t seed);
uint64_t hashweights_fnv1a64(const void *data, size_t len);

#endif
