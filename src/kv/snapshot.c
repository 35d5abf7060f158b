/* snapshot.c - where the parts of a snapshot lie, and those of a page. */
#include "kernels/rows.h"
#include "kv/snapshot.h"

struct walk {
    const struct kv *kv;
    int slot;
    int32_t page; /* the one that is not full at n; the null page when n ends one */
    int64_t n;
    kv_run_fn *f;
    void *ud;
};

static enum fst_status run(const struct walk *w, uint8_t *at, int64_t bytes)
{
    return bytes ? w->f(w->ud, at, (size_t)bytes) : FST_OK;
}

/* Rows have two parts: data, and rope values or scales.  How many parts of rows lie together depends on
 * where they lie, so each part goes in the order of positions on its own. */
enum { N_PARTS = 2 };

/* Of n rows that follow each other, none beyond the end of a ring or of a page of entries. */
static enum fst_status rows(const struct walk *w, const struct kv_layer *l, int part, int64_t row,
                            int64_t n)
{
    int64_t bytes = rows_bytes(l->format, w->kv->spec.head_dim);
    if (l->format != ROW_PAGED) {
        if (part == 0)
            return run(w, l->nope + row * bytes, n * bytes);
        return l->rope ? run(w, l->rope + row * ROWS_ROPE_BYTES, n * ROWS_ROPE_BYTES) : FST_OK;
    }
    while (n > 0) { /* rings know no pages of window rows */
        int64_t in_page =
            row < l->compressed_base ? ROWS_PAGED_WINDOW - row % ROWS_PAGED_WINDOW : n;
        int64_t here = FST_MIN(n, in_page);
        uint8_t *scale, *data = rows_paged(l, row, &scale);
        if (part == 0)
            FST_TRY(run(w, data, here * ROWS_PAGED_DATA));
        else
            FST_TRY(run(w, scale, here * ROWS_PAGED_SCALE));
        row += here;
        n -= here;
    }
    return FST_OK;
}

static enum fst_status window(const struct walk *w, const struct kv_layer *l, int part)
{
    for (int64_t pos = FST_MAX(w->n - w->kv->spec.window, 0); pos < w->n;) {
        int64_t here = FST_MIN(w->n - pos, l->ring - pos % l->ring);
        FST_TRY(rows(w, l, part, rows_window(l, w->slot, pos), here));
        pos += here;
    }
    return FST_OK;
}

/* Inputs of positions from .. n-1: kv | score, `width` floats each; of those at page ends, halves. */
static enum fst_status inputs(const struct walk *w, float *state, int ring, int width, int64_t from)
{
    bool halves = w->n % KERN_PAGE == 0;
    for (int64_t pos = from; pos < w->n;) {
        int64_t here = halves ? 1 : FST_MIN(w->n - pos, ring - pos % ring);
        float *row = state + ((int64_t)w->slot * ring + pos % ring) * 2 * width;
        int64_t bytes = here * 2 * width * (int64_t)sizeof *row;
        FST_TRY(run(w, (uint8_t *)row, halves ? bytes / 4 : bytes));
        if (halves) /* the overlap's channels come first in either */
            FST_TRY(run(w, (uint8_t *)(row + width), bytes / 4));
        pos += here;
    }
    return FST_OK;
}

static enum fst_status states(const struct walk *w, const struct kv_layer *l)
{
    const struct kv_spec *s = &w->kv->spec;
    int64_t group = w->n - w->n % l->ratio;
    if (l->ratio != 4)
        return inputs(w, l->state, l->state_ring, s->head_dim, group);
    FST_TRY(inputs(w, l->state, l->state_ring, 2 * s->head_dim, FST_MAX(group - 4, 0)));
    return inputs(w, l->index_state, l->state_ring, 2 * s->index_dim, FST_MAX(group - 4, 0));
}

/* The first n entries and index keys of the page. */
static enum fst_status entries(const struct walk *w, const struct kv_layer *l, int64_t n)
{
    int64_t page = w->page;
    for (int part = 0; part < N_PARTS; part++)
        FST_TRY(rows(w, l, part, l->compressed_base + page * (KERN_PAGE / l->ratio), n));
    if (!l->index_keys)
        return FST_OK;
    int64_t bytes = rows_index_page_bytes(l->index_format, w->kv->spec.index_dim);
    int64_t scale = l->index_format == INDEX_F32 ? 0 : (int64_t)sizeof(float);
    int64_t key = bytes / ROWS_INDEX_PAGE - scale;
    uint8_t *keys = l->index_keys + page * bytes;
    FST_TRY(run(w, keys, n * key));
    return run(w, keys + ROWS_INDEX_PAGE * key, n * scale);
}

static enum fst_status walk(const struct walk *w)
{
    FST_ASSERT(w->n > 0);
    for (int i = 0; i < w->kv->spec.n_layers; i++) {
        const struct kv_layer *l = &w->kv->layer[i];
        for (int part = 0; part < N_PARTS; part++)
            FST_TRY(window(w, l, part));
        if (!l->ratio)
            continue;
        FST_TRY(states(w, l));
        FST_TRY(entries(w, l, w->n % KERN_PAGE / l->ratio));
    }
    if (!w->kv->carry)
        return FST_OK;
    int64_t width = w->kv->spec.carry_floats;
    float *last = w->kv->carry + kv_carry_row(w->kv, w->slot, w->n - 1) * width;
    return run(w, (uint8_t *)last, width * (int64_t)sizeof(float));
}

enum fst_status kv_snapshot_runs(const struct kv *kv, int slot, int64_t n, kv_run_fn *f, void *ud)
{
    struct walk w = {kv, slot, 0, n, f, ud};
    FST_ASSERT(kv->slots[slot].used);
    FST_ASSERT(div_up(n, KERN_PAGE) <= kv->slots[slot].n_pages);
    if (n % KERN_PAGE)
        w.page = kv->pages[(int64_t)slot * kv->page_stride + n / KERN_PAGE];
    return walk(&w);
}

static enum fst_status add(void *ud, uint8_t *at, size_t bytes)
{
    (void)at;
    *(int64_t *)ud += (int64_t)bytes;
    return FST_OK;
}

int64_t kv_snapshot_bytes(const struct kv *kv, int64_t n)
{
    int64_t bytes = 0;
    struct walk w = {kv, 0, 0, n, add, &bytes}; /* sizes of the null slot are those of any */
    (void)walk(&w);
    return bytes;
}

enum fst_status kv_page_runs(const struct kv *kv, int32_t page, kv_run_fn *f, void *ud)
{
    struct walk w = {kv, 0, page, KERN_PAGE, f, ud};
    FST_ASSERT(page >= 0);
    FST_ASSERT(page <= kv->spec.n_pages);
    for (int i = 0; i < kv->spec.n_layers; i++)
        if (kv->layer[i].ratio)
            FST_TRY(entries(&w, &kv->layer[i], KERN_PAGE / kv->layer[i].ratio));
    return FST_OK;
}

int64_t kv_page_bytes(const struct kv *kv, int64_t *parts)
{
    int64_t all = 0;
    for (int i = 0; i < kv->spec.n_layers; i++) {
        int64_t bytes = 0;
        struct walk w = {kv, 0, 0, KERN_PAGE, add, &bytes};
        if (kv->layer[i].ratio)
            (void)entries(&w, &kv->layer[i], KERN_PAGE / kv->layer[i].ratio);
        if (parts)
            parts[i] = bytes;
        all += bytes;
    }
    return all;
}

int64_t kv_snapshot_slack(const struct kv *kv)
{
    return kv->ring - kv->spec.window;
}
