/* sample.c - the pipeline of sample.h on top of the draw kernel.
 *
 * Rows without top-k, top-p, min-p and bans (nearly all) are drawn together by the kernel.  The
 * others are drawn by the kernel too, after everything outside their kept set was overwritten with
 * -inf: the draw over the kept set is then the draw over the row. */
#include "sample/sample.h"

#include <math.h>

enum fst_status sample_init(struct sampler *s, const struct kernels *k, struct stream *stream,
                            int vocab, int max_rows, const int32_t *masked, int n_masked)
{
    size_t nr = (size_t)max_rows + 1, nv = (size_t)vocab;
    size_t bytes = nr * (sizeof *s->draw + sizeof *s->out_pos + sizeof *s->id + sizeof *s->lse +
                         sizeof *s->logit) +
                   nv * (sizeof *s->order + sizeof *s->saved + sizeof *s->row);
    size_t mask_bytes = (size_t)n_masked * sizeof *s->masked;
    uint8_t *p;

    FST_ASSERT(vocab > 0);
    FST_ASSERT(max_rows > 0);
    *s = (struct sampler){.kernels = k, .stream = stream, .vocab = vocab, .max_rows = max_rows};
    for (int i = 0; i < n_masked; i++)
        FST_ASSERT(masked[i] >= 0 && masked[i] < vocab);
    s->block = device_alloc_shared(stream->device, bytes);
    s->masked = device_alloc(stream->device, mask_bytes);
    s->block_bytes = bytes;
    s->n_masked = n_masked;
    if (!s->block || !s->masked) {
        sample_release(s);
        return fst_error(FST_ENOMEM, "sampler: no memory for %zu bytes", bytes + mask_bytes);
    }
    p = s->block;
    s->draw = (struct draw_params *)(void *)p;
    p += nr * sizeof *s->draw;
    s->out_pos = (uint32_t *)(void *)p;
    p += nr * sizeof *s->out_pos;
    s->id = (int32_t *)(void *)p;
    p += nr * sizeof *s->id;
    s->lse = (float *)(void *)p;
    p += nr * sizeof *s->lse;
    s->logit = (float *)(void *)p;
    p += nr * sizeof *s->logit;
    s->order = (int32_t *)(void *)p;
    p += nv * sizeof *s->order;
    s->saved = (float *)(void *)p;
    p += nv * sizeof *s->saved;
    s->row = (float *)(void *)p;
    return device_copy(stream->device, s->masked, masked, mask_bytes);
}

void sample_release(struct sampler *s)
{
    if (s->block)
        device_free_shared(s->stream->device, s->block, s->block_bytes);
    if (s->masked)
        device_free(s->stream->device, s->masked, (size_t)s->n_masked * sizeof *s->masked);
    *s = (struct sampler){0};
}

/* The kernel, and its results on the host. */
static enum fst_status draw(struct sampler *s, const struct draw_args *a)
{
    FST_TRY(s->kernels->draw(a, s->stream));
    s->drew = true;
    FST_TRY(stream_mark(s->stream, DEVICE_MARK_END + s->odd));
    return stream_sync(s->stream);
}

enum fst_status sample_host_row(struct sampler *s, float *logits, float **row)
{
    *row = s->stream->device ? s->row : logits;
    if (!s->stream->device)
        return FST_OK;
    FST_TRY(stream_sync(s->stream)); /* the step that makes them may be under way */
    return device_copy(s->stream->device, s->row, logits, (size_t)s->vocab * sizeof *s->row);
}

enum fst_status sample_copy(struct sampler *s, float *logits, float **copy)
{
    FST_TRY(sample_host_row(s, logits, copy));
    if (*copy != s->row)
        memcpy(s->row, logits, (size_t)s->vocab * sizeof *s->row);
    *copy = s->row;
    return FST_OK;
}

/* Better first: larger logit, then lower id.  A total order, so any sort gives the same list. */
static bool better(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift_down(const float *logits, int32_t *heap, int n, int i)
{
    for (;;) {
        int worst = i, left = 2 * i + 1, right = left + 1;
        if (left < n && better(logits, heap[worst], heap[left]))
            worst = left;
        if (right < n && better(logits, heap[worst], heap[right]))
            worst = right;
        if (worst == i)
            return;
        int32_t t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* The k best ids of the row, best first, into order[0..k-1]: a heap of k with the worst on top. */
static int best_k(const float *logits, int vocab, int32_t *order, int k)
{
    int n = 0;

    k = FST_MIN(k, vocab);
    for (int32_t v = 0; v < vocab && n < k; v++)
        order[n++] = v;
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_down(logits, order, n, i);
    for (int32_t v = n; v < vocab; v++)
        if (better(logits, v, order[0])) {
            order[0] = v;
            sift_down(logits, order, n, 0);
        }
    for (int m = n - 1; m > 0; m--) { /* heap sort: the worst goes to the end */
        int32_t t = order[0];
        order[0] = order[m];
        order[m] = t;
        sift_down(logits, order, m, 0);
    }
    return n;
}

static void top_logprobs(struct sampler *s, const float *logits, float lse, int n_top,
                         struct sample_top *top)
{
    int n = best_k(logits, s->vocab, s->order, n_top);
    for (int i = 0; i < n_top; i++) {
        bool have = i < n;
        top[i].id = have ? s->order[i] : -1;
        top[i].logprob = have ? logits[s->order[i]] - lse : -INFINITY;
    }
}

/* exp((l - max)/T) is below 2^-57 of the best from here on: not a bit of the sum in double. */
#define FAR_BELOW -40.0

static double mass(const float *logits, const int32_t *order, int n, double max, double inv)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        double x = ((double)logits[order ? order[i] : i] - max) * inv;
        if (x > FAR_BELOW)
            sum += exp(x);
    }
    return sum;
}

/* How many of the n best (in s->order) stay; *whole when more than n may have to. */
static int count_kept(struct sampler *s, const float *logits, const struct sample_params *p, int n,
                      double sum, bool *whole)
{
    double max = (double)logits[s->order[0]], inv = 1.0 / (double)p->temperature, cum = 0;
    int kept = n;

    *whole = true;
    if (p->top_p < 1.0f)
        for (kept = 0; kept < n;) { /* shortest prefix whose mass reaches top_p */
            cum += exp(((double)logits[s->order[kept++]] - max) * inv) / sum;
            if (cum >= (double)p->top_p) {
                *whole = false;
                break;
            }
        }
    if (p->min_p > 0.0f)
        for (int i = 1; i < kept; i++)
            if (exp(((double)logits[s->order[i]] - max) * inv) < (double)p->min_p) {
                *whole = false;
                return i;
            }
    return kept;
}

/* Overwrite with -inf what top-k, top-p and min-p leave out.  The kept set is nearly always a few
 * ids, so the best 64 are sorted out of the vocabulary first and more only when they do not do. */
static void keep_set(struct sampler *s, float *logits, const struct sample_params *p)
{
    bool top_k = p->top_k > 0 && p->top_k < s->vocab, whole;
    int want = top_k ? p->top_k : FST_MIN(64, s->vocab), n, kept;
    double inv = 1.0 / (double)p->temperature, sum = 0;

    for (;;) {
        n = best_k(logits, s->vocab, s->order, want);
        if (sum == 0)
            sum = mass(logits, top_k ? s->order : NULL, top_k ? n : s->vocab,
                       (double)logits[s->order[0]], inv);
        kept = count_kept(s, logits, p, n, sum, &whole);
        if (!whole || top_k || n == s->vocab)
            break;
        want = FST_MIN(8 * want, s->vocab);
    }
    for (int i = 0; i < kept; i++)
        s->saved[i] = logits[s->order[i]];
    for (int v = 0; v < s->vocab; v++)
        logits[v] = -INFINITY;
    for (int i = 0; i < kept; i++)
        logits[s->order[i]] = s->saved[i];
}

/* Draws from `logits`, whose results go to place i of the arrays. */
static struct draw_args draws(const struct sampler *s, float *logits, int i, int n)
{
    struct draw_args a = {.logits = logits,
                          .draw = s->draw + i,
                          .out_pos = s->out_pos + i,
                          .id = s->id + i,
                          .lse = s->lse + i,
                          .logit = s->logit + i,
                          .masked = s->masked,
                          .n = n,
                          .vocab = s->vocab,
                          .n_masked = s->n_masked};
    return a;
}

/* The draw of row i over its kept set, from the host's copy l: it is drawn already, over all. */
static enum fst_status draw_again(struct sampler *s, const struct sample_row *row, float *l, int i,
                                  bool narrow)
{
    struct draw_args one = draws(s, l, i, 1);
    for (int b = 0; b < row->n_banned; b++)
        l[row->banned[b]] = -INFINITY;
    if (narrow)
        keep_set(s, l, row->params);
    one.lse = NULL; /* of the kept set: not asked for */
    FST_TRY(draw(s, &one));
    FST_ASSERT(s->id[i] >= 0);
    return FST_OK;
}

bool sample_narrows(const struct sampler *s, const struct sample_params *p)
{
    return p->temperature > 0.0f &&
           (p->top_p < 1.0f || p->min_p > 0.0f || (p->top_k > 0 && p->top_k < s->vocab));
}

enum fst_status sample_take(struct sampler *s, const float *logits, int32_t id,
                            struct sample_row *row, int i)
{
    float logit = 0;

    FST_TRY(device_copy(s->stream->device, &logit, logits + id, sizeof logit));
    row->id = id;
    row->logprob = logit - s->lse[i];
    return FST_OK;
}

enum fst_status sample_later(struct sampler *s, const float *logits, float *copy,
                             struct sample_row *row, int i)
{
    FST_TRY(draw_again(s, row, copy, i, sample_narrows(s, row->params)));
    if (copy[s->id[i]] == -INFINITY) {
        row->id = SAMPLE_NONE;
        return FST_OK;
    }
    return sample_take(s, logits, s->id[i], row, i);
}

enum fst_status sample_rows(struct sampler *s, float *logits, struct sample_row *row, int n)
{
    struct draw_args a = draws(s, logits, 0, n);

    FST_ASSERT(n <= s->max_rows);
    for (int i = 0; i < n; i++) {
        const struct sample_params *p = row[i].params;
        s->draw[i] = sample_draw_params(p);
        s->out_pos[i] = row[i].out_pos;
    }
    FST_TRY(draw(s, &a));
    for (int i = 0; i < n; i++) {
        float *l = NULL;
        bool narrow = sample_narrows(s, row[i].params);
        bool again = !row[i].later && (narrow || row[i].n_banned > 0);
        row[i].id = s->id[i];
        if (row[i].id < 0)
            continue;
        if (again || row[i].n_top > 0)
            FST_TRY(sample_host_row(s, logits + (int64_t)i * s->vocab, &l));
        if (row[i].n_top > 0)
            top_logprobs(s, l, s->lse[i], row[i].n_top, row[i].top);
        if (again)
            FST_TRY(draw_again(s, &row[i], l, i, narrow));
        row[i].id = s->id[i];
        row[i].logprob = s->logit[i] - s->lse[i];
    }
    return FST_OK;
}

enum fst_status sample_score(struct sampler *s, float *logits, int32_t id, float *logprob,
                             int n_top, struct sample_top *top)
{
    int i = s->max_rows; /* the extra place: a step's rows may be waiting in the others */
    struct draw_args one = draws(s, logits, i, 1);
    float *l, logit;

    s->draw[i] = (struct draw_params){0};
    s->out_pos[i] = 0;
    FST_TRY(draw(s, &one));
    FST_TRY(device_copy(s->stream->device, &logit, logits + id, sizeof logit));
    *logprob = logit - s->lse[i];
    if (n_top <= 0)
        return FST_OK;
    FST_TRY(sample_host_row(s, logits, &l));
    top_logprobs(s, l, s->lse[i], n_top, top);
    return FST_OK;
}
