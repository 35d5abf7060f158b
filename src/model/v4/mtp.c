/* mtp.c - drafts of the multi-token-prediction block of preview and base checkpoints: one layer behind the
 * target's last (DeepSeek's MTPBlock), applied again to its own streams for each further draft. */
#include "model/v4/v4.h"

enum fst_status v4_mtp_streams(struct model *m, const float *src, const int32_t *row,
                               const int32_t *id, int n)
{
    const struct mtp_weights *w = &m->w->mtp;
    struct mtp_in_args in = {.src = src,
                             .row = row,
                             .x = m->work.draft_x,
                             .table = &m->w->embed,
                             .e_proj = &w->e_proj,
                             .h_proj = &w->h_proj,
                             .enorm = w->enorm,
                             .hnorm = w->hnorm,
                             .id = id,
                             .n_rows = n,
                             .dim = m->c->hidden_size,
                             .norm_eps = m->c->norm_eps};
    return v4_run_mtp_in(m, &in);
}

struct mtp_call {
    struct kv *kv;
    const struct draft_batch *d;
};

/* All steps' positions; slots, anchors, the places of carried streams and numbers of rows once. */
static void fill_rows(struct model *m, const struct kv *kv, const struct draft_batch *d)
{
    struct v4_rows b = v4_rows_shared(m, d->n * d->gamma);
    for (int i = 0; i < d->n; i++) {
        int64_t last = d->n_committed[i] - 1; /* the position that the first draft comes out of */
        FST_ASSERT(d->slot[i] >= 0);
        FST_ASSERT(d->slot[i] <= kv->spec.n_slots);
        FST_ASSERT(last >= 0);
        FST_ASSERT(d->anchor[i] >= 0);
        FST_ASSERT(d->anchor[i] < m->c->vocab_size);
        b.slot[i] = d->slot[i];
        b.id[i] = d->anchor[i];
        b.span[i] = b.span_first[i] = i;
        b.pick[i] = (int32_t)kv_carry_row(kv, d->slot[i], last);
        for (int k = 0; k < d->gamma; k++)
            b.pos[k * d->n + i] = (int32_t)(last + k);
    }
    b.span_first[d->n] = d->n;
}

/* Step k as kernels see it: a row of each request, with the token that the step before has drawn. */
static struct rows step_rows(struct model *m, const struct mtp_call *f, int k)
{
    int n = f->d->n;
    struct v4_rows at = v4_rows_of(m, n * f->d->gamma);
    return (struct rows){.n_rows = n,
                         .n_spans = n,
                         .slot = at.slot,
                         .pos = at.pos + k * n,
                         .id = k ? m->work.drafted + (k - 1) * n : at.id,
                         .span = at.span,
                         .span_first = at.span_first,
                         .pages = kv_pages_for_kernels(f->kv),
                         .page_stride = f->kv->page_stride};
}

static enum fst_status enqueue_step(struct model *m, const struct mtp_call *f, int k)
{
    const struct mtp_weights *w = &m->w->mtp;
    const struct draft_batch *d = f->d;
    struct v4_work *b = &m->work;
    struct rows rows = step_rows(m, f, k);
    float *logits = b->draft_logits + (int64_t)k * d->n * m->c->vocab_size;
    const int32_t *carried = v4_rows_of(m, d->n * d->gamma).pick;
    struct draw_args draw = {.logits = logits,
                             .draw = d->draw,
                             .out_pos = d->out_pos,
                             .ahead = (uint32_t)k,
                             .drafts = true,
                             .id = b->drafted + k * d->n,
                             .n = d->n,
                             .vocab = m->c->vocab_size};

    FST_TRY(v4_mtp_streams(m, k ? b->draft_x : f->kv->carry, k ? NULL : carried, rows.id, d->n));
    FST_TRY(v4_rope(m, &rows, false));
    FST_TRY(v4_layer(m, &m->stage[0], f->kv, &rows, ATTN_CAUSAL, b->draft_x, NULL, NULL));
    FST_TRY(v4_seam(m, b->draft_x, d->n, b->y, NULL, NULL, NULL));
    FST_TRY(v4_head(m, b->draft_x, &w->hc_head, w->norm, rows.span, d->n, b->draft_y, logits));
    return v4_run_draw(m, &draw);
}

static enum fst_status enqueue_steps(struct model *m, void *ud)
{
    const struct mtp_call *f = ud;
    int n = f->d->n * f->d->gamma;
    FST_TRY(v4_send_rows(m, n));
    for (int k = 0; k < f->d->gamma; k++)
        FST_TRY(enqueue_step(m, f, k));
    return stream_copy(m->stream, m->work.drafted_shared, m->work.drafted,
                       (size_t)n * sizeof(int32_t));
}

enum fst_status v4_mtp_draft(struct model *m, struct kv *kv, const struct draft_batch *d)
{
    int64_t vocab = m->c->vocab_size;
    struct mtp_call f = {kv, d};
    struct v4_key key = {.call = V4_DRAFT,
                         .n_rows = d->n * d->gamma,
                         .n_spans = d->n,
                         .gamma = d->gamma,
                         .kv = kv,
                         .pages = kv->pages,
                         .draw = d->draw,
                         .out_pos = d->out_pos};
    FST_ASSERT(!d->conf);
    fill_rows(m, kv, d);
    FST_TRY(v4_run(m, &key, enqueue_steps, &f, true));
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < d->gamma; k++) {
            d->ids[i * d->gamma + k] = m->work.drafted_shared[k * d->n + i];
            if (d->logits)
                memcpy(d->logits + (int64_t)(i * d->gamma + k) * vocab,
                       m->work.draft_logits + (int64_t)(k * d->n + i) * vocab,
                       (size_t)vocab * sizeof *d->logits);
        }
    return FST_OK;
}
