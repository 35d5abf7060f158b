/* weights.c - from a checked checkpoint to the tree of weights.h. */
#include "weights/weights.h"

#include <inttypes.h>

#include "device/device.h"
#include "weights/store.h"

enum {
    FLOATS_PER_LINE = 16,
    /* A float array of this many elements or more is used where it lies if its address allows:
     * the 24 x 4D matrices of the hyper-connections make 135 MB on Flash, the rest 5 MB. */
    VIEW_MIN = 4096
};

bool store_is_vector(enum inventory_form form)
{
    return form == FORM_NORM || form == FORM_FLOAT;
}

static int64_t n_elements(const struct st_tensor *t)
{
    return (t->end - t->begin) / st_dtype_bytes(t->dtype);
}

/* Does this array stay in the mapping? */
static bool is_view(const struct shards *s, const struct shard_tensor *t)
{
    return t->t->dtype == ST_F32 && n_elements(t->t) >= VIEW_MIN &&
           (uintptr_t)shards_data(s, t) % sizeof(float) == 0;
}

/* Items that get values: all, or all but the draft's. */
static bool is_given(const struct weights *w, const struct inventory_item *item)
{
    return !item->stage || w->n_stages > 0;
}

static enum fst_status no_memory(const struct weights *w)
{
    return fst_error(FST_ENOMEM, "%s: no memory for the small tensors", w->store->checkpoint.dir);
}

/* Allocate what the tree will own, from the sizes of the items. */
static enum fst_status reserve(struct weights *w)
{
    struct weights_store *st = w->store;
    const struct checkpoint *c = &st->checkpoint;
    int64_t floats = 0, ids = 0, k = 0;
    st->list = mem_alloc((size_t)w->n_tensors * sizeof *st->list);
    if (!st->list)
        return no_memory(w);
    for (int64_t i = 0; i < c->inventory.n; i++) {
        const struct inventory_item *item = &c->inventory.items[i];
        const struct shard_tensor *t = c->found[i];
        if (!t)
            continue;
        st->list[k++] = t;
        if (!is_given(w, item))
            continue;
        if (store_is_vector(inventory_form(item)) && !is_view(&c->shards, t))
            floats += round_up(n_elements(t->t), FLOATS_PER_LINE);
        if (inventory_form(item) == FORM_IDS)
            ids += n_elements(t->t);
    }
    FST_ASSERT(k == w->n_tensors);
    st->floats = mem_aligned(64, (size_t)floats * sizeof(float));
    st->ids = mem_aligned(64, (size_t)ids * sizeof(int32_t));
    st->experts =
        mem_calloc((size_t)(w->config.n_layers + w->n_stages) * (size_t)w->config.n_experts,
                   sizeof *st->experts);
    return st->floats && st->ids && st->experts ? FST_OK : no_memory(w);
}

static struct layer_weights *layer_of(struct weights *w, const struct inventory_item *item)
{
    return item->stage ? &w->stage[item->layer] : &w->layer[item->layer];
}

static struct expert_weights *experts_of(struct weights *w, bool stage, int layer)
{
    int64_t row = stage ? w->config.n_layers + layer : layer;
    return w->store->experts + row * w->config.n_experts;
}

/* The place in the tree that an item fills. */
void *store_place_of(struct weights *w, const struct inventory_item *item)
{
    char *base = NULL;
    switch (inventory_scope(item)) {
    case SCOPE_GLOBAL:
        base = (char *)w;
        break;
    case SCOPE_LAYER:
        base = (char *)layer_of(w, item);
        break;
    case SCOPE_EXPERT:
        base = (char *)&experts_of(w, item->stage, item->layer)[item->expert];
        break;
    case SCOPE_MTP:
        base = (char *)&w->mtp;
        break;
    case SCOPE_DSPARK:
        base = (char *)&w->dspark;
        break;
    }
    return base + inventory_offset(item);
}

static void set_mat(struct weights *w, struct mat *m, int64_t i)
{
    const struct checkpoint *c = &w->store->checkpoint;
    const struct inventory_item *item = &c->inventory.items[i];
    const uint8_t *data = shards_data(&c->shards, c->found[i]);
    int64_t rows, cols;
    if (item->scale) {
        m->scale = data;
        return;
    }
    inventory_dims(&c->inventory, item, &rows, &cols);
    m->n_out = (int)rows;
    m->n_in = (int)cols;
    m->data = data;
    switch (c->found[i]->t->dtype) {
    case ST_I8:
        m->fmt = WEIGHT_FP4;
        break;
    case ST_F8_E4M3:
        m->fmt = WEIGHT_FP8;
        break;
    case ST_BF16:
        m->fmt = WEIGHT_BF16;
        break;
    default:
        FST_ASSERT(c->found[i]->t->dtype == ST_F32);
        m->fmt = WEIGHT_F32;
    }
}

static void set_floats(struct weights *w, const float **place, const struct shard_tensor *t)
{
    struct weights_store *st = w->store;
    const uint8_t *data = shards_data(&st->checkpoint.shards, t);
    int64_t n = n_elements(t->t);
    if (is_view(&st->checkpoint.shards, t)) {
        *place = (const float *)(const void *)data;
        return;
    }
    float *out = st->floats + st->n_floats;
    st->n_floats += round_up(n, FLOATS_PER_LINE);
    *place = out;
    if (t->t->dtype == ST_F32) {
        memcpy(out, data, (size_t)n * sizeof *out);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)data[2 * i] << 16 | (uint32_t)data[2 * i + 1] << 24;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

/* Experts of token rows, narrowed; a repeated expert is legal but odd. */
static enum fst_status set_ids(struct weights *w, const int32_t **place,
                               const struct shard_tensor *t)
{
    struct weights_store *st = w->store;
    const struct shards *s = &st->checkpoint.shards;
    const uint8_t *data = shards_data(s, t);
    int top = w->config.n_experts_per_token, size = st_dtype_bytes(t->t->dtype);
    int64_t n = n_elements(t->t), n_repeated = 0, first_repeated = -1;
    int32_t *out = st->ids + st->n_ids;
    st->n_ids += n;
    *place = out;
    for (int64_t i = 0; i < n; i++) {
        int64_t id;
        int32_t narrow;
        if (size == 8) {
            memcpy(&id, data + i * 8, 8);
        } else {
            memcpy(&narrow, data + i * 4, 4);
            id = narrow;
        }
        if (id < 0 || id >= w->config.n_experts)
            return fst_error(FST_EFORMAT,
                             "%s: tensor \"%s\": token %" PRId64 ", choice %" PRId64
                             ": expert %" PRId64 "; expected 0 to %d",
                             s->shard[t->shard].path, t->t->name, i / top, i % top, id,
                             w->config.n_experts - 1);
        out[i] = (int32_t)id;
        for (int64_t j = i - i % top; j < i; j++) {
            if (out[j] != out[i])
                continue;
            if (n_repeated++ == 0)
                first_repeated = i / top;
        }
    }
    if (n_repeated > 0 && !w->warning[0])
        snprintf(w->warning, sizeof w->warning,
                 "tensor \"%s\": token %" PRId64 " names one expert twice (%" PRId64
                 " such choices)",
                 t->t->name, first_repeated, n_repeated);
    return FST_OK;
}

static enum fst_status fill(struct weights *w)
{
    const struct checkpoint *c = &w->store->checkpoint;
    for (int64_t i = 0; i < c->inventory.n; i++) {
        const struct inventory_item *item = &c->inventory.items[i];
        if (!c->found[i] || !is_given(w, item))
            continue;
        void *place = store_place_of(w, item);
        if (store_is_vector(inventory_form(item)))
            set_floats(w, place, c->found[i]);
        else if (inventory_form(item) == FORM_IDS)
            FST_TRY(set_ids(w, place, c->found[i]));
        else
            set_mat(w, place, i);
    }
    return FST_OK;
}

/* What no tensor says: the kind of each layer, and where its experts are. */
void store_shape_layer(struct weights *w, struct layer_weights *l, bool stage, int i)
{
    const struct model_config *c = &w->config;
    l->ratio = stage ? 0 : c->compress_ratio[i];
    l->hash_route = !stage && i < c->n_hash_layers;
    l->ffn.experts = experts_of(w, stage, i);
    if (l->ratio != 0) {
        l->attn.compressor.ratio = l->ratio;
        l->attn.compressor.dim = c->head_dim;
    }
    if (l->ratio == 4) {
        l->attn.indexer.compressor.ratio = 4;
        l->attn.indexer.compressor.dim = c->index_dim;
    }
}

/* Expert kernels take one format per layer. */
static enum fst_status check_experts(const struct weights *w, const struct layer_weights *l,
                                     const char *root, int i)
{
    const struct expert_weights *e = l->ffn.experts;
    for (int k = 0; k < w->config.n_experts; k++) {
        const struct mat *m[] = {&e[k].w1, &e[k].w2, &e[k].w3};
        for (int j = 0; j < 3; j++) {
            if (m[j]->fmt != e[0].w1.fmt)
                return fst_error(FST_EFORMAT,
                                 "%s: tensor \"%s.%d.ffn.experts.%d.w%d.weight\": another dtype "
                                 "than its layer's other experts",
                                 w->store->checkpoint.dir, root, i, k, j + 1);
        }
    }
    return FST_OK;
}

static enum fst_status build(struct weights *w)
{
    FST_TRY(reserve(w));
    for (int l = 0; l < w->config.n_layers; l++)
        store_shape_layer(w, &w->layer[l], false, l);
    for (int s = 0; s < w->n_stages; s++)
        store_shape_layer(w, &w->stage[s], true, s);
    FST_TRY(fill(w));
    for (int l = 0; l < w->config.n_layers; l++)
        FST_TRY(check_experts(w, &w->layer[l], "layers", l));
    for (int s = 0; s < w->n_stages; s++)
        FST_TRY(check_experts(w, &w->stage[s], "mtp", s));
    weights_rope_table(w->rope_main, &w->config, false);
    weights_rope_table(w->rope_compress, &w->config, true);
    return FST_OK;
}

enum fst_status weights_open(struct weights **out, const char *dir, const struct weights_opts *opts)
{
    static const struct weights_opts off = {0};
    struct weights *w = mem_calloc(1, sizeof *w);
    if (!opts)
        opts = &off;
    *out = NULL;
    if (w)
        w->store = mem_calloc(1, sizeof *w->store);
    if (!w || !w->store) {
        mem_free(w);
        return fst_error(FST_ENOMEM, "%s: no memory for the weights", dir);
    }
    struct checkpoint *c = &w->store->checkpoint;
    enum fst_status rc = checkpoint_init(c, dir);
    if (rc == FST_OK)
        rc = checkpoint_verdict(c);
    if (rc == FST_OK) {
        w->config = c->config;
        w->n_tensors = c->shards.n;
        w->bytes = c->shards.bytes;
        if (!opts->no_draft)
            w->n_stages = w->config.has_mtp ? 1 : w->config.n_stages;
        rc = build(w);
    }
    for (int i = 0; rc == FST_OK && opts->populate && i < c->shards.n_shards; i++)
        weights_map_populate(&c->shards.shard[i].map);
    if (rc == FST_OK)
        *out = w;
    else
        weights_free(w);
    return rc;
}

enum fst_status weights_shape(struct weights **out, const struct model_config *c)
{
    struct weights *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (w)
        w->store = mem_calloc(1, sizeof *w->store);
    if (!w || !w->store) {
        mem_free(w);
        return fst_error(FST_ENOMEM, "weights: no memory");
    }
    w->config = *c;
    w->n_stages = c->has_dspark ? c->n_stages : c->has_mtp;
    for (int l = 0; l < c->n_layers; l++)
        w->layer[l].ratio = c->compress_ratio[l];
    *out = w;
    return FST_OK;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    if (w->store->slab)
        device_free(w->store->device, w->store->slab, w->store->slab_bytes);
    for (int i = 0; i < w->store->n_parts; i++)
        device_free(w->store->device, w->store->part[i].p, w->store->part[i].bytes);
    checkpoint_release(&w->store->checkpoint);
    mem_free(w->store->list);
    mem_free(w->store->floats);
    mem_free(w->store->ids);
    mem_free(w->store->experts);
    mem_free(w->store);
    mem_free(w);
}

const void **store_pointer_of(struct weights *w, int64_t i, int64_t *bytes)
{
    const struct checkpoint *c = &w->store->checkpoint;
    const struct inventory_item *item = &c->inventory.items[i];
    const struct shard_tensor *t = c->found[i];
    if (!t || !is_given(w, item))
        return NULL;
    void *place = store_place_of(w, item);
    enum inventory_form form = inventory_form(item);
    if (store_is_vector(form) || form == FORM_IDS) { /* widened to float, narrowed to int32_t */
        *bytes = n_elements(t->t) * 4;
        return (const void **)place;
    }
    struct mat *m = place;
    *bytes = t->t->end - t->t->begin;
    return item->scale ? (const void **)(void *)&m->scale : &m->data;
}

/* ---- tensors as stored ----------------------------------------------------------------------- */
int64_t weights_n_tensors(const struct weights *w)
{
    return w->n_tensors;
}

void weights_tensor_at(const struct weights *w, int64_t i, struct weights_tensor *out)
{
    const struct shards *s = &w->store->checkpoint.shards;
    FST_ASSERT(i >= 0 && i < w->n_tensors);
    const struct shard_tensor *t = w->store->list[i];
    *out = (struct weights_tensor){
        .name = t->name,
        .file = s->shard[t->shard].path,
        .dtype = st_dtype_name(t->t->dtype),
        .n_dims = t->t->n_dims,
        .data = shards_data(s, t),
        .bytes = t->t->end - t->t->begin,
    };
    memcpy(out->shape, t->t->shape, sizeof out->shape);
}
