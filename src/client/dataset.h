/* dataset.h - the prompts of a benchmark (benchmarks.md 1.3 and 1.4), by the rules of SGLang's bench_serving.
 *
 * random: lengths of both sides from numpy's randint, all inputs first; texts are first turns of a ShareGPT file,
 * shuffled, cut or repeated to their length; without a file, the bundled prose (data/prose.txt, public domain): the
 * prompt's number, then the text from a random place on, so that no two prompts begin alike.
 * random-ids: ids that count up from a random one, of the ordinary vocabulary.
 * sharegpt, custom: conversations of a file: turn 0 asks, the length of turn 1 is what is generated.
 * generated-shared-prefix: groups of prompts with a common beginning, of random ids. */
#ifndef FST_CLIENT_DATASET_H
#define FST_CLIENT_DATASET_H

#include "client/numpy.h"
#include "tokenizer/tokenizer.h"

enum dataset_kind {
    DATASET_SHAREGPT,
    DATASET_RANDOM,
    DATASET_RANDOM_IDS,
    DATASET_CUSTOM,
    DATASET_SHARED_PREFIX
};

struct dataset_opts {
    enum dataset_kind kind;
    const char *path;            /* of random: may be NULL */
    const struct tokenizer *tok; /* borrowed */
    size_t n;                    /* prompts; of shared-prefix n_groups * per_group */
    int64_t input_len, output_len;
    double range_ratio;
    int64_t sharegpt_output_len, sharegpt_context_len; /* 0: as the file says, no limit */
    int64_t n_groups, per_group, prefix_len, question_len, shared_output_len;
    struct mt19937 *numpy, *python; /* borrowed, seeded */
};

struct dataset_row {
    char *text; /* owned */
    size_t text_len;
    struct tokenizer_ids ids; /* what the text was made of */
    int64_t prompt_len, output_len;
};
struct dataset {
    struct dataset_row *row; /* owned: (n) */
    size_t n;
};

/* FST_EINVAL (a file is needed), FST_ENOTFOUND, FST_EIO, FST_EFORMAT (which item and field), FST_ENOMEM.  A file with
 * fewer usable conversations gives fewer rows. */
enum fst_status dataset_make(struct dataset *d, const struct dataset_opts *o);
void dataset_release(struct dataset *d);

/* The first id behind the ordinary vocabulary: the lowest special one that is not among those at its beginning. */
int32_t dataset_ordinary_ids(const struct tokenizer *t);
/* The bundled prose, from its beginning, again and again: n ids. */
enum fst_status dataset_prose(struct tokenizer_ids *out, const struct tokenizer *t, size_t n);
/* Prompt of the single-stream protocol (benchmarks.md 5): RandomState(42).randint(0, min(ordinary, 128000), n). */
enum fst_status dataset_decode_prompt(struct tokenizer_ids *out, const struct tokenizer *t,
                                      size_t n);

#endif
