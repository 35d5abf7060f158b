/* plan.c - sizes of all KV memory, before any of it exists. */
#include "kernels/rows.h"
#include "kv/kv.h"
#include "kv/layout.h"

/* Bytes of the host's tables for a page: its place in the free list, its count, who keeps it. */
enum { PAGE_TABLES = 4 + 4 + 1 };

static enum fst_status wrong(const char *field, int64_t value, const char *expected)
{
    return fst_error(FST_EINVAL, "kv: %s is %lld, expected %s", field, (long long)value, expected);
}

static enum fst_status check_counts(const struct kv_spec *s)
{
    if (s->n_layers < 1 || s->n_layers > KV_LAYERS_MAX)
        return wrong("n_layers", s->n_layers, "1 to 136");
    if (s->n_slots < 1 || s->n_slots > 1 << 20)
        return wrong("n_slots", s->n_slots, "1 to 1048576");
    if (s->n_pages < 1 || s->n_pages > 1 << 30)
        return wrong("n_pages", s->n_pages, "1 to 2^30");
    if (s->context_length < 1 || s->context_length > 1 << 30)
        return wrong("context_length", s->context_length, "1 to 2^30");
    if (s->window < 1 || s->window > 1 << 20)
        return wrong("window", s->window, "1 to 1048576");
    if (s->lag < 0 || s->lag > 8)
        return wrong("lag", s->lag, "0 to 8");
    /* A verify step reads its own rows from the batch and older inputs from the state, which it then
     * overwrites: block*(1+lag) <= state - 8 + 2 keeps what the next step needs (ratio 4 is the
     * narrow one). */
    if (s->block < 1 || s->block * (1 + s->lag) > KV_STATE4 - 8 + 2)
        return wrong("block", s->block, "at least 1, times (1 + lag) at most 26");
    return s->carry_floats < 0 || s->carry_floats > 1 << 18
               ? wrong("carry_floats", s->carry_floats, "0 to 262144")
               : FST_OK;
}

static enum fst_status check_widths(const struct kv_spec *s)
{
    bool indexed = false, fp8 = s->format == ROW_FP8 || s->format == ROW_PAGED;
    for (int l = 0; l < s->n_layers; l++) {
        if (s->ratio[l] != 0 && s->ratio[l] != 4 && s->ratio[l] != 128)
            return wrong("ratio", s->ratio[l], "0, 4 or 128");
        indexed = indexed || s->ratio[l] == 4;
    }
    if (s->head_dim < 2 || s->head_dim > 1024)
        return wrong("head_dim", s->head_dim, "2 to 1024");
    if (s->rope_dim < 2 || s->rope_dim > s->head_dim || s->rope_dim % 2)
        return wrong("rope_dim", s->rope_dim, "an even number up to head_dim");
    if (s->format != ROW_BF16 && s->format != ROW_FP8 && s->format != ROW_F32 &&
        s->format != ROW_PAGED)
        return wrong("format", s->format, "a row format");
    if (fp8 && s->head_dim != ROWS_FP8_DIM)
        return wrong("head_dim", s->head_dim, "512 for fp8 rows");
    if (fp8 && s->rope_dim != ROWS_FP8_DIM - ROWS_FP8_NOPE)
        return wrong("rope_dim", s->rope_dim, "64 for fp8 rows");
    if (!indexed)
        return FST_OK;
    if (s->index_format != INDEX_FP4 && s->index_format != INDEX_FP8 &&
        s->index_format != INDEX_F32)
        return wrong("index_format", s->index_format, "an index format");
    if (s->index_dim < 2 || s->index_dim > 1024)
        return wrong("index_dim", s->index_dim, "2 to 1024");
    if (s->index_format != INDEX_F32 && s->index_dim != ROWS_INDEX_DIM)
        return wrong("index_dim", s->index_dim, "128 for fp4 and fp8 index keys");
    return FST_OK;
}

void kv_layer_sizes(const struct kv_spec *s, int layer, struct kv_layer_sizes *out)
{
    int ratio = s->ratio[layer], per_page = ratio ? KERN_PAGE / ratio : 0;
    int64_t slots = (int64_t)s->n_slots + 1, pages = s->n_pages + 1;
    int64_t row = rows_bytes(s->format, s->head_dim);
    int64_t rope = s->format == ROW_FP8 ? ROWS_ROPE_BYTES : 0;
    *out = (struct kv_layer_sizes){.ring = s->window + s->block * (1 + s->lag) - 1};
    out->window_rows = slots * out->ring;
    out->rows = out->window_rows + pages * per_page;
    out->nope = out->rows * row;
    out->rope = out->rows * rope;
    if (s->format == ROW_PAGED)
        out->nope =
            div_up(out->window_rows, ROWS_PAGED_WINDOW) * rows_paged_page(ROWS_PAGED_WINDOW) +
            (ratio ? pages * rows_paged_page(per_page) : 0);
    out->row = row + rope;
    out->state_ring = ratio == 4 ? KV_STATE4 : ratio ? KV_STATE128 : 0;
    out->state_slot = (int64_t)out->state_ring * 2 * (ratio == 4 ? 2 : 1) * s->head_dim * 4;
    out->state = slots * out->state_slot;
    if (ratio == 4) {
        out->index_page = rows_index_page_bytes(s->index_format, s->index_dim);
        out->index = pages * out->index_page;
        out->index_state_slot = (int64_t)KV_STATE4 * 4 * s->index_dim * 4;
        out->index_state = slots * out->index_state_slot;
    }
}

/* spec has passed the checks. */
static void add_layer(struct sizing_spec *z, int ratio, int state_bytes)
{
    int i = 0;
    while (i < z->n_classes && z->class[i].ratio != ratio)
        i++;
    if (i == z->n_classes)
        z->class[z->n_classes++] =
            (struct sizing_class){.ratio = ratio,
                                  .indexed = ratio == 4,
                                  .state_bytes = state_bytes,
                                  .state_ring = ratio == 4 ? KV_STATE4 : KV_STATE128,
                                  .overlap = ratio == 4 ? 4 : 0};
    z->class[i].n_layers++;
}

void kv_sizing(const struct kv_spec *s, struct sizing_spec *out)
{
    int rope = s->format == ROW_FP8 ? ROWS_ROPE_BYTES : 0;
    struct sizing_record row = {(int)rows_bytes(s->format, s->head_dim), rope, 1};
    if (s->format == ROW_PAGED)
        row = (struct sizing_record){ROWS_PAGED_DATA, ROWS_PAGED_SCALE, ROWS_PAGED_DATA};
    *out = (struct sizing_spec){.rule = SIZING_TIGHT,
                                .window_page = s->format == ROW_PAGED ? ROWS_PAGED_WINDOW : 0,
                                .n_target = s->n_layers,
                                .window = row,
                                .compressed = row,
                                .ring = sizing_window_ring(s->window, s->block, s->lag),
                                .carry_bytes = s->carry_floats * (int)sizeof(float),
                                .n_slots = (int64_t)s->n_slots + 1,
                                .page_table_bytes = PAGE_TABLES};
    for (int l = 0; l < s->n_layers; l++) {
        int wide = s->ratio[l] == 4 ? 4 * (s->head_dim + s->index_dim) : 2 * s->head_dim;
        if (s->ratio[l])
            add_layer(out, s->ratio[l], wide * (int)sizeof(float));
        if (s->ratio[l] == 4)
            out->index = (struct sizing_record){
                (int)(rows_index_page_bytes(s->index_format, s->index_dim) / ROWS_INDEX_PAGE), 0,
                1};
    }
}

static int64_t table_bytes(const struct kv_spec *s, const struct sizing_spec *z)
{
    int64_t slots = (int64_t)s->n_slots + 1;
    if (z->rule == SIZING_PUBLISHED)
        return 0;
    return 4 * slots * div_up(s->context_length, KERN_PAGE) *
               (s->device ? 3 : 1) + /* kernels' copy, and what it holds */
           slots * (int64_t)sizeof(struct kv_slot) +
           PAGE_TABLES * s->n_pages + (PAGE_TABLES - 4) + /* the free list has no null page */
           4 * slots;
}

enum fst_status kv_plan_by(const struct kv_spec *spec, const struct sizing_spec *z,
                           struct kv_plan *out)
{
    struct sizing_spec one = *z;
    FST_TRY(check_counts(spec));
    FST_TRY(sizing_check(z));
    one.n_slots = 1;
    struct kv_plan p = {.window_bytes = sizing_window_bytes(z),
                        .compressed_bytes = sizing_compressed_bytes(z, spec->n_pages),
                        .index_bytes = sizing_index_bytes(z, spec->n_pages),
                        .state_bytes = sizing_state_bytes(z),
                        .table_bytes = table_bytes(spec, z),
                        .bytes_per_slot = sizing_window_bytes(&one) + sizing_state_bytes(&one),
                        .bytes_per_full_token = sizing_token_bytes(z)};
    p.total_bytes =
        p.window_bytes + p.compressed_bytes + p.index_bytes + p.state_bytes + p.table_bytes;
    *out = p;
    return FST_OK;
}

enum fst_status kv_plan(const struct kv_spec *spec, struct kv_plan *out)
{
    struct sizing_spec z;
    FST_TRY(check_counts(spec));
    FST_TRY(check_widths(spec));
    kv_sizing(spec, &z);
    return kv_plan_by(spec, &z, out);
}

int64_t kv_tokens_by(const struct kv_spec *spec, const struct sizing_spec *z, int64_t budget_bytes)
{
    struct kv_spec none = *spec;
    none.n_pages = 0;
    return sizing_full_tokens(z, budget_bytes - table_bytes(&none, z));
}

int64_t kv_tokens_within(const struct kv_spec *spec, int64_t budget_bytes)
{
    struct kv_spec one = *spec;
    struct sizing_spec z;
    struct kv_plan p;
    one.n_pages = 1;
    if (kv_plan(&one, &p) < 0)
        return 0;
    kv_sizing(&one, &z);
    return kv_tokens_by(&one, &z, budget_bytes);
}
