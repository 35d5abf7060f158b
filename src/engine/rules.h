/* rules.h - what of a request may be drawn at an output position, beside its sampling parameters: bias,
 * penalties, the mask of a grammar.
 *
 * Rules stand behind some of a request's ids and go on with each one that is given out, one by one: rows of a verify
 * block are drawn in their order, each after the drafts before it were accepted, so that nothing has to be
 * taken back and a block draws what single steps would.  A retracted request keeps its rules.
 *
 * A row, in fp32 and in this order (l: a copy of the raw logits, of which log-probabilities are reported):
 *   bias         l += bias[id]
 *   repetition   ids of prompt and answer: l > 0 ? l / r : l * r
 *   frequency    l -= frequency * count, of ids given out
 *   presence     l -= presence, of ids given out
 *   mask         what the grammar does not allow: -inf
 * Ids banned below min_new_tokens, temperature and kept sets come behind it (sample.h).
 *
 * All memory is the caller's, taken at submit.  One thread at a time. */
#ifndef FST_ENGINE_RULES_H
#define FST_ENGINE_RULES_H

#include "base/base.h"
#include "firesteel/engine.h"

/* What a grammar says.  Zero: there is none. */
struct rules_mask {
    /* Legal ids at this position: bit id % 32 of words[id / 32].  room: tokens that may still be drawn, this one
     * included.  At least one id is legal. */
    enum fst_status (*mask)(void *ud, int64_t room, uint32_t *words);
    /* The next id was given out, from the first one behind the prompt on. */
    enum fst_status (*take)(void *ud, int32_t id);
    void (*reset)(void *ud); /* back behind the prompt */
    /* Every id is legal at this position and behind each of the n drafts; NULL: ask `mask`. */
    bool (*idle)(void *ud, int64_t room, const int32_t *draft, int n);
    void *ud; /* borrowed */
};

struct rules_seen {
    int32_t id;
    int32_t count; /* in the answer */
};

/* Zero: no rules. */
struct rules {
    bool on;
    bool now; /* rules_look: something of them matters in this step */
    int vocab;
    int64_t n_prompt, n_all; /* ids of the prompt; with all that may be drawn */
    int64_t at;              /* ids taken in */
    float presence, frequency, repetition;
    const struct fst_logit_bias *bias; /* (n_bias) the rules' own copy */
    size_t n_bias;
    struct rules_seen *seen; /* (n_seen) each id once, in the order in which they came */
    int32_t *place;          /* (vocab) index into seen, plus one; NULL: nothing is counted */
    int32_t n_seen;
    struct rules_mask mask;
    uint32_t *words; /* (vocab bits) of the mask; NULL without */
};

/* Does the request need them? */
bool rules_wanted(const struct fst_request_opts *o, const struct rules_mask *mask);
/* Bytes for rules_init: n_prompt ids, and at most n_new drawn behind them. */
size_t rules_bytes(const struct fst_request_opts *o, const struct rules_mask *mask, int vocab,
                   int64_t n_prompt, int64_t n_new);
/* memory: rules_bytes, aligned to 8; borrowed.  mask may be NULL.  The bias is copied. */
void rules_init(struct rules *r, const struct fst_request_opts *o, const struct rules_mask *mask,
                int vocab, int64_t n_prompt, int64_t n_new, void *memory);

/* Stand behind ids[0 .. n): those of the prompt, and what was given out.  Going back begins anew: for who runs
 * ids again (rerun.h). */
enum fst_status rules_to(struct rules *r, const int32_t *ids, int64_t n);
/* Before rows are drawn of which the first stands behind ids[0 .. n) and the others behind n_draft drafts that follow:
 * sets `now`. */
enum fst_status rules_look(struct rules *r, const int32_t *ids, int64_t n, int n_draft);
/* The row of logits that the next id is drawn from, in place. */
enum fst_status rules_adjust(struct rules *r, float *logits);

#endif
