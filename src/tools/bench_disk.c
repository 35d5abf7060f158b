/* bench_disk.c - `bench kv --disk-dir DIR`: what the disk tier gives back in a second, against one file of as many
 * bytes read from beginning to end, in the same folder and run, all of it past the page cache.
 *
 * Names kv by exception: it opens the tier as a server does. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/pool.h"
#include "base/rng.h"
#include "kv/disk.h"
#include "tools/bench.h"

/* READERS: threads of the deep sequential read, which is the ceiling; one alone leaves a device idle. */
enum { ROUNDS = 7, PIECE = 1 << 20, READERS = 8, IDS = 256 };

struct disk_bench {
    struct bench *b;
    char dir[PATH_MAX], file[PATH_MAX];
    int n;                 /* objects */
    int64_t object, bytes; /* payload of one; of all */
    uint8_t *data, *piece; /* (bytes); (READERS, PIECE), aligned */
    struct store_run *run;
    struct store_get *get;
    struct store_put *put;
    int32_t ids[IDS];
    struct store *s;
    struct pool *pool;
    int fd;
    bool failed;
    double plain_us[ROUNDS], deep_us[ROUNDS], get_us[ROUNDS];
};

static double since_us(int64_t start)
{
    return (double)(clock_ns() - start) * 1e-3;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static enum fst_status failed(const struct disk_bench *k, const char *what)
{
    return fst_error(FST_EIO, "%s: %s: %s", k->file, what, strerror(errno));
}

/* A chain of pages with random bytes. */
static enum fst_status prepare(struct disk_bench *k)
{
    struct rng r;
    struct store_key key = {{0, 0}};
    k->data = mem_aligned(4096, (size_t)k->bytes);
    k->piece = mem_aligned(4096, (size_t)READERS * PIECE);
    k->run = mem_calloc((size_t)k->n, sizeof *k->run);
    k->get = mem_calloc((size_t)k->n, sizeof *k->get);
    k->put = mem_calloc((size_t)k->n, sizeof *k->put);
    if (!k->data || !k->piece || !k->run || !k->get || !k->put)
        return fst_error(FST_ENOMEM, "bench: no memory for %lld bytes twice", (long long)k->bytes);
    rng_init(&r, 1);
    rng_bytes(&r, k->data, (size_t)k->bytes);
    for (int i = 0; i < k->n; i++) {
        struct store_name *name = &k->put[i].name;
        struct hash128 h = hash128(&i, sizeof i, (struct hash128){1, 2});
        *name = (struct store_name){.parent = key,
                                    .ids = k->ids,
                                    .n_ids = IDS,
                                    .kind = STORE_PAGE,
                                    .n = (int64_t)IDS * (i + 1)};
        name->key = key = (struct store_key){{h.lo, h.hi}};
        k->run[i] = (struct store_run){k->data + i * k->object, (size_t)k->object};
        k->put[i].runs = k->get[i].runs = &k->run[i];
        k->put[i].n_runs = k->get[i].n_runs = 1;
        k->get[i].name = *name;
    }
    return pool_new(&k->pool, READERS);
}

/* The one file, as many bytes as the objects'. */
static enum fst_status write_file(struct disk_bench *k)
{
    k->fd = open(k->file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (k->fd < 0)
        return failed(k, "cannot create");
    for (int64_t at = 0; at < k->bytes;) {
        ssize_t n = pwrite(k->fd, k->data + at, (size_t)(k->bytes - at), at);
        if (n <= 0)
            return failed(k, "cannot write");
        at += n;
    }
    if (fsync(k->fd) < 0)
        return failed(k, "cannot flush");
    close(k->fd);
    k->fd = open(k->file, O_RDONLY | O_DIRECT | O_CLOEXEC);
    return k->fd < 0 ? failed(k, "cannot be read past the page cache") : FST_OK;
}

/* Pieces first .. last-1 of the file. */
static void read_pieces(void *ud, int64_t first, int64_t last, int worker)
{
    struct disk_bench *k = ud;
    for (int64_t i = first; i < last; i++) {
        ssize_t n = pread(k->fd, k->piece + (size_t)worker * PIECE, PIECE, i * PIECE);
        if (n != PIECE && n != k->bytes - i * PIECE)
            k->failed = true;
    }
}

static enum fst_status measure(struct disk_bench *k)
{
    int64_t n_pieces = div_up(k->bytes, PIECE);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t start = clock_ns();
        read_pieces(k, 0, n_pieces, 0);
        k->plain_us[round] = since_us(start);
        start = clock_ns();
        pool_run(k->pool, n_pieces, 1, read_pieces, k);
        k->deep_us[round] = since_us(start);
        if (k->failed)
            return failed(k, "cannot read");
        start = clock_ns();
        k->s->ops->get(k->s, k->get, k->n);
        k->get_us[round] = since_us(start);
        for (int i = 0; i < k->n; i++)
            if (!k->get[i].found)
                return fst_error(FST_EIO, "%s: object %d of %d is not given back", k->dir, i, k->n);
        if (tool_interrupted(false))
            return fst_error(FST_ECANCELED, "bench: interrupted");
    }
    return FST_OK;
}

/* The median of `us` as a row; its floor is that of the deep sequential read. */
static enum fst_status add(struct disk_bench *k, const char *name, const char *kind, double *us,
                           int n)
{
    qsort(k->deep_us, ROUNDS, sizeof *us, by_time);
    if (us != k->deep_us)
        qsort(us, (size_t)n, sizeof *us, by_time);
    struct bench_row *r = bench_add(k->b, name, kind);
    if (!r)
        return fst_error(FST_ENOMEM, "bench: no memory");
    r->rows = k->n;
    r->calls = n;
    r->time_us = us[n / 2];
    r->p95_us = n > 1 ? us[n - 1] : 0;
    r->c.bytes = (double)k->bytes;
    r->read_bytes_s = (double)k->bytes / k->deep_us[ROUNDS / 2] * 1e6;
    return FST_OK;
}

static enum fst_status run(struct disk_bench *k, const struct disk_opts *o)
{
    double put_us;
    FST_TRY(prepare(k));
    FST_TRY(disk_open(&k->s, o));
    int64_t start = clock_ns();
    k->s->ops->put(k->s, k->put, k->n);
    k->s->ops->flush(k->s);
    put_us = since_us(start);
    for (int i = 0; i < k->n; i++)
        if (!k->put[i].kept)
            return fst_error(FST_EIO, "%s: object %d of %d is not kept; the log says why", k->dir,
                             i, k->n);
    FST_TRY(write_file(k));
    FST_TRY(measure(k));
    FST_TRY(add(k, "kv/disk_sequential", "plain", k->plain_us, ROUNDS));
    FST_TRY(add(k, "kv/disk_sequential", "deep", k->deep_us, ROUNDS));
    FST_TRY(add(k, "kv/disk_get", "restore", k->get_us, ROUNDS));
    return add(k, "kv/disk_put", "flushed", &put_us, 1);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    remove(path);
    return 0;
}

enum fst_status bench_disk(struct bench *b, const struct options *o)
{
    struct disk_bench k = {.b = b, .fd = -1};
    struct disk_opts d;
    char name[64];
    int64_t bytes = options_int(o, "disk-bytes", 0);

    k.object = options_int(o, "disk-object", 0);
    k.n = (int)div_up(bytes, k.object);
    k.bytes = k.n * k.object;
    snprintf(name, sizeof name, "firesteel-bench-%ld", (long)getpid());
    FST_TRY(file_join(k.dir, sizeof k.dir, options_text(o, "disk-dir"), name));
    if ((size_t)snprintf(k.file, sizeof k.file, "%s.file", k.dir) >= sizeof k.file)
        return fst_error(FST_EINVAL, "--disk-dir: path too long");
    disk_opts_default(&d);
    d.dir = k.dir;
    d.numerics = d.weights = "bench";
    d.budget_bytes = INT64_MAX;
    enum fst_status rc = run(&k, &d);
    if (k.s) {
        k.s->ops->close(k.s);
        nftw(k.dir, remove_one, READERS, FTW_DEPTH | FTW_PHYS); /* made above, for us alone */
    }
    if (k.fd >= 0)
        close(k.fd);
    file_remove(k.file);
    pool_free(k.pool);
    mem_free(k.data);
    mem_free(k.piece);
    mem_free(k.run);
    mem_free(k.get);
    mem_free(k.put);
    return rc;
}
