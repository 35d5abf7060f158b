/* inventory.c - the table of tensors and the list made from it. */
#include "weights/inventory.h"

#include <stdarg.h>

/* Sizes by their letters (weights.h); DIM_NONE as columns makes a vector. */
enum dim {
    DIM_NONE,
    DIM_1,
    DIM_3,
    DIM_4,
    DIM_24, /* (2 + n) * n */
    DIM_V,
    DIM_D,
    DIM_4D,
    DIM_H,
    DIM_HC,  /* H * C */
    DIM_HCG, /* H * C / G */
    DIM_C,
    DIM_cC, /* c * C: twice as wide with ratio 4 (overlap) */
    DIM_Q,
    DIM_GO, /* G * O */
    DIM_E,
    DIM_I,
    DIM_TOP, /* experts per token */
    DIM_RATIO,
    DIM_HI,
    DIM_CI,
    DIM_2CI,
    DIM_HICI,
    DIM_SD, /* S * D */
    DIM_R,  /* Markov rank */
    DIM_DR, /* D + r */
    /* of V4.1's Engram: rows of the layer's table, values of one, what a token reads; (4 + 1) * D */
    DIM_GRAMS,
    DIM_GRAM,
    DIM_GRAMS_READ,
    DIM_5D
};

/* When a layer has the tensor.  From IF_V41 on: in V4.1 alone, as IF_V4 to IF_INDEXED are V4's. */
enum cond {
    ALWAYS,
    IF_HASH,
    IF_SCORED,
    IF_CONFIDENCE,
    IF_V4,
    IF_COMPRESSED,
    IF_INDEXED,
    IF_V41,
    IF_KV_SOURCE,
    IF_GATED, /* pools more than one position */
    IF_INDEX_SOURCE,
    IF_ENGRAM
};

/* No field of struct weights: V4.1 is listed, not loaded. */
#define NO_PLACE SIZE_MAX

/* Which list a row belongs to. */
enum place { AT_TOP, AT_LAYER, AT_EXPERT, AT_MTP, AT_DSPARK_FIRST, AT_DSPARK_LAST };

struct inventory_rule {
    const char *suffix; /* without .weight/.scale for linears */
    enum place place;
    enum cond cond;
    enum inventory_form form;
    enum weights_class class;
    enum dim rows, cols;
    size_t offset; /* in struct weights, layer_weights, expert_weights, mtp_, dspark_weights */
};

#define TOP(s, form, class, rows, cols, field)                                                     \
    {                                                                                              \
        s, AT_TOP, ALWAYS, form, class, rows, cols, offsetof(struct weights, field)                \
    }
#define LAYER(s, cond, form, class, rows, cols, field)                                             \
    {                                                                                              \
        s, AT_LAYER, cond, form, class, rows, cols, offsetof(struct layer_weights, field)          \
    }
#define TOP_V4(s, form, class, rows, cols, field)                                                  \
    {                                                                                              \
        s, AT_TOP, IF_V4, form, class, rows, cols, offsetof(struct weights, field)                 \
    }
#define V41(s, place, cond, form, class, rows, cols)                                               \
    {                                                                                              \
        s, place, cond, form, class, rows, cols, NO_PLACE                                          \
    }
#define EXPERT(s, rows, cols, field)                                                               \
    {                                                                                              \
        s, AT_EXPERT, ALWAYS, FORM_EXPERT, WEIGHTS_EXPERTS, rows, cols,                            \
            offsetof(struct expert_weights, field)                                                 \
    }
#define MTP(s, form, rows, cols, field)                                                            \
    {                                                                                              \
        s, AT_MTP, ALWAYS, form, WEIGHTS_DRAFT, rows, cols, offsetof(struct mtp_weights, field)    \
    }
#define DSPARK(s, place, cond, form, rows, cols, field)                                            \
    {                                                                                              \
        s, place, cond, form, WEIGHTS_DRAFT, rows, cols, offsetof(struct dspark_weights, field)    \
    }

/* clang-format off */
static const struct inventory_rule rules[] = {
    TOP("embed",        FORM_PLAIN, WEIGHTS_EMBED, DIM_V, DIM_D, embed),
    TOP("head",         FORM_PLAIN, WEIGHTS_EMBED, DIM_V, DIM_D, head),
    TOP("norm.weight",  FORM_NORM,  WEIGHTS_NORM,  DIM_D, DIM_NONE, norm),
    TOP_V4("hc_head_fn",   FORM_FLOAT, WEIGHTS_HC,    DIM_4, DIM_4D, hc_head.fn),
    TOP_V4("hc_head_base", FORM_FLOAT, WEIGHTS_HC,    DIM_4, DIM_NONE, hc_head.base),
    TOP_V4("hc_head_scale", FORM_FLOAT, WEIGHTS_HC,   DIM_1, DIM_NONE, hc_head.scale),

    LAYER("attn_norm.weight", ALWAYS, FORM_NORM,  WEIGHTS_NORM, DIM_D,  DIM_NONE, attn_norm),
    LAYER("ffn_norm.weight",  ALWAYS, FORM_NORM,  WEIGHTS_NORM, DIM_D,  DIM_NONE, ffn_norm),
    LAYER("hc_attn_fn",       ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_24, DIM_4D,   hc_attn.fn),
    LAYER("hc_attn_base",     ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_24, DIM_NONE, hc_attn.base),
    LAYER("hc_attn_scale",    ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_3,  DIM_NONE, hc_attn.scale),
    LAYER("hc_ffn_fn",        ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_24, DIM_4D,   hc_ffn.fn),
    LAYER("hc_ffn_base",      ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_24, DIM_NONE, hc_ffn.base),
    LAYER("hc_ffn_scale",     ALWAYS, FORM_FLOAT, WEIGHTS_HC,   DIM_3,  DIM_NONE, hc_ffn.scale),

    LAYER("attn.attn_sink",      ALWAYS, FORM_FLOAT, WEIGHTS_ATTENTION, DIM_H,  DIM_NONE, attn.sink),
    LAYER("attn.wq_a",           ALWAYS, FORM_FP8,   WEIGHTS_ATTENTION, DIM_Q,  DIM_D,    attn.wq_a),
    LAYER("attn.q_norm.weight",  ALWAYS, FORM_NORM,  WEIGHTS_ATTENTION, DIM_Q,  DIM_NONE, attn.q_norm),
    LAYER("attn.wq_b",           ALWAYS, FORM_FP8,   WEIGHTS_ATTENTION, DIM_HC, DIM_Q,    attn.wq_b),
    LAYER("attn.wkv",            ALWAYS, FORM_FP8,   WEIGHTS_ATTENTION, DIM_C,  DIM_D,    attn.wkv),
    LAYER("attn.kv_norm.weight", ALWAYS, FORM_NORM,  WEIGHTS_ATTENTION, DIM_C,  DIM_NONE, attn.kv_norm),
    LAYER("attn.wo_a",           ALWAYS, FORM_FP8,   WEIGHTS_ATTENTION, DIM_GO, DIM_HCG,  attn.wo_a),
    LAYER("attn.wo_b",           ALWAYS, FORM_FP8,   WEIGHTS_ATTENTION, DIM_D,  DIM_GO,   attn.wo_b),

    LAYER("attn.compressor.ape", IF_COMPRESSED, FORM_FLOAT, WEIGHTS_COMPRESSOR, DIM_RATIO, DIM_cC,
          attn.compressor.ape),
    LAYER("attn.compressor.wkv", IF_COMPRESSED, FORM_PLAIN, WEIGHTS_COMPRESSOR, DIM_cC, DIM_D,
          attn.compressor.wkv),
    LAYER("attn.compressor.wgate", IF_COMPRESSED, FORM_PLAIN, WEIGHTS_COMPRESSOR, DIM_cC, DIM_D,
          attn.compressor.wgate),
    LAYER("attn.compressor.norm.weight", IF_COMPRESSED, FORM_NORM, WEIGHTS_COMPRESSOR, DIM_C,
          DIM_NONE, attn.compressor.norm),

    LAYER("attn.indexer.wq_b", IF_INDEXED, FORM_FP8, WEIGHTS_INDEXER, DIM_HICI, DIM_Q,
          attn.indexer.wq_b),
    LAYER("attn.indexer.weights_proj", IF_INDEXED, FORM_PLAIN, WEIGHTS_INDEXER, DIM_HI, DIM_D,
          attn.indexer.weights_proj),
    LAYER("attn.indexer.compressor.ape", IF_INDEXED, FORM_FLOAT, WEIGHTS_INDEXER, DIM_RATIO,
          DIM_2CI, attn.indexer.compressor.ape),
    LAYER("attn.indexer.compressor.wkv", IF_INDEXED, FORM_PLAIN, WEIGHTS_INDEXER, DIM_2CI, DIM_D,
          attn.indexer.compressor.wkv),
    LAYER("attn.indexer.compressor.wgate", IF_INDEXED, FORM_PLAIN, WEIGHTS_INDEXER, DIM_2CI, DIM_D,
          attn.indexer.compressor.wgate),
    LAYER("attn.indexer.compressor.norm.weight", IF_INDEXED, FORM_NORM, WEIGHTS_INDEXER, DIM_CI,
          DIM_NONE, attn.indexer.compressor.norm),

    LAYER("ffn.gate",         ALWAYS,    FORM_PLAIN, WEIGHTS_ROUTER, DIM_E, DIM_D,    ffn.gate),
    LAYER("ffn.gate.bias",    IF_SCORED, FORM_FLOAT, WEIGHTS_ROUTER, DIM_E, DIM_NONE, ffn.bias),
    LAYER("ffn.gate.tid2eid", IF_HASH,   FORM_IDS,   WEIGHTS_ROUTER, DIM_V, DIM_TOP,  ffn.tid2eid),
    LAYER("ffn.shared_experts.w1", ALWAYS, FORM_FP8, WEIGHTS_SHARED, DIM_I, DIM_D, ffn.shared.w1),
    LAYER("ffn.shared_experts.w2", ALWAYS, FORM_FP8, WEIGHTS_SHARED, DIM_D, DIM_I, ffn.shared.w2),
    LAYER("ffn.shared_experts.w3", ALWAYS, FORM_FP8, WEIGHTS_SHARED, DIM_I, DIM_D, ffn.shared.w3),

    EXPERT("w1", DIM_I, DIM_D, w1),
    EXPERT("w2", DIM_D, DIM_I, w2),
    EXPERT("w3", DIM_I, DIM_D, w3),

    MTP("enorm.weight",  FORM_NORM,  DIM_D, DIM_NONE, enorm),
    MTP("hnorm.weight",  FORM_NORM,  DIM_D, DIM_NONE, hnorm),
    MTP("norm.weight",   FORM_NORM,  DIM_D, DIM_NONE, norm),
    MTP("e_proj",        FORM_FP8,   DIM_D, DIM_D,    e_proj),
    MTP("h_proj",        FORM_FP8,   DIM_D, DIM_D,    h_proj),
    MTP("hc_head_fn",    FORM_FLOAT, DIM_4, DIM_4D,   hc_head.fn),
    MTP("hc_head_base",  FORM_FLOAT, DIM_4, DIM_NONE, hc_head.base),
    MTP("hc_head_scale", FORM_FLOAT, DIM_1, DIM_NONE, hc_head.scale),

    DSPARK("main_proj", AT_DSPARK_FIRST, ALWAYS, FORM_FP8, DIM_D, DIM_SD, main_proj),
    DSPARK("main_norm.weight", AT_DSPARK_FIRST, ALWAYS, FORM_NORM, DIM_D, DIM_NONE, main_norm),
    DSPARK("norm.weight", AT_DSPARK_LAST, ALWAYS, FORM_NORM, DIM_D, DIM_NONE, norm),
    DSPARK("hc_head_fn", AT_DSPARK_LAST, IF_V4, FORM_FLOAT, DIM_4, DIM_4D, hc_head.fn),
    DSPARK("hc_head_base", AT_DSPARK_LAST, IF_V4, FORM_FLOAT, DIM_4, DIM_NONE, hc_head.base),
    DSPARK("hc_head_scale", AT_DSPARK_LAST, IF_V4, FORM_FLOAT, DIM_1, DIM_NONE, hc_head.scale),
    DSPARK("markov_head.markov_w1", AT_DSPARK_LAST, IF_V4, FORM_PLAIN, DIM_V, DIM_R, markov_w1),
    DSPARK("markov_head.markov_w2", AT_DSPARK_LAST, IF_V4, FORM_PLAIN, DIM_V, DIM_R, markov_w2),
    DSPARK("confidence_head.proj", AT_DSPARK_LAST, IF_CONFIDENCE, FORM_PLAIN, DIM_1, DIM_DR,
           confidence),

    V41("attn.compressor.wkv", AT_LAYER, IF_KV_SOURCE, FORM_PLAIN, WEIGHTS_COMPRESSOR, DIM_C, DIM_D),
    V41("attn.compressor.wgate", AT_LAYER, IF_GATED, FORM_PLAIN, WEIGHTS_COMPRESSOR, DIM_C, DIM_D),
    V41("attn.compressor.norm.weight", AT_LAYER, IF_KV_SOURCE, FORM_NORM, WEIGHTS_COMPRESSOR, DIM_C,
        DIM_NONE),
    V41("attn.indexer.wk", AT_LAYER, IF_KV_SOURCE, FORM_PLAIN, WEIGHTS_INDEXER, DIM_CI, DIM_C),
    V41("attn.indexer.k_norm.weight", AT_LAYER, IF_KV_SOURCE, FORM_NORM, WEIGHTS_INDEXER, DIM_CI,
        DIM_NONE),
    V41("attn.indexer.wq_b", AT_LAYER, IF_INDEX_SOURCE, FORM_FP8, WEIGHTS_INDEXER, DIM_HICI, DIM_Q),
    V41("attn.indexer.weights_proj", AT_LAYER, IF_INDEX_SOURCE, FORM_PLAIN, WEIGHTS_INDEXER, DIM_HI,
        DIM_D),
    V41("ffn.gate.bias_vl", AT_LAYER, IF_V41, FORM_FLOAT, WEIGHTS_ROUTER, DIM_E, DIM_NONE),
    V41("engram.embed", AT_LAYER, IF_ENGRAM, FORM_ROWS, WEIGHTS_ENGRAM, DIM_GRAMS, DIM_GRAM),
    V41("engram.wkv", AT_LAYER, IF_ENGRAM, FORM_FP8, WEIGHTS_ENGRAM, DIM_5D, DIM_GRAMS_READ),
    V41("engram.q_weight", AT_LAYER, IF_ENGRAM, FORM_NORM, WEIGHTS_ENGRAM, DIM_4, DIM_D),
    V41("engram.k_weight", AT_LAYER, IF_ENGRAM, FORM_NORM, WEIGHTS_ENGRAM, DIM_4, DIM_D),
    V41("markov_head.embed", AT_DSPARK_LAST, IF_V41, FORM_PLAIN, WEIGHTS_DRAFT, DIM_V, DIM_R),
    V41("markov_head.head", AT_DSPARK_LAST, IF_V41, FORM_PLAIN, WEIGHTS_DRAFT, DIM_V, DIM_R),
};
/* clang-format on */

static int n_experts_of(const struct model_config *c, bool stage)
{
    return stage && c->n_stage_experts ? c->n_stage_experts : c->n_experts;
}

static int64_t dim_value(const struct model_config *c, enum dim d,
                         const struct inventory_item *item)
{
    int ratio = item->ratio;
    switch (d) {
    case DIM_NONE:
        return 0;
    case DIM_1:
        return 1;
    case DIM_3:
        return 3;
    case DIM_4:
        return CONFIG_HC;
    case DIM_24:
        return (2 + CONFIG_HC) * CONFIG_HC;
    case DIM_V:
        return c->vocab_size;
    case DIM_D:
        return c->hidden_size;
    case DIM_4D:
        return (int64_t)CONFIG_HC * c->hidden_size;
    case DIM_H:
        return c->n_heads;
    case DIM_HC:
        return (int64_t)c->n_heads * c->head_dim;
    case DIM_HCG:
        return (int64_t)c->n_heads * c->head_dim / c->o_groups;
    case DIM_C:
        return c->head_dim;
    case DIM_cC:
        return (int64_t)c->head_dim * (ratio == 4 ? 2 : 1);
    case DIM_Q:
        return c->q_lora_rank;
    case DIM_GO:
        return (int64_t)c->o_groups * c->o_lora_rank;
    case DIM_E:
        return n_experts_of(c, item->stage);
    case DIM_I:
        return c->moe_dim;
    case DIM_TOP:
        return c->n_experts_per_token;
    case DIM_RATIO:
        return ratio;
    case DIM_HI:
        return c->index_heads;
    case DIM_CI:
        return c->index_dim;
    case DIM_2CI:
        return 2 * (int64_t)c->index_dim;
    case DIM_HICI:
        return (int64_t)c->index_heads * c->index_dim;
    case DIM_SD:
        return (int64_t)c->n_stages * c->hidden_size;
    case DIM_R:
        return c->markov_rank;
    case DIM_DR:
        return (int64_t)c->hidden_size + c->markov_rank;
    case DIM_GRAMS:
        return c->engram_rows[item->layer];
    case DIM_GRAM:
        return c->engram_dim;
    case DIM_GRAMS_READ:
        return (int64_t)c->engram_heads * c->engram_dim;
    case DIM_5D:
        return (int64_t)(CONFIG_HC + 1) * c->hidden_size;
    }
    FST_ASSERT(false);
    return 0;
}

/* ---- making the list -------------------------------------------------------------------------
 * Names go into one buffer; items hold offsets first, since the buffer moves. */
struct maker {
    const struct model_config *c;
    struct buf names;
    struct inventory_item *items;
    size_t *name_at;
    int64_t n, cap;
    bool failed;
};

static bool has_scale(enum inventory_form form)
{
    return form == FORM_FP8 || form == FORM_EXPERT || form == FORM_ROWS;
}

static bool is_matrix(enum inventory_form form)
{
    return has_scale(form) || form == FORM_PLAIN;
}

static void add(struct maker *m, const struct inventory_item *proto, const char *prefix,
                const char *ending)
{
    if (m->n == m->cap) {
        int64_t cap = m->cap ? m->cap * 2 : 4096;
        struct inventory_item *items = mem_realloc(m->items, (size_t)cap * sizeof *items);
        if (items)
            m->items = items;
        size_t *name_at = items ? mem_realloc(m->name_at, (size_t)cap * sizeof *name_at) : NULL;
        if (!name_at) {
            m->failed = true;
            return;
        }
        m->name_at = name_at;
        m->cap = cap;
    }
    m->name_at[m->n] = m->names.len;
    m->items[m->n++] = *proto;
    buf_puts(&m->names, prefix);
    buf_puts(&m->names, proto->rule->suffix);
    buf_append(&m->names, ending, strlen(ending) + 1); /* the NUL too */
}

static void add_rule(struct maker *m, struct inventory_item proto, const char *prefix)
{
    enum inventory_form form = proto.rule->form;
    if (m->failed)
        return;
    add(m, &proto, prefix, is_matrix(form) ? ".weight" : "");
    if (has_scale(form)) {
        proto.scale = true;
        add(m, &proto, prefix, ".scale");
    }
}

static bool has(const struct model_config *c, enum cond cond, const struct inventory_item *item,
                bool hash)
{
    int ratio = item->ratio;
    bool trunk = c->v41 && !item->stage && item->layer >= 0;
    switch (cond) {
    case ALWAYS:
        return true;
    case IF_HASH:
        return hash;
    case IF_SCORED:
        return !hash;
    case IF_CONFIDENCE:
        return c->confidence_head;
    case IF_V4:
        return !c->v41;
    case IF_COMPRESSED:
        return !c->v41 && ratio != 0;
    case IF_INDEXED:
        return !c->v41 && ratio == 4;
    case IF_V41:
        return c->v41;
    case IF_KV_SOURCE:
        return trunk && c->kv_source[item->layer];
    case IF_GATED:
        return trunk && c->kv_source[item->layer] && ratio > 1;
    case IF_INDEX_SOURCE:
        return trunk && c->index_source[item->layer];
    case IF_ENGRAM:
        return trunk && c->engram_rows[item->layer] > 0;
    }
    return false;
}

static void add_place(struct maker *m, enum place place, struct inventory_item proto,
                      const char *prefix, bool hash)
{
    for (size_t i = 0; i < FST_COUNT(rules); i++) {
        if (rules[i].place != place || !has(m->c, rules[i].cond, &proto, hash))
            continue;
        proto.rule = &rules[i];
        add_rule(m, proto, prefix);
    }
}

static void add_layer(struct maker *m, bool stage, int layer, int ratio, bool hash)
{
    char prefix[64];
    struct inventory_item proto = {
        .layer = (int16_t)layer, .expert = -1, .stage = stage, .ratio = ratio};
    const char *root = stage ? "mtp" : "layers";
    snprintf(prefix, sizeof prefix, "%s.%d.", root, layer);
    add_place(m, AT_LAYER, proto, prefix, hash);
    for (int e = 0; e < n_experts_of(m->c, stage); e++) {
        snprintf(prefix, sizeof prefix, "%s.%d.ffn.experts.%d.", root, layer, e);
        proto.expert = (int16_t)e;
        add_place(m, AT_EXPERT, proto, prefix, hash);
    }
}

static void add_draft(struct maker *m, enum inventory_draft draft)
{
    const struct model_config *c = m->c;
    int n = draft == INVENTORY_DSPARK ? c->n_stages : draft == INVENTORY_MTP ? 1 : 0;
    for (int s = 0; s < n; s++) {
        char prefix[32];
        struct inventory_item proto = {.layer = (int16_t)s, .expert = -1, .stage = true};
        snprintf(prefix, sizeof prefix, "mtp.%d.", s);
        add_layer(m, true, s, 0, false);
        if (draft == INVENTORY_MTP)
            add_place(m, AT_MTP, proto, prefix, false);
        if (draft == INVENTORY_DSPARK && s == 0)
            add_place(m, AT_DSPARK_FIRST, proto, prefix, false);
        if (draft == INVENTORY_DSPARK && s == n - 1)
            add_place(m, AT_DSPARK_LAST, proto, prefix, false);
    }
}

enum fst_status inventory_init(struct inventory *inv, const struct model_config *c,
                               enum inventory_draft draft)
{
    struct maker m = {.c = c};
    struct inventory_item top = {.layer = -1, .expert = -1};
    add_place(&m, AT_TOP, top, "", false);
    for (int l = 0; l < c->n_layers; l++)
        add_layer(&m, false, l, c->compress_ratio[l], l < c->n_hash_layers);
    add_draft(&m, draft);
    m.failed = m.failed || m.names.failed;
    *inv = (struct inventory){.config = *c, .draft = draft, .items = m.items, .n = m.n};
    inv->names = m.failed ? NULL : buf_detach(&m.names);
    for (int64_t i = 0; inv->names && i < inv->n; i++)
        inv->items[i].name = inv->names + m.name_at[i];
    mem_free(m.name_at);
    buf_release(&m.names);
    if (inv->names)
        return FST_OK;
    inventory_release(inv);
    return fst_error(FST_ENOMEM, "no memory for the list of tensors");
}

void inventory_release(struct inventory *inv)
{
    mem_free(inv->items);
    mem_free(inv->names);
    *inv = (struct inventory){0};
}

/* ---- reading an item ------------------------------------------------------------------------- */
enum inventory_form inventory_form(const struct inventory_item *item)
{
    return item->rule->form;
}

enum weights_class inventory_class(const struct inventory_item *item)
{
    return item->stage ? WEIGHTS_DRAFT : item->rule->class;
}

enum inventory_scope inventory_scope(const struct inventory_item *item)
{
    switch (item->rule->place) {
    case AT_TOP:
        return SCOPE_GLOBAL;
    case AT_LAYER:
        return SCOPE_LAYER;
    case AT_EXPERT:
        return SCOPE_EXPERT;
    case AT_MTP:
        return SCOPE_MTP;
    case AT_DSPARK_FIRST:
    case AT_DSPARK_LAST:
        return SCOPE_DSPARK;
    }
    return SCOPE_GLOBAL;
}

size_t inventory_offset(const struct inventory_item *item)
{
    FST_ASSERT(item->rule->offset != NO_PLACE);
    return item->rule->offset;
}

void inventory_dims(const struct inventory *inv, const struct inventory_item *item, int64_t *rows,
                    int64_t *cols)
{
    *rows = dim_value(&inv->config, item->rule->rows, item);
    *cols = dim_value(&inv->config, item->rule->cols, item);
}

enum st_dtype inventory_published(const struct inventory_item *item)
{
    static const enum st_dtype by_form[] = {
        [FORM_FP8] = ST_F8_E4M3, [FORM_EXPERT] = ST_I8, [FORM_PLAIN] = ST_BF16,
        [FORM_NORM] = ST_BF16,   [FORM_FLOAT] = ST_F32, [FORM_IDS] = ST_I64,
        [FORM_ROWS] = ST_F8_E4M3};
    return by_form[item->rule->form];
}

/* May the weight itself be stored as t? */
static bool form_has(enum inventory_form form, enum st_dtype t)
{
    switch (form) {
    case FORM_EXPERT:
        return t == ST_I8 || t == ST_F8_E4M3 || t == ST_BF16 || t == ST_F32;
    case FORM_FP8:
        return t == ST_F8_E4M3 || t == ST_BF16 || t == ST_F32;
    case FORM_PLAIN:
    case FORM_NORM:
    case FORM_FLOAT:
        return t == ST_BF16 || t == ST_F32;
    case FORM_IDS:
        return t == ST_I64 || t == ST_I32;
    case FORM_ROWS:
        return t == ST_F8_E4M3;
    }
    return false;
}

int inventory_shape(const struct inventory *inv, const struct inventory_item *item, enum st_dtype t,
                    enum st_dtype *stored, int64_t shape[2])
{
    int64_t rows, cols;
    inventory_dims(inv, item, &rows, &cols);
    *stored = t;
    shape[0] = rows;
    shape[1] = cols;
    if (!form_has(item->rule->form, t))
        return 0;
    /* an FP4 row is whole blocks of 32, and so is a gathered one */
    if ((t == ST_I8 || item->rule->form == FORM_ROWS) && cols % 32 != 0)
        return 0;
    if (item->scale) {
        *stored = ST_F8_E8M0;
        if (t != ST_I8 && t != ST_F8_E4M3)
            return 0;
        bool by_row = t == ST_I8 || item->rule->form == FORM_ROWS;
        shape[0] = by_row ? rows : div_up(rows, inv->config.block_out);
        shape[1] = by_row ? cols / 32 : div_up(cols, inv->config.block_in);
    } else if (t == ST_I8) {
        shape[1] = cols / 2;
    }
    return item->rule->cols == DIM_NONE ? 1 : 2;
}

static bool is_cut(enum dim d)
{
    return d == DIM_HC || d == DIM_H || d == DIM_GO || d == DIM_I || d == DIM_V || d == DIM_GRAMS;
}

bool inventory_is_cut(const struct inventory_item *item)
{
    const struct inventory_rule *r = item->rule;
    return r->form != FORM_IDS && (is_cut(r->rows) || is_cut(r->cols));
}

int64_t inventory_bytes(const struct inventory *inv, const struct inventory_item *item)
{
    enum st_dtype stored;
    int64_t shape[2];
    int n = inventory_shape(inv, item, inventory_published(item), &stored, shape);
    FST_ASSERT(n > 0);
    return shape[0] * (n == 2 ? shape[1] : 1) * st_dtype_bytes(stored);
}
