/* bench_body.h - bodies of `bench serve`'s requests (benchmarks.md 1.2), one shape for each route. */
#ifndef FST_TOOLS_BENCH_BODY_H
#define FST_TOOLS_BENCH_BODY_H

#include "base/json.h"
#include "client/answer.h"
#include "client/dataset.h"

struct bench_body {
    enum answer_api api;
    const char *model; /* borrowed; of OpenAI's routes */
    json_val *extra;   /* borrowed: members that go in over what would be there; NULL */
    bool ids;          /* the prompt as ids; not with chat */
    bool streams, ignore_eos, logprobs;
};
/* salt NULL: no cache_salt. */
void bench_body_put(struct buf *b, const struct bench_body *o, const struct dataset_row *row,
                    int64_t n_tokens, const char *salt);

#endif
