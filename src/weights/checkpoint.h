/* checkpoint.h - a folder matched against the inventory of its configuration (inside only).
 *
 * What weights_open refuses and weights_inspect reports is found here, by one walk. */
#ifndef FST_WEIGHTS_CHECKPOINT_H
#define FST_WEIGHTS_CHECKPOINT_H

#include "weights/inventory.h"
#include "weights/shards.h"

struct checkpoint {
    char *dir; /* owned */
    struct model_config config;
    struct shards shards;
    struct inventory inventory;
    const struct shard_tensor **found; /* owned; [inventory.n]; NULL: not there */
    /* Faults.  A .scale is missing only where its weight's dtype needs one. */
    int64_t *missing; /* owned; inventory items */
    int64_t n_missing;
    int64_t *unknown; /* owned; shards.tensors */
    int64_t n_unknown;
    int64_t *wrong; /* owned; inventory items of other dtype or shape than any allowed */
    int64_t n_wrong;
};

/* Error only when the folder cannot be read as a checkpoint at all. */
enum fst_status checkpoint_init(struct checkpoint *c, const char *dir);
void checkpoint_release(struct checkpoint *c);
/* First fault as an error; FST_OK when there is none. */
enum fst_status checkpoint_verdict(const struct checkpoint *c);
/* "tensor ...: dtype I8 [4, 2]; expected ..." without the path, for a wrong item. */
void checkpoint_describe_wrong(const struct checkpoint *c, int64_t item, char *text, size_t size);
/* Logical dtype of the weight an item (weight or .scale) belongs to, as found. */
enum st_dtype checkpoint_dtype(const struct checkpoint *c, int64_t item);

#endif
