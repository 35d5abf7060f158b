/* plan.h - the hardware-aware prefix scheduler: how many drafts of each request are verified in a step,
 * and before that, who drafts at all and how long a block (dspark.md §4).
 *
 * The objective is tokens per second, (R + sum of survivals taken) / seconds(extra rows).  Survivals of a
 * request never grow along its block, so for a given number of extra rows the largest ones are the best,
 * and they form prefixes by themselves.
 *
 * With coupled draws (spec.h) no schedule can bias a result, so live confidences and the global optimum
 * are used.  Early stop (Algorithm 1) and a budget from older confidences, of which the live ones only
 * choose whose rows it buys, are what rejection sampling needs to stay exact.
 *
 * Pure logic on the caller's memory; any thread. */
#ifndef FST_SPEC_PLAN_H
#define FST_SPEC_PLAN_H

#include "base/base.h"
#include "spec/cost.h"

/* Below this a draft is no candidate (dspark.md §4.3). */
#define SPEC_SURVIVAL_MIN 1e-6

/* A request that has drafted. */
struct spec_ask {
    const double *survive; /* (n_max) P(the first j + 1 drafts are all accepted), never growing */
    int n_max;             /* drafts that may be verified */
    int n;                 /* out: that are to be verified */
    int heap;              /* scratch */
};

/* seconds: (n_seconds), of a step with so many rows more than one for each request, whoever has them; more
 * rows than that are not taken.  base: tokens that the step gives without drafts (one for each that decodes).
 * Candidates are taken by survival, then position, then order of asks; of equal objectives the
 * first counts. */
struct spec_found {
    int extra;        /* rows taken */
    double tokens;    /* base and survivals */
    double objective; /* tokens per second */
};
/* The global optimum. */
struct spec_found spec_plan_best(struct spec_ask *ask, int n, double base, const double *seconds,
                                 int n_seconds);
/* Algorithm 1: ends at the first candidate that does not raise the objective (§4.2). */
struct spec_found spec_plan_early_stop(struct spec_ask *ask, int n, double base,
                                       const double *seconds, int n_seconds);
/* Role 1 of §4.3: the budget of rows by older confidences; ask[].n is left alone. */
int spec_plan_budget(struct spec_ask *ask, int n, double base, const double *seconds,
                     int n_seconds);
/* Role 2: the largest live survivals, `budget` of them. */
void spec_plan_spend(struct spec_ask *ask, int n, int budget);
/* Objective of lengths as they stand in ask[].n. */
double spec_plan_objective(const struct spec_ask *ask, int n, double base, const double *seconds,
                           int n_seconds);

/* A request that could draft. */
struct spec_wish {
    const double *expect; /* (gamma) survivals to be expected, never growing */
    int n_max;            /* drafts that it has room for; 0: it can't draft now */
    double resume_s;      /* of this round, to take up drafting again; 0: it has drafted */
    double positions;     /* that its rows look back on */
    bool drafts;          /* out */
    double gain;          /* scratch */
    int heap;
};
struct spec_load {
    int n_decoding;   /* requests that get a token, those that cannot draft too */
    int prefill_rows; /* other rows of the step */
    double positions; /* sum over decoding requests of what a row looks back on */
    double margin;    /* drafting must be so much better than none: 1.02 */
};
struct spec_drafting {
    int block, n_drafting;          /* 0: nobody drafts */
    double plain_tok_s, best_tok_s; /* of the step without drafts, and as chosen */
    double tokens, seconds;         /* as chosen */
};
/* Who drafts: those with the most to expect first, as many as pay, blocks of one length. */
struct spec_drafting spec_plan_drafting(const struct spec_cost *c, struct spec_wish *wish, int n,
                                        const struct spec_load *load);
/* The same with at most n_most of them, however little it pays: to find out. */
struct spec_drafting spec_plan_try(const struct spec_cost *c, struct spec_wish *wish, int n,
                                   const struct spec_load *load, int n_most);

/* seconds[k] for k = 0 .. n-1 rows beyond one a request: of the step, with what drafting it took.  In a step with
 * prefill rows a row counts what it costs beside them, and the step what it costs without: they are computed
 * anyway. */
void spec_plan_seconds(const struct spec_cost *c, const struct spec_load *load, double draft_s,
                       double *seconds, int n);

#endif
