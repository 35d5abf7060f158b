/* synthetic.c - a tree of random weights in device memory, without a checkpoint.
 *
 * A linear of n inputs gets values of root mean square about 1/sqrt(n), so that an input of order 1
 * gives an output of order 1; what is gathered (the embedding) is of order 1 itself.  Codes are drawn
 * evenly over all that are numbers, scales over a few binades, as trained weights have them. */
#include <math.h>
#include <string.h>

#include "weights/rope.h"
#include "weights/store.h"

enum { LINE = 256 };

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* E8M0 code of the lowest of so many binades whose mean square, times rms^2 of the codes, is 1/n_in. */
static int lowest_code(double rms, int n_codes, double n_in)
{
    double sum = 0;
    for (int i = 0; i < n_codes; i++)
        sum += pow(4, i);
    return 127 + (int)lrint(-log2(rms * sqrt(sum / n_codes * n_in)));
}

/* Which random values an item gets; n_in: columns. */
static struct device_fill values_of(const struct model_config *c, const struct inventory_item *item,
                                    int64_t n_in)
{
    struct device_fill f = {0};
    switch (inventory_form(item)) {
    case FORM_FP8: /* the root mean square of all E4M3 codes is 99.7 */
        f.kind = item->scale ? FILL_E8M0 : FILL_E4M3;
        f.n_codes = 2;
        f.code = lowest_code(99.7, f.n_codes, (double)n_in);
        break;
    case FORM_EXPERT: /* of all E2M1 codes: 2.93 */
        f.kind = item->scale ? FILL_E8M0 : FILL_E2M1;
        f.n_codes = 3;
        f.code = lowest_code(2.93, f.n_codes, (double)n_in);
        break;
    case FORM_PLAIN:
        f.kind = FILL_BF16;
        f.spread = (float)sqrt(3.0 / (strcmp(item->name, "embed.weight") ? (double)n_in : 1));
        break;
    case FORM_NORM:
        f.kind = FILL_F32;
        f.mean = 1;
        f.spread = 0.1f;
        break;
    case FORM_FLOAT: /* hc_*_fn; then ape, sinks and hc's base and scale, and the router's bias */
        f.kind = FILL_F32;
        f.spread = ends_with(item->name, "_fn")         ? (float)sqrt(3.0 / (double)n_in)
                   : ends_with(item->name, "gate.bias") ? 0.01f
                                                        : 0.5f;
        break;
    case FORM_IDS:
        f.kind = FILL_IDS;
        f.k = c->n_experts_per_token;
        f.n = c->n_experts;
        break;
    case FORM_ROWS: /* of V4.1 */
        FST_ASSERT(false);
    }
    return f;
}

/* Bytes in memory: vectors and ids have 4 a value there. */
static int64_t bytes_of(const struct inventory *inv, const struct inventory_item *item)
{
    enum inventory_form form = inventory_form(item);
    int64_t rows, cols;
    if (!store_is_vector(form) && form != FORM_IDS)
        return inventory_bytes(inv, item);
    inventory_dims(inv, item, &rows, &cols);
    return rows * FST_MAX(cols, 1) * 4;
}

static void point_to(struct weights *w, const struct inventory *inv,
                     const struct inventory_item *item, const void *at)
{
    static const enum weight_format format[] = {
        [FORM_FP8] = WEIGHT_FP8, [FORM_EXPERT] = WEIGHT_FP4, [FORM_PLAIN] = WEIGHT_BF16};
    enum inventory_form form = inventory_form(item);
    void *place = store_place_of(w, item);
    int64_t rows, cols;
    if (store_is_vector(form) || form == FORM_IDS) {
        *(const void **)place = at;
        return;
    }
    struct mat *m = place;
    if (item->scale) {
        m->scale = at;
        return;
    }
    inventory_dims(inv, item, &rows, &cols);
    *m = (struct mat){
        .fmt = format[form], .n_out = (int)rows, .n_in = (int)cols, .data = at, .scale = m->scale};
}

static bool same_part(const struct inventory_item *a, const struct inventory_item *b)
{
    return a->stage == b->stage && a->layer == b->layer;
}

/* Items first .. *last - 1 lie in one block: a layer's, a stage's, or those outside of layers. */
static int64_t part_bytes(const struct inventory *inv, int64_t first, int64_t *last)
{
    int64_t bytes = 0, i = first;
    for (; i < inv->n && same_part(&inv->items[i], &inv->items[first]); i++)
        bytes += round_up(bytes_of(inv, &inv->items[i]), LINE);
    *last = i;
    return bytes;
}

static enum fst_status no_room(const struct weights *w, const struct inventory_item *item,
                               int64_t bytes, int64_t before)
{
    const struct device *d = w->store->device;
    char part[48];
    if (item->layer < 0)
        snprintf(part, sizeof part, "embedding and head");
    else
        snprintf(part, sizeof part, "%s %d", item->stage ? "draft stage" : "layer", item->layer);
    return fst_error(FST_ENOMEM,
                     "synthetic weights: %s (%lld bytes) did not fit on %s: %lld bytes came before "
                     "it, %llu were free at start",
                     part, (long long)bytes, d ? d->card : "the host", (long long)before,
                     (unsigned long long)(d ? d->free_bytes : 0));
}

static enum fst_status make_part(struct weights *w, struct stream *s, uint64_t seed, int64_t first,
                                 int64_t *last)
{
    struct weights_store *st = w->store;
    const struct inventory *inv = &st->checkpoint.inventory;
    int64_t bytes = part_bytes(inv, first, last);
    uint8_t *at = device_alloc(st->device, (size_t)bytes);
    if (!at)
        return no_room(w, &inv->items[first], bytes, w->bytes);
    FST_ASSERT(st->n_parts < STORE_PARTS);
    st->part[st->n_parts].p = at;
    st->part[st->n_parts++].bytes = (size_t)bytes;
    w->bytes += bytes;
    for (int64_t i = first; i < *last; i++) {
        const struct inventory_item *item = &inv->items[i];
        int64_t rows, cols, size = round_up(bytes_of(inv, item), LINE);
        inventory_dims(inv, item, &rows, &cols);
        struct device_fill f = values_of(&w->config, item, cols);
        f.seed = seed + (uint64_t)i;
        FST_TRY(stream_fill(s, at, (size_t)size, &f));
        point_to(w, inv, item, at);
        at += size;
    }
    return FST_OK;
}

static enum fst_status make(struct weights *w, struct stream *s, uint64_t seed)
{
    struct weights_store *st = w->store;
    const struct model_config *c = &w->config;
    FST_TRY(inventory_init(&st->checkpoint.inventory, c,
                           w->n_stages ? INVENTORY_DSPARK : INVENTORY_NO_DRAFT));
    st->experts =
        mem_calloc((size_t)(c->n_layers + w->n_stages) * (size_t)c->n_experts, sizeof *st->experts);
    if (!st->experts)
        return fst_error(FST_ENOMEM, "synthetic weights: no memory for the tree");
    for (int l = 0; l < c->n_layers; l++)
        store_shape_layer(w, &w->layer[l], false, l);
    for (int i = 0; i < w->n_stages; i++)
        store_shape_layer(w, &w->stage[i], true, i);
    for (int64_t i = 0; i < st->checkpoint.inventory.n;)
        FST_TRY(make_part(w, s, seed, i, &i));
    weights_rope_table(w->rope_main, c, false);
    weights_rope_table(w->rope_compress, c, true);
    return stream_sync(s);
}

enum fst_status weights_synthetic(struct weights **out, const struct model_config *c,
                                  struct stream *s, uint64_t seed)
{
    struct weights *w = mem_calloc(1, sizeof *w);
    *out = NULL;
    if (w)
        w->store = mem_calloc(1, sizeof *w->store);
    if (!w || !w->store) {
        mem_free(w);
        return fst_error(FST_ENOMEM, "synthetic weights: no memory for the tree");
    }
    w->config = *c;
    w->config.has_mtp = false;
    w->n_stages = c->has_dspark ? c->n_stages : 0;
    w->store->device = s->device;
    enum fst_status rc = make(w, s, seed);
    if (rc == FST_OK)
        *out = w;
    else
        weights_free(w);
    return rc;
}
