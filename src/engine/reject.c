#include "engine/reject.h"

#include "engine/engine_int.h"
#include "spec/reject.h"

enum fst_status reject_open(fst_engine *e, const struct fst_engine_opts *o)
{
    static const char *const rules[] = {"coupled", "rejection"};
    int rule;

    FST_TRY(engine_word("--speculative-accept", o->spec_accept, rules[0], rules, FST_COUNT(rules),
                        &rule));
    e->info.spec_accept = rules[rule];
    e->rejection = rule == 1;
    if (!e->rejection)
        return FST_OK;
    if (e->device)
        return fst_error(FST_EUNSUPPORTED,
                         "--speculative-accept rejection is not built for --device %s, whose "
                         "drafter keeps no logits; known there: coupled",
                         e->info.device);
    if (o->debug_drafter || o->debug_reject_at)
        return fst_error(FST_EINVAL, "%s changes drafts, which needs --speculative-accept coupled",
                         o->debug_drafter ? "--debug-drafter" : "--debug-reject-at");
    return FST_OK;
}

enum fst_status reject_arrays(fst_engine *e)
{
    int64_t bytes =
        (int64_t)e->max_running * e->gamma * e->info.vocab_size * (int64_t)sizeof *e->draft_logits;

    if (!e->rejection || !e->drafting)
        return FST_OK;
    e->draft_logits = mem_alloc((size_t)bytes);
    if (!e->draft_logits)
        return fst_error(FST_ENOMEM, "--speculative-accept rejection: no memory for %lld bytes",
                         (long long)bytes);
    e->draft.logits = e->draft_logits;
    e->info.workspace_bytes += (uint64_t)bytes;
    return FST_OK;
}

bool reject_applies(const fst_engine *e, const fst_request *r)
{
    /* A grammar knows ends that may not be drawn yet (step_draw_on). */
    return e->rejection && r->sampling.temperature > 0 && !r->masks.of;
}

int32_t reject_row(fst_engine *e, const fst_request *r, const float *target, int i)
{
    int vocab = e->info.vocab_size;
    int64_t draft_row = (int64_t)r->draft_at * e->draft.gamma + i;
    int32_t bonus;
    struct spec_reject_args a = {.target = target,
                                 .draft = e->draft_logits + draft_row * vocab,
                                 .id = r->ids + r->n_known,
                                 .n_draft = 1,
                                 .vocab = vocab,
                                 .temperature = r->sampling.temperature,
                                 .seed = r->sampling.seed,
                                 .choice = r->sampling.choice,
                                 .out_pos = (uint32_t)(r->n_known - r->n_prompt)};

    return spec_reject(&a, &bonus) == 1 ? a.id[0] : bonus;
}
