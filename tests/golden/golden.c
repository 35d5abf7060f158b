/* golden.c - read a file of named arrays. */
#include "golden/golden.h"

#include <errno.h>

struct cursor {
    const char *p, *end;
    bool failed;
};

static uint32_t take_u32(struct cursor *c)
{
    uint32_t v = 0;
    if (c->end - c->p < 4) {
        c->failed = true;
        return 0;
    }
    memcpy(&v, c->p, 4);
    c->p += 4;
    return v;
}

static const char *take(struct cursor *c, int64_t n)
{
    const char *p = c->p;
    if (n < 0 || c->end - c->p < n) {
        c->failed = true;
        return NULL;
    }
    c->p += n;
    return p;
}

static void take_array(struct golden_array *a, struct cursor *c, const char *start)
{
    uint32_t len = take_u32(c);
    const char *name = take(c, len);
    if (c->failed || len >= sizeof a->name) {
        c->failed = true;
        return;
    }
    memcpy(a->name, name, len);
    a->ints = take_u32(c) != 0;
    a->n_dims = (int)take_u32(c);
    if (a->n_dims < 0 || a->n_dims > GOLDEN_DIMS_MAX) {
        c->failed = true;
        return;
    }
    a->n = 1;
    for (int d = 0; d < a->n_dims; d++) {
        a->dim[d] = (int)take_u32(c);
        a->n *= a->dim[d];
    }
    take(c, (4 - (c->p - start) % 4) % 4);
    const void *data = take(c, a->n * 4);
    a->f = a->ints ? NULL : data;
    a->i = a->ints ? data : NULL;
}

enum fst_status golden_init(struct golden *g, const char *path)
{
    char magic[8];
    enum fst_status rc = FST_OK;
    FILE *f = fopen(path, "rb");
    *g = (struct golden){0};
    if (!f)
        return fst_error(FST_EIO, "%s: %s", path, strerror(errno));
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    g->bytes = mem_alloc((size_t)FST_MAX(size, 1));
    if (!g->bytes || fread(g->bytes, 1, (size_t)size, f) != (size_t)size) {
        rc = fst_error(FST_EIO, "%s: cannot read", path);
        goto out;
    }
    struct cursor c = {g->bytes, g->bytes + size, false};
    const char *head = take(&c, 8);
    memcpy(magic, head ? head : "        ", 8);
    g->n = (int)take_u32(&c);
    if (memcmp(magic, "FSTGOLD1", 8) != 0 || g->n < 0 || g->n > 10000) {
        rc = fst_error(FST_EFORMAT, "%s: not a file of goldens", path);
        goto out;
    }
    g->arrays = mem_calloc((size_t)FST_MAX(g->n, 1), sizeof *g->arrays);
    for (int i = 0; g->arrays && i < g->n && !c.failed; i++)
        take_array(&g->arrays[i], &c, g->bytes);
    if (!g->arrays || c.failed)
        rc = fst_error(FST_EFORMAT, "%s: truncated", path);
out:
    fclose(f);
    if (rc < 0)
        golden_release(g);
    return rc;
}

void golden_release(struct golden *g)
{
    mem_free(g->arrays);
    mem_free(g->bytes);
    *g = (struct golden){0};
}

const struct golden_array *golden_get(const struct golden *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->arrays[i].name, name) == 0)
            return &g->arrays[i];
    fprintf(stderr, "no golden array \"%s\"\n", name);
    abort();
}
