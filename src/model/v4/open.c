/* open.c - layers, workspace and limits of a model: all the memory a step will ever use. */
#include <string.h>

#include "model/v4/v4.h"

static bool dspark(const struct weights *w, const struct model_opts *o)
{
    return o->drafting && w->config.has_dspark;
}

static bool mtp(const struct weights *w, const struct model_opts *o)
{
    return o->drafting && w->config.has_mtp;
}

static int gamma_of(const struct weights *w, const struct model_opts *o)
{
    return o->drafting ? model_drafts_max(&w->config) : 0;
}

static int rows_of(const struct weights *w, const struct model_opts *o)
{
    return FST_MAX(o->max_rows, o->max_requests * gamma_of(w, o));
}

static struct kernel_limits limits_of(const struct weights *w, const struct model_opts *o)
{
    const struct model_config *c = &w->config;
    return (struct kernel_limits){.n_rows = rows_of(w, o),
                                  .dim = c->hidden_size,
                                  .n_heads = c->n_heads,
                                  .head_dim = c->head_dim,
                                  .q_rank = c->q_lora_rank,
                                  .o_rank = c->o_lora_rank,
                                  .groups = c->o_groups,
                                  .moe_dim = c->moe_dim,
                                  .n_experts = c->n_experts,
                                  .k = c->n_experts_per_token,
                                  .index_heads = c->index_heads,
                                  .index_dim = c->index_dim,
                                  .topk = c->index_topk,
                                  .n_stages = o->drafting ? w->n_stages : 0,
                                  .vocab = c->vocab_size,
                                  .markov_rank = dspark(w, o) ? c->markov_rank : 0,
                                  .window = c->window,
                                  .max_entries = o->context_length / (c->v41 ? 1 : 4)};
}

size_t model_scratch_bytes(const struct weights *w, const struct model_opts *o, int n_threads)
{
    struct kernel_limits l = limits_of(w, o);
    return kernels_scratch_bytes(o->kernels, &l, n_threads);
}

void model_kv_spec(const struct weights *w, bool drafting, struct kv_spec *spec)
{
    const struct model_config *c = &w->config;
    int stages = drafting ? w->n_stages : 0;
    FST_ASSERT(c->n_layers + stages <= KV_LAYERS_MAX);
    spec->n_layers = c->n_layers + stages;
    for (int l = 0; l < spec->n_layers; l++)
        spec->ratio[l] = l < c->n_layers ? w->layer[l].ratio : 0;
    spec->head_dim = c->head_dim;
    spec->rope_dim = c->rope_dim;
    spec->index_dim = c->index_dim;
    spec->window = c->window;
    spec->carry_floats = drafting && c->has_mtp ? KERN_HC * c->hidden_size : 0;
}

const struct model_config *model_config_of(const struct model *m)
{
    return m->c;
}

/* ---------------------------------------------------------------- workspace */

/* One walk over the workspace: with base NULL it only counts. */
struct carve {
    uint8_t *base;
    size_t used;
};

static void *carve(struct carve *c, int64_t n, int64_t m, size_t size)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (size_t)round_up(n * m * (int64_t)size, 64);
    return p;
}

static float *floats(struct carve *c, int64_t n, int64_t m)
{
    return carve(c, n, m, sizeof(float));
}

static int32_t *ints(struct carve *c, int64_t n, int64_t m)
{
    return carve(c, n, m, sizeof(int32_t));
}

/* Bytes of an operand of n_rows rows, 0: kernels take none. */
static size_t operand_bytes(const struct model_opts *o, int n_rows, int width)
{
    const struct kernels *k = o->kernels;
    return k->operand_bytes && n_rows <= k->operand_rows ? k->operand_bytes(n_rows, width) : 0;
}

void *v4_a_operand(const struct model *m, int n_rows)
{
    return operand_bytes(&m->opts, n_rows, m->c->hidden_size) ? m->work.a_operand : NULL;
}

void *v4_qr_operand(const struct model *m, int n_rows)
{
    return operand_bytes(&m->opts, n_rows, m->c->q_lora_rank) ? m->work.qr_operand : NULL;
}

/* Of a slot: the drafter's window, and what the snapshot of a step's middle needs before it. */
static int64_t held_rows(const struct model_config *c)
{
    return c->window + c->gamma;
}

int model_held_rows(const struct model *m, const struct kv *kv)
{
    return kv->carry ? kv->ring : (int)held_rows(m->c);
}

/* v: device memory, h: shared. */
static void lay_out(struct model *m, struct carve *v, struct carve *h)
{
    const struct model_config *c = m->c;
    const struct model_opts *o = &m->opts;
    struct v4_work *w = &m->work;
    int64_t n = m->max_rows, dim = c->hidden_size, heads = (int64_t)c->n_heads * c->head_dim;
    int64_t stages = dspark(m->w, o) ? m->n_stages : 0;
    int64_t drafts = (int64_t)o->max_requests * gamma_of(m->w, o);
    int few = FST_MIN(m->max_rows, o->kernels->operand_rows);
    w->x = floats(v, n, KERN_HC * dim);
    w->draft_x = floats(v, mtp(m->w, o) ? n : drafts, KERN_HC * dim);
    w->mix = floats(v, n, KERN_MIX);
    w->a = floats(v, n, dim);
    w->y = floats(v, FST_MAX(n, (int64_t)few * (c->n_experts_per_token + 1)), dim);
    w->qr = floats(v, n, c->q_lora_rank);
    w->kv = floats(v, n, c->head_dim);
    w->cmp = floats(v, n, 4 * c->head_dim);
    w->idx = floats(v, n, 4 * c->index_dim);
    w->iw = floats(v, n, c->index_heads);
    w->q = floats(v, n, heads);
    w->qi = floats(v, n, (int64_t)c->index_heads * c->index_dim);
    w->o = floats(v, n, heads);
    w->sel = ints(v, n, c->index_topk);
    w->n_sel = ints(v, n, 1);
    w->expert = ints(v, n, c->n_experts_per_token);
    w->weight = floats(v, n, c->n_experts_per_token);
    for (int i = 0; i < 2; i++)
        w->cs[i] = floats(v, n, c->rope_dim);
    w->captured = floats(v, o->max_rows, stages * dim);
    w->held = floats(v, (int64_t)(o->max_requests + 1) * held_rows(c), stages * dim);
    w->head_y = floats(v, o->max_logits, dim);
    w->logits = floats(v, o->max_logits, c->vocab_size);
    w->draft_y = floats(v, drafts, dim);
    w->draft_logits = floats(v, drafts, c->vocab_size);
    w->drafted = ints(v, mtp(m->w, o) ? drafts : 0, 1);
    w->drafted_shared = ints(h, mtp(m->w, o) ? drafts : 0, 1);
    for (int i = 0; i < 2; i++)
        w->freq[i] = floats(v, c->rope_dim / 2, 1);
    w->a_operand = carve(v, (int64_t)operand_bytes(o, few, c->hidden_size), 1, 1);
    w->qr_operand = carve(v, (int64_t)operand_bytes(o, few, c->q_lora_rank), 1, 1);
    w->rows = ints(v, v4_rows_ints(m->max_rows), 1);
    w->rows_shared = ints(h, v4_rows_ints(m->max_rows), 1);
}

size_t model_work_bytes(const struct weights *w, const struct model_opts *o)
{
    struct model *m = mem_calloc(1, sizeof *m);
    struct carve count = {0}, shared = {0};
    if (!m)
        return SIZE_MAX;
    m->w = w;
    m->c = &w->config;
    m->opts = *o;
    m->n_stages = o->drafting ? w->n_stages : 0;
    m->max_rows = rows_of(w, o);
    lay_out(m, &count, &shared);
    mem_free(m);
    return count.used + shared.used;
}

/* Layer i of trunk and stages together; its experts' views go to mats, which lie at `at` for kernels. */
static void view(struct v4_layer *l, const struct layer_weights *w, int n_experts, int pool,
                 struct expert_mats *mats, struct expert_mats *at)
{
    l->w = w;
    l->pool = pool;
    l->experts = at + (int64_t)pool * n_experts;
    for (int e = 0; e < n_experts; e++) {
        const struct expert_weights *x = &w->ffn.experts[e];
        mats[(int64_t)pool * n_experts + e] =
            (struct expert_mats){.w1 = x->w1, .w3 = x->w3, .w2 = x->w2};
    }
    const struct expert_weights *x = &w->ffn.shared;
    l->shared = (struct expert_mats){.w1 = x->w1, .w3 = x->w3, .w2 = x->w2};
}

static enum fst_status view_layers(struct model *m)
{
    struct expert_mats *mats = mem_alloc(m->mats_bytes);
    if (!mats)
        return fst_error(FST_ENOMEM, "model: %zu bytes", m->mats_bytes);
    for (int i = 0; i < m->n_layers; i++)
        view(&m->layer[i], &m->w->layer[i], m->c->n_experts, i, mats, m->mats);
    for (int i = 0; i < m->n_stages; i++)
        view(&m->stage[i], &m->w->stage[i], m->c->n_experts, m->n_layers + i, mats, m->mats);
    for (int i = 0; dspark(m->w, &m->opts) && i < m->n_stages; i++) {
        int target = m->c->target_layer[i];
        FST_ASSERT(target >= 0);
        FST_ASSERT(target < m->n_layers);
        FST_ASSERT(!m->layer[target].capture);
        m->layer[target].capture = m->work.captured + (int64_t)i * m->c->hidden_size;
    }
    enum fst_status rc = device_copy(m->stream->device, m->mats, mats, m->mats_bytes);
    mem_free(mats);
    return rc;
}

static enum fst_status upload_freq(struct model *m)
{
    const struct device *d = m->stream->device;
    size_t half = (size_t)m->c->rope_dim / 2 * sizeof(float);
    FST_TRY(device_copy(d, m->work.freq[0], m->w->rope_main, half));
    return device_copy(d, m->work.freq[1], m->w->rope_compress, half);
}

static void check_opts(const struct weights *w, const struct model_opts *o)
{
    const struct model_config *c = &w->config;
    FST_ASSERT(o->max_rows > 0);
    FST_ASSERT(o->max_logits > 0);
    FST_ASSERT(o->max_requests > 0);
    FST_ASSERT(o->context_length > 0);
    FST_ASSERT(c->n_layers <= CONFIG_LAYERS_MAX);
    FST_ASSERT(w->n_stages <= CONFIG_STAGES_MAX);
    FST_ASSERT(c->gamma <= KERN_GAMMA_MAX);
    FST_ASSERT(o->stream->scratch_bytes >=
               model_scratch_bytes(w, o, pool_threads(o->stream->pool)));
}

/* What a checkpoint may hold and this model cannot draft with. */
static enum fst_status check_draft(const struct weights *w, const struct model_opts *o)
{
    const struct model_config *c = &w->config;
    if (o->drafting && !(w->n_stages && (c->has_dspark || c->has_mtp)))
        return fst_error(FST_EINVAL, "drafting: this checkpoint has no draft stages");
    for (int i = 1; dspark(w, o) && i < w->n_stages; i++)
        for (int j = 0; j < i; j++)
            if (c->target_layer[i] == c->target_layer[j])
                return fst_error(FST_EUNSUPPORTED, "dspark_target_layer_ids names layer %d twice",
                                 c->target_layer[i]);
    return FST_OK;
}

enum fst_status model_open(struct model **out, const struct weights *w, const struct model_opts *o)
{
    static const char *const name[V4_BLOCKS] = {
#define V4_NAME(entry, args) #entry,
        KERNELS_MAP(V4_NAME)
#undef V4_NAME
    };
    *out = NULL;
    check_opts(w, o);
    FST_TRY(check_draft(w, o));
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fst_error(FST_ENOMEM, "model: %zu bytes", sizeof *m);
    m->w = w;
    m->c = &w->config;
    m->kernels = o->kernels;
    m->stream = o->stream;
    m->opts = *o;
    m->n_layers = w->config.n_layers;
    m->n_stages = o->drafting ? w->n_stages : 0;
    m->max_rows = rows_of(w, o);
    for (int i = 0; i < V4_BLOCKS; i++)
        m->timing[i].name = name[i];

    const struct device *d = o->stream->device;
    struct carve count = {0}, count_shared = {0};
    lay_out(m, &count, &count_shared);
    m->block_bytes = count.used;
    m->shared_bytes = count_shared.used;
    m->mats_bytes = (size_t)(m->n_layers + m->n_stages) * (size_t)w->config.n_experts *
                    sizeof(struct expert_mats);
    m->block = device_alloc(d, m->block_bytes);
    m->shared = device_alloc_shared(d, m->shared_bytes);
    m->mats = device_alloc(d, m->mats_bytes);
    if (!m->block || !m->shared || !m->mats) {
        size_t bytes = m->block_bytes + m->shared_bytes + m->mats_bytes;
        model_free(m);
        return fst_error(FST_ENOMEM, "model workspace: %zu bytes for %d rows", bytes, o->max_rows);
    }
    struct carve take = {.base = m->block}, take_shared = {.base = m->shared};
    lay_out(m, &take, &take_shared);
    enum fst_status rc = upload_freq(m);
    if (rc == FST_OK)
        rc = view_layers(m);
    if (rc < 0) {
        model_free(m);
        return rc;
    }
    v4_graphs_init(m);
    *out = m;
    return FST_OK;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    const struct device *d = m->stream->device;
    (void)v4_begin(m); /* an error has been told, or nobody wants to know */
    v4_graphs_free(m);
    device_free(d, m->block, m->block_bytes);
    device_free_shared(d, m->shared, m->shared_bytes);
    device_free(d, m->mats, m->mats_bytes);
    mem_free(m);
}
