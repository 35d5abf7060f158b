/* bench_kv.c - `bench kv`: what the prefix tree costs: finding a long prompt, taking and restoring snapshots of a
 * model's geometry, and what brings pages to a host tier and back, against a plain copy in the same run: memcpy, or
 * over the bus of a card.  No weights, no engine; the contents do not matter. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "kv/host.h"
#include "kv/snapshot.h"
#include "kv/tiers.h"
#include "model/model.h"
#include "tools/bench.h"
#include "weights/weights.h"

enum { TIMES = 15, KEPT = 4, TOKENS = 100000, TIER_PAGES = 256 };

struct kv_bench {
    struct bench *b;
    struct weights *shape;
    const struct device *device; /* NULL: the host */
    struct pool *pool;
    struct kernels kernels;
    struct stream stream;
    struct kv kv;
    struct tree tree;
    int32_t *ids;
    uint8_t *from, *to; /* for the plain copy */
    size_t copy_bytes;
    int64_t n;
    int slot;
    double us[TIMES];
};

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median of so many of k->us as a row. */
static enum fst_status put_times(struct kv_bench *k, const char *name, const char *kind, int64_t n,
                                 double bytes, int times)
{
    qsort(k->us, (size_t)times, sizeof *k->us, by_time);
    struct bench_row *r = bench_add(k->b, name, kind);
    if (!r)
        return fst_error(FST_ENOMEM, "bench: no memory");
    r->rows = 1;
    r->calls = times;
    r->context = n;
    r->time_us = k->us[times / 2];
    r->p95_us = k->us[times - 1];
    r->c.bytes = bytes;
    return FST_OK;
}

static enum fst_status put(struct kv_bench *k, const char *name, const char *kind, int64_t n,
                           double bytes)
{
    return put_times(k, name, kind, n, bytes, TIMES);
}

static double since_us(int64_t start)
{
    return (double)(clock_ns() - start) * 1e-3;
}

static enum fst_status open_all(struct kv_bench *k, const struct options *o)
{
    static const enum row_format formats[] = {ROW_FP8, ROW_BF16, ROW_PAGED};
    const char *preset = options_text(o, "synthetic");
    struct weights_report *report;
    struct tree_opts t;

    preset = preset ? preset : "v4-flash-dspark";
    enum fst_status rc = weights_inspect_preset(&report, preset);
    if (rc < 0)
        return rc == FST_ENOTFOUND ? FST_EINVAL : rc;
    rc = weights_shape(&k->shape, &report->config);
    weights_report_free(report);
    FST_TRY(rc);
    if (k->shape->config.v41)
        return fst_error(FST_EUNSUPPORTED, "--synthetic %s: its KV memory is not built", preset);
    snprintf(k->b->preset, sizeof k->b->preset, "%s", preset);
    k->b->cfg = k->shape->config;
    static const char *const devices[] = {"cpu", "cuda", "hip"};
    FST_TRY(device_open(&k->device, devices[options_word(o, "device")]));
    FST_TRY(pool_new(&k->pool, k->device ? 1 : (int)options_int(o, "threads", 0)));
    if (k->device)
        FST_TRY(kernels_of_device(&k->kernels, k->device, options_text(o, "kernels"),
                                  PRECISION_NATIVE));
    else
        FST_TRY(kernels_select(&k->kernels, options_text(o, "kernels"), PRECISION_NATIVE));
    FST_TRY(stream_init(&k->stream, k->device, k->pool, PRECISION_NATIVE, 0));
    k->b->threads = pool_threads(k->pool);
    snprintf(k->b->kernels, sizeof k->b->kernels, "%s", k->kernels.name);
    if (k->device) {
        snprintf(k->b->card, sizeof k->b->card, "%s", k->device->card);
        snprintf(k->b->driver, sizeof k->b->driver, "%s", k->device->driver);
    }
    snprintf(k->b->layout, sizeof k->b->layout, "%s",
             (const char *const[]){"unified-fp8", "unified-bf16",
                                   "paged"}[options_word(o, "kv-layout")]);
    k->n = options_is_given(o, "context") ? options_int(o, "context", 0) : TOKENS;
    if (k->n < 2 * KERN_PAGE)
        return fst_error(FST_EINVAL, "--context of bench kv must be at least %d, got %lld",
                         2 * KERN_PAGE, (long long)k->n);
    struct kv_spec spec = {.device = k->device,
                           .block = FST_MAX(k->b->cfg.gamma + 1, 2),
                           .format = formats[options_word(o, "kv-layout")],
                           .index_format = options_word(o, "index-keys") ? INDEX_FP8 : INDEX_FP4,
                           .n_slots = 2,
                           .n_pages = div_up(k->n, KERN_PAGE) + 2,
                           .context_length = round_up(k->n, KERN_PAGE) + KERN_PAGE};
    model_kv_spec(k->shape, k->shape->n_stages > 0, &spec);
    FST_TRY(kv_init(&k->kv, &spec));
    tree_opts_default(&t);
    t.kernels = &k->kernels;
    t.stream = &k->stream;
    if (k->device) /* as the engine's */
        t.chunk_bytes = (int64_t)1 << 20;
    t.budget_bytes = KEPT * (kv_snapshot_bytes(&k->kv, KERN_PAGE - 1) + t.chunk_bytes);
    FST_TRY(tree_init(&k->tree, &k->kv, &t));
    k->copy_bytes = (size_t)kv_snapshot_bytes(&k->kv, KERN_PAGE - 1);
    k->ids = mem_alloc((size_t)k->n * sizeof *k->ids);
    k->from = device_alloc_shared(k->device, k->copy_bytes);
    k->to = device_alloc(k->device, k->copy_bytes);
    if (!k->ids || !k->from || !k->to)
        return fst_error(FST_ENOMEM, "bench: no memory");
    struct rng r;
    rng_init(&r, 1);
    for (int64_t i = 0; i < k->n; i++)
        k->ids[i] = (int32_t)rng_below(&r, (uint64_t)k->b->cfg.vocab_size);
    FST_TRY(kv_slot_open(&k->kv, &k->slot));
    return kv_reserve(&k->kv, k->slot, k->n);
}

/* What a copy of a snapshot's bytes takes here: the ceiling of all rows. */
static enum fst_status copies(struct kv_bench *k)
{
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        FST_TRY(device_copy(k->device, k->to, k->from, k->copy_bytes));
        k->us[i] = since_us(start);
        k->from[(size_t)i] =
            (uint8_t)(k->device ? i : k->to[k->copy_bytes - 1]); /* not to be left out */
    }
    qsort(k->us, TIMES, sizeof *k->us, by_time);
    k->b->m.read_bytes_s = (double)k->copy_bytes / k->us[TIMES / 2] * 1e6;
    return FST_OK;
}

/* How long a card's stream is kept by taking the snapshot that was found, as a row of its own: from the first
 * run of its list to the end of the launch that gathers them. */
static enum fst_status take_stream(struct kv_bench *k, const struct tree_hit *hit, const char *kind,
                                   double bytes)
{
    struct tree *t = &k->tree;
    const struct mover_chunks to = {t->arena, t->chunk_next, t->opts.chunk_bytes,
                                    t->snapshot[hit->snapshot].chunk};

    if (!k->device || !k->device->mark)
        return FST_OK;
    for (int i = 0; i < TIMES; i++) {
        FST_TRY(mover_settle(&t->mover));
        FST_TRY(stream_mark(&k->stream, 0));
        FST_TRY(mover_take(&t->mover, k->slot, hit->n_restore, &to));
        FST_TRY(stream_mark(&k->stream, 1));
        FST_TRY(stream_sync(&k->stream));
        FST_TRY(stream_between(&k->stream, 0, 1, &k->us[i]));
    }
    FST_TRY(mover_settle(&t->mover));
    return put(k, "kv/take_stream", kind, hit->n_restore, bytes);
}

/* A snapshot at n, over and over, and a slot that goes on from it.  On a card a call returns when its copies over
 * the bus have begun (take) or its launch has (restore); the time is to the end of all. */
static enum fst_status at(struct kv_bench *k, const char *kind, int64_t n)
{
    const struct tree_salt salt = {{0}};
    struct tree_hold hold = {0};
    struct tree_hit hit;
    double bytes = (double)kv_snapshot_bytes(&k->kv, n);
    int slot;

    kv_commit(&k->kv, k->slot, n);
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        FST_TRY(tree_take(&k->tree, k->slot, &salt, k->ids, n, n, NULL));
        FST_TRY(mover_settle(&k->tree.mover));
        k->us[i] = since_us(start);
        if (i + 1 < TIMES && !tree_drop(&k->tree, &salt, k->ids, n))
            return fst_error(FST_EINTERNAL, "bench: a snapshot at %lld is not found", (long long)n);
    }
    FST_TRY(put(k, "kv/take", kind, n, bytes));
    FST_TRY(kv_slot_open(&k->kv, &slot));
    for (int i = 0; i < TIMES; i++) {
        tree_match(&k->tree, &salt, k->ids, n + 1, &hit);
        if (hit.n_restore != n)
            return fst_error(FST_EINTERNAL, "bench: %lld of %lld are found",
                             (long long)hit.n_restore, (long long)n);
        int64_t start = clock_ns();
        FST_TRY(tree_restore(&k->tree, slot, &hit, n + 1, &hold));
        FST_TRY(mover_settle(&k->tree.mover));
        k->us[i] = since_us(start);
        tree_unlock(&k->tree, &hold);
        kv_slot_reset(&k->kv, slot);
    }
    kv_slot_close(&k->kv, slot);
    FST_TRY(put(k, "kv/restore", kind, n, bytes));
    return take_stream(k, &hit, kind, bytes);
}

/* Pages of the slot to a host tier by the tiers' own thread, and from there to another slot, over and over. */
static enum fst_status to_and_fro(struct kv_bench *k, struct tiers *x, int64_t n, double bytes)
{
    const struct tree_salt salt = {{0}};
    struct tree_hold hold = {0};
    struct tree_hit hit;
    int slot;

    int64_t start = clock_ns();
    FST_TRY(tree_take(&k->tree, k->slot, &salt, k->ids, n, n, NULL));
    tiers_wait(x);
    k->us[0] = since_us(start);
    FST_TRY(put_times(k, "kv/host_put", "pages", n, bytes, 1));
    kv_slot_close(&k->kv, k->slot);
    FST_TRY(kv_slot_open(&k->kv, &slot));
    for (int i = 0; i < TIMES; i++) {
        tree_flush(&k->tree);
        tree_match(&k->tree, &salt, k->ids, n + 1, &hit);
        start = clock_ns();
        FST_TRY(tiers_load(x, slot, &salt, k->ids, n + 1, &hit, &hold));
        tiers_await(x, slot);
        k->us[i] = since_us(start);
        if (!tiers_end(x, slot))
            return fst_error(FST_EINTERNAL, "bench: of %lld ids not all came back", (long long)n);
        tiers_wait(x);
    }
    return put(k, "kv/host_get", "pages", n, bytes);
}

static enum fst_status host_tier(struct kv_bench *k)
{
    int64_t parts[KV_LAYERS_MAX], page = kv_page_bytes(&k->kv, parts);
    int64_t pages = FST_MIN((k->n - 1) / KERN_PAGE, TIER_PAGES), n = pages * KERN_PAGE;
    int64_t snapshot = kv_snapshot_bytes(&k->kv, n);
    struct stream side = {0};
    struct host_opts h = {.n_frames = pages + div_up(snapshot, page),
                          .part_bytes = parts,
                          .n_parts = k->kv.spec.n_layers,
                          .stream = k->device ? &side : NULL};
    struct tiers_opts to;
    struct tiers *x = NULL;
    struct store *store;

    tree_flush(&k->tree);
    if (k->device)
        FST_TRY(stream_init(&side, k->device, NULL, PRECISION_NATIVE, 0));
    enum fst_status rc = host_open(&store, &h);
    tiers_opts_default(&to);
    to.stream = h.stream;
    if (rc == FST_OK)
        rc = tiers_open(&x, &k->tree, &store, 1, &to);
    if (rc == FST_OK)
        rc = to_and_fro(k, x, n, (double)(pages * page + snapshot));
    tiers_close(x);
    stream_release(&side);
    return rc;
}

static enum fst_status run(struct kv_bench *k)
{
    const struct tree_salt salt = {{0}};
    int64_t end = (k->n - 1) / KERN_PAGE * KERN_PAGE; /* of a page, one id left behind it */
    struct tree_hit hit;

    FST_TRY(copies(k));
    FST_TRY(at(k, "most", end - 1));
    FST_TRY(at(k, "page", end));
    for (int i = 0; i < TIMES; i++) {
        int64_t start = clock_ns();
        tree_match(&k->tree, &salt, k->ids, k->n, &hit);
        k->us[i] = since_us(start);
    }
    FST_TRY(put(k, "kv/match", "ids", k->n, (double)k->n * (double)sizeof *k->ids));
    return host_tier(k);
}

enum fst_status bench_kv(struct bench *b, const struct options *o)
{
    struct kv_bench k = {.b = b};
    enum fst_status rc;

    bench_host_names(b);
    rc = open_all(&k, o);
    if (rc == FST_OK)
        rc = run(&k);
    tree_release(&k.tree);
    kv_release(&k.kv);
    weights_free(k.shape);
    mem_free(k.ids);
    device_free_shared(k.device, k.from, k.copy_bytes);
    device_free(k.device, k.to, k.copy_bytes);
    stream_release(&k.stream);
    pool_free(k.pool);
    return rc;
}
