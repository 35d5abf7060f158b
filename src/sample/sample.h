/* sample.h - logits to tokens: masks, temperature, top-k, top-p, min-p, the draw, log-probabilities.
 *
 * The pipeline of a row, in fp32: mask of ids that are never drawn (written as -inf into the logits
 * before anything else) -> log-sum-exp of what is left, for reported log-probabilities -> ids
 * banned at this position (end ids before min_new_tokens) -> temperature 0: argmax, lowest id on
 * ties; else kept set by top-k, then top-p, then min-p over softmax(logits/T) -> draw: argmax of
 * logits/T + Gumbel noise over the kept set (kernels.h, struct draw_params).  The noise depends on
 * seed, choice, output position and id only, so a draw is the same alone, batched or verified.
 *
 * Rows whose logits are changed before the draw (penalties, a grammar's mask) are drawn `later`: sample_rows gives
 * what is reported of the raw row, the caller changes a copy of it (sample_copy), and sample_later draws from that
 * as above, from the bans on.
 *
 * logits lie in device memory and stay there: the device masks and draws; of a row whose draw or report
 * takes more than that (top-k, top-p, min-p, bans, alternatives, changes) the host gets a copy.
 * Engine thread only.  Nothing is allocated after sample_init. */
#ifndef FST_SAMPLE_H
#define FST_SAMPLE_H

#include "base/base.h"
#include "kernels/kernels.h"

struct sample_params {
    float temperature, top_p, min_p;
    int top_k; /* <= 0 off */
    uint64_t seed;
    uint32_t choice;
};

/* What a draw's noise follows from, the same for the drafter and for the target. */
static inline struct draw_params sample_draw_params(const struct sample_params *p)
{
    return (struct draw_params){
        .temperature = p->temperature, .choice = p->choice, .seed = p->seed};
}

struct sample_top {
    int32_t id;
    float logprob;
};

enum { SAMPLE_NONE = -2 }; /* of sample_later: nothing is left to be drawn */

struct sample_row {
    const struct sample_params *params; /* borrowed */
    uint32_t out_pos;                   /* index of the token among the generated ones */
    const int32_t *banned;              /* ids illegal at this position; NULL */
    int n_banned;
    int n_top;              /* alternatives wanted */
    bool later;             /* drawn by sample_later; sample_rows draws from the raw row */
    bool forced;            /* the caller's: id was not drawn */
    int32_t id;             /* out: the draw; -1: NaN in the row; SAMPLE_NONE */
    float logprob;          /* out: of id, from the raw logits */
    struct sample_top *top; /* out: (n_top), best first, ties by id; NULL when n_top is 0 */
};

struct sampler {
    const struct kernels *kernels; /* borrowed */
    struct stream *stream;         /* borrowed */
    int vocab, max_rows;
    bool odd,
        drew; /* mark behind a draw: DEVICE_MARK_END or the next; there was one.  The caller's to set */
    int32_t *masked; /* owned, device memory: ids never drawn */
    int n_masked;
    struct draw_params *draw; /* (max_rows) */
    uint32_t *out_pos;
    int32_t *id;
    float *lse, *logit;
    int32_t *order; /* (vocab) scratch of the kept set */
    float *saved;   /* (vocab) */
    float *row;     /* (vocab) the host's copy of a row */
    void *block;    /* owned, shared memory: the arrays above */
    size_t block_bytes;
};

/* masked: (n_masked) ids, copied. */
enum fst_status sample_init(struct sampler *s, const struct kernels *k, struct stream *stream,
                            int vocab, int max_rows, const int32_t *masked, int n_masked);
void sample_release(struct sampler *s);

/* Row of raw logits (vocab) where the host can read it, until the next call; waits for the stream. */
enum fst_status sample_host_row(struct sampler *s, float *logits, float **row);

/* Draw rows 0..n-1 of logits (n, vocab); logits is scratch afterwards. n <= max_rows. */
enum fst_status sample_rows(struct sampler *s, float *logits, struct sample_row *row, int n);

/* Does a row with these have a kept set?  sample_rows leaves nothing else in its logits. */
bool sample_narrows(const struct sampler *s, const struct sample_params *p);
/* The same row of the same logits for a place i below n, one at a time: a copy until the next call. */
enum fst_status sample_copy(struct sampler *s, float *logits, float **copy);
/* Draw from the copy: row->id and its log-probability by the raw logits; i: its place in sample_rows. */
enum fst_status sample_later(struct sampler *s, const float *logits, float *copy,
                             struct sample_row *row, int i);
/* `id` is taken instead of what was drawn at place i. */
enum fst_status sample_take(struct sampler *s, const float *logits, int32_t id,
                            struct sample_row *row, int i);

/* log-probability of `id` and the n_top best of one row of raw logits (prompt scoring). */
enum fst_status sample_score(struct sampler *s, float *logits, int32_t id, float *logprob,
                             int n_top, struct sample_top *top);

#endif
