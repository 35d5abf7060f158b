/* checkkern.h - compare every kernel of the table with the reference, and with itself.
 *
 * A block under test is a `struct ck_case`: inputs for n_rows rows, a function that runs a table's
 * entry on rows first..first+n-1, and the list of its outputs.  ck_run then checks
 *  - the outputs of the first n_ref rows against ref, by the tolerance of the entry (kernels.h);
 *  - nothing written outside the outputs (guard bands), nothing for 0 rows;
 *  - bits: row i of the whole batch = row i of batches of 1, 6, 7, 16, 24, 64, 128, 1024 rows;
 *  - bits: 1, 2 and 3 threads;
 * and times the whole batch under --bench. */
#ifndef CHECKKERN_H
#define CHECKKERN_H

#include <math.h>

#include "base/base.h"
#include "base/pool.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"

struct ck {
    struct kernels ref, k;
    struct pool *pool[4]; /* by number of threads; 0 and 1: NULL */
    struct stream s, s_ref, s_host;
    const struct device *device; /* of the set under test; NULL: the host */
    uint8_t *arena;              /* shared memory of device, for ck_alloc */
    size_t arena_bytes, arena_used;
    size_t scratch_bytes; /* what the streams really have */
    uint64_t seed, rng;
    bool emulated;       /* kernels/gpu on the CPU: a thousandth of a card's speed */
    bool hopper;         /* its own kernels on a card: sums of E4M3 products keep about 11 bits */
    bool is_long, sweep; /* FST_TEST_SIZE=long; many seeds, print the worst */
    const char *only;    /* entry named on the command line */
    bool bench;
    int passed, failed, skipped;
    int n_bench;                 /* rows printed, for commas */
    double worst[32];            /* NMSE by entry, over the run */
    double roof_gbs, roof_gmacs; /* measured: memory reads; products in cache, of the set */
};

/* ---------------------------------------------------------------- data */

uint64_t ck_next(struct ck *c);
float ck_uniform(struct ck *c);    /* -1..1 */
float ck_normal(struct ck *c);     /* variance 1 */
int ck_below(struct ck *c, int n); /* 0..n-1 */
float ck_bf16(float x);
/* n values on the bf16 grid: mostly normal * scale; some rows of `width` tiny, zero or with a spike. */
void ck_activations(struct ck *c, float *x, int64_t n_rows, int width, float scale);
void ck_floats(struct ck *c, float *x, int64_t n, float mean, float spread);
/* Memory that lives until ck_free_all, kernels' and the host's; with poisoned guard bands of 256 bytes
 * on both sides.  All that a kernel is to see comes from here. */
void *ck_alloc(struct ck *c, size_t bytes);
void ck_free_all(struct ck *c);
/* A weight of the form, at an odd address unless the set is a card's; values about `gain`/sqrt(n_in). */
struct mat ck_mat(struct ck *c, enum weight_format fmt, int n_out, int n_in, float gain);

/* ---------------------------------------------------------------- cases */

enum { CK_OUTPUTS = 8 };
struct ck_output {
    const char *name;
    void *data; /* (n_rows, width) floats or int32 */
    int64_t width;
    double nmse; /* tolerance; 0: exact bits */
    bool is_int;
};

struct ck_case {
    const char *entry;
    char label[96];
    int n_rows, n_ref; /* rows; rows compared with ref */
    int n_outputs;
    struct ck_output out[CK_OUTPUTS];
    void (*run)(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                int first, int n);
    void *ud;
    int64_t bytes, macs; /* of one run over all rows, for --bench */
    bool sequential;     /* rows must run in order and every run needs `reset` first */
    void (*reset)(struct ck *c, struct ck_case *t);
};

void ck_out(struct ck_case *t, struct ck *c, const char *name, void *slot, int64_t width,
            double nmse);
void ck_out_int(struct ck_case *t, struct ck *c, const char *name, void *slot, int64_t width);
void ck_run(struct ck *c, struct ck_case *t);
bool ck_wanted(const struct ck *c, const char *entry);
/* One verdict: counts, prints when it fails. */
void ck_verdict(struct ck *c, bool ok, const char *entry, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* n rows of heads as of heads_packed, in the place of their floats; o: in wo_a's order. */
void ck_pack(float *x, int64_t n, int64_t wide, bool o);
void ck_unpack(float *x, int64_t n, int64_t wide, bool o);
/* n rows of x as an operand of Hopper's set (kernels.h, operand_bytes), 0 where it has no byte of its own;
 * returns the bytes of its first form, codes for FP8 weights. */
size_t ck_operand(uint8_t *to, const float *x, int n, int wide);
/* NMSE of a against b; 0 for equal, infinity for a NaN on one side. */
double ck_nmse(const float *a, const float *b, int64_t n);

/* A model's widths. */
struct ck_shape {
    const char *name;
    int dim, n_heads, head_dim, rope_dim, q_rank, o_rank, groups, moe_dim, n_experts, k;
    int index_heads, index_dim, topk, vocab, n_stages, rank, window;
};
extern const struct ck_shape ck_kindling, ck_flash, ck_pro, ck_t1; /* t1: a model for goldens */

/* Give the streams as much scratch as kernels_scratch_bytes asks for, no more. */
void ck_scratch(struct ck *c, const struct ck_shape *m, int n_rows, int64_t max_entries);

void check_formats(struct ck *c);
void check_project(struct ck *c);
void check_draw(struct ck *c);
void check_kv(struct ck *c);
void check_fill(struct ck *c);
void check_copy(struct ck *c);

#endif
