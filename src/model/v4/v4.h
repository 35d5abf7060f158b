/* v4.h - inside of a DeepSeek-V4 model: layers, workspace, one launch function per block.
 *
 * Everything is sized in open.c and stays; forward.c, draft.c and mtp.c read as the paper does and
 * share attention.c, moe.c and head.c. */
#ifndef FST_MODEL_V4_H
#define FST_MODEL_V4_H

#include "model/model.h"
#include "weights/weights.h"

/* One layer of the trunk or of the drafter. */
struct v4_layer {
    const struct layer_weights *w; /* borrowed */
    struct expert_mats *experts;   /* (n_experts) views, owned by the model */
    struct expert_mats shared;
    int pool;       /* kv->layer[pool] holds its rows; several layers may share one */
    float *capture; /* column of the captured hidden rows, or NULL */
};

/* Index of a block in the timing table. */
enum {
#define V4_INDEX(entry, args) V4_##entry,
    KERNELS_MAP(V4_INDEX)
#undef V4_INDEX
        V4_BLOCKS
};

/* The arrays of a call's rows, next to each other: where each begins depends on n_rows alone. */
struct v4_rows {
    int32_t *slot, *pos, *id, *span, *pick; /* (n_rows) */
    int32_t *span_first;                    /* (n_rows + 1), n_spans + 1 of them in use */
};

/* rows_shared is shared memory (device.h), the rest is the device's.  n: most rows of a step
 * or of a draft batch, whichever is more. */
struct v4_work {
    float *x;              /* (n, 4, D) streams of the last model_forward */
    float *draft_x;        /* (rows of a draft; MTP: n, 4, D) streams of the drafter */
    float *mix;            /* (n, 24) */
    float *a, *y;          /* (n, D) input and output of a sublayer; y: room for few rows' parts */
    float *qr, *kv;        /* (n, Q), (n, C) */
    float *cmp, *idx, *iw; /* (n, 4C), (n, 4CI), (n, HI) */
    float *q, *qi, *o;     /* (n, H*C), (n, HI*CI), (n, H*C) */
    int32_t *sel, *n_sel;  /* (n, topk), (n) */
    int32_t *expert;       /* (n, k) */
    float *weight;         /* (n, k) */
    float *cs[2];          /* (n, R) cos and sin: ratio 0, compressed layers */
    float *captured;       /* (max_rows, S*D) */
    float *held; /* DSpark: (max_requests + 1, model_held_rows, S*D) of slots that do not draft */
    float *head_y, *logits;            /* (max_logits, D), (max_logits, V) */
    float *draft_y, *draft_logits;     /* (max_requests*gamma, D), (.., V) */
    int32_t *drafted, *drafted_shared; /* MTP: (gamma, n) ids of a draft; as the host reads them */
    float *freq[2];                    /* (R/2) of cs[0], cs[1] */
    void *a_operand, *qr_operand; /* a and qr once more, of few rows (kernels.h, operand_bytes) */
    int32_t *rows, *rows_shared; /* struct v4_rows of the call: for kernels; as the host fills it */
};

/* What a call's launchers see on the host and what may differ from call to call: equal keys, equal
 * launches.  No padding, compared as bytes. */
enum v4_call { V4_FORWARD, V4_INJECT, V4_DRAFT, V4_INJECT_HELD };
struct v4_key {
    int32_t call, n_rows, n_spans, n_logits, gamma;
    int32_t scored; /* some row sees more entries than index top-k keeps */
    const void *kv, *pages;
    const void *anchor, *draw, *out_pos, *ids, *conf; /* of a draft batch */
};
_Static_assert(sizeof(struct v4_key) == 6 * sizeof(int32_t) + 7 * sizeof(void *), "padding");

/* Recorded calls (graph.c). */
enum { V4_GRAPHS = MODEL_GRAPHS_MAX };
struct v4_graphs {
    bool on;
    int n, n_seen, next_seen; /* in use; seen is a ring */
    uint64_t turn, replayed;
    struct v4_graph {
        struct v4_key key;
        void *graph;   /* owned */
        uint64_t used; /* turn of the last use */
    } graph[V4_GRAPHS];
    struct v4_key seen[V4_GRAPHS]; /* called once */
};

struct model {
    const struct weights *w;       /* borrowed */
    const struct model_config *c;  /* of w */
    const struct kernels *kernels; /* borrowed */
    struct stream *stream;         /* borrowed */
    struct model_opts opts;
    int n_layers, n_stages;
    struct v4_layer layer[CONFIG_LAYERS_MAX], stage[CONFIG_STAGES_MAX];
    struct v4_work work;
    int y_parts; /* experts a row whose outputs work.y holds apart; 0: it holds their sum, or attn_out's y */
    struct expert_mats *mats; /* owned, device memory: all layers' views */
    void *block, *shared;     /* owned: the two parts of the workspace */
    size_t block_bytes, shared_bytes, mats_bytes;
    int max_rows;   /* n of the workspace */
    bool scored;    /* of the call: struct v4_key */
    bool under_way; /* a call was enqueued and nobody here has waited for it */
    struct v4_graphs graphs;
    struct model_timing timing[V4_BLOCKS];
    enum model_site site; /* where the blocks that run now belong */
    struct {
        uint8_t block, site;
    } marked[DEVICE_MARK_END / 2]; /* between marks 2i and 2i + 1, not read yet */
    int n_marked;
    int64_t block_start; /* on a device without marks */
};

int64_t v4_now(void);
/* Around a block, with opts.profile. */
enum fst_status v4_block_begins(struct model *m);
enum fst_status v4_block_ends(struct model *m, int block);

/* v4_run_seam(m, &args) and so on: the kernel, timed when asked for. */
#define V4_RUN(entry, args)                                                                        \
    static inline enum fst_status v4_run_##entry(struct model *m, const args *a)                   \
    {                                                                                              \
        if (m->opts.heartbeat)                                                                     \
            *m->opts.heartbeat = v4_now();                                                         \
        if (!m->opts.profile)                                                                      \
            return m->kernels->entry(a, m->stream);                                                \
        FST_TRY(v4_block_begins(m));                                                               \
        FST_TRY(m->kernels->entry(a, m->stream));                                                  \
        return v4_block_ends(m, V4_##entry);                                                       \
    }
KERNELS_MAP(V4_RUN)
#undef V4_RUN

/* ---------------------------------------------------------------- a call's rows and launches */

/* Elements of the arrays of n_rows rows. */
int64_t v4_rows_ints(int n_rows);
/* Places of the arrays of n_rows rows: where kernels read them, where the host fills them. */
struct v4_rows v4_rows_of(const struct model *m, int n_rows);
struct v4_rows v4_rows_shared(const struct model *m, int n_rows);
/* Take over the caller's arrays; id and pick (n_pick) may be others than rows'.  Returns the rows as
 * kernels see them; sets m->scored. */
struct rows v4_take_rows(struct model *m, const struct kv *kv, const struct rows *rows,
                         const int32_t *id, const int32_t *pick, int n_pick);
/* The page tables of the rows' slots, where they have changed: in front of the call, not of its launches. */
enum fst_status v4_send_pages(struct model *m, struct kv *kv, const struct rows *rows);
/* Enqueue the copy from the host's arrays to the kernels': first of all launches of a call. */
enum fst_status v4_send_rows(struct model *m, int n_rows);

/* Everything that a call enqueues, from v4_send_rows on: it waits for nothing, and of the step it reads
 * on the host what struct v4_key holds. */
typedef enum fst_status v4_enqueue_fn(struct model *m, void *ud);
/* Enqueue, or launch what was recorded for `key`; then, with `wait`, wait for the device. */
enum fst_status v4_run(struct model *m, const struct v4_key *key, v4_enqueue_fn *enqueue, void *ud,
                       bool wait);
/* Before a call writes to memory that the one before may still read. */
enum fst_status v4_begin(struct model *m);
void v4_graphs_init(struct model *m);
void v4_graphs_free(struct model *m);

/* ---------------------------------------------------------------- parts of a layer */

/* cos and sin of rows->pos into work.cs; compressed: also the second table. */
enum fst_status v4_rope(struct model *m, const struct rows *rows, bool compressed);

/* Of work.a and work.qr with n_rows rows; NULL where kernels take none. */
void *v4_a_operand(const struct model *m, int n_rows);
void *v4_qr_operand(const struct model *m, int n_rows);

/* work.a -> work.y through attention; KV rows of the step are written, the ring (ATTN_CAUSAL)
 * after the attention. */
enum fst_status v4_attention(struct model *m, const struct v4_layer *l, struct kv *kv,
                             const struct rows *rows, enum attn_mode mode);

/* work.a -> work.y through the experts. */
enum fst_status v4_moe(struct model *m, const struct v4_layer *l, const struct rows *rows);

/* Finish the sublayer whose output is y (NULL: none yet) and start the site of `hc` (NULL: none
 * follows) with `norm`. */
enum fst_status v4_seam(struct model *m, float *x, int n_rows, const float *y,
                        const struct hc_weights *hc, const float *norm, float *capture);

/* A whole layer: from the seam before its attention to its experts' output in work.y. */
enum fst_status v4_layer(struct model *m, const struct v4_layer *l, struct kv *kv,
                         const struct rows *rows, enum attn_mode mode, float *x, const float *y,
                         float *capture);

/* Collapse, norm and logits of the picked rows. */
enum fst_status v4_head(struct model *m, const float *x, const struct hc_weights *hc,
                        const float *norm, const int32_t *row, int n, float *y, float *logits);

/* mtp.c: row[i] of src and the ids behind them -> the block's input streams, work.draft_x. */
enum fst_status v4_mtp_streams(struct model *m, const float *src, const int32_t *row,
                               const int32_t *id, int n);
/* model_draft of an MTP block; d->n > 0. */
enum fst_status v4_mtp_draft(struct model *m, struct kv *kv, const struct draft_batch *d);

/* Our own mistakes in rows stop the program; a foreign token id is FST_EINVAL. */
enum fst_status v4_check_rows(const struct model *m, const struct kv *kv, const struct rows *rows,
                              const int32_t *id);
void v4_check_picks(const int32_t *row, int n, int n_rows, int max);

#endif
