/* draft.c - drafting of a step: who, how long, how much of it is verified, and where captured rows go. */
#include "engine/draft.h"

#include "base/log.h"
#include "engine/engine_int.h"

/* Share of the time that may go to finding out whether the other way would be faster, and what drafting must
 * promise to be begun: estimates are a few percent off. */
static const double EXPLORE = 0.005, MARGIN = 1.03;
enum { RESUME_ROUNDS = 16 }; /* that taking up drafting again has to pay for itself in */

struct draft_seams draft_seams;

/* ------------------------------------------------------------------ windows */

/* Positions from which on held rows are still there, and fit into the drafter's rings. */
static int64_t held_from(const fst_engine *e, const fst_request *r)
{
    int64_t n = FST_MIN(model_held_rows(e->model, &e->kv), e->kv.ring);
    return FST_MAX(r->n_injected, r->n_committed - n);
}

/* Does, or could, the drafter's window hold all that is to be in it? */
static bool whole(const fst_engine *e, const fst_request *r)
{
    return r->window_from == 0 || r->n_committed - e->window >= r->window_from;
}

void draft_begin(const fst_engine *e, fst_request *r, int64_t n, bool is_whole)
{
    r->n_injected = FST_MAX(n - e->dr.behind, 0);
    r->window_from = is_whole ? 0 : n;
    r->aside = false;
}

/* Positions whose rows the window could have by now. */
static int64_t inject_to(const fst_engine *e, const fst_request *r)
{
    return r->n_committed - e->dr.behind;
}

enum fst_status draft_catch_up(fst_engine *e, int n)
{
    struct drafter *d = &e->dr;
    int64_t t = engine_now_ns();
    int n_held = 0, rows = 0;
    d->caught_up = 0;
    for (int i = 0; i < n; i++) {
        fst_request *r = d->who[i];
        int64_t from = held_from(e, r), to = inject_to(e, r);
        e->stats.resumed_rows += r->aside && from < to ? (uint64_t)(to - from) : 0;
        r->aside = false;
        if (from >= to)
            continue;
        rows += (int)(to - from);
        d->held[n_held++] = (struct model_held){r->slot, from, to, r->ids + from + 1};
        r->n_injected = to;
    }
    if (n_held == 0)
        return FST_OK;
    d->caught_up = rows;
    FST_TRY(model_inject_held(e->model, &e->kv, d->held, n_held));
    t = engine_now_ns() - t;
    e->step_draft_ns += t;
    if (!e->device)
        spec_cost_saw_inject(&d->cost, rows, (double)t * 1e-9);
    return FST_OK;
}

bool draft_settle(fst_engine *e, fst_request *r)
{
    struct drafter *d = &e->dr;
    if (!e->drafting)
        return true;
    if (r->n_injected < inject_to(e, r)) {
        if (d->mode == DRAFT_AUTO && !d->pays)
            return false;
        d->who[0] = r;
        if (draft_catch_up(e, 1) < 0) { /* the next step will find the same fault */
            log_warn("draft", "a snapshot is without its drafter: %s", fst_error_text());
            return false;
        }
    }
    return whole(e, r);
}

/* ------------------------------------------------------------------ who drafts */

static int64_t left(const fst_request *r)
{
    return r->max_new - (r->n_known - r->n_prompt);
}

static double positions_of(const fst_request *r)
{
    return (double)r->n_committed;
}

/* What prefills may take of the step, before the plan says so. */
static int prefill_rows(const fst_engine *e)
{
    int64_t open = 0;
    for (int i = 0; i < e->n_running; i++)
        if (!request_decoding(e->running[i]))
            open += e->running[i]->n_known - e->running[i]->n_committed;
    return (int)FST_MIN(open, (int64_t)e->limits.prefill_rows_while_decoding);
}

static double resume_cost(const fst_engine *e, const fst_request *r)
{
    return spec_cost_inject(&e->dr.cost, (int)(inject_to(e, r) - held_from(e, r)));
}

/* Wishes of all that decode; what they expect; the load. */
static int list_wishes(fst_engine *e)
{
    struct drafter *d = &e->dr;
    int n = 0;
    d->load = (struct spec_load){.prefill_rows = prefill_rows(e), .margin = MARGIN};
    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (!request_decoding(r))
            continue;
        d->load.n_decoding++;
        d->load.positions += positions_of(r);
        if (r->n_draft == 0)
            continue;
        struct spec_wish *w = &d->wish[n];
        double *expect = d->expect + (int64_t)n * FST_SPEC_MAX;
        spec_track_expect(&r->track, &d->band[spec_band_of(r->sampling.temperature)], e->gamma,
                          expect);
        *w =
            (struct spec_wish){.expect = expect, .n_max = r->n_draft, .positions = positions_of(r)};
        if (r->aside)
            w->resume_s = resume_cost(e, r) /
                          (double)FST_MAX(1, FST_MIN(left(r) / 2, (int64_t)RESUME_ROUNDS));
        d->who[n++] = r;
    }
    return n;
}

/* Enough time was saved up for what a step of the other way is expected to lose. */
static bool affords(struct drafter *d, double lost_s, double step_s)
{
    lost_s = FST_MAX(lost_s, 0.05 * step_s);
    if (!(d->credit_s >= lost_s))
        return false;
    d->credit_s -= lost_s;
    return true;
}

static void skip(fst_request *r, enum fst_spec_skip why)
{
    r->n_draft = 0;
    r->skip = why;
}

static void skip_all(struct drafter *d, int n, enum fst_spec_skip why)
{
    for (int i = 0; i < n; i++)
        skip(d->who[i], why);
}

/* Now and then the way that is not taken, so that its cost and what it brings stay known. */
static struct spec_drafting explore(fst_engine *e, int n, struct spec_drafting best,
                                    enum fst_spec_skip *why)
{
    struct drafter *d = &e->dr;
    if (best.block > 0) {
        double plain_s = d->load.n_decoding / best.plain_tok_s;
        if (!affords(d, plain_s - d->load.n_decoding / best.best_tok_s, plain_s))
            return best;
        for (int i = 0; i < n; i++)
            d->wish[i].drafts = false;
        *why = FST_SPEC_SKIP_MEASURE;
        best.block = best.n_drafting = 0;
        return best;
    }
    for (int i = 0; i < n; i++)
        if (d->wish[i].resume_s > 0)
            d->wish[i].resume_s = resume_cost(e, d->who[i]);
    struct spec_drafting other = spec_plan_try(&d->cost, d->wish, n, &d->load, 1);
    if (other.block > 0 &&
        affords(d, other.seconds - other.tokens / best.plain_tok_s, other.seconds))
        return other;
    for (int i = 0; i < n; i++)
        d->wish[i].drafts = false;
    return best;
}

static void decide_auto(fst_engine *e)
{
    struct drafter *d = &e->dr;
    enum fst_spec_skip why = FST_SPEC_SKIP_COST;
    int n = list_wishes(e);
    if (n == 0)
        return;
    if (!d->cost.ready) {
        d->pays = true;
        if (spec_cost_wants_plain(&d->cost, d->load.n_decoding))
            skip_all(d, n, FST_SPEC_SKIP_MEASURE);
        return;
    }
    struct spec_drafting best = spec_plan_drafting(&d->cost, d->wish, n, &d->load);
    d->pays = best.block > 0;
    best = explore(e, n, best, &why);
    if (best.block > 0)
        d->block = best.block;
    for (int i = 0; i < n; i++)
        if (!d->wish[i].drafts)
            skip(d->who[i], why);
        else
            d->who[i]->n_draft = FST_MIN(d->who[i]->n_draft, d->block);
}

static void decide_by_seam(fst_engine *e)
{
    e->dr.block = 0;
    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (r->n_draft == 0)
            continue;
        int n = draft_seams.drafting(draft_seams.ud, r->n_committed, e->gamma);
        r->n_draft = FST_MIN(r->n_draft, n);
        r->skip = FST_SPEC_SKIP_COST;
        e->dr.block = FST_MAX(e->dr.block, r->n_draft);
    }
    e->dr.pays = e->dr.block > 0;
}

void draft_decide(fst_engine *e)
{
    struct drafter *d = &e->dr;
    d->block = e->gamma;
    d->load = (struct spec_load){0};
    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        r->n_draft = 0;
        r->n_cap = FST_SPEC_MAX;
        r->drafted = false;
        if (!e->drafting || !request_decoding(r))
            continue;
        if (r->o.no_drafting || e->audit.stats.drafting_off) {
            skip(r, r->o.no_drafting ? FST_SPEC_SKIP_REQUEST : FST_SPEC_SKIP_AUDIT);
            continue;
        }
        r->skip = FST_SPEC_SKIP_CONTEXT;
        r->n_draft = spec_room(e->gamma, r->n_committed, e->context_length);
        if (d->mode != DRAFT_AUTO)
            continue;
        r->n_draft = (int)FST_MIN((int64_t)r->n_draft, left(r) - 1);
        if (r->n_draft > 0 && !whole(e, r))
            skip(r, FST_SPEC_SKIP_WINDOW);
    }
    if (!e->drafting)
        return;
    if (draft_seams.drafting && d->mode == DRAFT_AUTO)
        decide_by_seam(e);
    else if (d->mode == DRAFT_AUTO)
        decide_auto(e);
}

/* ------------------------------------------------------------------ draft */

static enum fst_status take_up(fst_engine *e)
{
    int n = 0;
    for (int i = 0; i < e->n_running; i++)
        if (e->running[i]->n_draft)
            e->dr.who[n++] = e->running[i];
    return draft_catch_up(e, n);
}

static void fill_batch(fst_engine *e)
{
    struct draft_batch *b = &e->draft;

    b->n = 0;
    b->gamma = e->dr.block;
    b->conf = e->dr.wants_conf ? e->draft_conf : NULL;
    for (int i = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (!r->n_draft)
            continue;
        e->draft_slot[b->n] = r->slot;
        e->draft_committed[b->n] = r->n_committed;
        e->draft_anchor[b->n] = r->ids[r->n_known - 1];
        e->draft_draw[b->n] = sample_draw_params(&r->sampling);
        e->draft_out_pos[b->n] = (uint32_t)(r->n_known - r->n_prompt);
        b->n++;
    }
}

/* What a block's drafts are worth; at: of the batch. */
static void survival(const fst_engine *e, const fst_request *r, int at, double *survive)
{
    const struct drafter *d = &e->dr;

    if (d->wants_conf)
        spec_survival(d->has_sts ? &d->sts : NULL, e->draft_conf + (int64_t)at * e->draft.gamma,
                      r->n_draft, survive);
    else
        spec_track_expect(&r->track, &d->band[spec_band_of(r->sampling.temperature)], r->n_draft,
                          survive);
}

/* How much of each block is verified. */
static void set_lengths(fst_engine *e)
{
    struct drafter *d = &e->dr;
    const struct draft_batch *b = &e->draft;
    int n = 0, n_seconds = 1;

    if (d->mode == DRAFT_STATIC)
        return;
    d->load = (struct spec_load){.prefill_rows = prefill_rows(e)};
    for (int i = 0; i < e->n_running; i++) {
        const fst_request *r = e->running[i];
        if (!request_decoding(r) || r->sits)
            continue;
        d->load.n_decoding++;
        d->load.positions += positions_of(r);
        if (!r->n_draft)
            continue;
        double *survive = d->survive + (int64_t)n * FST_SPEC_MAX;
        survival(e, r, n, survive);
        d->ask[n++] = (struct spec_ask){.survive = survive, .n_max = r->n_draft, .n = r->n_draft};
        n_seconds += r->n_draft;
    }
    if (d->cost.ready) {
        spec_plan_seconds(&d->cost, &d->load, spec_cost_draft(&d->cost, b->n, b->gamma), d->seconds,
                          n_seconds);
        int extra = 0;
        if (e->rejection) /* the global optimum over live confidences would bias it */
            spec_plan_early_stop(d->ask, n, d->load.n_decoding, d->seconds, n_seconds);
        else
            extra = spec_plan_best(d->ask, n, d->load.n_decoding, d->seconds, n_seconds).extra;
        if (e->device && extra > 0) /* steps of few shapes find their recordings again */
            spec_plan_spend(d->ask, n, (int)round_up(extra, FST_MAX(d->load.n_decoding / 2, 1)));
    }
    if (draft_seams.planned)
        draft_seams.planned(draft_seams.ud, d->ask, n, d->load.n_decoding,
                            d->cost.ready ? d->seconds : NULL, n_seconds);
    for (int i = 0, k = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (!r->n_draft)
            continue;
        if (draft_seams.length)
            draft_seams.length(draft_seams.ud, r->ids + r->n_known, &d->ask[k]);
        int take = d->ask[k++].n;
        FST_ASSERT(take >= 0);
        FST_ASSERT(take <= r->n_draft);
        r->skip = FST_SPEC_SKIP_CONFIDENCE;
        if (d->mode == DRAFT_CAP)
            r->n_cap = take;
        else
            r->n_draft = take;
    }
}

enum fst_status draft_run(fst_engine *e)
{
    struct draft_batch *b = &e->draft;
    int64_t t;

    FST_TRY(take_up(e));
    fill_batch(e);
    if (b->n == 0)
        return FST_OK;
    t = engine_now_ns();
    FST_TRY(model_draft(e->model, &e->kv, b));
    t = engine_now_ns() - t;
    for (int i = 0, k = 0; i < e->n_running; i++) {
        fst_request *r = e->running[i];
        if (!r->n_draft)
            continue;
        r->drafted = true;
        if (e->dr.behind) { /* the first step has left the last row, the others rows of theirs */
            r->n_injected = r->n_committed;
            r->n_written = FST_MAX(r->n_written, r->n_committed + b->gamma - 1);
        }
        if (b->conf)
            memcpy(r->confidence, e->draft_conf + (int64_t)k * b->gamma,
                   (size_t)b->gamma * sizeof *r->confidence);
        r->draft_at = k;
        memcpy(r->ids + r->n_known, e->draft_ids + (int64_t)k++ * b->gamma,
               (size_t)r->n_draft * sizeof *r->ids);
        debug_draft(e, r);
        if (draft_seams.drafts)
            draft_seams.drafts(draft_seams.ud, r->ids, r->n_prompt, r->n_known, r->ids + r->n_known,
                               r->n_draft);
    }
    e->stats.draft_rounds += (uint64_t)b->n;
    e->stats.draft_steps++;
    e->stats.spec_drafted += (uint64_t)b->n * (uint64_t)b->gamma;
    e->step_draft_ns += t;
    double s = (double)t * 1e-9;
    if (e->device) /* it has waited for those too */
        s -= spec_cost_inject(&e->dr.cost, e->dr.caught_up);
    if (e->dr.mode == DRAFT_AUTO || !e->dr.cost.ready)
        spec_cost_saw_draft(&e->dr.cost, b->n, b->gamma, s);
    set_lengths(e);
    return FST_OK;
}

/* ------------------------------------------------------------------ after the step */

int draft_verified(fst_engine *e, fst_request *r, int n, int right)
{
    struct drafter *d = &e->dr;
    int cap = FST_MIN(n, r->n_cap), k = FST_MIN(right, cap);
    struct spec_band *band = &d->band[spec_band_of(r->sampling.temperature)];

    e->stats.spec_trimmed += (uint64_t)(right - k);
    if (e->on_spec_round && n == e->gamma && d->wants_conf) {
        struct fst_spec_round round = {
            .temperature = r->sampling.temperature, .n_drafts = n, .accepted = right};
        memcpy(round.confidence, r->confidence, (size_t)n * sizeof *r->confidence);
        e->on_spec_round(e->on_spec_round_ud, &round);
    }
    if (cap == 0) {
        draft_skipped(e, r);
        return 0;
    }
    spec_count(&r->spec, cap, k);
    spec_count(&e->stats.spec, cap, k);
    spec_track_saw(&r->track, band, cap, k);
    spec_window_saw(&d->window, engine_now_ns() / 1000000000, k);
    e->stats.spec_band[band - d->band] = (struct fst_spec_band_stats){
        .verify_steps = band->rounds, .drafted = band->drafted, .accepted = band->accepted};
    return k;
}

void draft_skipped(fst_engine *e, fst_request *r)
{
    if (!e->drafting)
        return;
    e->stats.spec_skipped[r->skip]++;
    spec_track_skipped(&r->track);
}

/* Whether rows are worth injecting now: the request drafts, or is about to. */
static bool hot(const fst_engine *e, const fst_request *r, bool prefill)
{
    if (prefill) /* only a prompt's last rows will be wanted, and a later chunk may bring those */
        return false;
    return !r->o.no_drafting && (r->drafted || e->dr.mode != DRAFT_AUTO);
}

void draft_rows(fst_engine *e, fst_request *r, int first, int n, bool prefill)
{
    bool drafts = hot(e, r, prefill), now = drafts && !e->dr.behind && !r->aside;
    int *count = now ? &e->n_inject : &e->n_hold;
    int32_t *row = now ? e->inject_row : e->hold_row;
    int most = (int)FST_MIN((int64_t)model_held_rows(e->model, &e->kv), (int64_t)e->kv.ring);

    for (int i = FST_MAX(0, n - most); i < n; i++)
        row[(*count)++] = first + i;
    if (now)
        r->n_injected = r->n_committed;
    if (!drafts || r->aside) {
        e->stats.held_rows += (uint64_t)FST_MIN(n, most);
        r->aside = true;
    }
}

enum fst_status draft_end_step(fst_engine *e, const struct rows *rows)
{
    int64_t t = engine_now_ns();

    e->injecting = e->n_inject > 0;
    if (e->n_hold > 0)
        FST_TRY(model_hold(e->model, &e->kv, rows, e->hold_row, e->n_hold));
    if (e->n_inject > 0) {
        FST_TRY(model_inject(e->model, &e->kv, rows, e->inject_row, e->n_inject));
        t = engine_now_ns() - t;
        e->step_draft_ns += t;
        if (!e->device)
            spec_cost_saw_inject(&e->dr.cost, e->n_inject, (double)t * 1e-9);
    }
    return FST_OK;
}

void draft_learn(fst_engine *e, const struct step *step, int64_t end_ns, bool ended)
{
    struct drafter *d = &e->dr;
    int n_decoding = 0, n_rows = 0;
    double positions = 0;
    bool prefill = false;

    if (!e->drafting)
        return;
    for (int s = 0; s < step->n_spans; s++) {
        prefill |= step->span[s].kind == STEP_PREFILL;
        n_decoding += step->span[s].kind != STEP_PREFILL;
        n_rows += step->span[s].n_rows;
        positions += (double)step->span[s].n_rows * (double)e->span_before[s];
    }
    double took = (double)(end_ns - d->turn_ns) * 1e-9;
    if (d->turn_ns && !prefill && !ended && n_decoding == d->turn_decoding) {
        double s = took - (double)e->step_draft_ns * 1e-9;
        if (e->device) /* it is not waited for */
            s -= spec_cost_inject(&d->cost, e->n_inject);
        spec_cost_saw_step(&d->cost, n_decoding, n_rows, positions, s);
    }
    if (d->turn_ns)
        d->credit_s = FST_MIN(d->credit_s + EXPLORE * took, 1.0);
    d->turn_ns = end_ns;
    d->turn_decoding = prefill || ended ? 0 : n_decoding;
    e->stats.spec_window_accept_length = spec_window_length(&d->window, end_ns / 1000000000);
}

void draft_reset_stats(fst_engine *e)
{
    e->stats.spec = (struct fst_spec_stats){0};
    e->dr.window = (struct spec_window){0};
    e->stats.spec_window_accept_length = 0;
    e->stats.spec_drafted = e->stats.spec_trimmed = 0;
    memset(e->stats.spec_skipped, 0, sizeof e->stats.spec_skipped);
    for (int i = 0; i < FST_SPEC_BANDS; i++) { /* what is expected of others is not forgotten */
        e->dr.band[i].rounds = e->dr.band[i].drafted = e->dr.band[i].accepted = 0;
        e->stats.spec_band[i] = (struct fst_spec_band_stats){0};
    }
}
