/* bench_remote.h - benches that speak HTTP to a server, ours or another: their common flags, the server, rows. */
#ifndef FST_TOOLS_BENCH_REMOTE_H
#define FST_TOOLS_BENCH_REMOTE_H

#include "client/load.h"
#include "client/target.h"
#include "tools/bench_file.h"
#include "tools/tool.h"

/* argv[0] is the bench's name ("serve"); each returns an exit status. */
int bench_serve(int argc, char **argv);
int bench_decode(int argc, char **argv);
int bench_agent(int argc, char **argv);
int bench_frontier(int argc, char **argv);
int bench_http(int argc, char **argv);

/* Where the server is; the tokenizer; --hardware, --out, --svg and --json. */
extern const struct option_group bench_remote_group;

struct bench_remote {
    const struct options *o; /* borrowed */
    struct target t;
    struct tokenizer *tok; /* owned; NULL: not asked for */
    const char *model;     /* borrowed: as requests name it */
    char card[BENCH_CARD_MAX], driver[BENCH_DRIVER_MAX];
    struct buf command; /* that makes these rows again */
    struct buf rows;    /* JSON objects, commas between */
    bool simulated;     /* acceptance is made up */
};
/* tokenizer: whether one is needed: --tokenizer, --model's folder, the server's if it is on this machine, the
 * bundled model's. */
/* url NULL: as the flags say. */
enum fst_status bench_remote_open(struct bench_remote *b, const struct options *o, const char *url,
                                  bool tokenizer, int argc, char **argv);
void bench_remote_release(struct bench_remote *b);
/* One member list without braces is a row; name goes in front. */
void bench_remote_row(struct bench_remote *b, const char *name, const char *members);
/* --out, --svg and, with --json, stdout; else `text` goes there.  An exit status. */
int bench_remote_finish(struct bench_remote *b, const struct buf *text);

/* One streamed request by itself.  The record is the caller's to release in any case; one that failed is a status with
 * its error. */
enum fst_status bench_remote_call(struct bench_remote *b, enum answer_api api, const char *body,
                                  int64_t n_prompt, int64_t n_wanted, struct answer *r);
/* "text":..., "input_ids":[...] of native requests with a fixed number of tokens; salt NULL: none. */
void bench_remote_generate(struct buf *out, const struct tokenizer_ids *ids, int64_t n_tokens,
                           const char *salt);
/* What drafting did between two counts, as members of a row: accept_length, accepted_by_position (null and [] when
 * the server does not say). */
void bench_remote_put_spec(struct buf *out, const struct target_counts *a,
                           const struct target_counts *z);
double bench_remote_accept_length(const struct target_counts *a, const struct target_counts *z);
void bench_remote_put_ids(struct buf *out, const struct tokenizer_ids *ids);
/* A name that was not used before, for cache_salt. */
void bench_remote_salt(char out[40]);
bool bench_remote_interrupted(void);

#endif
