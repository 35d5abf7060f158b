/* prefix.c - what a request need not compute: restoring kept prefixes, keeping new ones, tiers below.
 *
 * The tree (kv/tree.h) keeps full pages and snapshots; here is when they are taken:
 *   prompt - 1   as soon as the prompt is computed: one token has to be computed again, and the last one
 *                is what the next turn may change
 *   end          of an answer, whoever ended it: the next turn goes on behind it
 *   every PREFIX_STRIDE positions of a long prompt or answer
 *   preamble     the end of what the request says others will share
 *   the fork     where a prompt leaves a path of pages that others share, so that the next one that leaves
 *                it there finds it: a preamble without a snapshot costs its tokens twice, not each time
 * Prefill stops at the last three, since a snapshot cannot be taken of a position that is far behind.
 *
 * What the tree lets go may be in a tier below it (kv/tiers.h): then the request waits in its slot until it is
 * back in the tree, and is placed again. */
#include <limits.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "engine/engine_int.h"
#include "kv/disk.h"
#include "kv/host.h"

enum {
    PREFIX_STRIDE = 4096,
    PREFIX_SNAPSHOTS = 128,
    PREFIX_PREAMBLE = 64, /* fewer are computed sooner than they are worth their bytes */
    NOTE_NO_DRAFTER = 1,  /* of a snapshot: without the drafter's window; */
    NOTE_WHOLE = 2,       /* with it.  From a tier there is no note: taken to be with it */
    PREFIX_LOADS = 16     /* a load that found less than it was for is followed by one of less */
};

/* How long a request waits for what only a disk has of it.  Timeout's numbers are SGLang's. */
enum load_policy { LOAD_WAIT_COMPLETE, LOAD_BEST_EFFORT, LOAD_TIMEOUT };
#define LOAD_TIMEOUT_NS      INT64_C(1000000000)
#define LOAD_TIMEOUT_KI_NS   INT64_C(250000000) /* for each 1024 tokens */
#define LOAD_TIMEOUT_TAIL_NS INT64_C(250000000) /* for a snapshot on what has come */

/* Room for so many of the largest snapshots, within reason: it is written when the engine opens, like all its
 * memory.  Answers are the same with less of it, down to nothing. */
static int64_t default_budget(const struct kv *kv)
{
    int64_t bytes = PREFIX_SNAPSHOTS * kv_snapshot_bytes(kv, KERN_PAGE - 1);
    return FST_MIN(bytes, FST_MIN((int64_t)(mem_available_bytes() / 8), (int64_t)4 << 30));
}

/* Chunks that the smallest and the largest snapshot of more than a window's ids take. */
static void snapshot_chunks(const fst_engine *e, int64_t *least, int64_t *most)
{
    const struct tree *t = &e->tree;
    int64_t page = round_up(e->kv.spec.window, KERN_PAGE);
    *least = div_up(kv_snapshot_bytes(t->kv, page), t->opts.chunk_bytes);
    *most = div_up(kv_snapshot_bytes(t->kv, page + KERN_PAGE - 1), t->opts.chunk_bytes);
}

/* Less than that is allowed, and most likely a mistake: nobody would be told otherwise. */
static void say_if_small(const fst_engine *e)
{
    const struct tree *t = &e->tree;
    int64_t least, most, size = t->opts.chunk_bytes;
    snapshot_chunks(e, &least, &most);
    if (t->n_chunks >= most)
        return;
    log_warn("prefix cache",
             "flag=--prefix-cache-mb is=%lld expected=%lld one_snapshot_kib=%lld..%lld effect=%s",
             (long long)(t->opts.budget_bytes >> 20), (long long)div_up(most * size, 1 << 20),
             (long long)(least * size >> 10), (long long)(most * size >> 10),
             t->n_chunks < least ? "prefixes_are_not_kept" : "most_prefixes_are_not_kept");
}

/* ------------------------------------------------------------------ tiers */

enum fst_status prefix_check_opts(const struct fst_engine_opts *o)
{
    const struct {
        const char *flag;
        bool given;
    } needs[] = {{"--kv-disk-mb", o->kv_disk_bytes != 0},
                 {"--kv-disk-write-mb-hour", o->kv_disk_write_bytes_hour != 0},
                 {"--kv-disk-zstd", o->kv_disk_zstd}};

    for (size_t i = 0; !o->kv_disk_dir && i < FST_COUNT(needs); i++)
        if (needs[i].given)
            return fst_error(FST_EINVAL, "%s needs --kv-disk-dir: no folder is given",
                             needs[i].flag);
    if (o->kv_disk_dir && !o->kv_disk_dir[0])
        return fst_error(FST_EINVAL, "--kv-disk-dir is empty, expected the path of a folder");
    if (!(o->kv_host_ratio >= 0 && o->kv_host_ratio <= 1e6))
        return fst_error(FST_EINVAL, "--hicache-ratio must be in [0, 1000000], got %g",
                         o->kv_host_ratio);
    return FST_OK;
}

/* As much as two of each page would take, within reason: it is not written before it is used. */
static int64_t default_host(const struct kv *kv)
{
    int64_t bytes = 2 * kv->spec.n_pages * kv_page_bytes(kv, NULL);
    return FST_MIN(bytes, (int64_t)(mem_available_bytes() / 4));
}

static enum fst_status open_host(fst_engine *e, const struct fst_engine_opts *o, int layout,
                                 struct store **stores, int *n)
{
    int64_t parts[KV_LAYERS_MAX];
    char why[512];
    struct host_opts h = {.layout = (enum host_layout)layout,
                          .part_bytes = parts,
                          .n_parts = e->kv.spec.n_layers,
                          .stream = e->device ? &e->tier_stream : NULL};

    if (o->kv_host_bytes > 0)
        h.budget_bytes = o->kv_host_bytes;
    else if (o->kv_host_ratio > 0)
        h.n_frames = (int64_t)((double)e->kv.spec.n_pages * o->kv_host_ratio);
    else
        h.budget_bytes = default_host(&e->kv);
    if (o->kv_host_ratio > 0 && h.n_frames < 1 && !h.budget_bytes)
        return fst_error(FST_EINVAL, "--hicache-ratio %g of %lld pages is none, expected one",
                         o->kv_host_ratio, (long long)e->kv.spec.n_pages);
    kv_page_bytes(&e->kv, parts);
    enum fst_status rc = host_open(&stores[*n], &h);
    if (rc == FST_ENOMEM) { /* a tier is a help, not a need */
        log_warn("tiers", "host=off why=\"%s\"", fst_error_text());
        return FST_OK;
    }
    if (rc < 0) {
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(rc, "--kv-host-mb: %s", why);
    }
    e->info.kv_host_bytes = (uint64_t)(h.budget_bytes ? h.budget_bytes : host_bytes(stores[*n]));
    ++*n;
    return FST_OK;
}

/* Of the program, a card's module and the card: others may round, or cost, otherwise. */
uint64_t engine_build_digest(const struct device *d)
{
    struct file_map m = {0};
    uint64_t h = 0;

    if (file_map_open(&m, "/proc/self/exe") == FST_OK)
        h = hash64(m.data, m.size, d ? d->digest : 0);
    file_map_release(&m);
    return d ? hash64(d->card, strlen(d->card), h) : h;
}

/* What the bytes of pages and snapshots depend on. */
static void name_numerics(const fst_engine *e, char *out, size_t size)
{
    snprintf(out, size,
             "kv1 rows=%s keys=%s precision=%s kernels=%s layers=%d window=%d build=%016llx",
             e->info.kv_layout, e->info.index_keys, e->info.precision, e->kernels.name,
             e->kv.spec.n_layers, e->window, (unsigned long long)engine_build_digest(e->device));
}

/* Tensors, and what config.json says about them. */
static void name_weights(const fst_engine *e, char *out, size_t size)
{
    struct buf config = {0};
    char path[4096];
    uint64_t h = weights_digest(e->weights);

    if (file_join(path, sizeof path, e->model_dir, "config.json") == FST_OK &&
        file_read(&config, path, 1 << 20) == FST_OK)
        h = hash64(config.data, config.len, h);
    buf_release(&config);
    snprintf(out, size, "%.64s %016llx", e->weights->config.model_type, (unsigned long long)h);
}

static enum fst_status open_disk(fst_engine *e, const struct fst_engine_opts *o,
                                 struct store **stores, int *n)
{
    char numerics[DISK_TEXT_MAX + 1], weights[DISK_TEXT_MAX + 1], why[512];
    struct disk_opts d;

    disk_opts_default(&d);
    name_numerics(e, numerics, sizeof numerics);
    name_weights(e, weights, sizeof weights);
    d.dir = o->kv_disk_dir;
    d.numerics = numerics;
    d.weights = weights;
    if (o->kv_disk_bytes)
        d.budget_bytes = o->kv_disk_bytes;
    d.write_bytes_hour = o->kv_disk_write_bytes_hour;
    d.zstd = o->kv_disk_zstd;
    enum fst_status rc = disk_open(&stores[*n], &d);
    if (rc == FST_EINVAL) {
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(rc, "--kv-disk-dir: %s", why);
    }
    if (rc <
        0) { /* another server has it, the folder can't be made: a tier is a help, not a need */
        log_warn("tiers", "disk=off why=\"%s\"", fst_error_text());
        return FST_OK;
    }
    ++*n;
    e->kv_disk_dir = mem_strdup(o->kv_disk_dir);
    e->info.kv_disk_dir = e->kv_disk_dir;
    return e->kv_disk_dir ? FST_OK : fst_error(FST_ENOMEM, "engine: no memory");
}

static void wake(void *ud)
{
    door_kick(((fst_engine *)ud)->door);
}

/* In the order in which they are asked. */
static enum fst_status open_tiers(fst_engine *e, const struct fst_engine_opts *o)
{
    static const char *const layouts[] = {"page_first_direct", "layer_first"};
    static const char *const policies[] = {"write_through", "write_through_selective",
                                           "write_back"};
    static const char *const loads[] = {"wait_complete", "best_effort", "timeout"};
    struct store *stores[TIERS_MAX];
    char path[PATH_MAX];
    struct tiers_opts t;
    enum fst_status rc = FST_OK;
    int layout, policy, n = 0;

    FST_TRY(engine_word("--hicache-mem-layout", o->kv_host_layout, layouts[0], layouts,
                        FST_COUNT(layouts), &layout));
    FST_TRY(engine_word("--hicache-write-policy", o->kv_write_policy, policies[0], policies,
                        FST_COUNT(policies), &policy));
    FST_TRY(engine_word("--hicache-storage-prefetch-policy", o->kv_load_policy, loads[0], loads,
                        FST_COUNT(loads), &e->load_policy));
    if (!o->kv_host_bytes && !o->kv_disk_dir)
        return FST_OK;
    if (!e->prefix) {
        log_info("tiers", "off why=disable_radix_cache");
        return FST_OK;
    }
    if (e->device)
        FST_TRY(stream_init(&e->tier_stream, e->device, NULL, e->stream.precision, 0));
    if (o->kv_host_bytes)
        rc = open_host(e, o, layout, stores, &n);
    if (rc == FST_OK && o->kv_disk_dir)
        rc = open_disk(e, o, stores, &n);
    if (rc < 0 || n == 0) {
        for (int i = 0; i < n; i++)
            stores[i]->ops->close(stores[i]);
        return rc;
    }
    tiers_opts_default(&t);
    t.policy = (enum tiers_policy)policy;
    t.stream = e->device ? &e->tier_stream : NULL;
    t.wake = wake;
    t.wake_ud = e;
    rc = tiers_open(&e->tiers, &e->tree, stores, n, &t);
    if (rc == FST_ENOMEM) {
        log_warn("tiers", "off why=\"%s\"", fst_error_text());
        e->info.kv_host_bytes = 0;
        e->info.kv_disk_dir = NULL;
        return FST_OK;
    }
    FST_TRY(rc);
    prefix_stats(e);
    const char *dir = e->info.kv_disk_dir ? e->info.kv_disk_dir : "off";
    log_info("tiers", "host_mb=%lld disk=%s policy=%s layout=%s loads=%s",
             (long long)(e->info.kv_host_bytes >> 20),
             log_value(path, sizeof path, dir, strlen(dir)), policies[policy], layouts[layout],
             loads[e->load_policy]);
    return FST_OK;
}

enum fst_status prefix_open(fst_engine *e, const struct fst_engine_opts *o)
{
    struct tree_opts t;

    e->prefix = !o->disable_prefix_cache;
    e->check_memory = o->check_memory;
    if (!e->prefix)
        return open_tiers(e, o);
    tree_opts_default(&t);
    t.kernels = &e->kernels;
    t.stream = &e->stream;
    if (e->device) /* a chunk is a copy over the bus */
        t.chunk_bytes = (int64_t)1 << 20;
    t.budget_bytes = o->prefix_cache_bytes ? o->prefix_cache_bytes : default_budget(&e->kv);
    FST_TRY(tree_init(&e->tree, &e->kv, &t));
    e->info.prefix_cache_bytes = (uint64_t)(e->tree.n_chunks * t.chunk_bytes);
    say_if_small(e);
    return open_tiers(e, o);
}

bool prefix_loaded(fst_engine *e, const fst_request *r)
{
    return !tiers_loading(e->tiers, r->slot);
}

void prefix_stop_load(fst_engine *e, const fst_request *r)
{
    tiers_stop(e->tiers, r->slot);
}

void prefix_wait_load(fst_engine *e, fst_request *r, bool wanted)
{
    bool late = e->load_policy == LOAD_TIMEOUT       ? engine_now_ns() >= r->load_end_ns
                : e->load_policy == LOAD_BEST_EFFORT ? wanted && r->load_turns > 0
                                                     : false;

    r->load_turns++;
    r->hastened |= late;
    if (late)
        tiers_hasten(e->tiers, r->slot);
}

void prefix_await_load(fst_engine *e, const fst_request *r)
{
    tiers_await(e->tiers, r->slot);
}

void prefix_end_load(fst_engine *e, const fst_request *r)
{
    (void)tiers_end(e->tiers, r->slot);
}

static void check(const fst_engine *e)
{
    enum fst_status rc = kv_check(&e->kv);

    if (rc == FST_OK && e->prefix)
        rc = tree_check(&e->tree);
    if (rc == FST_OK && e->tiers)
        rc = tiers_check(e->tiers);
    if (rc < 0)
        log_error("prefix", "%s", fst_error_text());
    FST_ASSERT(rc == FST_OK);
}

void prefix_poll(fst_engine *e)
{
    if (!e->tiers)
        return;
    tiers_poll(e->tiers);
    if (e->flushing && !tiers_copying(e->tiers)) { /* what was being copied has stayed */
        tree_flush(&e->tree);
        e->flushing = false;
    }
}

void prefix_post(fst_engine *e)
{
    if (e->tiers && !e->short_of_pages)
        tiers_post(e->tiers);
    if (e->check_memory)
        check(e);
}

bool prefix_busy(const fst_engine *e)
{
    return e->n_loading > 0 || (e->tiers && tiers_copying(e->tiers));
}

void prefix_stats(fst_engine *e)
{
    struct fst_engine_stats *to = &e->stats;
    struct tiers_stats t;

    to->loading = e->n_loading;
    if (!e->tiers)
        return;
    tiers_get_stats(e->tiers, &t);
    to->loads = t.n_loads;
    to->loads_incomplete = t.n_incomplete;
    to->loaded_tokens = t.loaded_tokens;
    to->tier_queue = t.n_queued;
    to->n_tiers = t.n_stores;
    for (int i = 0; i < t.n_stores; i++) {
        const struct store_stats *s = &t.store[i];
        to->tier[i] = (struct fst_tier_stats){.name = t.name[i],
                                              .objects = s->n_objects,
                                              .bytes = s->bytes,
                                              .n_put = s->n_put,
                                              .put_bytes = s->put_bytes,
                                              .n_got = s->n_got,
                                              .got_bytes = s->got_bytes,
                                              .n_missed = s->n_missed,
                                              .n_evicted = s->n_evicted,
                                              .n_refused = s->n_refused,
                                              .n_bad = s->n_bad};
    }
}

_Static_assert((int)FST_TIERS_MAX == (int)TIERS_MAX, "every tier has its statistics");

/* ------------------------------------------------------------------ place, keep */

static struct tree_salt salt_of(const fst_request *r)
{
    struct tree_salt s;
    memcpy(s.word, r->o.cache_salt, sizeof s.word);
    return s;
}

/* How far what is kept goes along with a request's tokens, and why it was not more. */
static struct fst_prefix_report report(const fst_engine *e, const fst_request *r,
                                       const struct tree_salt *salt, const struct tree_hit *hit)
{
    struct fst_prefix_report p = {.boundary = (size_t)hit->n_restore};
    bool differs = false;

    if (!e->prefix || r->scores_prompt) {
        p.reason = e->prefix ? FST_PREFIX_SCORED : FST_PREFIX_OFF;
        return p;
    }
    p.reason = FST_PREFIX_NEW;
    if (e->flushing) /* nothing was looked for */
        return p;
    int64_t same = tree_common(&e->tree, salt, r->ids, r->n_known, hit, &differs);
    p.same = (size_t)same;
    if (hit->n_restore == r->n_known - 1)
        p.reason = FST_PREFIX_WHOLE;
    else if (same == 0)
        p.reason = FST_PREFIX_NEW;
    else if (same == r->n_known)
        p.reason = FST_PREFIX_DROPPED;
    else
        p.reason = differs ? FST_PREFIX_DIFFERS : FST_PREFIX_ENDS;
    return p;
}

static void begin_load(fst_engine *e, fst_request *r, int slot)
{
    int64_t ns = LOAD_TIMEOUT_NS + tiers_gain(e->tiers, slot) * LOAD_TIMEOUT_KI_NS / 1024;

    r->load_end_ns = engine_now_ns() + (r->hastened ? LOAD_TIMEOUT_TAIL_NS : ns);
    r->load_turns = 0;
    r->n_loads = r->hastened ? PREFIX_LOADS : r->n_loads + 1;
}

enum fst_status prefix_place(fst_engine *e, fst_request *r, int slot)
{
    struct tree_salt salt = salt_of(r);
    struct tree_hit hit = {0};

    r->n_committed = r->n_kept = r->n_fork = 0;
    draft_begin(e, r, 0, true);
    /* Every row of a prompt that is scored has to be computed. */
    bool known = e->prefix && !e->flushing && !r->scores_prompt;
    if (known)
        tree_match(&e->tree, &salt, r->ids, r->n_known, &hit);
    if (known && e->tiers && r->n_loads < PREFIX_LOADS) {
        /* Of a load that took too long there are some pages: a snapshot may stand on them. */
        int64_t n = r->hastened ? FST_MIN(hit.n_full + KERN_PAGE, r->n_known) : r->n_known;
        enum fst_status rc = tiers_load(e->tiers, slot, &salt, r->ids, n, &hit, &r->hold);
        if (rc == FST_OK)
            begin_load(e, r, slot);
        if (rc != FST_EAGAIN)
            return rc == FST_OK ? FST_EAGAIN : rc;
        tree_match(&e->tree, &salt, r->ids, r->n_known, &hit);
    }
    if (r->o.report_prefix && !r->counted_prompt)
        r->prefix = report(e, r, &salt, &hit);
    if (hit.n_full > hit.n_restore && hit.n_full < r->n_known)
        r->n_fork = hit.n_full;
    if (!hit.n_restore)
        return kv_reserve(&e->kv, slot, r->n_known);
    FST_TRY(tree_restore(&e->tree, slot, &hit, r->n_known, &r->hold));
    r->n_committed = r->n_kept = hit.n_restore;
    draft_begin(e, r, hit.n_restore, e->tree.snapshot[hit.snapshot].note != NOTE_NO_DRAFTER);
    if (r->counted_prompt)
        e->stats.resumed_tokens += (uint64_t)hit.n_restore;
    else {
        r->n_cached = FST_MIN(hit.n_restore, r->n_prompt);
        e->stats.cached_tokens += (uint64_t)r->n_cached;
    }
    return FST_OK;
}

/* Where its preamble ends, if it is worth a snapshot; 0. */
static int64_t preamble_of(const fst_request *r)
{
    int64_t n = (int64_t)r->o.n_preamble;
    return n >= PREFIX_PREAMBLE && n < r->n_prompt - 1 ? n : 0;
}

/* Positions from n_committed on to the next one that prefill stops at; 0: nowhere. */
int64_t prefix_stop(const fst_engine *e, const fst_request *r)
{
    int64_t stop = round_up(r->n_committed + 1, PREFIX_STRIDE);

    if (!e->prefix)
        return 0;
    if (r->n_fork > r->n_committed)
        stop = FST_MIN(stop, r->n_fork);
    if (preamble_of(r) > r->n_committed)
        stop = FST_MIN(stop, preamble_of(r));
    return stop - r->n_committed;
}

/* A snapshot at n, if it is new and its rows are all still there. */
static void keep_at(fst_engine *e, fst_request *r, int64_t n)
{
    struct tree_salt salt = salt_of(r);

    if (n <= r->n_kept || n > r->n_committed || r->n_written - n > kv_snapshot_slack(&e->kv))
        return;
    bool drafter = draft_settle(e, r);
    enum fst_status rc = tree_take(&e->tree, r->slot, &salt, r->ids, n, r->n_written, &r->hold);
    if (rc == FST_OK) {
        r->n_kept = n;
        if (e->drafting)
            tree_note(&e->tree, &salt, r->ids, n, drafter ? NOTE_WHOLE : NOTE_NO_DRAFTER);
    }
    if (rc < 0 && rc != FST_EBUDGET) /* no room is no fault: somebody else will compute it again */
        log_warn("prefix", "a snapshot at %lld was not kept: %s", (long long)n, fst_error_text());
}

void prefix_keep(fst_engine *e, fst_request *r, int64_t n_before, bool ends)
{
    int64_t stride = r->n_committed / PREFIX_STRIDE * PREFIX_STRIDE;
    int64_t end = r->n_reply < 0 ? r->n_known : r->n_prompt + r->n_reply;

    if (!e->prefix)
        return;
    if (n_before < r->n_prompt && r->n_committed >= r->n_prompt)
        keep_at(e, r, r->n_prompt - 1);
    if (r->n_fork > n_before)
        keep_at(e, r, r->n_fork);
    if (preamble_of(r) > n_before)
        keep_at(e, r, preamble_of(r));
    if (stride > n_before && stride <= end)
        keep_at(e, r, stride);
    if (ends) /* not what was computed behind the last token of the answer */
        keep_at(e, r, FST_MIN(r->n_committed, end - 1));
}

void prefix_let_go(fst_engine *e, fst_request *r)
{
    if (e->prefix)
        tree_unlock(&e->tree, &r->hold);
}

void prefix_flush(fst_engine *e)
{
    if (e->prefix)
        tree_flush(&e->tree);
    if (!e->tiers)
        return;
    tiers_clear(e->tiers);
    e->flushing = tiers_copying(e->tiers);
}

void prefix_close(fst_engine *e, int64_t end_ns)
{
    tiers_close_by(e->tiers, end_ns);
    stream_release(&e->tier_stream);
    tree_release(&e->tree);
    mem_free(e->kv_disk_dir);
}
