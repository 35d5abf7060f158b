/* plan.h - what fits beside the weights: workspace and KV memory, before any of it exists.
 *
 * The engine opens by this plan and `firesteel plan` prints it, so that both choose and refuse alike.
 * Memory is a card's or the host's.  Where cards divide requests (weights.h, WEIGHTS_SHARE_EXPERTS),
 * bytes and tokens are those of one of n_cards equal cards, and requests are all of them. */
#ifndef FST_MODEL_PLAN_H
#define FST_MODEL_PLAN_H

#include "kv/sizing.h"
#include "model/model.h"

enum {
    MODEL_PLAN_REQUESTS = 16,
    MODEL_PLAN_REQUESTS_MAX = 4096,
    MODEL_PLAN_CHUNK = 512,
    MODEL_PLAN_CARDS_MAX = 64,
    /* KV tokens for everybody together when nothing was said: four requests of 64k. */
    MODEL_PLAN_POOL_TOKENS = 262144
};
/* Of a card's free memory, for weights, KV and workspace.  The rest is for the driver, its heap, code
 * and recorded steps. */
#define MODEL_PLAN_SHARE 0.92

/* Zero means not asked for, where a default is named. */
struct model_plan_ask {
    const struct kernels *kernels; /* borrowed; their scratch is counted */
    const struct device *device;   /* as of kv_spec */
    int n_threads;
    bool card;            /* the memory is a card's, else the host's, where weights are mapped */
    double memory_bytes;  /* free before weights are there */
    double share;         /* of a card's memory; 0: MODEL_PLAN_SHARE */
    double weights_bytes; /* on a card */
    int n_cards;          /* that divide the requests; 0: 1 */
    bool drafting;
    int gamma; /* drafts of a round; 0 without drafting */
    enum sizing_rule rule;
    enum row_format format;
    enum index_format index_format;
    bool own_rows;          /* V4.1: the model's own records, whatever format says */
    int requests;           /* 0: MODEL_PLAN_REQUESTS */
    int chunk;              /* prefill rows of a step */
    int64_t context_length; /* 0: the model's, or what fits */
    int64_t total_tokens;   /* of the pools of all n_cards; 0: chosen */
    bool at_once;           /* all requests at the full context at the same time */
};

/* What is asked for by --speculative-algorithm ("none", "dspark", "mtp", "eagle"; NULL: what the checkpoint
 * bundles), --speculative-dspark-block-size and --speculative-num-steps (0: the checkpoint's and
 * MODEL_MTP_STEPS) comes to: *algorithm is "none", "dspark" or "mtp", *gamma drafts of a round, 0 without
 * drafting.  FST_EINVAL names the flag. */
struct model_drafting_ask {
    const char *algorithm;
    int block_size, num_steps;
};
enum fst_status model_plan_drafting(const struct model_config *c,
                                    const struct model_drafting_ask *ask, const char **algorithm,
                                    int *gamma);

struct model_plan {
    int requests, requests_per_card;
    int max_rows, max_logits;         /* of a step, on a card */
    size_t work_bytes, scratch_bytes; /* model_work_bytes, model_scratch_bytes */
    double budget_bytes;              /* for KV, workspace and scratch */
    double available_bytes;           /* what was asked for may take; on a card the same */
    int64_t fit_tokens;     /* the most that the budget holds; 0: not even what is fixed */
    int64_t context_length; /* of a request */
    int64_t tokens;         /* of the pool that was asked for or chosen, in whole pages */
    struct kv_spec kv;      /* of that pool */
    struct sizing_spec sizing;
    struct kv_plan bytes;
};

/* FST_EINVAL and FST_EBUDGET name the flag, and what would fit; *out then holds what was known before.
 * FST_EBUDGET: it does not fit.  The published rule budgets rows and states alone: no workspace. */
enum fst_status model_plan(const struct weights *w, const struct model_plan_ask *a,
                           struct model_plan *out);
/* The most requests that fit, each with so many tokens at the same time: 0 to MODEL_PLAN_REQUESTS_MAX.
 * a->requests, context_length, total_tokens and at_once do not count. */
int model_plan_requests(const struct weights *w, const struct model_plan_ask *a,
                        int64_t context_length);

#endif
