/* inventory.h - every tensor a configuration calls for: name, forms it may have, where it goes.
 *
 * One table (inventory.c) is the only place that knows tensor names; loading, checking, inspecting
 * and sizing all walk the list made from it.  Names and shapes: DeepSeek-V4's published
 * checkpoints, and the DSpark checkpoints' mtp.* tensors. */
#ifndef FST_WEIGHTS_INVENTORY_H
#define FST_WEIGHTS_INVENTORY_H

#include "weights/safetensors.h"
#include "weights/weights.h"

enum inventory_draft { INVENTORY_NO_DRAFT, INVENTORY_MTP, INVENTORY_DSPARK };

/* What a tensor is to the loader.  The first dtype is the published one. */
enum inventory_form {
    FORM_FP8,    /* linear: F8_E4M3 and .scale, or BF16/F32 without */
    FORM_EXPERT, /* linear: I8 (two FP4 codes) and .scale per 32, or as FORM_FP8 */
    FORM_PLAIN,  /* linear: BF16 or F32 */
    FORM_NORM,   /* vector, BF16 or F32; widened */
    FORM_FLOAT,  /* F32 or BF16; float array in memory */
    FORM_IDS,    /* I64 or I32; narrowed */
    FORM_ROWS    /* a table of F8_E4M3 rows that are gathered, .scale per 32 values of a row */
};

struct inventory_rule; /* one row of the table */

struct inventory_item {
    const struct inventory_rule *rule;
    const char *name; /* borrowed from the inventory; canonical */
    int16_t layer;    /* trunk layer or stage; -1: global */
    int16_t expert;   /* -1: none */
    bool stage;       /* under mtp. */
    bool scale;       /* the .scale of the item before it */
    int ratio;        /* of its layer */
};

struct inventory {
    struct model_config config;
    enum inventory_draft draft;
    struct inventory_item *items; /* owned */
    int64_t n;
    char *names; /* owned */
};

enum fst_status inventory_init(struct inventory *inv, const struct model_config *c,
                               enum inventory_draft draft);
void inventory_release(struct inventory *inv);

enum inventory_form inventory_form(const struct inventory_item *item);
enum weights_class inventory_class(const struct inventory_item *item);

/* Where the tensor's struct mat, const float * or const int32_t * lies. */
enum inventory_scope { SCOPE_GLOBAL, SCOPE_LAYER, SCOPE_EXPERT, SCOPE_MTP, SCOPE_DSPARK };
enum inventory_scope inventory_scope(const struct inventory_item *item);
size_t inventory_offset(const struct inventory_item *item);

/* Logical rows and columns of a linear or matrix; columns 0 for vectors. */
void inventory_dims(const struct inventory *inv, const struct inventory_item *item, int64_t *rows,
                    int64_t *cols);

/* The stored shape of an item in dtype t (of the weight, for a .scale item); returns the number of
 * dims, 0 when the item cannot have that dtype.  *stored is the dtype of the item itself. */
int inventory_shape(const struct inventory *inv, const struct inventory_item *item, enum st_dtype t,
                    enum st_dtype *stored, int64_t shape[2]);
enum st_dtype inventory_published(const struct inventory_item *item);
/* Whether the cards of tensor parallelism cut it (weights.h, WEIGHTS_SHARE_TENSOR). */
bool inventory_is_cut(const struct inventory_item *item);
/* Bytes of the item in its published form. */
int64_t inventory_bytes(const struct inventory *inv, const struct inventory_item *item);

#endif
