/* forward.c - the forward pass of DeepSeek-V4, top to bottom (technical report §2). */
#include "model/v4/v4.h"

void v4_check_picks(const int32_t *row, int n, int n_rows, int max)
{
    FST_ASSERT(n >= 0);
    FST_ASSERT(n <= max);
    for (int i = 0; i < n; i++) {
        FST_ASSERT(row[i] >= 0);
        FST_ASSERT(row[i] < n_rows);
        FST_ASSERT(i == 0 || row[i] > row[i - 1]);
    }
}

enum fst_status v4_check_rows(const struct model *m, const struct kv *kv, const struct rows *rows,
                              const int32_t *id)
{
    FST_ASSERT(rows->n_rows > 0);
    FST_ASSERT(rows->n_rows <= m->opts.max_rows);
    FST_ASSERT(rows->n_spans > 0);
    FST_ASSERT(rows->pages == kv->pages);
    FST_ASSERT(rows->page_stride == kv->page_stride);
    FST_ASSERT(rows->span_first[0] == 0);
    FST_ASSERT(rows->span_first[rows->n_spans] == rows->n_rows);
    for (int i = 0; i < rows->n_rows; i++) {
        int first = rows->span_first[rows->span[i]];
        int slot = rows->slot[i];
        FST_ASSERT(first <= i);
        FST_ASSERT(i < rows->span_first[rows->span[i] + 1]);
        FST_ASSERT(slot >= 0);
        FST_ASSERT(slot <= kv->spec.n_slots);
        FST_ASSERT(slot == rows->slot[first]);
        FST_ASSERT(rows->pos[i] >= 0);
        FST_ASSERT(rows->pos[i] == rows->pos[first] + i - first);
        FST_ASSERT(slot == 0 || rows->pos[i] < KERN_PAGE * kv->slots[slot].n_pages);
        FST_ASSERT(rows->pos[i] < m->opts.context_length);
        if (id[i] < 0 || id[i] >= m->c->vocab_size)
            return fst_error(FST_EINVAL, "token id %d of row %d is outside the vocabulary of %d",
                             id[i], i, m->c->vocab_size);
    }
    return FST_OK;
}

enum fst_status v4_seam(struct model *m, float *x, int n_rows, const float *y,
                        const struct hc_weights *hc, const float *norm, float *capture)
{
    struct seam_args a = {.x = x,
                          .y = y,
                          .mix = m->work.mix,
                          .capture = capture,
                          .capture_ld = (int64_t)m->n_stages * m->c->hidden_size,
                          .out = m->work.a,
                          .norm = norm,
                          .n_rows = n_rows,
                          .dim = m->c->hidden_size,
                          .iters = m->c->hc_iters,
                          .hc_eps = m->c->hc_eps,
                          .norm_eps = m->c->norm_eps,
                          .parts = y ? m->y_parts : 0};
    if (hc) {
        a.operand = v4_a_operand(m, n_rows);
        a.fn = hc->fn;
        a.base = hc->base;
        a.scale = hc->scale;
    }
    return v4_run_seam(m, &a);
}

static enum model_site site_of(const struct v4_layer *l)
{
    return l->w->ratio == 0   ? MODEL_SITE_WINDOW
           : l->w->ratio == 4 ? MODEL_SITE_RATIO4
                              : MODEL_SITE_RATIO128;
}

enum fst_status v4_layer(struct model *m, const struct v4_layer *l, struct kv *kv,
                         const struct rows *rows, enum attn_mode mode, float *x, const float *y,
                         float *capture)
{
    int n = rows->n_rows;
    m->site = site_of(l);
    FST_TRY(v4_seam(m, x, n, y, &l->w->hc_attn, l->w->attn_norm, capture));
    FST_TRY(v4_attention(m, l, kv, rows, mode));
    FST_TRY(v4_seam(m, x, n, m->work.y, &l->w->hc_ffn, l->w->ffn_norm, NULL));
    FST_TRY(v4_moe(m, l, rows));
    m->site = MODEL_SITE_NONE;
    return FST_OK;
}

struct forward_call {
    struct kv *kv;
    struct rows rows; /* as kernels see them */
    int n_logits;
};

static enum fst_status enqueue_forward(struct model *m, void *ud)
{
    const struct forward_call *f = ud;
    const struct rows *rows = &f->rows;
    struct v4_work *b = &m->work;
    struct embed_args embed = {.x = b->x,
                               .table = &m->w->embed,
                               .id = rows->id,
                               .n_rows = rows->n_rows,
                               .dim = m->c->hidden_size};
    FST_TRY(v4_send_rows(m, rows->n_rows));
    FST_TRY(v4_run_embed(m, &embed));
    FST_TRY(v4_rope(m, rows, true));

    const float *y = NULL;
    float *capture = NULL; /* of the layer before: its streams are complete in the next seam */
    for (int i = 0; i < m->n_layers; i++) {
        FST_TRY(v4_layer(m, &m->layer[i], f->kv, rows, ATTN_CAUSAL, b->x, y, capture));
        y = b->y;
        capture = m->layer[i].capture;
    }
    FST_TRY(v4_seam(m, b->x, rows->n_rows, y, NULL, NULL, capture));
    return v4_head(m, b->x, &m->w->hc_head, m->w->norm, v4_rows_of(m, rows->n_rows).pick,
                   f->n_logits, b->head_y, b->logits);
}

enum fst_status model_forward(struct model *m, struct kv *kv, const struct rows *rows,
                              const int32_t *logit_row, int n_logits, float **logits)
{
    v4_check_picks(logit_row, n_logits, rows->n_rows, m->opts.max_logits);
    FST_TRY(v4_check_rows(m, kv, rows, rows->id));
    struct forward_call f = {.kv = kv, .n_logits = n_logits};
    FST_TRY(v4_begin(m));
    FST_TRY(v4_send_pages(m, kv, rows));
    f.rows = v4_take_rows(m, kv, rows, rows->id, logit_row, n_logits);
    struct v4_key key = {.call = V4_FORWARD,
                         .n_rows = rows->n_rows,
                         .n_spans = rows->n_spans,
                         .n_logits = n_logits,
                         .scored = m->scored,
                         .kv = kv,
                         .pages = kv->pages};
    if (logits)
        *logits = m->work.logits;
    return v4_run(m, &key, enqueue_forward, &f, n_logits == 0);
}
