/* cost.c - bytes and operations of DeepSeek-V4's ops (technical report §2). */
#include "model/cost.h"

#include <math.h>
#include <string.h>

struct model_cost model_cost_sum(struct model_cost a, struct model_cost b)
{
    return (struct model_cost){a.bytes + b.bytes, a.fp8 + b.fp8, a.bf16 + b.bf16};
}

struct model_cost model_cost_times(struct model_cost a, double n)
{
    return (struct model_cost){a.bytes * n, a.fp8 * n, a.bf16 * n};
}

/* A linear: n_out x n_in weights of so many bytes, rows of in + out bytes. */
static struct model_cost fp8_linear(double rows, double n_out, double n_in, double out_bytes)
{
    return (struct model_cost){n_out * n_in + rows * (n_in + n_out * out_bytes),
                               2 * rows * n_out * n_in, 0};
}

static struct model_cost bf16_linear(double rows, double n_out, double n_in, double out_bytes)
{
    return (struct model_cost){2 * n_out * n_in + rows * (2 * n_in + n_out * out_bytes), 0,
                               2 * rows * n_out * n_in};
}

/* Keys that rows at positions context .. context + n - 1 of one sequence see: in sum over the rows, and
 * as rows of KV that somebody of them sees. */
struct seen {
    double sum, rows;
};

static struct seen seen_keys(const struct model_config *c, const struct model_load *x,
                             enum model_site site)
{
    double n = x->rows / x->sequences, end = x->context + n, top = c->index_topk;
    struct seen s = {0, fmin(end, c->window + n - 1)};
    for (double p = x->context + 1; p <= end + 0.5; p++) { /* p: positions up to the row's own */
        s.sum += fmin(p, c->window);
        if (site == MODEL_SITE_RATIO4)
            s.sum += fmin(floor(p / 4), top);
        if (site == MODEL_SITE_RATIO128)
            s.sum += floor(p / 128);
    }
    if (site == MODEL_SITE_RATIO4)
        s.rows += fmin(floor(end / 4), n * top);
    if (site == MODEL_SITE_RATIO128)
        s.rows += floor(end / 128);
    return s;
}

static struct model_cost attention(const struct model_config *c, const struct model_load *x,
                                   enum model_site site)
{
    struct seen s = seen_keys(c, x, site);
    double width = (double)c->n_heads * c->head_dim;
    return (struct model_cost){x->sequences * s.rows * x->row_bytes + x->rows * 3 * width, 0,
                               x->sequences * s.sum * 4 * width};
}

/* Rows that see at most topk entries take them all, unread. */
static struct model_cost scores(const struct model_config *c, const struct model_load *x)
{
    double n = x->rows / x->sequences, end = x->context + n, sum = 0, rows = 0;
    double width = (double)c->index_heads * c->index_dim;
    for (double p = x->context + 1; p <= end + 0.5; p++)
        if (floor(p / 4) > c->index_topk) {
            sum += floor(p / 4);
            rows++;
        }
    if (rows == 0)
        return (struct model_cost){0};
    return (struct model_cost){x->sequences * (floor(end / 4) * x->key_bytes + rows * width),
                               x->sequences * sum * 2 * width, 0};
}

/* FP4 codes and their scales; per row and expert: input, what lies between (out and in again), output
 * and its reading for the sum. */
static struct model_cost routed(const struct model_config *c, const struct model_load *x)
{
    double D = c->hidden_size, I = c->moe_dim, E = c->n_experts, k = c->n_experts_per_token;
    double distinct = x->distinct > 0 ? x->distinct : E * (1 - pow(1 - k / E, x->rows));
    return (struct model_cost){distinct * 3 * I * D * 0.53125 + x->rows * k * (5 * D + 2 * I),
                               6 * x->rows * k * I * D, 0};
}

static struct model_cost compressor(const struct model_config *c, const struct model_load *x,
                                    enum model_site site)
{
    double wide = site == MODEL_SITE_RATIO4 ? 4 : site == MODEL_SITE_RATIO128 ? 2 : 0;
    return wide > 0 ? bf16_linear(x->rows, wide * c->head_dim, c->hidden_size, 4)
                    : (struct model_cost){0};
}

/* Inputs of compressors into their states, fp32. */
static struct model_cost kv_write(const struct model_config *c, const struct model_load *x,
                                  enum model_site site)
{
    double wide = site == MODEL_SITE_RATIO4     ? 4.0 * c->head_dim + 4.0 * c->index_dim
                  : site == MODEL_SITE_RATIO128 ? 2.0 * c->head_dim
                                                : 0;
    return (struct model_cost){x->rows * wide * 4, 0, 0};
}

static struct model_cost outside(const struct model_config *c, const struct model_load *x,
                                 enum model_op op)
{
    double D = c->hidden_size, V = c->vocab_size, t = x->rows, r = c->markov_rank;
    switch (op) {
    case MODEL_OP_HEAD:
        return bf16_linear(x->logits, V, D, 4);
    case MODEL_OP_EMBED:
        return (struct model_cost){t * D * (2 + 8), 0, 0};
    case MODEL_OP_LAST_SEAM:
        return (struct model_cost){t * D * 18, 0, t * 48 * D};
    case MODEL_OP_ROPE:
        return (struct model_cost){t * c->rope_dim * 4, 0, 0};
    case MODEL_OP_MAIN_PROJ:
        return fp8_linear(t, D, c->n_stages * D, 2);
    case MODEL_OP_CHAIN:
        return (struct model_cost){t / x->sequences * V * r * 2 + t * V * 4, 0, 2 * t * V * r};
    case MODEL_OP_DRAW:
        return (struct model_cost){t * V * 4, 0, t * V};
    default:
        return (struct model_cost){0};
    }
}

static struct model_cost index_in(const struct model_config *c, const struct model_load *x)
{
    return bf16_linear(x->rows, 4.0 * c->index_dim + c->index_heads, c->hidden_size, 4);
}

struct model_cost model_cost_op(const struct model_config *c, const struct model_load *x,
                                enum model_op op, enum model_site site)
{
    double D = c->hidden_size, t = x->rows, Q = c->q_lora_rank, wide = c->n_heads * c->head_dim;
    double O = (double)c->o_groups * c->o_lora_rank, I = c->moe_dim;
    bool indexed = site == MODEL_SITE_RATIO4;
    if (op >= MODEL_OP_HEAD)
        return outside(c, x, op);
    switch (op) {
    case MODEL_OP_SEAMS:
        return (struct model_cost){2 * 24 * 4 * D * 4 + t * 40 * D, 0, 2 * t * 240 * D};
    case MODEL_OP_QKV_IN:
        return fp8_linear(t, Q + c->head_dim, D, 2);
    case MODEL_OP_COMPRESSOR:
        return compressor(c, x, site);
    case MODEL_OP_INDEX_IN:
        return indexed ? index_in(c, x) : (struct model_cost){0};
    case MODEL_OP_WQ_B:
        return fp8_linear(t, wide, Q, 2);
    case MODEL_OP_INDEX_WQ_B:
        return indexed ? fp8_linear(t, (double)c->index_heads * c->index_dim, Q, 1)
                       : (struct model_cost){0};
    case MODEL_OP_KV_WRITE:
        return kv_write(c, x, site);
    case MODEL_OP_SCORES:
        return indexed ? scores(c, x) : (struct model_cost){0};
    case MODEL_OP_ATTENTION:
        return attention(c, x, site);
    case MODEL_OP_RING_STORE:
        return (struct model_cost){t * x->row_bytes, 0, 0};
    case MODEL_OP_WO_A: /* FP8 weights that meet bf16 inputs */
        return (struct model_cost){O * wide / c->o_groups + t * 2 * (wide + O), 0,
                                   2 * t * O * wide / c->o_groups};
    case MODEL_OP_WO_B:
        return fp8_linear(t, D, O, 2);
    case MODEL_OP_GATE:
        return bf16_linear(t, c->n_experts, D, 4);
    case MODEL_OP_SHARED:
        return (struct model_cost){3 * I * D + t * 3 * D, 6 * t * I * D, 0};
    case MODEL_OP_ROUTED:
        return routed(c, x);
    default:
        return (struct model_cost){0};
    }
}

/* Ops of the table's entries. */
static const struct {
    const char *block;
    enum model_op op;
} parts[] = {{"seam", MODEL_OP_SEAMS},
             {"seam", MODEL_OP_LAST_SEAM},
             {"attn_in", MODEL_OP_QKV_IN},
             {"attn_in", MODEL_OP_COMPRESSOR},
             {"attn_in", MODEL_OP_INDEX_IN},
             {"q_path", MODEL_OP_WQ_B},
             {"q_path", MODEL_OP_INDEX_WQ_B},
             {"kv_write", MODEL_OP_KV_WRITE},
             {"index_topk", MODEL_OP_SCORES},
             {"attention", MODEL_OP_ATTENTION},
             {"ring_store", MODEL_OP_RING_STORE},
             {"attn_out", MODEL_OP_WO_A},
             {"attn_out", MODEL_OP_WO_B},
             {"route", MODEL_OP_GATE},
             {"experts", MODEL_OP_SHARED},
             {"experts", MODEL_OP_ROUTED},
             {"head", MODEL_OP_HEAD},
             {"embed", MODEL_OP_EMBED},
             {"rope", MODEL_OP_ROPE},
             {"main_proj", MODEL_OP_MAIN_PROJ},
             {"draft_chain", MODEL_OP_CHAIN},
             {"draw", MODEL_OP_DRAW}};

static bool is_inside(enum model_op op)
{
    return op < MODEL_OP_HEAD;
}

struct model_cost model_cost_block(const struct model_config *c, const struct model_load *x,
                                   const char *block, enum model_site site)
{
    struct model_cost sum = {0};
    for (size_t i = 0; i < FST_COUNT(parts); i++)
        if (!strcmp(parts[i].block, block) && is_inside(parts[i].op) == (site != MODEL_SITE_NONE))
            sum = model_cost_sum(sum, model_cost_op(c, x, parts[i].op, site));
    return sum;
}

int model_cost_layers(const struct model_config *c, enum model_site site)
{
    static const int ratio[MODEL_SITES] = {-1, 0, 4, 128};
    int n = 0;
    for (int l = 0; l < c->n_layers; l++)
        n += c->compress_ratio[l] == ratio[site];
    return n;
}

struct model_cost model_cost_trunk(const struct model_config *c, const struct model_load *x,
                                   const char *block)
{
    struct model_cost sum = model_cost_block(c, x, block, MODEL_SITE_NONE);
    for (int s = MODEL_SITE_WINDOW; s < MODEL_SITES; s++)
        sum =
            model_cost_sum(sum, model_cost_times(model_cost_block(c, x, block, (enum model_site)s),
                                                 model_cost_layers(c, (enum model_site)s)));
    return sum;
}

struct model_cost model_cost_layer(const struct model_config *c, const struct model_load *x,
                                   enum model_site site)
{
    struct model_cost sum = {0};
    for (int op = 0; op < MODEL_OP_HEAD; op++)
        sum = model_cost_sum(sum, model_cost_op(c, x, (enum model_op)op, site));
    return sum;
}

struct model_cost model_cost_draft(const struct model_config *c, const struct model_load *x)
{
    static const enum model_op ops[] = {MODEL_OP_HEAD, MODEL_OP_EMBED, MODEL_OP_LAST_SEAM,
                                        MODEL_OP_ROPE, MODEL_OP_CHAIN};
    struct model_cost sum =
        model_cost_times(model_cost_layer(c, x, MODEL_SITE_WINDOW), c->n_stages);
    for (size_t i = 0; i < FST_COUNT(ops); i++)
        sum = model_cost_sum(sum, model_cost_op(c, x, ops[i], MODEL_SITE_NONE));
    return sum;
}

struct model_cost model_cost_step(const struct model_config *c, const struct model_load *x)
{
    struct model_cost sum = {0};
    for (int op = MODEL_OP_HEAD; op <= MODEL_OP_ROPE; op++)
        sum = model_cost_sum(sum, model_cost_op(c, x, (enum model_op)op, MODEL_SITE_NONE));
    for (int s = MODEL_SITE_WINDOW; s < MODEL_SITES; s++)
        if (model_cost_layers(c, (enum model_site)s))
            sum = model_cost_sum(sum, model_cost_times(model_cost_layer(c, x, (enum model_site)s),
                                                       model_cost_layers(c, (enum model_site)s)));
    return sum;
}
