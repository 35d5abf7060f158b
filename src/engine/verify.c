/* verify.c - after the forward pass: draws, stops, what of a block stands, commit, prompt scores. */
#include <math.h>

#include "engine/engine_int.h"

/* Prompt rows of one span: call-back with the raw logits, then log-probabilities of the next prompt
 * token.  *go_on: false when the call-back wants no more. */
static enum fst_status score_prompt(fst_engine *e, fst_request *r, const struct step_span *span,
                                    float *logits, bool *go_on)
{
    int vocab = e->info.vocab_size;

    *go_on = true;
    for (int i = 0; i < span->n_rows && *go_on; i++) {
        float *l = logits + (int64_t)i * vocab, *seen;
        int64_t pos = r->n_committed + i;
        if (pos >= r->n_prompt)
            break;
        if (pos < r->n_scored)
            continue;
        r->n_scored = pos + 1;
        enum fst_status rc = FST_OK;
        pthread_mutex_lock(&r->pub_lock);
        if (r->o.on_prompt_logits && (rc = sample_host_row(&e->sampler, l, &seen)) == FST_OK)
            *go_on = r->o.on_prompt_logits(r->o.on_prompt_logits_ud, pos, seen, vocab);
        pthread_mutex_unlock(&r->pub_lock);
        FST_TRY(rc);
        if (r->prompt_logprobs && pos + 1 < r->n_prompt && pos + 1 >= r->o.prompt_logprobs_from)
            FST_TRY(sample_score(&e->sampler, l, r->ids[pos + 1], &r->prompt_logprobs[pos + 1],
                                 r->o.prompt_top_logprobs,
                                 r->prompt_top + (pos + 1) * r->o.prompt_top_logprobs));
    }
    return FST_OK;
}

void step_sample_row(fst_engine *e, const fst_request *r, int index, uint32_t out_pos)
{
    bool ban = (int64_t)out_pos < r->o.min_new_tokens;

    e->sample[index] = (struct sample_row){.params = &r->sampling,
                                           .out_pos = out_pos,
                                           .banned = ban ? r->end_ids : NULL,
                                           .n_banned = ban ? r->n_end_ids : 0,
                                           .n_top = r->o.top_logprobs,
                                           .later = r->rules.now,
                                           .top = e->tops + (int64_t)index * FST_TOP_LOGPROBS_MAX};
}

enum fst_status step_draw_by_rules(fst_engine *e, fst_request *r, int index, float *raw,
                                   float **target)
{
    struct sample_row *s = &e->sample[index];

    for (;;) {
        FST_TRY(sample_copy(&e->sampler, raw, target));
        FST_TRY(rules_adjust(&r->rules, *target));
        FST_TRY(sample_later(&e->sampler, raw, *target, s, index));
        if (s->id != SAMPLE_NONE || !s->n_banned || !r->masks.of)
            return FST_OK;
        s->n_banned = 0; /* the grammar knows no other way than through an end */
    }
}

enum fst_status step_draw_on(fst_engine *e, fst_request *r, int index, float *raw, float **target)
{
    struct sample_row *s = &e->sample[index];

    if (s->id != r->end_ids[0] || !masks_must_begin(&r->masks))
        return FST_OK;
    s->banned = r->end_ids; /* eos is the first */
    s->n_banned = 1;
    return step_draw_by_rules(e, r, index, raw, target);
}

/* Which rows of the step are drawn by rules: n_draft drafts follow what r knows. */
static enum fst_status look_ahead(fst_engine *e, fst_request *r, int n_draft)
{
    FST_TRY(rules_look(&r->rules, r->ids, r->n_known, n_draft));
    /* A kept set of nothing but eos: step_draw_on needs the whole row. */
    r->rules.now |= masks_must_begin(&r->masks) && sample_narrows(&e->sampler, &r->sampling);
    return FST_OK;
}

static bool is_stop_id(const fst_request *r, int32_t id)
{
    for (int i = 1; i < r->n_end_ids; i++) /* 0 is eos, which ignore_eos may have switched off */
        if (r->end_ids[i] == id)
            return true;
    return id == r->eos_id;
}

/* ------------------------------------------------------------------ what is given out */

/* Rows of one request on their way to tokens: row i of its block is e->sample[first + i]. */
struct block {
    fst_request *r;
    int first, n_draft;
    float *logits; /* (n_draft + 1, vocab) as sample_rows left them */
    int n_emit;
    int right; /* leading drafts that agree */
    struct engine_outcome outcome;
};

static int32_t forced(const fst_request *r)
{
    int64_t at = r->n_known - r->n_prompt;
    return r->verdict.force < 0 && at < r->n_force_ids ? r->force_ids[at] : r->verdict.force;
}

/* Row i becomes what its request draws behind the tokens that are there by now.  *stands: the draft behind it is
 * that token. */
static enum fst_status draw_row(fst_engine *e, struct block *b, int i, bool *stands)
{
    fst_request *r = b->r;
    struct sample_row *s = &e->sample[b->first + i];
    float *raw = b->logits + (int64_t)i * e->info.vocab_size, *target = raw;
    int32_t draft = r->ids[r->n_known], force = forced(r);

    *stands = false;
    if (s->id == -1)
        return FST_OK;
    if (r->rules.now && force < 0) {
        FST_TRY(rules_to(&r->rules, r->ids, r->n_known));
        FST_TRY(step_draw_by_rules(e, r, b->first + i, raw, &target));
    }
    if (force < 0)
        FST_TRY(step_draw_on(e, r, b->first + i, raw, &target));
    s->forced = force >= 0;
    if (s->forced)
        FST_TRY(sample_take(&e->sampler, raw, force, s, b->first + i));
    else if (reject_applies(e, r) && i < FST_MIN(b->n_draft, r->n_cap) && s->id >= 0) {
        /* Behind a cap the target draws by itself. */
        FST_TRY(sample_take(&e->sampler, raw, reject_row(e, r, target, i), s, b->first + i));
    }
    *stands = i < b->n_draft && spec_accept(&draft, &s->id, 1) == 1;
    debug_accept(e, draft, s, i, b->n_draft, stands);
    return FST_OK;
}

/* The watcher's word on the last of r's tokens, or before the first (id -1).  Who has gone is not asked. */
static void watch(fst_request *r, int32_t id, enum fst_finish ends)
{
    pthread_mutex_lock(&r->pub_lock);
    if (r->o.on_token)
        r->verdict = r->o.on_token(r->o.on_token_ud, r->n_known - r->n_prompt, id, ends);
    pthread_mutex_unlock(&r->pub_lock);
}

/* Row i's token is the request's next one. */
static struct engine_outcome append(fst_engine *e, const struct block *b, int i)
{
    fst_request *r = b->r;
    const struct sample_row *s = &e->sample[b->first + i];
    struct engine_outcome o = {FST_FINISH_NONE, -1, FST_OK, ""};
    int64_t at = r->n_known - r->n_prompt;
    enum fst_status rc = FST_OK;

    if (s->id < 0)
        return (struct engine_outcome){FST_FINISH_ERROR, -1, FST_ENUMERIC,
                                       s->id == SAMPLE_NONE
                                           ? "no token is legal here"
                                           : "the model's output holds a value that is not a "
                                             "number"};
    r->ids[r->n_known++] = s->id;
    audit_keep(e, r, at, b->first + i);
    if (r->logprobs)
        r->logprobs[at] = s->logprob;
    if (r->top)
        memcpy(r->top + at * r->o.top_logprobs, s->top, (size_t)r->o.top_logprobs * sizeof *r->top);
    e->stats.generation_tokens++;
    e->window_tokens++;
    r->last_ns = engine_now_ns();
    if (!r->first_ns)
        r->first_ns = r->last_ns;
    if (r->masks.of && (rc = rules_to(&r->rules, r->ids, r->n_known)) == FST_OK)
        rc = r->masks.rc;
    if (rc < 0)
        return (struct engine_outcome){FST_FINISH_ERROR, -1, rc,
                                       "the grammar cannot be followed any further"};
    if (is_stop_id(r, s->id) || (s->id == r->end_ids[0] && masks_over(&r->masks)))
        o = (struct engine_outcome){FST_FINISH_STOP, s->id, FST_OK, ""};
    else if (at + 1 == r->max_new)
        o = (struct engine_outcome){
            masks_accepting(&r->masks) ? FST_FINISH_STOP : FST_FINISH_LENGTH, -1, FST_OK, ""};
    if (!r->watched)
        return o;
    /* A document that ends with the room: its last id is text. */
    watch(r, s->id, o.finish == FST_FINISH_STOP && o.matched < 0 ? FST_FINISH_LENGTH : o.finish);
    if (r->verdict.stop) {
        r->n_reply = r->verdict.keep;
        if (o.finish == FST_FINISH_NONE)
            o.finish = FST_FINISH_WATCH;
    }
    return o;
}

/* Token by token: nothing behind a stop is given out, or committed. */
static enum fst_status give_out(fst_engine *e, struct block *b)
{
    fst_request *r = b->r;
    bool stands = true;

    if (r->n_known == r->n_prompt && r->watched)
        watch(r, -1, FST_FINISH_NONE);
    for (int i = 0; stands && i <= FST_MIN(b->n_draft, r->n_cap); i++) {
        FST_TRY(draw_row(e, b, i, &stands));
        b->outcome = append(e, b, i);
        b->n_emit++;
        b->right += stands;
        if (b->outcome.finish != FST_FINISH_NONE)
            break;
    }
    /* What would have stood behind a cap or an end, for the statistics: only where rows were drawn at once. */
    for (int i = b->n_emit; stands && !r->rules.now && !reject_applies(e, r) && i < b->n_draft;
         i++) {
        int32_t draft = r->ids[r->n_known + i - b->n_emit];
        struct sample_row row = e->sample[b->first + i];
        stands = spec_accept(&draft, &row.id, 1);
        debug_accept(e, draft, &row, i, b->n_draft, &stands);
        b->right += stands;
    }
    return FST_OK;
}

enum fst_status verify_step(fst_engine *e, const struct step *step, const struct rows *rows,
                            float *logits, struct engine_outcome *outcome)
{
    int vocab = e->info.vocab_size, n_batch = 0;

    e->n_inject = e->n_hold = 0;
    /* Decode and verify spans come first in a step, so their logits rows are one block. */
    for (int s = 0; s < step->n_spans && step->span[s].kind != STEP_PREFILL; s++) {
        fst_request *r = e->span_request[s];
        FST_ASSERT(e->span_logit[s] == n_batch);
        FST_TRY(look_ahead(e, r, step->span[s].n_rows - 1));
        for (int i = 0; i < step->span[s].n_rows; i++)
            step_sample_row(e, r, n_batch + i, (uint32_t)(r->n_known - r->n_prompt + i));
        debug_logits(e, logits + (int64_t)n_batch * vocab, r->n_known - r->n_prompt,
                     step->span[s].n_rows);
        FST_TRY(recorder_look(e, logits + (int64_t)n_batch * vocab, n_batch, step->span[s].n_rows,
                              r->n_known - r->n_prompt));
        n_batch += step->span[s].n_rows;
    }
    if (n_batch > 0)
        FST_TRY(sample_rows(&e->sampler, logits, e->sample, n_batch));

    for (int s = 0; s < step->n_spans; s++) {
        const struct step_span *span = &step->span[s];
        fst_request *r = e->span_request[s];
        int first = e->span_logit[s], n_commit = span->n_rows, n_emit = 0;

        struct block block = {.r = r,
                              .first = first,
                              .n_draft = span->n_rows - 1,
                              .logits = logits + (int64_t)first * vocab};

        outcome[s] = (struct engine_outcome){FST_FINISH_NONE, -1, FST_OK, ""};
        r->n_written = FST_MAX(r->n_written, r->n_committed + span->n_rows);
        if (span->kind == STEP_PREFILL) {
            bool ends = r->n_committed + span->n_rows == r->n_known;
            if (!r->counted_prompt) {
                r->counted_prompt = true;
                e->stats.prompt_tokens += (uint64_t)r->n_prompt;
            }
            e->stats.prefill_rows += (uint64_t)span->n_rows;
            bool go_on = true;
            if (request_scores_rows(r))
                FST_TRY(score_prompt(e, r, span, logits + (int64_t)first * vocab, &go_on));
            if (!go_on) {
                outcome[s] = (struct engine_outcome){FST_FINISH_ABORT, -1, FST_ECANCELED, ""};
                continue;
            }
            if (ends && r->max_new == 0) {
                outcome[s] = (struct engine_outcome){FST_FINISH_LENGTH, -1, FST_OK, ""};
            } else if (ends) {
                int at = span->logits == STEP_LOGITS_ALL ? first + span->n_rows - 1 : first;
                FST_TRY(look_ahead(e, r, 0));
                step_sample_row(e, r, 0, (uint32_t)(r->n_known - r->n_prompt));
                FST_TRY(
                    recorder_look(e, logits + (int64_t)at * vocab, 0, 1, r->n_known - r->n_prompt));
                FST_TRY(sample_rows(&e->sampler, logits + (int64_t)at * vocab, e->sample, 1));
                block.first = first = 0;
                block.n_draft = 0;
                block.logits = logits + (int64_t)at * vocab;
                FST_TRY(give_out(e, &block));
                n_emit = block.n_emit;
            }
        } else {
            FST_TRY(give_out(e, &block));
            if (span->kind == STEP_VERIFY)
                draft_verified(e, r, block.n_draft, block.right);
            else
                draft_skipped(e, r);
            n_emit = n_commit = block.n_emit;
            if (span->kind == STEP_VERIFY)
                e->stats.verify_rows += (uint64_t)span->n_rows;
            else
                e->stats.decode_rows++;
        }
        if (n_emit > 0)
            outcome[s] = block.outcome;
        recorder_note(e, s, span, first, span->kind == STEP_PREFILL ? n_emit : span->n_rows,
                      n_commit, n_emit, outcome[s].finish);
        r->n_committed += n_commit;
        /* Who is kept for others is kept whole, whether he ends or drafts himself. */
        bool keeps = e->prefix && outcome[s].finish != FST_FINISH_ERROR;
        bool goes_on = outcome[s].finish == FST_FINISH_NONE;
        if (goes_on || keeps)
            kv_commit(&e->kv, r->slot, r->n_committed);
        debug_commit(e, r, e->span_before[s]);
        if (e->drafting && (keeps || (goes_on && !r->o.no_drafting)))
            draft_rows(e, r, e->span_first[s], n_commit, span->kind == STEP_PREFILL);
    }
    FST_TRY(draft_end_step(e, rows));
    for (int s = 0; s < step->n_spans; s++)
        if (outcome[s].finish != FST_FINISH_ERROR)
            prefix_keep(e, e->span_request[s], e->span_before[s],
                        outcome[s].finish != FST_FINISH_NONE);
    return FST_OK;
}
