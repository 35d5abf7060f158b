/* recorder.h - the last steps of the engine, kept in bounded memory and written to a file when something is
 * wrong; `firesteel replay` runs such a file again (docs/audit.md).
 *
 * What is kept of a step are resolved values: for each span its request, slot, kind, first position, how
 * much of it stood, and for every row with logits the id it was computed from, the token drawn behind it, its
 * log-probability and a hash of its raw logits.  Prompt ids are those of the request, which lives as long as
 * the recorder has steps of it, within RECORDER_HELD_BYTES.  Nothing is allocated after recorder_open but
 * by recorder_write.
 *
 * A hash costs a pass over the row: on the host every row has one; of a card's rows, which would have to be
 * copied first, those of every RECORDER_CARD_STRIDE-th output position.
 *
 * Engine thread only. */
#ifndef FST_ENGINE_RECORDER_H
#define FST_ENGINE_RECORDER_H

#include "base/base.h"
#include "firesteel/engine.h"

struct fst_engine;
struct fst_request;
struct step_span;

enum {
    RECORDER_STEPS = 4096,
    RECORDER_SPANS = 16384,
    RECORDER_ROWS = 65536,
    RECORDER_HELD = 4096, /* requests */
    RECORDER_HELD_BYTES = 64 << 20,
    RECORDER_CARD_STRIDE = 64,
    RECORDER_VERSION = 2
};

struct recorder_row {
    int32_t id, draw; /* computed from; drawn behind it */
    float logprob;
    bool forced;   /* not drawn */
    uint64_t hash; /* of the raw logits; 0: not kept */
};

struct recorder_span {
    int32_t held; /* index of its request */
    int32_t slot;
    int64_t pos; /* of the first row */
    int32_t n_rows, n_logits;
    int32_t n_commit, n_emit; /* rows that stood, tokens given out */
    uint64_t row;             /* number of the first row with logits */
    uint8_t kind;             /* enum step_kind */
    uint8_t finish;           /* enum fst_finish */
};

struct recorder_step {
    uint64_t number; /* forward passes before it */
    int64_t wall_ns;
    uint64_t span; /* number of its first span */
    int32_t n_spans;
    int32_t block; /* drafts of each who drafted, verified or not */
};

struct recorder_held {
    struct fst_request *r; /* a reference, owned; NULL: given up for its memory, or free */
    uint64_t number, order;
    int32_t n_spans, next_free;
};

/* Zero: off. */
struct recorder {
    bool on;
    bool begun;                 /* the step that runs has an entry */
    struct recorder_step *step; /* rings, by number modulo size */
    struct recorder_span *span;
    struct recorder_row *row;
    struct recorder_held *held;
    uint64_t first_step, n_steps, n_spans,
        n_rows;                   /* numbers: the first that is kept, the next ones */
    uint64_t max_spans, max_rows; /* sizes of the rings */
    uint64_t *hash;               /* (max_logits) of the rows that are about to be drawn */
    int32_t free_held;
    uint64_t held_bytes, held_limit, n_held;
    uint64_t n_requests; /* numbers given to requests */
    char *dir;           /* owned; NULL: nothing is written */
    int max_files;
    uint64_t n_files; /* written */
    void *block;      /* owned: the arrays above */
};

/* What a record says beside its steps. */
struct recorder_why {
    const char *reason;                /* "audit" */
    const char *detail;                /* one sentence; "" */
    const struct fst_request *audited; /* its kept rows go into the record; NULL */
};

/* max_logits, max_requests: of one step.  FST_EINVAL, FST_EIO name the flag of the folder. */
enum fst_status recorder_open(struct recorder *k, const struct fst_engine_opts *o, int max_logits,
                              int max_requests);
void recorder_close(struct recorder *k);

/* A new step: what is noted belongs to another one than before. */
void recorder_begin(struct fst_engine *e);
/* Hash of one row of raw logits, vocab of them; never 0. */
uint64_t recorder_hash(const float *row, int vocab);
/* Before rows first.. of the next draw (rows of logits, with output positions from out_pos on) are drawn. */
enum fst_status recorder_look(struct fst_engine *e, float *logits, int first, int n,
                              int64_t out_pos);
/* Behind a span: sample_first: where its rows are in e->sample; n_logits of them, the span's last ones. */
void recorder_note(struct fst_engine *e, int s, const struct step_span *span, int sample_first,
                   int n_logits, int n_commit, int n_emit, enum fst_finish finish);

/* Write what is kept to a new file of the folder, mode 0600, and remove the oldest beyond the cap.  Without a
 * folder FST_OK and *path is "".  Called between steps; allocates. */
enum fst_status recorder_write(struct fst_engine *e, const struct recorder_why *why, char *path,
                               size_t size);

#endif
