/* bench_calls.h - the launches of a step, kept with their arguments and played again one entry at a time.
 * Stands between the model and the kernel table, by exception. */
#ifndef FST_TOOLS_BENCH_CALLS_H
#define FST_TOOLS_BENCH_CALLS_H

#include "kernels/kernels.h"
#include "model/model.h"

/* Number of an entry, in the order of the table. */
enum {
#define CALL_NUMBER(entry, args) CALL_##entry,
    KERNELS_MAP(CALL_NUMBER)
#undef CALL_NUMBER
        CALL_ENTRIES
};
/* Beside those of the model: between main_proj and the draft's embed. */
enum { CALL_SITE_INJECT = MODEL_SITES, CALL_SITES };

struct call {
    int entry, site;
    struct rows rows; /* what the arguments point to, where they have rows */
    union {
#define CALL_FIELD(entry, args) args entry;
        KERNELS_MAP(CALL_FIELD)
#undef CALL_FIELD
    } a;
    /* Of experts, owned by the calls: experts and weights of this layer's rows, and the operand as the
     * seam left it; NULL: none. */
    int32_t *expert;
    float *weight;
    void *operand;
};

struct calls {
    struct kernels inner;        /* where the model's launches go on to */
    const struct kernels *table; /* borrowed: what is played */
    const struct model *model;
    struct stream *stream;
    bool keeps, injects;
    struct call *call; /* owned */
    int n, cap;
};

/* Put in front of `front`, the model's table; `table` are the kernels themselves.  One at a time. */
enum fst_status calls_open(struct calls *c, struct kernels *front, const struct kernels *table,
                           const struct model *m, struct stream *s);
void calls_close(struct calls *c);
const char *calls_entry_name(int entry);

/* Keep what is launched from now on, instead of what was kept; stop. */
void calls_begin(struct calls *c);
void calls_end(struct calls *c);
/* Of an entry at a site. */
int calls_count(const struct calls *c, int entry, int site);
/* Different experts that these calls of `experts` read each, on average. */
enum fst_status calls_distinct(const struct calls *c, int site, double *distinct);

struct played {
    int sets;                  /* different inputs: calls, and copies of their weights */
    int launches;              /* that were timed */
    double median_us, best_us; /* of a launch, by passes */
};
/* Keep the card busy until the queue is full (bench_synthetic.h). */
typedef enum fst_status calls_busy_fn(void *ud, double us);

/* Play the calls of an entry at a site until passes of some 10 ms (rest: of one round, behind half a second
 * without work) have been timed.  What they read of a step is what the last one left; what they change in
 * place is put back between passes, and must be numbers at the end. */
enum fst_status calls_play(struct calls *c, int entry, int site, bool rest, calls_busy_fn *busy,
                           void *ud, struct played *out);

#endif
