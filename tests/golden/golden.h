/* golden.h - named arrays in one small file, as tools/golden/goldfile.py writes them.
 *
 * Layout, little-endian: "FSTGOLD1", u32 count, then per array: u32 name length, name, u32 type
 * (0 float32, 1 int32), u32 number of dims, u32 dims[], zero bytes up to a multiple of 4, data. */
#ifndef FST_TESTS_GOLDEN_GOLDEN_H
#define FST_TESTS_GOLDEN_GOLDEN_H

#include "base/base.h"

enum { GOLDEN_DIMS_MAX = 4 };

struct golden_array {
    char name[64];
    bool ints;
    int n_dims;
    int dim[GOLDEN_DIMS_MAX];
    int64_t n;        /* elements */
    const float *f;   /* borrowed from the file; NULL when ints */
    const int32_t *i; /* NULL when floats */
};

struct golden {
    char *bytes;                 /* owned */
    struct golden_array *arrays; /* owned */
    int n;
};

/* path relative to the repository root, e.g. "tests/golden/data/t1.gold". */
enum fst_status golden_init(struct golden *g, const char *path);
void golden_release(struct golden *g);
/* Stops the program when there is no such array: a test that cannot find its golden has failed. */
const struct golden_array *golden_get(const struct golden *g, const char *name);

#endif
