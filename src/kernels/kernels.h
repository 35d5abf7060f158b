/* kernels.h - the table of blocks that a model is made of, and the contract of each.
 *
 * One entry is one block of a layer (seam, input projections, KV write, query path, index scores
 * and top-k, attention, output projection, routing, experts, head, draft chain), not a single norm
 * or product; a backend may fuse as it likes inside one.  ref/ holds the truth in plain C, cpu/ the
 * AVX2 and AVX-512 versions; kernels_init fills the table, best version last.
 *
 * Conventions
 *  - Activations are float arrays, row-major, in the shapes given; in PRECISION_NATIVE every value
 *    that the published model stores as bf16 lies on the bf16 grid ("bf16 out" below).  In
 *    PRECISION_REFERENCE (ref only) nothing is rounded or quantised.
 *  - Row independence: the bits of row i depend on row i's inputs alone: not on n_rows, not on its
 *    place in the batch, not on the number of threads.  Every reduction has one fixed order, which
 *    belongs to the matrix or to absolute positions.  checkkern compares bits at 1, 6, 16, 64, 128,
 *    1024 rows and for splits of a span.
 *  - Tolerance against ref is by block, stated at the entry: EXACT or NMSE x
 *    (sum (a-b)^2 / sum b^2 <= x).
 *  - A launcher only computes: no allocation, no I/O; scratch comes from the stream
 *    (kernels_scratch_bytes says how much).  All return FST_OK or FST_EINTERNAL.
 *  - "FP8 linear": the input is quantised per row and 128 inputs to E4M3 with a power-of-two scale
 *    (floor 1e-4, scale = 2^ceil(log2(amax/448)) on the bits, RNE), products accumulate in fp32.
 *    A mat of format BF16 or F32 in the same place takes its input unquantised (bf16 grid).
 *    Its output is rounded to bf16 before the norm, product or rotation that follows, as published
 *    (wkv, wq_a, wq_b, w1, ...); "fp32" at the entry says where it is not.
 *
 * Sources: DeepSeek-V4 technical report §2, reference inference model.py and kernel.py; DSpark
 * paper §3. */
#ifndef FST_KERNELS_H
#define FST_KERNELS_H

#include "base/base.h"
#include "device/device.h"
#include "kernels/mat.h"

enum {
    KERN_HC = 4,     /* residual streams */
    KERN_MIX = 24,   /* control values per site: pre 4, post 4, comb 4x4 (source-major) */
    KERN_PAGE = 256, /* tokens per page of compressed rows */
    KERN_GAMMA_MAX = 8,
    KERN_SEGMENTS = 8 /* K segments of wo_b and w2: reduced apart, added by a fixed tree */
};

/* ---------------------------------------------------------------- rows of a step, KV of a layer */

/* The rows of one step.  A span is a run of rows with consecutive positions of one slot; a slot has
 * at most one span in a step.  Rows of a span are adjacent and ascending. */
struct rows {
    int n_rows, n_spans;
    const int32_t *slot;       /* (n_rows) request slot, >= 0 */
    const int32_t *pos;        /* (n_rows) absolute position of the token */
    const int32_t *id;         /* (n_rows) token id */
    const int32_t *span;       /* (n_rows) span of the row */
    const int32_t *span_first; /* (n_spans + 1) first row of each span, last: n_rows */
    const int32_t *pages;      /* (n_slots, page_stride): page of positions 256*i .. 256*i+255 */
    int page_stride;
};

/* Row formats (bytes as published for unified KV pools):
 * BF16  one 1024-byte row: 512 bf16, rope dims last.
 * FP8   two areas: nope rows of 512 bytes (448 E4M3, then the 7 E8M0 tile codes, each twice, at
 *       448+2k and 449+2k, rest 0) and rope rows of 128 bytes (64 bf16).
 * F32   head_dim floats (PRECISION_REFERENCE).
 * PAGED one area of pages: P data rows of 576 bytes (448 E4M3, 64 bf16), then P scale rows of 8 (7 E8M0
 *       tile codes, 0), padded to 576: 149,760 bytes for 256 window rows, after them 37,440 for 64
 *       entries of ratio 4 or 1,728 for 2 of ratio 128.  On the CPU alone. */
enum row_format { ROW_BF16, ROW_FP8, ROW_F32, ROW_PAGED };

/* Index keys: FP4: pages of 64 rows, 4352 bytes: row t's 64 value bytes at 64*t (value 2i in the
 * low nibble of byte i), its 4 E8M0 codes at 64*64 + 4*t.  FP8: 8448 bytes: 128 E4M3 at 128*t, one
 * fp32 scale at 128*64 + 4*t.  F32: index_dim floats per row (PRECISION_REFERENCE). */
enum index_format { INDEX_FP4, INDEX_FP8, INDEX_F32 };

/* Where one layer keeps its rows and states.  Window row of position p, slot s: s*ring + p%ring.
 * Compressed entry e (positions e*ratio .. e*ratio+ratio-1) of slot s: compressed_base +
 * pages[s][e*ratio/256]*(256/ratio) + e%(256/ratio).  Index key of entry e: page
 * pages[s][e*4/256], row e%64. */
struct kv_layer {
    enum row_format format;
    uint8_t *nope, *rope; /* FP8: two areas; BF16 and F32: nope alone */
    int64_t n_rows;       /* rows in the area(s), for bounds assertions */
    int ring;             /* window rows per slot */
    int64_t compressed_base;
    int ratio;    /* 0, 4 or 128 */
    float *state; /* (n_slots, state_ring, 2*c*head_dim): kv | score with ape added,
                                  row of position p: p % state_ring; c = 2 at ratio 4, else 1 */
    int state_ring;
    enum index_format index_format;
    uint8_t *index_keys; /* ratio 4 */
    float *index_state;  /* (n_slots, state_ring, 4*index_dim) */
};

/* ---------------------------------------------------------------- arguments of the blocks */

struct rope_args {      /* cs[t, 2i] = cos, cs[t, 2i+1] = sin of pos[t]*freq[i] (fp32 angle) */
    float *cs;          /* (n, rope_dim) */
    const float *freq;  /* (rope_dim/2) */
    const int32_t *pos; /* (n) */
    int n, rope_dim;
};

struct embed_args { /* x[t,k,:] = table[id[t],:], k = 0..3.  EXACT */
    float *x;       /* (n_rows, 4, dim) */
    const struct mat *table;
    const int32_t *id;
    int n_rows, dim;
};

/* One seam: finish the previous sublayer, start the next (hyper-connections, report §2.2).
 *  1. if y: x[t,k,:] = bf16(post[k]*bf16(y[t,:]) + sum_j comb[j][k]*x[t,j,:]) with the mix that the
 *     previous seam left in `mix`; if capture: capture[t*capture_ld + d] = bf16(mean_k x[t,k,d]).
 *  2. if fn: v = all 4*dim values, z = (fn v)*rsqrt(mean(v^2)+norm_eps); mix = {pre (+hc_eps),
 *     post, comb after `iters` Sinkhorn rounds}; u = bf16(sum_k pre[k]*x[t,k,:]);
 *     out = bf16(norm * u*rsqrt(mean(u^2)+norm_eps)).
 * NMSE 1e-5. */
struct seam_args {
    float *x;       /* (n_rows, 4, dim) in and out */
    const float *y; /* (n_rows, dim) fp32 sum of the sublayer, not rounded; NULL */
    float *mix;     /* (n_rows, KERN_MIX) in and out */
    float *capture; /* NULL or first of n_rows rows of stride capture_ld */
    int64_t capture_ld;
    const float *fn;           /* (24, 4*dim) or NULL */
    const float *base, *scale; /* (24), (3) */
    const float *norm;         /* (dim) */
    float *out;                /* (n_rows, dim) */
    int n_rows, dim, iters;
    int parts; /* 0; k: y is what experts with k a row left apart (experts_apart), added up here */
    float hc_eps, norm_eps;
    void *operand; /* NULL, or out once more as of operand_bytes */
};

/* Everything that reads the normed input x of the attention site.
 *  qr = bf16 rmsnorm(wq_a x; q_norm);  kv = bf16 rmsnorm(wkv x; kv_norm) (not rotated yet);
 *  cmp = [cmp_wkv x | cmp_wgate x] fp32; idx likewise; iw = bf16(bf16(weights_proj x)*iw_scale).
 * Absent matrices are NULL and their outputs untouched (stages and ratio-0 layers: no cmp; ratio
 * 128: no idx; injection: wq_a NULL).  NMSE 1e-5. */
struct attn_in_args {
    const float *x; /* (n_rows, dim) bf16 grid */
    const struct mat *wq_a, *wkv, *cmp_wkv, *cmp_wgate, *idx_wkv, *idx_wgate, *weights_proj;
    const float *q_norm, *kv_norm;
    float *qr;  /* (n_rows, q_rank) */
    float *kv;  /* (n_rows, head_dim) */
    float *cmp; /* (n_rows, 2*c*head_dim) */
    float *idx; /* (n_rows, 4*index_dim) */
    float *iw;  /* (n_rows, index_heads) */
    float iw_scale, norm_eps;
    int n_rows;
    const void *operand; /* NULL, or x once more as the seam left it: operand_bytes */
    void *qr_operand;    /* NULL, or qr once more, for q_path alone */
};

/* Finish the KV rows of a step and update the compressors.
 *  1. kv[t] = rope(kv[t], pos) on the last rope_dim dims, then the first head_dim-rope_dim dims to
 *     the FP8 grid in tiles of 64 (in place, bf16 grid): what attention sees of the step's own rows
 *     and what ring_store stores.
 *  2. for every row with (pos+1) % ratio == 0 pool the group (report §2.3; inputs at positions >= the
 *     span's first from cmp of the step, older ones from state, positions < 0 masked), norm, rope at
 *     pos+1-ratio, FP8 grid, store as compressed entry; ratio 4 also the index key (norm, rope,
 *     Hadamard, FP4 grid or the layer's index format).
 *  3. after all pooling: state rows of the step's last state_ring positions of each span.
 * score in state = cmp score + ape[pos % ratio].  Rows EXACT against ref up to NMSE 1e-6 before the
 * grid; checkkern compares decoded rows at NMSE 1e-5, decoded index keys at 1e-3 (codes flip). */
struct kv_write_args {
    const struct rows *rows;
    const struct kv_layer *l;
    float *kv;                       /* (n_rows, head_dim) in and out */
    const float *cmp, *idx;          /* as attn_in left them; NULL by ratio */
    const float *ape;                /* (ratio, c*head_dim) */
    const float *cmp_norm;           /* (head_dim) */
    const float *idx_ape, *idx_norm; /* (4, 2*index_dim), (index_dim) */
    const float *cs;                 /* (n_rows, rope_dim) of the layer's table */
    const float *freq;               /* (rope_dim/2) the same table, for the entries' positions */
    int head_dim, rope_dim, index_dim;
    float norm_eps;
};

/* Store kv rows (finished by kv_write, or by inject) in their rings: rows whose position is among
 * the last `ring` of their span.  Called after attention, which still needs the overwritten rows. */
struct ring_store_args {
    const struct rows *rows;
    const struct kv_layer *l;
    const float *kv; /* (n_rows, head_dim) on the row grid */
    int head_dim, rope_dim;
};

/* q = wq_b qr per head: q*rsqrt(mean(q^2)+norm_eps) (no weight), rope on the last rope_dim dims,
 * bf16.  With idx_wq_b: qi per index head: rope on its last rope_dim dims, bf16, Hadamard
 * (Sylvester order) * dim^-1/2, bf16, FP4 grid in blocks of 32.  NMSE 1e-5 (qi: 1e-3, codes flip). */
struct q_path_args {
    const float *qr;            /* (n_rows, q_rank) */
    const struct mat *wq_b;     /* (n_heads*head_dim, q_rank) */
    const struct mat *idx_wq_b; /* (index_heads*index_dim, q_rank) or NULL */
    const float *cs;            /* (n_rows, rope_dim) */
    float *q;                   /* (n_rows, n_heads, head_dim) */
    float *qi;                  /* (n_rows, index_heads, index_dim) */
    int n_rows, n_heads, head_dim, rope_dim, index_heads, index_dim;
    float norm_eps;
    bool packed;         /* q as of heads_packed */
    const void *operand; /* NULL, or qr once more as attn_in left it: operand_bytes */
};

/* nv = (pos+1)/4 visible entries; score[e] = sum_h iw[h]*relu(qi[h].key[e]) in fp32, heads in order;
 * sel = the min(topk, nv) best, ties to the lower entry, written in ascending order of entry.
 * When nv <= topk scoring is skipped (unless `scores` is asked for).  EXACT given equal scores;
 * scores NMSE 1e-6. */
struct index_topk_args {
    const struct rows *rows;
    const struct kv_layer *l;
    const float *qi, *iw;
    int32_t *sel;        /* (n_rows, topk) */
    int32_t *n_sel;      /* (n_rows) */
    int64_t max_entries; /* scratch bound: entries any row can see */
    float *scores;       /* NULL, or (n_rows, max_entries): scores for tests */
    int index_heads, index_dim, topk;
    float *margin; /* NULL, or (n_rows): score of the last kept minus best dropped */
};

/* o = attention of each row over {window, compressed entries}, sink in the denominator only, output
 * rotated back by the row's position (report §2.3.3), bf16.
 *  ATTN_CAUSAL: window positions max(0,p-window+1)..p: positions >= the span's first are rows of kv,
 *  older ones come from the ring; then ratio 128: entries 0..(p+1)/128-1, ratio 4: sel.
 *  ATTN_BLOCK (draft stage): window positions max(0,n-window)..n-1 from the ring, n = the span's first
 *  position, then every row of the span (also later ones).
 * Order of blocks: window in pieces that start at positions = 0 mod 64, compressed entries of ratio
 * 128 in pieces from multiples of 64, selected entries in pieces of 64 from the start of the sorted
 * list, draft block rows last; running max, weights rounded to bf16 for the product with V, the
 * denominator sums unrounded weights.  NMSE 1e-5. */
enum attn_mode { ATTN_CAUSAL, ATTN_BLOCK };
struct attention_args {
    const struct rows *rows;
    const struct kv_layer *l;
    enum attn_mode mode;
    const float *q;             /* (n_rows, n_heads, head_dim) */
    const float *kv;            /* (n_rows, head_dim) the step's own rows */
    const int32_t *sel, *n_sel; /* ratio 4; (n_rows, topk), (n_rows) */
    int topk;
    const float *sink; /* (n_heads) */
    const float *cs;   /* (n_rows, rope_dim) */
    float *o;          /* (n_rows, n_heads, head_dim) */
    int n_heads, head_dim, rope_dim, window;
    float scale;
    bool packed; /* q and o as of heads_packed */
};

/* r[g] = bf16(wo_a[g] . o heads of group g) (input not quantised);  y = wo_b concat(r): fp32, K in
 * KERN_SEGMENTS equal segments, each summed apart, added ((0+1)+(2+3))+((4+5)+(6+7)); not rounded
 * (the seam rounds).  NMSE 1e-5. */
struct attn_out_args {
    const float *o;         /* (n_rows, n_heads*head_dim) */
    const struct mat *wo_a; /* (groups*o_rank, n_heads*head_dim/groups) */
    const struct mat *wo_b; /* (dim, groups*o_rank) */
    float *y;               /* (n_rows, dim) fp32 */
    int n_rows, groups;
    bool packed; /* o as of heads_packed */
};

/* g = gate x in fp32; sc = sqrt(softplus(g)); experts: the k largest sc+bias (ties: lower id), or
 * tid2eid[id]; weight = sc/sum(sc)*scale; written in ascending expert order.  EXACT choice when the
 * margin exceeds 1e-5; weights NMSE 1e-6. */
struct route_args {
    const float *x;         /* (n_rows, dim) bf16 grid */
    const struct mat *gate; /* (n_experts, dim) */
    const float *bias;      /* (n_experts), NULL in hash layers */
    const int32_t *tid2eid; /* (vocab, k), NULL elsewhere */
    const int32_t *id;      /* (n_rows) token ids, hash layers */
    int32_t *expert;        /* (n_rows, k) */
    float *weight;          /* (n_rows, k) */
    float *margin;          /* NULL, or (n_rows): k-th best minus (k+1)-th choice value */
    int n_rows, k;
    float scale;
};

struct expert_mats {
    struct mat w1, w3, w2; /* gate, up (moe_dim, dim); down (dim, moe_dim) */
};

/* y = sum over the row's experts in ascending id of w2 h_e, plus the shared expert last, where
 * a = bf16(w1 x), b = bf16(w3 x), a = min(a, limit), b = clamp(b, -limit, limit),
 * h = bf16(weight * silu(a)*b) (shared: weight 1), quantised per 128 for w2; w2's K in
 * KERN_SEGMENTS segments as in attn_out; fp32 sums, not rounded.  NMSE 1e-5; 4e-5 where sums of E4M3
 * products keep 11 bits, as Hopper's do (bench/results/h200-wgmma-bits.txt): codes of h flip. */
struct experts_args {
    const float *x;                    /* (n_rows, dim) */
    const int32_t *expert;             /* (n_rows, k) ascending */
    const float *weight;               /* (n_rows, k) */
    const struct expert_mats *experts; /* (n_experts), device memory */
    enum weight_format routed;         /* of their matrices */
    const struct expert_mats *shared;
    float *y; /* (n_rows, dim) fp32 */
    int n_rows, k, n_experts, dim, moe_dim;
    float limit;
    void *operand; /* NULL, or x once more as the seam left it, used up: operand_bytes */
    bool apart;    /* as of experts_apart */
};

/* y = bf16(sum_k pre[k]*x[k]), pre = sigmoid(((fn v)*rsqrt(mean v^2 + eps))*scale + base) + hc_eps;
 * h = bf16 rmsnorm(y; norm); logits = head h (bf16 products, fp32 sums).  Rows are picked:
 * row[i] is the step row of output i.  NMSE 1e-6. */
struct head_args {
    const float *x;                 /* (any, 4, dim) */
    const int32_t *row;             /* (n) */
    const float *fn, *base, *scale; /* (4, 4*dim), (4), (1) */
    const float *norm;
    const struct mat *head; /* (vocab, dim) */
    float *y;               /* (n, dim), before the norm; the confidence head reads it */
    float *logits;          /* (n, vocab) */
    int n, dim;
    float hc_eps, norm_eps;
};

/* Classic MTP block input: x[k] = bf16(bf16(e_proj rms(embed; enorm)) + bf16(h_proj rms(src[k]; hnorm)))
 * (reference MTPBlock).  NMSE 1e-5. */
struct mtp_in_args {
    const float *src;   /* (any, 4, dim) streams of the target, or of the step before */
    const int32_t *row; /* (n_rows) row of src for each of x; NULL: 0, 1, ..., then x may be src */
    float *x;           /* (n_rows, 4, dim) */
    const struct mat *table, *e_proj, *h_proj;
    const float *enorm, *hnorm;
    const int32_t *id; /* (n_rows) the next token */
    int n_rows, dim;
    float norm_eps;
};

/* DSpark injection (paper §3; the drafter's context): main = bf16 rmsnorm(main_proj h; main_norm);
 * the stages' wkv and kv_norm are applied by attn_in with wq_a NULL, then rows are finished by
 * kv_write (ratio 0) and stored by ring_store.  NMSE 1e-5. */
struct main_proj_args {
    const float *h;              /* (any, n_stages*dim) captured streams' means */
    const int32_t *row;          /* (n_rows) row of h for each output; NULL: 0, 1, ... */
    const struct mat *main_proj; /* (dim, n_stages*dim) */
    const float *main_norm;
    float *main; /* (n_rows, dim) */
    int n_rows;
    float norm_eps;
};

/* How a token is drawn.  The noise of token v is g = -log(-log(u)), u = (philox + 0.5)*2^-32 with
 * Philox4x32-10, key = seed (low, high word), counter = {v, output position, choice, 0}, word 0; the
 * draw is argmax(logit/temperature + g), ties to the lower id.  temperature 0: argmax of logits. */
struct draw_params {
    float temperature;
    uint32_t choice;
    uint64_t seed;
};

/* Markov chain of a draft block, one request after another: prev = anchor; for k < gamma:
 * l = base[r,k,:] + w2 (w1[prev]) (fp32); id[r,k] = draw(l; output position out_pos[r]+k);
 * conf[r,k] = conf_proj . [y[r,k]; w1[prev]] before the sigmoid (NULL conf_proj: skipped);
 * prev = id.  corrected: NULL or (n, gamma, vocab) gets l.  Entries of l that are NaN are never
 * drawn (a bad draft is only rejected; 0 when nothing is left).  EXACT ids at margins > 1e-4;
 * corrected NMSE 1e-6. */
struct draft_chain_args {
    const float *base;              /* (n, gamma, vocab) */
    const float *y;                 /* (n, gamma, dim) head's pre-norm rows */
    const struct mat *w1, *w2;      /* (vocab, rank) */
    const struct mat *conf_proj;    /* (1, dim+rank) or NULL */
    const int32_t *anchor;          /* (n) */
    const struct draw_params *draw; /* (n) */
    const uint32_t *out_pos;        /* (n) output position of the first draft */
    int32_t *id;                    /* (n, gamma) */
    float *conf;                    /* (n, gamma) logits of the confidence head */
    float *corrected;
    int n, gamma, vocab, dim, rank;
};

/* First logits[i, masked[..]] = -inf.  Then id[i] = draw(logits[i]; out_pos[i] + ahead) over the
 * whole vocabulary.
 * lse[i] = log sum exp of logits[i] (fp32 result, double sum in id order).  A NaN in a row sets id to -1;
 * with `drafts` it is never drawn, as in draft_chain.  EXACT at margins > 1e-4. */
struct draw_args {
    float *logits;                  /* (n, vocab), written where masked */
    const struct draw_params *draw; /* (n) */
    const uint32_t *out_pos;        /* (n) */
    uint32_t ahead;                 /* added to each of them */
    bool drafts;                    /* a bad draft is only rejected */
    int32_t *id;
    float *lse;            /* NULL: not wanted */
    float *logit;          /* NULL, or (n): of the drawn id */
    const int32_t *masked; /* (n_masked) ids */
    int n, vocab, n_masked;
};

/* Pieces of memory to other places, all at once: none of them is read where another is written.  Addresses
 * and bytes are multiples of 4; the list and what is read or written are the device's or shared memory.
 * EXACT. */
struct copy_piece {
    uint8_t *to;
    const uint8_t *from;
    int64_t bytes;
};
enum { COPY_PIECE_MAX = 32768 }; /* bytes: a card gives each piece to one block */
struct copy_pieces_args {
    const struct copy_piece *piece; /* (n) */
    int n;
};

/* ---------------------------------------------------------------- the table */

/* X(entry, argument struct) */
#define KERNELS_MAP(X)                                                                             \
    X(rope, struct rope_args)                                                                      \
    X(embed, struct embed_args)                                                                    \
    X(seam, struct seam_args)                                                                      \
    X(attn_in, struct attn_in_args)                                                                \
    X(kv_write, struct kv_write_args)                                                              \
    X(ring_store, struct ring_store_args)                                                          \
    X(q_path, struct q_path_args)                                                                  \
    X(index_topk, struct index_topk_args)                                                          \
    X(attention, struct attention_args)                                                            \
    X(attn_out, struct attn_out_args)                                                              \
    X(route, struct route_args)                                                                    \
    X(experts, struct experts_args)                                                                \
    X(head, struct head_args)                                                                      \
    X(mtp_in, struct mtp_in_args)                                                                  \
    X(main_proj, struct main_proj_args)                                                            \
    X(draft_chain, struct draft_chain_args)                                                        \
    X(draw, struct draw_args)                                                                      \
    X(copy_pieces, struct copy_pieces_args)

struct kernel_limits {
    int n_rows, dim, n_heads, head_dim, q_rank, o_rank, groups, moe_dim, n_experts, k;
    int index_heads, index_dim, topk, n_stages, vocab, markov_rank, window;
    int64_t max_entries; /* ratio-4 entries a row can see */
};

enum kernel_flags { KERN_AVX2 = 1, KERN_AVX512 = 2, KERN_GPU = 4 };

struct kernels {
    unsigned flags;   /* what the table was built with */
    const char *name; /* "ref", "avx2", "avx512"; "gpu", "sm90" from a device's module */
#define KERNELS_FIELD(entry, args) enum fst_status (*entry)(const args *a, struct stream *s);
    KERNELS_MAP(KERNELS_FIELD)
#undef KERNELS_FIELD
    size_t (*scratch)(const struct kernel_limits *l); /* of a device's module; NULL: on the CPU */
    /* Whether the heads of a layer travel packed from q_path to attention to attn_out: bf16 in the place
     * of the floats; q row by row in order, o in the order in which wo_a's product takes it
     * (sm90/operand.cuh).  Looks at the matrices and widths of the arguments alone.  NULL: never. */
    bool (*heads_packed)(const struct q_path_args *q, const struct attn_out_args *out);
    /* Operands: who makes the input of a product leaves it in the forms that products take as well, in
     * memory of the caller's, so that no launch is needed for it.  What is there is the set's own business.
     * The same n_rows and width on both sides; results are the same to the bit.  operand_rows: most rows
     * of a call with operands, 0: never; bytes of one, 0: not of this width. */
    int operand_rows;
    size_t (*operand_bytes)(int n_rows, int width);
    /* Whether experts can leave the addition of y to the seam that follows, which has the same order: then y
     * is (n_rows*(k+1), dim), the outputs of row t's experts at t*k .., the shared one's at n_rows*k + t.
     * Looks at formats, widths and n_rows alone; never beyond operand_rows.  NULL: never. */
    bool (*experts_apart)(const struct experts_args *a);
};

/* What this machine can run (cpuid and OS support), as flags. */
unsigned kernels_probe(void);

/* Fill the table; flags beyond the machine's are an assertion.  0: ref. */
void kernels_init(struct kernels *k, unsigned flags);

/* "auto" (what the machine has), "ref", "avx2", "avx512", or a list "-avx512" that takes away from
 * auto.  Also what FIRESTEEL_KERNELS holds when name is NULL.  FST_EINVAL lists the names,
 * FST_EMACHINE when the machine lacks it; PRECISION_REFERENCE with anything but ref: FST_EINVAL. */
enum fst_status kernels_select(struct kernels *k, const char *name, enum precision precision);

/* The table of an opened card.  `name` as of kernels_select: "auto" (what is made for the card, on
 * Hopper "sm90"), "gpu" (what runs on every card), "sm90"; NULL: auto.  FST_EMACHINE when the module is of another build. */
enum fst_status kernels_of_device(struct kernels *k, const struct device *d, const char *name,
                                  enum precision precision);

/* Bytes of stream scratch that any launch within these limits needs with n_threads workers. */
size_t kernels_scratch_bytes(const struct kernels *k, const struct kernel_limits *l, int n_threads);

#endif
