/* shards.h - all safetensors files of a folder, and their tensors in one sorted list.
 *
 * Which files: those named by model.safetensors.index.json, else the single model.safetensors.
 * With an index every tensor must be where the index says, and the other way round. */
#ifndef FST_WEIGHTS_SHARDS_H
#define FST_WEIGHTS_SHARDS_H

#include "weights/safetensors.h"

struct shard_tensor {
    const char *name;          /* canonical; borrowed */
    const struct st_tensor *t; /* borrowed from its shard: name as stored, dtype, shape, bytes */
    int shard;
};

struct shards {
    struct safetensors *shard; /* owned */
    int n_shards;
    struct shard_tensor *tensors; /* owned; by canonical name */
    int64_t n;
    int64_t bytes; /* of all tensors */
    char *names;   /* owned */
};

enum fst_status shards_init(struct shards *s, const char *dir);
void shards_release(struct shards *s);
/* By canonical name; NULL if there is none. */
const struct shard_tensor *shards_find(const struct shards *s, const char *name);
static inline const uint8_t *shards_data(const struct shards *s, const struct shard_tensor *t)
{
    return s->shard[t->shard].data + t->t->begin;
}

/* Canonical spelling of a stored name into out (at least strlen + 1 bytes): without the leading
 * "model.", self_attn -> attn, mlp -> ffn, weight_scale_inv -> scale,
 * e_score_correction_bias -> bias. */
void shards_canonical(char *out, const char *stored);

#endif
