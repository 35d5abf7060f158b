/* target.h - a server under test, of whatever make: its model's name, what it says of itself, its counters.
 *
 * Knows SGLang's routes (/server_info, /flush_cache, /metrics with the prefix "sglang:", which are ours too) and
 * vLLM's metric names; what a server does not have is unknown, not an error. */
#ifndef FST_CLIENT_TARGET_H
#define FST_CLIENT_TARGET_H

#include "base/json.h"
#include "client/http.h"

struct target {
    struct http *http; /* owned */
    char *key;         /* owned: of "Authorization", from OPENAI_API_KEY or API_KEY; NULL */
    char *model;       /* owned: first id of /v1/models */
    char *model_dir;   /* owned: where its tokenizer lies, by /model_info; NULL */
};

/* Opens and waits until GET /v1/models answers 200 and /health, if there is one, not 503; ready_s at most.   FST_ETIMEOUT with the last answer. */
enum fst_status target_open(struct target *t, const char *url, double ready_s,
                            bool (*interrupted)(void));
void target_release(struct target *t);

/* GET path as JSON; NULL when there is none of that name. */
struct json_doc *target_get(struct target *t, const char *path);
json_val *target_root(const struct json_doc *doc); /* NULL of NULL */
/* POST path; FST_EIO with the server's text when it is not 200. */
enum fst_status target_post(struct target *t, const char *path, const char *body);

struct target_counts {
    bool has_tokens, has_requests, has_ttft, has_spec;
    double generation_tokens, requests;
    double ttft_sum_s, ttft_count;
    double verify_steps, accepted, by_position[32]; /* drafting: rounds, accepted drafts */
    int n_positions;
};
void target_count(struct target *t, struct target_counts *out);
/* From a metrics page and an internal state of /server_info (each may be empty or NULL). */
void target_parse_metrics(struct target_counts *out, const char *page, size_t len);
void target_parse_state(struct target_counts *out, json_val *state);

#endif
