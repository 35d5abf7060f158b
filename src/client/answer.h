/* answer.h - what one request of a benchmark did, filled from the bytes of its answer and their times.
 *
 * No socket and no clock here: bytes come with the time at which they were read, so a recorded trace gives the
 * same record as a server. */
#ifndef FST_CLIENT_ANSWER_H
#define FST_CLIENT_ANSWER_H

#include "client/event.h"

enum answer_api { ANSWER_GENERATE, ANSWER_COMPLETIONS, ANSWER_CHAT };

/* A gap between two events with text. */
struct answer_gap {
    double s;
    int64_t n_tokens; /* of the event behind it; OpenAI's routes do not say: 1 */
    uint32_t text_to; /* of answer.text, the end of that event's */
};

struct answer {
    enum answer_api api;
    bool streams; /* else the answer is one JSON object */
    int64_t prompt_len, wanted_len;

    int64_t start_ns;                        /* sending began */
    int64_t head_ns;                         /* the answer's head; 0: never */
    int64_t first_ns;                        /* first event with something generated */
    int64_t first_text_ns, first_thought_ns; /* of either kind */
    int64_t last_gen_ns;                     /* last event with something generated */
    int64_t last_ns;                         /* last event but [DONE] */
    int status;
    bool done_seen, finished, failed;
    int64_t n_events;

    int64_t completion_tokens, prompt_tokens, cached_tokens; /* as reported; -1 */
    int64_t seen_tokens;    /* /generate: at the last event with text */
    int64_t first_tokens;   /* and at the first */
    uint32_t first_to;      /* of text, the end of the first event's */
    struct answer_gap *gap; /* owned: (n_gaps) */
    size_t n_gaps, cap_gaps;
    struct buf text; /* as spelled in JSON; thoughts too */
    struct buf body; /* of an answer that is no stream, or an error */
    struct event_lines lines;
    char *error; /* owned; NULL: none */
};

/* room: gaps expected, so that none is allocated while the clock runs. */
enum fst_status answer_init(struct answer *r, enum answer_api api, bool streams, int64_t prompt_len,
                            int64_t wanted_len);
void answer_release(struct answer *r);

void answer_head(struct answer *r, int status, int64_t t_ns);
void answer_bytes(struct answer *r, const char *bytes, size_t n, int64_t t_ns);
/* The answer ended; why: NULL, or what broke it. */
void answer_end(struct answer *r, const char *why, int64_t t_ns);

/* A stream of status 200 that came to its end. */
static inline bool answer_ok(const struct answer *r)
{
    return r->last_ns != 0 && !r->failed;
}
/* Of one that is not ok: FST_EIO when nothing was answered, else FST_EFORMAT. */
static inline enum fst_status answer_fault(const struct answer *r)
{
    return r->status ? FST_EFORMAT : FST_EIO;
}
static inline int64_t answer_output_len(const struct answer *r)
{
    return r->completion_tokens >= 0 ? r->completion_tokens : r->wanted_len;
}
static inline double answer_ttft_s(const struct answer *r)
{
    return r->first_ns ? (double)(r->first_ns - r->start_ns) * 1e-9 : 0;
}
static inline double answer_latency_s(const struct answer *r)
{
    return (double)(r->last_ns - r->start_ns) * 1e-9;
}

#endif
