/* bench.h - what the files of `bench` share: rows of a result file, ceilings, the runners.
 * Looks inside of weights and model by exception. */
#ifndef FST_TOOLS_BENCH_H
#define FST_TOOLS_BENCH_H

#include "device/device.h"
#include "model/cost.h"
#include "tools/tool.h"

/* What a machine can do at best; operations 0: not known, floors are of bytes alone. */
struct bench_ceilings {
    double read_bytes_s, fp8_s, bf16_s;
};

struct bench_row {
    char name[40], kind[16];
    const char *site; /* "C4": of these layers alone; NULL */
    int rows, calls, steps;
    int64_t context;
    double time_us, p95_us; /* p95 0: not taken */
    double best_us;         /* of an entry alone, the quickest pass; 0: it is something else */
    int sets;               /* its different inputs, gone through in turn */
    double distinct;        /* experts read per layer; 0: not counted */
    double read_bytes_s;    /* ceiling of this row alone; 0: the machine's */
    struct model_cost c;
};

struct bench {
    struct bench_ceilings m;
    struct model_config cfg;
    char preset[64], layout[24], kernels[24], card[256], driver[96];
    const char *routing; /* NULL: as the model routes */
    int threads;
    int64_t weight_bytes;
    double fill_s;            /* that random weights took to make; 0: they were loaded */
    int row_bytes, key_bytes; /* of KV rows and index keys */
    struct bench_row *out;    /* owned */
    size_t n, cap;
};

/* A row of this case, to be completed; NULL: no memory. */
struct bench_row *bench_add(struct bench *b, const char *name, const char *kind);
double bench_floor_us(const struct bench *b, struct model_cost c);
void bench_host_names(struct bench *b); /* card and driver of this computer */

/* Of threads of this processor with the kernels named, over `bytes` of memory. */
void bench_measure_host(struct bench_ceilings *m, uint64_t bytes, const char *kernels, int threads);
/* Of a card, with its names: from a table, or what its copies move. */
enum fst_status bench_measure_card(struct bench *b, const struct device *d);

/* The bundled or named model through the engine; a preset's random weights without it. */
enum fst_status bench_engine(struct bench *b, const struct options *o);
enum fst_status bench_synthetic(struct bench *b, const struct options *o);
/* The entries of the kernel table alone, on a preset's random weights. */
enum fst_status bench_kernels(struct bench *b, const struct options *o);
/* The prefix tree with a preset's KV memory; the disk tier in the folder --disk-dir. */
enum fst_status bench_kv(struct bench *b, const struct options *o);
enum fst_status bench_disk(struct bench *b, const struct options *o);

#endif
