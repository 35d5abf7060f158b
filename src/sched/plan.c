/* plan.c - the step planner. */
#include "sched/sched.h"

static void add_span(struct step *out, struct step_span span)
{
    out->span[out->n_spans++] = span;
    out->n_rows += span.n_rows;
}

void sched_plan(const struct sched_limits *lim, const struct sched_item *item, int n,
                struct step_span *span, struct step *out)
{
    int prefill = lim->prefill_rows, logits = 0;

    *out = (struct step){.span = span};
    for (int i = 0; i < n; i++) {
        if (!item[i].decoding)
            continue;
        add_span(out, (struct step_span){.slot = item[i].slot,
                                         .n_rows = 1 + item[i].n_draft,
                                         .kind = item[i].n_draft ? STEP_VERIFY : STEP_DECODE,
                                         .logits = STEP_LOGITS_ALL});
        logits += 1 + item[i].n_draft;
        prefill = FST_MIN(prefill, lim->prefill_rows_while_decoding);
    }
    FST_ASSERT(out->n_rows <= lim->max_rows);
    FST_ASSERT(logits <= lim->max_logits);
    prefill = FST_MIN(prefill, lim->max_rows - out->n_rows);
    for (int i = 0; i < n && prefill > 0; i++) {
        int64_t open = item[i].n_known - item[i].n_committed;
        int rows = (int)FST_MIN(open, (int64_t)prefill);
        bool ends;

        if (item[i].decoding)
            continue;
        FST_ASSERT(open > 0);
        if (item[i].n_stop)
            rows = (int)FST_MIN((int64_t)rows, item[i].n_stop);
        if (item[i].wants_all_logits)
            rows = FST_MIN(rows, lim->max_logits - logits);
        ends = rows == open;
        if (rows <= 0 || (ends && item[i].wants_logits && logits >= lim->max_logits))
            continue;
        add_span(out,
                 (struct step_span){.slot = item[i].slot,
                                    .n_rows = rows,
                                    .kind = STEP_PREFILL,
                                    .logits = item[i].wants_all_logits       ? STEP_LOGITS_ALL
                                              : ends && item[i].wants_logits ? STEP_LOGITS_LAST
                                                                             : STEP_LOGITS_NONE});
        logits += item[i].wants_all_logits ? rows : ends && item[i].wants_logits;
        prefill -= rows;
    }
}
