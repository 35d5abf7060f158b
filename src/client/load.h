/* load.h - sends many requests to a server and records what comes back: one thread, one epoll set.
 *
 * Requests start in order.  With a finite rate the wait between two starts is an exponential draw (Poisson
 * arrivals), from numpy's generator as bench_serving draws it; a request whose time has come while
 * max_concurrency are under way waits, and its clock starts when it is sent. */
#ifndef FST_CLIENT_LOAD_H
#define FST_CLIENT_LOAD_H

#include "client/http.h"
#include "client/numpy.h"
#include "client/answer.h"

struct load_item {
    const char *body; /* borrowed: JSON */
    size_t len;
    int64_t prompt_len, wanted_len;
};

struct load_opts {
    enum answer_api api;
    const char *path; /* "/generate" */
    const char *key;  /* or NULL */
    bool streams;
    size_t max_concurrency;    /* 0: no limit */
    double rate;               /* requests per second; 0: all at once */
    struct mt19937 *random;    /* borrowed: of the waits; may be NULL without a rate */
    double timeout_s;          /* of one request; 0: none */
    const char *what;          /* of the progress line; NULL: none */
    bool (*interrupted)(void); /* ends the run; NULL: nothing does */
};

struct load_cost {
    double wall_s, cpu_s; /* of this thread */
    uint64_t reads, bytes, connections;
};

/* Records (n), initialised here in any case, are the caller's to release.  *duration_s: from just before the first
 * start to the end of the last.  FST_ECANCELED when interrupted, FST_ENOMEM; a request that fails is a
 * record that says so. */
enum fst_status load_run(struct http *h, const struct load_opts *o, const struct load_item *item,
                         size_t n, struct answer *out, double *duration_s, struct load_cost *cost);

const char *load_path(enum answer_api api);

#endif
