/* report.h - a run of `bench serve` as bench_serving prints and writes it (benchmarks.md section 3), and its
 * comparison with other runs and with published ones. */
#ifndef FST_CLIENT_REPORT_H
#define FST_CLIENT_REPORT_H

#include "base/json.h"
#include "client/figures.h"

/* One cross-check of the client's count against the server's. */
struct report_check {
    const char *name; /* NULL: none is made */
    double ours, theirs;
    double within; /* largest difference that is none */
    bool known;    /* the server says it */
};
enum { REPORT_CHECKS = 3 };

/* A run with all that identifies it.  Texts are borrowed. */
struct report {
    const char *tag, *backend, *dataset, *base_url, *model, *command;
    double request_rate;                                /* 0: all at once */
    size_t max_concurrency;                             /* 0: no limit */
    int64_t sharegpt_output_len, input_len, output_len; /* sharegpt_output_len 0: the file's */
    double range_ratio;
    size_t n_prompts, n_warmup;
    bool cold, flushed, streams;
    const char *extra_body;          /* JSON, or NULL */
    const char *server_info;         /* JSON, or NULL */
    const char *thinking;            /* "on", "off", "server's default" */
    double accept_length;            /* of the server's life; 0: none */
    double window_accept_length;     /* of this run; 0: none */
    double accepted_by_position[32]; /* of this run: share of rounds; (n_positions) */
    int n_positions;
    bool simulated; /* acceptance is made up */
    struct figures f;
    struct report_check check[REPORT_CHECKS];
    double client_cpu_share; /* of a core */
};

/* The block. */
void report_print(struct buf *out, const struct report *r);
/* What the block of other people does not have: cache, checks, client, command. */
void report_print_more(struct buf *out, const struct report *r);
bool report_check_ok(const struct report_check *c);

/* The JSONL record without its newline.  records: also one list element a request (n of them), or NULL. */
void report_put_json(struct buf *out, const struct report *r, const struct answer *records,
                     size_t n);

/* The last record of a JSONL file with the settings of r; NULL with FST_EINVAL when there is none, naming what
 * differs in the nearest. */
enum fst_status report_find(json_val **out, const struct report *r, struct json_doc *const *docs,
                            size_t n, const char *path);
void report_compare(struct buf *out, const struct report *r, json_val *old);
/* Published runs of that kind ("serve": with the concurrency of r; "decode") and accept lengths, with r beside
 * them: hardware named, no verdict. */
enum fst_status report_against_published(struct buf *out, const struct report *r, const char *kind);

#endif
