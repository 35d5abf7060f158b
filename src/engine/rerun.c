#include "engine/rerun.h"

#include "engine/engine_int.h"

static int fill(fst_engine *e, const struct rerun_span *span, int n, struct rows *rows)
{
    int row = 0, n_logits = 0;

    for (int s = 0; s < n; s++) {
        const struct rerun_span *x = &span[s];
        e->span_first[s] = row;
        e->span_logit[s] = n_logits;
        FST_ASSERT(row + x->n_rows <= e->limits.max_rows);
        for (int i = 0; i < x->n_rows; i++, row++) {
            e->row_slot[row] = x->slot;
            e->row_pos[row] = (int32_t)(x->pos + i);
            e->row_id[row] = x->ids[i];
            e->row_span[row] = s;
            if (i >= x->n_rows - x->n_logits)
                e->logit_row[n_logits++] = row;
        }
    }
    e->span_first[n] = row;
    FST_ASSERT(n_logits <= e->limits.max_logits);
    *rows = (struct rows){.n_rows = row,
                          .n_spans = n,
                          .slot = e->row_slot,
                          .pos = e->row_pos,
                          .id = e->row_id,
                          .span = e->row_span,
                          .span_first = e->span_first,
                          .pages = e->kv.pages,
                          .page_stride = e->kv.page_stride};
    return n_logits;
}

/* Rows of the request's own ids are drawn by its rules. */
static enum fst_status draw_by_rules(fst_engine *e, const struct rerun_span *x, int first,
                                     float *logits)
{
    int64_t n = x->pos + x->n_rows - x->n_logits + 1;

    for (int i = 0; i < x->n_ruled && x->r->rules.on; i++) {
        float *raw = logits + (int64_t)(first + i) * e->info.vocab_size, *copy;
        if (e->sample[first + i].id < 0)
            continue;
        FST_TRY(rules_to(&x->r->rules, x->r->ids, n + i));
        FST_TRY(step_draw_by_rules(e, x->r, first + i, raw, &copy));
        FST_TRY(step_draw_on(e, x->r, first + i, raw, &copy));
    }
    return FST_OK;
}

enum fst_status rerun_step(fst_engine *e, const struct rerun_span *span, int n, struct rows *rows)
{
    float *logits = NULL;
    int n_logits = fill(e, span, n, rows);

    FST_TRY(model_forward(e->model, &e->kv, rows, e->logit_row, n_logits, &logits));
    if (n_logits == 0)
        return FST_OK;
    for (int s = 0; s < n; s++) {
        const struct rerun_span *x = &span[s];
        int first = e->span_logit[s];
        int64_t out_pos = x->pos + x->n_rows - x->n_logits - (x->r->n_prompt - 1);
        FST_TRY(recorder_look(e, logits + (int64_t)first * e->info.vocab_size, first, x->n_logits,
                              out_pos));
        x->r->rules.now = x->r->rules.on;
        for (int i = 0; i < x->n_logits; i++)
            step_sample_row(e, x->r, first + i, (uint32_t)(out_pos + i));
    }
    FST_TRY(sample_rows(&e->sampler, logits, e->sample, n_logits));
    for (int s = 0; s < n; s++)
        FST_TRY(draw_by_rules(e, &span[s], e->span_logit[s], logits));
    return FST_OK;
}
