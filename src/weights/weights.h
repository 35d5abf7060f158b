/* weights.h - an opened checkpoint as one plain tree of matrices and vectors.
 *
 * weights_open() reads config.json and the safetensors shards of a folder, checks every tensor
 * against the inventory of its configuration (name, dtype, shape, bytes, nothing missing, nothing
 * extra) and only then builds the tree.  Matrices are views into the read-only mappings in their
 * stored form (kernels/mat.h; any alignment); vectors (norms, ape, hc_*, sinks, biases) are float
 * arrays.  Nothing is copied that is big.  Names below are those of DeepSeek-V4's published
 * checkpoints; the mathematics they enter is in the DeepSeek-V4 technical report, section 2.
 *
 * Threads: after weights_open the whole tree is read-only and may be read by all threads.
 * Shapes: D hidden, H heads, C head_dim, Q q_lora_rank, G o_groups, O o_lora_rank, E experts,
 * I moe_dim, V vocab, HI/CI index heads/dim, n = 4 streams, S stages, r Markov rank. */
#ifndef FST_WEIGHTS_WEIGHTS_H
#define FST_WEIGHTS_WEIGHTS_H

#include "kernels/mat.h"
#include "weights/config.h"
#include "weights/rope.h"

/* All `const float *` here are aligned to 4 bytes at least (hc fn may point into a mapping, the
 * others are on 64-byte lines); NULL = absent. */

/* Hyper-connection of one site.  Layers: fn [24][4D] (rows: 4 pre, 4 post, 16 comb), base [24],
 * scale [3] (pre, post, comb).  Head: fn [4][4D], base [4], scale [1]. */
struct hc_weights {
    const float *fn, *base, *scale;
};

/* c = 2 when ratio is 4, else 1; dim is C (attention) or CI (indexer). */
struct compressor_weights {
    int ratio, dim;        /* ratio 0: absent */
    struct mat wkv, wgate; /* [c * dim, D] */
    const float *ape;      /* [ratio][c * dim] */
    const float *norm;     /* [dim] */
};

struct indexer_weights {     /* ratio-4 layers only; wq_b.fmt WEIGHT_NONE elsewhere */
    struct mat wq_b;         /* [HI * CI, Q] */
    struct mat weights_proj; /* [HI, D] */
    struct compressor_weights compressor;
};

struct attn_weights {
    struct mat wq_a;      /* [Q, D] */
    struct mat wq_b;      /* [H * C, Q] */
    struct mat wkv;       /* [C, D] */
    struct mat wo_a;      /* [G * O, H * C / G]: group g owns rows g * O .. g * O + O - 1 */
    struct mat wo_b;      /* [D, G * O] */
    const float *q_norm;  /* [Q] */
    const float *kv_norm; /* [C] */
    const float *sink;    /* [H] */
    struct compressor_weights compressor;
    struct indexer_weights indexer;
};

struct expert_weights {
    struct mat w1, w2, w3; /* gate [I, D], down [D, I], up [I, D] */
};

struct ffn_weights {
    struct mat gate;        /* router [E, D], BF16 or F32 */
    const float *bias;      /* [E]; NULL in hash layers */
    const int32_t *tid2eid; /* [V][n_experts_per_token], each 0 <= id < E; NULL unless hash layer */
    struct expert_weights shared;
    const struct expert_weights *experts; /* [E] */
};

struct layer_weights {
    int ratio;                         /* 0, 4 or 128 */
    bool hash_route;                   /* experts by ffn.tid2eid, not by score */
    const float *attn_norm, *ffn_norm; /* [D] */
    struct hc_weights hc_attn, hc_ffn;
    struct attn_weights attn;
    struct ffn_weights ffn;
};

/* Classic MTP block (preview and base checkpoints): stage[0] is its layer. */
struct mtp_weights {
    const float *enorm, *hnorm, *norm; /* [D] */
    struct mat e_proj, h_proj;         /* [D, D] */
    struct hc_weights hc_head;
};

/* DSpark drafter: stage[0..S-1] are its layers. */
struct dspark_weights {
    struct mat main_proj;   /* [D, S * D] */
    const float *main_norm; /* [D] */
    const float *norm;      /* [D] */
    struct hc_weights hc_head;
    struct mat markov_w1, markov_w2; /* [V, r] */
    struct mat confidence; /* [1, D + r]; fmt WEIGHT_NONE when the checkpoint has no head */
};

struct weights_store; /* shards, tensor table, owned arrays */

struct weights {
    struct model_config config; /* has_mtp, has_dspark, n_stages as the tensors say */
    struct mat embed;           /* [V, D] BF16 or F32 */
    struct mat head;            /* [V, D] */
    const float *norm;          /* [D] */
    struct hc_weights hc_head;
    struct layer_weights layer[CONFIG_LAYERS_MAX]; /* config.n_layers */
    /* The draft: n_stages layers and one of the two extras; n_stages is 0 without a draft and when
     * it was opened without its values (weights_opts.no_draft). */
    int n_stages;
    struct layer_weights stage[CONFIG_STAGES_MAX];
    struct mtp_weights mtp;       /* config.has_mtp && n_stages == 1 */
    struct dspark_weights dspark; /* config.has_dspark && n_stages > 0 */

    float rope_main[WEIGHTS_ROPE_PAIRS];     /* frequencies of ratio-0 layers and of the draft */
    float rope_compress[WEIGHTS_ROPE_PAIRS]; /* of layers with ratio 4 or 128 */

    int64_t n_tensors, bytes; /* of the whole checkpoint */
    char warning[256];        /* "" or one line worth showing (experts repeated in tid2eid, ...) */
    struct weights_store *store; /* owned */
};

struct weights_opts {
    bool no_draft; /* draft tensors must be there, but neither widened nor given */
    bool populate; /* ask the kernel to read the shards ahead (MADV_WILLNEED) */
};

/* Open the checkpoint in folder `dir`.  opts NULL: all off.  FST_EFORMAT names file, key or tensor
 * and what was expected; FST_EIO, FST_ENOMEM, FST_EUNSUPPORTED, FST_ENOTFOUND (no such folder or
 * no config.json).  On failure *out is NULL and nothing stays mapped. */
enum fst_status weights_open(struct weights **out, const char *dir,
                             const struct weights_opts *opts);
void weights_free(struct weights *w); /* NULL is fine */

/* The configuration, kinds of layers and number of stages, and no values: for sizes.  FST_ENOMEM. */
enum fst_status weights_shape(struct weights **out, const struct model_config *c);

struct weights_upload_opts {
    int n_threads;       /* readers; 0: as many as there are cores, up to 8 */
    int64_t stage_bytes; /* that a reader handles at a time; 0: 4 MiB */
    /* Progress, from the caller's thread; NULL: not wanted. */
    void (*on_load)(void *ud, uint64_t done, uint64_t total);
    void *on_load_ud;
};

/* Copy every value to device memory, each tensor on a 256-byte line, and let the tree point there: only
 * kernels read it then (config, rope_* and the tree itself stay on the host).  The mappings stay.
 * d is not NULL and outlives w.  opts NULL: all 0.  FST_ENOMEM names the bytes; FST_EIO names the file;
 * FST_EINTERNAL. */
struct device;
enum fst_status weights_upload(struct weights *w, const struct device *d,
                               const struct weights_upload_opts *opts);

/* Random weights of a configuration, made on the device of `s` in the published formats and shapes, for
 * measuring: scales keep activations of order 1, routers spread rows evenly.  A draft is made when the
 * configuration has DSpark, an MTP block never.  The same values on every device.  FST_ENOMEM says which
 * part did not fit. */
struct stream;
enum fst_status weights_synthetic(struct weights **out, const struct model_config *c,
                                  struct stream *s, uint64_t seed);

/* Scan of all values: E8M0 byte 255 and E4M3 codes 0x7F/0xFF are not numbers, BF16/F32 must be
 * finite.  Reads every byte (minutes on a real checkpoint).  FST_EFORMAT names the first bad
 * tensor and element. */
enum fst_status weights_check_values(const struct weights *w);

/* Tells checkpoints apart: of all names, types and shapes, and of a few hundred bytes of each tensor, so that
 * one of 70,000 tensors takes seconds when nothing of it is in memory. */
uint64_t weights_digest(const struct weights *w);

/* The tensors as stored, in order of the inventory: for tools and uploads. */
struct weights_tensor {
    const char *name;  /* canonical; borrowed */
    const char *file;  /* shard path; borrowed */
    const char *dtype; /* as in the header: "BF16", "F8_E4M3", ... */
    int n_dims;
    int64_t shape[4];
    const void *data; /* borrowed, any alignment */
    int64_t bytes;
};
int64_t weights_n_tensors(const struct weights *w);
void weights_tensor_at(const struct weights *w, int64_t i, struct weights_tensor *out);

/* What a checkpoint is made of (`inspect`).  Classes by use, not by dtype. */
enum weights_class {
    WEIGHTS_EMBED,     /* embed, head */
    WEIGHTS_ATTENTION, /* projections, norms, sinks of trunk layers */
    WEIGHTS_COMPRESSOR,
    WEIGHTS_INDEXER, /* with its compressor */
    WEIGHTS_HC,      /* hyper-connections, incl. hc_head */
    WEIGHTS_ROUTER,  /* gate weight, bias, tid2eid */
    WEIGHTS_EXPERTS, /* routed */
    WEIGHTS_SHARED,  /* shared expert */
    WEIGHTS_NORM,    /* attn_norm, ffn_norm, norm */
    WEIGHTS_ENGRAM,  /* V4.1's tables of n-grams and what reads them */
    WEIGHTS_DRAFT,   /* mtp.* */
    WEIGHTS_UNKNOWN,
    WEIGHTS_CLASSES
};
const char *weights_class_name(enum weights_class c); /* "embed", "attention", ... */

struct weights_report {
    struct model_config config;
    int64_t tensors, bytes; /* found; for a preset: expected */
    struct {
        int64_t tensors, bytes;
    } by_class[WEIGHTS_CLASSES];
    int64_t stage_tensors[CONFIG_STAGES_MAX]; /* mtp.0, mtp.1, ... */
    /* Of bytes: routed experts of layers and of stages, Engram's tables; what tensor parallelism cuts. */
    int64_t expert_bytes, stage_expert_bytes, engram_bytes, cut_bytes;
    int64_t n_missing, n_unknown, n_wrong;
    char **missing, **unknown; /* owned: canonical names (unknown: as stored) */
    char **wrong;              /* owned: one line each, dtype or shape other than expected */
};

/* Headers only: no value is read.  A folder that cannot be read as a checkpoint at all (no config,
 * damaged shard) is an error; missing, unknown and wrong tensors are figures of the report. */
enum fst_status weights_inspect(struct weights_report **out, const char *dir);
enum fst_status weights_inspect_preset(struct weights_report **out, const char *preset);
/* How several cards hold one model.  By experts: each has whole routed experts and a part of Engram's
 * rows, and all of the rest; it attends for its own requests.  By tensors: heads, o-groups, the inner
 * width of experts, the vocabulary and Engram's rows are cut, the rest is on every card, and so are the
 * rows of every request. */
enum weights_share { WEIGHTS_SHARE_EXPERTS, WEIGHTS_SHARE_TENSORS };
/* Bytes on the fullest of n_cards cards, from 1 on. */
int64_t weights_card_bytes(const struct weights_report *r, enum weights_share share, int n_cards);
void weights_report_free(struct weights_report *r); /* NULL is fine */

#endif
