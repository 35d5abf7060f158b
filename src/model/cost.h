/* cost.h - what a step of a model must at least move and compute, op by op.
 *
 * Bytes: every weight of the step once, in its stored form; KV rows and index keys that a sequence
 * needs once; activations of an op once in and once out (FP8 inputs and bf16 outputs of FP8 linears,
 * bf16 of the others, hyper-connections' streams bf16).  Operations: two a multiply-add, by the rate
 * at which they run.  Both follow from the configuration (DeepSeek-V4 technical report §2) and from
 * how many rows there are, not from how kernels go about it. */
#ifndef FST_MODEL_COST_H
#define FST_MODEL_COST_H

#include "model/model.h"

struct model_cost {
    double bytes;
    double fp8, bf16; /* operations at the rate of FP8, of bf16 */
};

struct model_load {
    double rows;      /* of the step, rows / sequences of each */
    double sequences; /* > 0 */
    double context;   /* tokens before the first row of each */
    double logits;    /* rows that give logits */
    double distinct;  /* routed experts that a layer reads; 0: expected of independent rows */
    double row_bytes; /* of a KV row: 640 fp8, 1024 bf16 */
    double key_bytes; /* of an index key: 68 fp4, 132 fp8 */
};

enum model_op {
    MODEL_OP_SEAMS, /* hyper-connections at both sublayers of a layer */
    MODEL_OP_QKV_IN,
    MODEL_OP_COMPRESSOR,
    MODEL_OP_INDEX_IN, /* the indexer's compressor and head weights */
    MODEL_OP_WQ_B,
    MODEL_OP_INDEX_WQ_B,
    MODEL_OP_KV_WRITE,
    MODEL_OP_SCORES,
    MODEL_OP_ATTENTION,
    MODEL_OP_RING_STORE,
    MODEL_OP_WO_A,
    MODEL_OP_WO_B,
    MODEL_OP_GATE,
    MODEL_OP_SHARED,
    MODEL_OP_ROUTED,
    MODEL_OP_HEAD, /* from here on: once a step */
    MODEL_OP_EMBED,
    MODEL_OP_LAST_SEAM,
    MODEL_OP_ROPE,
    MODEL_OP_MAIN_PROJ,
    MODEL_OP_CHAIN,
    MODEL_OP_DRAW,
    MODEL_OPS
};

/* Of one layer at this site, or of the step for ops outside of layers (site MODEL_SITE_NONE). */
struct model_cost model_cost_op(const struct model_config *c, const struct model_load *x,
                                enum model_op op, enum model_site site);
/* The same of an entry of the kernel table, by its name. */
struct model_cost model_cost_block(const struct model_config *c, const struct model_load *x,
                                   const char *block, enum model_site site);
/* Of all layers of a site, or of all layers and what is outside of them. */
int model_cost_layers(const struct model_config *c, enum model_site site);
struct model_cost model_cost_trunk(const struct model_config *c, const struct model_load *x,
                                   const char *block);
/* A layer: all its ops. */
struct model_cost model_cost_layer(const struct model_config *c, const struct model_load *x,
                                   enum model_site site);
/* A batch of drafts: the stages are window layers, head and embedding the trunk's, the chain reads its
 * matrix for one position after another.  Without the injection before it. */
struct model_cost model_cost_draft(const struct model_config *c, const struct model_load *x);
/* A forward of the trunk, without a draft. */
struct model_cost model_cost_step(const struct model_config *c, const struct model_load *x);

struct model_cost model_cost_sum(struct model_cost a, struct model_cost b);
struct model_cost model_cost_times(struct model_cost a, double n);

#endif
