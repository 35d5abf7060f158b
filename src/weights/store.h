/* store.h - what a tree of weights stands on, and how an item of the inventory finds its place in it. */
#ifndef FST_WEIGHTS_STORE_H
#define FST_WEIGHTS_STORE_H

#include "device/device.h"
#include "weights/checkpoint.h"

enum { STORE_PARTS = 1 + CONFIG_LAYERS_MAX + CONFIG_STAGES_MAX };

struct weights_store {
    struct checkpoint checkpoint;     /* without a folder: its inventory alone */
    const struct shard_tensor **list; /* owned; [n_tensors], in order of the inventory */
    float *floats;                    /* owned; widened vectors, each on a 64-byte line */
    int64_t n_floats;                 /* used so far */
    int32_t *ids;                     /* owned; all tid2eid tables */
    int64_t n_ids;
    struct expert_weights *experts; /* owned; [(n_layers + n_stages) * n_experts] */
    const struct device *device;    /* of slab and parts; NULL: the host */
    void *slab;                     /* owned: the values in device memory */
    size_t slab_bytes;
    struct {
        void *p;
        size_t bytes;
    } part[STORE_PARTS]; /* owned: made values, layer by layer */
    int n_parts;
};

/* Arrays of floats in memory, whatever they are stored as. */
bool store_is_vector(enum inventory_form form);
/* The struct mat, const float * or const int32_t * in the tree that an item fills. */
void *store_place_of(struct weights *w, const struct inventory_item *item);
/* Where the tree points for item i of the inventory, and how many bytes are there; NULL: not given. */
const void **store_pointer_of(struct weights *w, int64_t i, int64_t *bytes);
/* What no tensor says: the kind of a layer, and where its experts are. */
void store_shape_layer(struct weights *w, struct layer_weights *l, bool stage, int i);

#endif
