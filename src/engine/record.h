/* record.h - a record file, read: what recorder_write wrote. */
#ifndef FST_ENGINE_RECORD_H
#define FST_ENGINE_RECORD_H

#include "base/arena.h"
#include "base/json.h"
#include "firesteel/engine.h"
#include "sample/sample.h"

/* All pointers: into the record's arena. */
struct record_drawn {
    int32_t id;
    float logprob;
    uint64_t hash; /* 0: not kept */
    bool forced;   /* id was not drawn */
};

struct record_request {
    uint64_t number;
    int32_t *ids, *end_ids;
    int64_t n_ids, n_prompt, n_end_ids, min_new;
    struct sample_params sampling;
    float presence, frequency, repetition;
    struct fst_logit_bias *bias;
    int64_t n_bias;
    struct record_drawn *audited; /* id: not used */
    int64_t n_audited;
    uint64_t last_step; /* index of the last step with it */
};

struct record_span {
    int32_t request; /* index; -1: not in the record */
    bool verify;
    int64_t pos;
    int32_t *ids; /* (n_rows); NULL: not in the record */
    int64_t n_rows, n_drawn, n_commit;
    struct record_drawn *drawn;
};

struct record_step {
    int64_t number, block;
    struct record_span *span;
    size_t n_spans;
};

struct record {
    struct arena arena;
    char *time, *reason, *detail, *debug_hooks; /* "" when there is none */
    char *model, *device, *kernels, *precision, *kv_layout, *index_keys, *algorithm, *accept;
    uint64_t weights;
    int64_t gamma, chunk, max_running, context_length, max_total_tokens;
    int32_t *masked_ids;
    int64_t n_masked_ids;
    struct record_request *request;
    struct record_step *step;
    size_t n_requests, n_steps;
};

/* Errors as fst_replay's. */
enum fst_status record_read(struct record *r, const char *path);
void record_release(struct record *r);

#endif
