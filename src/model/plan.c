/* plan.c - requests, context and pool from what was asked for and the memory there is. */
#include "model/plan.h"

#include <string.h>

#include "kernels/rows.h"
#include "weights/weights.h"

enum { V41_STATE = 8, V41_PAIR = 2 }; /* inputs kept at ratio 2, with drafts and without */

static double gib(double bytes)
{
    return FST_MAX(bytes, 0) / 1073741824.0;
}

static enum fst_status check_drafts(const char *flag, int n, int most)
{
    if (n >= 0 && n <= most)
        return FST_OK;
    return fst_error(FST_EINVAL, "%s must be in [1, %d] for this checkpoint, got %d", flag, most,
                     n);
}

/* Which drafter: the checkpoint has one or none. */
static enum fst_status pick_drafter(const struct model_config *c, const char *asked,
                                    const char **algorithm)
{
    const char *bundled = c->has_dspark ? "dspark" : c->has_mtp ? "mtp" : "none";
    const char *name = !asked ? bundled : strcmp(asked, "eagle") ? asked : "mtp";
    *algorithm = name;
    if (!strcmp(name, "none") || !strcmp(name, bundled))
        return FST_OK;
    if (c->has_dspark)
        return fst_error(
            FST_EINVAL,
            "--speculative-algorithm %s: this checkpoint bundles a DSpark drafter, not "
            "an MTP block; use dspark or none",
            asked);
    if (!strcmp(name, "mtp"))
        return fst_error(FST_EINVAL,
                         "--speculative-algorithm %s: the checkpoint holds no MTP block (no tensor "
                         "mtp.0.e_proj.weight)",
                         asked);
    return fst_error(FST_EINVAL,
                     "--speculative-algorithm dspark: the checkpoint holds no DSpark drafter "
                     "(no dspark_* key in its config.json)%s",
                     c->has_mtp ? "; use mtp or none" : "");
}

enum fst_status model_plan_drafting(const struct model_config *c,
                                    const struct model_drafting_ask *ask, const char **algorithm,
                                    int *gamma)
{
    static const char *const block = "--speculative-dspark-block-size",
                             *const steps = "--speculative-num-steps";
    FST_TRY(pick_drafter(c, ask->algorithm, algorithm));
    FST_TRY(check_drafts(block, ask->block_size, c->has_dspark ? c->gamma : KERN_GAMMA_MAX));
    FST_TRY(check_drafts(steps, ask->num_steps, MODEL_MTP_STEPS));
    bool mtp = !strcmp(*algorithm, "mtp");
    if ((mtp ? ask->block_size : ask->num_steps) && strcmp(*algorithm, "none") != 0)
        return fst_error(FST_EINVAL, "%s is not for drafting with %s, which has %s",
                         mtp ? block : steps, *algorithm, mtp ? steps : block);
    int asked = mtp ? ask->num_steps : ask->block_size, most = model_drafts_max(c);
    *gamma = !strcmp(*algorithm, "none") ? 0 : asked ? asked : most;
    return FST_OK;
}

/* ------------------------------------------------------------------ rows */

/* V4.1's own records: 512 values in FP8 with 16 scales for windows, in FP4 with 32 for compressed rows; a
 * page's padding is that of its published layouts. */
static void own_records(struct sizing_spec *z)
{
    z->window_page = 0;
    z->window = z->draft = (struct sizing_record){512, 16, 1};
    z->compressed = (struct sizing_record){256, 32, 256};
}

/* Few layers own compressed rows; those of ratio 2 keep the first of a pair, kv and gate in fp32. */
static void v41_classes(const struct model_config *c, const struct model_plan_ask *a,
                        struct sizing_spec *z)
{
    z->n_classes = 0;
    for (int ratio = 1; ratio <= 2; ratio++) {
        struct sizing_class k = {.ratio = ratio, .indexed = true};
        for (int l = 0; l < c->n_layers; l++)
            k.n_layers += c->kv_source[l] && c->compress_ratio[l] == ratio;
        if (ratio == 2) {
            k.state_bytes = 2 * c->head_dim * (int)sizeof(float);
            k.state_ring = a->gamma ? V41_STATE : V41_PAIR;
        }
        if (k.n_layers)
            z->class[z->n_classes++] = k;
    }
    z->index = a->index_format == INDEX_FP8 ? (struct sizing_record){128, 4, 1}
                                            : (struct sizing_record){64, 4, 1};
    if (a->own_rows)
        own_records(z);
}

/* As published: stages apart, DSpark's in bf16 beside fp8 rows; states of two groups, or of one without drafts. */
static void publish(const struct model_config *c, const struct model_plan_ask *a,
                    struct sizing_spec *z)
{
    z->rule = SIZING_PUBLISHED;
    z->page_table_bytes = 0;
    z->carry_bytes = 0;
    z->n_draft = z->n_target - c->n_layers;
    z->n_target = c->n_layers;
    z->draft = z->window;
    if (a->format == ROW_FP8 && !a->own_rows && c->has_dspark)
        z->draft = (struct sizing_record){(int)rows_bytes(ROW_BF16, c->head_dim), 0, 1};
    for (int i = 0; i < z->n_classes; i++)
        if (z->class[i].state_bytes && z->class[i].ratio > 2)
            z->class[i].state_ring = (z->class[i].ratio + z->class[i].overlap) * (a->gamma ? 2 : 1);
}

/* ------------------------------------------------------------------ what is there before tokens */

/* The part that follows from the number of requests: kv with one page, workspace, sizing. */
static enum fst_status fixed_part(const struct weights *w, const struct model_plan_ask *a,
                                  int requests, struct model_plan *p)
{
    const struct model_config *c = &w->config;
    int64_t context = a->context_length ? a->context_length : c->max_positions;
    p->requests = requests;
    p->requests_per_card = (int)div_up(requests, FST_MAX(a->n_cards, 1));
    p->max_rows = a->chunk + p->requests_per_card * (a->gamma + 1);
    /* 64 rows more than decoding ever needs: prompt scoring goes in pieces of that size. */
    p->max_logits = p->requests_per_card * (a->gamma + 1) + 64;
    struct model_opts o = {.kernels = a->kernels,
                           .max_rows = p->max_rows,
                           .max_logits = p->max_logits,
                           .max_requests = p->requests_per_card,
                           .context_length = context,
                           .drafting = a->drafting};
    p->work_bytes = p->scratch_bytes = 0;
    if (a->rule == SIZING_TIGHT) {
        p->scratch_bytes = model_scratch_bytes(w, &o, a->n_threads);
        p->work_bytes = model_work_bytes(w, &o);
    }
    model_kv_spec(w, a->drafting, &p->kv);
    p->kv.device = a->device;
    p->kv.format = a->format;
    p->kv.index_format = a->index_format;
    p->kv.n_slots = p->requests_per_card;
    p->kv.block =
        FST_MAX(a->gamma + 1, 2); /* a snapshot may stand one position behind (kv/snapshot.h) */
    p->kv.lag = 0;
    p->kv.context_length = round_up(context, KERN_PAGE);
    p->kv.n_pages = 1;
    kv_sizing(&p->kv, &p->sizing);
    if (c->v41)
        v41_classes(c, a, &p->sizing);
    if (a->rule == SIZING_PUBLISHED)
        publish(c, a, &p->sizing);
    if (!c->v41 && a->rule == SIZING_TIGHT)
        return kv_plan(&p->kv, &p->bytes);
    return kv_plan_by(&p->kv, &p->sizing, &p->bytes);
}

static double other_bytes(const struct model_plan *p)
{
    return (double)p->work_bytes + (double)p->scratch_bytes;
}

static int64_t tokens_within(const struct model_plan *p, double budget)
{
    double left = budget - other_bytes(p);
    return left > 0 ? kv_tokens_by(&p->kv, &p->sizing, (int64_t)left) : 0;
}

/* What was asked for must fit into what is available.  What was not is chosen out of half of what a host
 * has available, and out of what the mapped weights leave, since pool memory that pushes weights out of
 * the page cache is paid for at every step.  Nobody else lives on a card. */
static void set_budget(const struct model_plan_ask *a, struct model_plan *p)
{
    double all = a->memory_bytes, left = all - a->weights_bytes;
    p->available_bytes = all;
    p->budget_bytes = FST_MIN(all / 2, FST_MAX(left, all / 8));
    if (a->card)
        p->available_bytes = p->budget_bytes =
            (a->share > 0 ? a->share : MODEL_PLAN_SHARE) * all - a->weights_bytes;
}

/* ------------------------------------------------------------------ what was asked for */

static enum fst_status check_asked(const struct model_config *c, const struct model_plan_ask *a)
{
    const int64_t tokens_max = (int64_t)KERN_PAGE << 30;
    if (a->context_length < 0 || a->context_length > c->max_positions)
        return fst_error(FST_EINVAL, "--context-length must be in [1, %lld], got %lld",
                         (long long)c->max_positions, (long long)a->context_length);
    if (a->requests < 0 || a->requests > MODEL_PLAN_REQUESTS_MAX)
        return fst_error(FST_EINVAL, "--max-running-requests must be in [1, %d], got %d",
                         MODEL_PLAN_REQUESTS_MAX, a->requests);
    if (a->total_tokens < 0 || a->total_tokens > tokens_max)
        return fst_error(FST_EINVAL, "--max-total-tokens must be in [1, %lld], got %lld",
                         (long long)tokens_max, (long long)a->total_tokens);
    return FST_OK;
}

/* The largest number of requests up to `most` of which each has room for so many tokens, and all for a
 * page: more of them leave less for each, so that halving finds it. */
static int most_requests(const struct weights *w, const struct model_plan_ask *a, int64_t tokens,
                         int most)
{
    int low = 0, high = most;
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        struct model_plan p = {0};
        set_budget(a, &p);
        bool fits = fixed_part(w, a, middle, &p) == FST_OK &&
                    tokens_within(&p, p.budget_bytes) >=
                        FST_MAX(p.requests_per_card * tokens, (int64_t)KERN_PAGE);
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int model_plan_requests(const struct weights *w, const struct model_plan_ask *a,
                        int64_t context_length)
{
    struct model_plan_ask x = *a;
    x.context_length = context_length;
    return most_requests(w, &x, round_up(context_length, KERN_PAGE), MODEL_PLAN_REQUESTS_MAX);
}

/* Not a page is left.  Fewer requests would do, or shorter chunks for one. */
static enum fst_status no_page(const struct weights *w, const struct model_plan_ask *a,
                               const struct model_plan *p)
{
    struct model_plan_ask x = *a;
    int fit = most_requests(w, &x, 0, p->requests);
    char hint[80] = "not even one fits";
    if (fit)
        snprintf(hint, sizeof hint, "at most %d fit", fit);
    while (!fit && (x.chunk /= 2) > 0)
        if ((fit = most_requests(w, &x, 0, p->requests)) > 0)
            snprintf(hint, sizeof hint, "%d would with --chunked-prefill-size %d", fit, x.chunk);
    return fst_error(
        FST_EBUDGET,
        "--max-running-requests %d: with prefill chunks of %d they need %.2f GiB before "
        "the first token, %.2f GiB are to be had; %s",
        p->requests, a->chunk, gib((double)p->bytes.total_bytes + other_bytes(p)),
        gib(p->budget_bytes), hint);
}

/* The pool for all requests at their full context, or what is wrong. */
static enum fst_status all_at_once(const struct weights *w, const struct model_plan_ask *a,
                                   int64_t context, struct model_plan *p)
{
    int64_t each = round_up(context, KERN_PAGE), room = p->fit_tokens;
    if (a->total_tokens)
        room = FST_MIN(room, p->tokens);
    p->tokens = p->requests_per_card * each;
    if (p->tokens <= room)
        return FST_OK;
    int fit = a->total_tokens ? (int)(room / each) * FST_MAX(a->n_cards, 1)
                              : most_requests(w, a, each, p->requests);
    int64_t length = room / p->requests_per_card / KERN_PAGE * KERN_PAGE;
    return fst_error(FST_EBUDGET,
                     "--max-running-requests %d at --context-length %lld does not fit: %d of that "
                     "length fit, or %d of length %lld",
                     p->requests, (long long)context, fit, p->requests, (long long)length);
}

/* Tokens for the whole context of one request and at least MODEL_PLAN_POOL_TOKENS. */
static enum fst_status choose_tokens(const struct weights *w, const struct model_plan_ask *a,
                                     int64_t context, struct model_plan *p)
{
    p->tokens = round_up(div_up(a->total_tokens, FST_MAX(a->n_cards, 1)), KERN_PAGE);
    if (a->at_once)
        return all_at_once(w, a, context, p);
    if (p->tokens)
        return FST_OK;
    int64_t want = FST_MIN((int64_t)p->requests_per_card * p->kv.context_length,
                           FST_MAX(p->kv.context_length, (int64_t)MODEL_PLAN_POOL_TOKENS));
    p->tokens = FST_MIN(want, p->fit_tokens) / KERN_PAGE * KERN_PAGE;
    return p->tokens < KERN_PAGE ? no_page(w, a, p) : FST_OK;
}

enum fst_status model_plan(const struct weights *w, const struct model_plan_ask *a,
                           struct model_plan *p)
{
    const struct model_config *c = &w->config;
    int64_t context = a->context_length ? a->context_length : c->max_positions;
    *p = (struct model_plan){0};
    FST_TRY(check_asked(c, a));
    set_budget(a, p);
    FST_TRY(fixed_part(w, a, a->requests ? a->requests : MODEL_PLAN_REQUESTS, p));
    p->context_length = context;
    p->fit_tokens = tokens_within(p, p->budget_bytes);
    FST_TRY(choose_tokens(w, a, context, p));
    if (p->tokens < context && a->context_length)
        return fst_error(FST_EBUDGET,
                         "--context-length %lld does not fit: there is room for %lld tokens of KV",
                         (long long)context, (long long)p->tokens);
    p->context_length = FST_MIN(context, p->tokens);
    p->kv.context_length = round_up(p->context_length, KERN_PAGE);
    p->kv.n_pages = p->tokens / KERN_PAGE;
    FST_TRY(kv_plan_by(&p->kv, &p->sizing, &p->bytes));
    if ((double)p->bytes.total_bytes + other_bytes(p) > p->available_bytes)
        return fst_error(FST_EBUDGET,
                         "--max-total-tokens %lld for %d requests needs %.2f GiB of KV and "
                         "workspace, %.2f GiB of memory are available; at most %lld fit",
                         (long long)a->total_tokens, p->requests,
                         gib((double)p->bytes.total_bytes + other_bytes(p)),
                         gib(p->available_bytes),
                         (long long)tokens_within(p, p->available_bytes) * FST_MAX(a->n_cards, 1));
    return FST_OK;
}
