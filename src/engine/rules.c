#include "engine/rules.h"

#include <math.h>

static bool repeats(const struct fst_sampling *s)
{
    return s->repetition_penalty > 0 && s->repetition_penalty != 1.0f;
}

static bool counts(const struct fst_sampling *s)
{
    return s->presence_penalty != 0 || s->frequency_penalty != 0 || repeats(s);
}

static bool masks(const struct rules_mask *mask)
{
    return mask && mask->mask;
}

bool rules_wanted(const struct fst_request_opts *o, const struct rules_mask *mask)
{
    return o->n_logit_bias > 0 || counts(&o->sampling) || masks(mask);
}

static size_t n_words(int vocab)
{
    return (size_t)div_up(vocab, 32);
}

/* Each id is seen once, so neither the vocabulary nor the request has more. */
static size_t most_seen(int vocab, int64_t n_prompt, int64_t n_new)
{
    return (size_t)FST_MIN((int64_t)vocab, n_prompt + n_new);
}

size_t rules_bytes(const struct fst_request_opts *o, const struct rules_mask *mask, int vocab,
                   int64_t n_prompt, int64_t n_new)
{
    size_t bytes = o->n_logit_bias * sizeof(struct fst_logit_bias);

    if (counts(&o->sampling))
        bytes += most_seen(vocab, n_prompt, n_new) * sizeof(struct rules_seen) +
                 (size_t)vocab * sizeof(int32_t);
    if (masks(mask))
        bytes += n_words(vocab) * sizeof(uint32_t);
    return bytes;
}

void rules_init(struct rules *r, const struct fst_request_opts *o, const struct rules_mask *mask,
                int vocab, int64_t n_prompt, int64_t n_new, void *memory)
{
    uint8_t *p = memory;

    *r = (struct rules){.on = rules_wanted(o, mask),
                        .vocab = vocab,
                        .n_prompt = n_prompt,
                        .n_all = n_prompt + n_new,
                        .presence = o->sampling.presence_penalty,
                        .frequency = o->sampling.frequency_penalty,
                        .repetition = repeats(&o->sampling) ? o->sampling.repetition_penalty : 1};
    if (o->n_logit_bias) {
        r->bias = memcpy(p, o->logit_bias, o->n_logit_bias * sizeof *r->bias);
        r->n_bias = o->n_logit_bias;
        p += r->n_bias * sizeof *r->bias;
    }
    if (counts(&o->sampling)) {
        r->seen = (struct rules_seen *)(void *)p;
        p += most_seen(vocab, n_prompt, n_new) * sizeof *r->seen;
        r->place = memset(p, 0, (size_t)vocab * sizeof *r->place);
        p += (size_t)vocab * sizeof *r->place;
    }
    if (masks(mask)) {
        r->mask = *mask;
        r->words = (uint32_t *)(void *)p;
    }
}

static void reset(struct rules *r)
{
    for (int32_t i = 0; i < r->n_seen; i++)
        r->place[r->seen[i].id] = 0;
    r->n_seen = 0;
    r->at = 0;
    if (r->mask.mask)
        r->mask.reset(r->mask.ud);
}

static void count(struct rules *r, int32_t id, bool drawn)
{
    if (!drawn && r->repetition == 1.0f) /* of the prompt, nobody asks */
        return;
    if (!r->place[id]) {
        r->seen[r->n_seen++] = (struct rules_seen){.id = id};
        r->place[id] = r->n_seen;
    }
    r->seen[r->place[id] - 1].count += drawn;
}

enum fst_status rules_to(struct rules *r, const int32_t *ids, int64_t n)
{
    FST_ASSERT(n <= r->n_all);
    if (n < r->at)
        reset(r);
    for (; r->at < n; r->at++) {
        bool drawn = r->at >= r->n_prompt;
        if (r->place)
            count(r, ids[r->at], drawn);
        if (drawn && r->mask.mask)
            FST_TRY(r->mask.take(r->mask.ud, ids[r->at]));
    }
    return FST_OK;
}

enum fst_status rules_look(struct rules *r, const int32_t *ids, int64_t n, int n_draft)
{
    r->now = r->on;
    if (!r->on || r->n_bias || r->place || !r->mask.idle)
        return FST_OK;
    FST_TRY(rules_to(r, ids, n));
    r->now = !r->mask.idle(r->mask.ud, r->n_all - n, ids + n, n_draft);
    return FST_OK;
}

static void mask_out(const struct rules *r, float *logits)
{
    for (int w = 0; w < (int)n_words(r->vocab); w++) {
        uint32_t legal = r->words[w];
        int last = FST_MIN(r->vocab, 32 * w + 32);
        for (int v = 32 * w; legal != UINT32_MAX && v < last; v++)
            if (!(legal >> (v % 32) & 1))
                logits[v] = -INFINITY;
    }
}

enum fst_status rules_adjust(struct rules *r, float *logits)
{
    for (size_t i = 0; i < r->n_bias; i++)
        logits[r->bias[i].id] += r->bias[i].bias;
    for (int32_t i = 0; i < r->n_seen; i++) {
        const struct rules_seen *s = &r->seen[i];
        float l = logits[s->id];
        if (r->repetition != 1.0f)
            l = l > 0 ? l / r->repetition : l * r->repetition;
        if (s->count > 0) {
            l -= r->frequency * (float)s->count;
            l -= r->presence;
        }
        logits[s->id] = l;
    }
    if (!r->mask.mask)
        return FST_OK;
    FST_TRY(r->mask.mask(r->mask.ud, r->n_all - r->at, r->words));
    mask_out(r, logits);
    return FST_OK;
}
