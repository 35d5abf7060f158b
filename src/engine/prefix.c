/* prefix.c - what a request need not compute: restoring kept prefixes, keeping new ones.
 *
 * The tree (kv/tree.h) keeps full pages and snapshots; here is when they are taken:
 *   prompt - 1   as soon as the prompt is computed: one token has to be computed again, and the last one
 *                is what the next turn may change
 *   end          of an answer, whoever ended it: the next turn goes on behind it
 *   every PREFIX_STRIDE positions of a long prompt or answer
 *   the fork     where a prompt leaves a path of pages that others share, so that the next one that leaves
 *                it there finds it: a preamble without a snapshot costs its tokens twice, not each time
 * Prefill stops at the last two, since a snapshot cannot be taken of a position that is far behind. */
#include "base/log.h"
#include "engine/engine_int.h"

enum { PREFIX_STRIDE = 4096, PREFIX_SNAPSHOTS = 128 };

/* Room for so many of the largest snapshots, within reason: it is written when the engine opens, like all its
 * memory.  Answers are the same with less of it, down to nothing. */
static int64_t default_budget(const struct kv *kv)
{
    int64_t bytes = PREFIX_SNAPSHOTS * kv_snapshot_bytes(kv, KERN_PAGE - 1);
    return FST_MIN(bytes, FST_MIN((int64_t)(mem_available_bytes() / 8), (int64_t)4 << 30));
}

enum fst_status prefix_open(fst_engine *e, const struct fst_engine_opts *o)
{
    struct tree_opts t;

    e->prefix = !o->disable_prefix_cache && !e->device;
    if (!e->prefix)
        return FST_OK;
    tree_opts_default(&t);
    t.budget_bytes = o->prefix_cache_bytes ? o->prefix_cache_bytes : default_budget(&e->kv);
    FST_TRY(tree_init(&e->tree, &e->kv, &t));
    e->info.prefix_cache_bytes = (uint64_t)(e->tree.n_chunks * t.chunk_bytes);
    return FST_OK;
}

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

enum fst_status prefix_place(fst_engine *e, fst_request *r, int slot)
{
    struct tree_salt salt = salt_of(r);
    struct tree_hit hit = {0};

    r->n_committed = r->n_kept = r->n_fork = 0;
    /* Every row of a prompt that is scored has to be computed. */
    if (e->prefix && !r->scores_prompt)
        tree_match(&e->tree, &salt, r->ids, r->n_known, &hit);
    if (r->o.report_prefix && !r->counted_prompt)
        r->prefix = report(e, r, &salt, &hit);
    if (hit.n_full > hit.n_restore && hit.n_full < r->n_known)
        r->n_fork = hit.n_full;
    if (!hit.n_restore)
        return kv_reserve(&e->kv, slot, r->n_known);
    FST_TRY(tree_restore(&e->tree, slot, &hit, r->n_known, &r->hold));
    r->n_committed = r->n_kept = hit.n_restore;
    if (!r->counted_prompt) {
        r->n_cached = FST_MIN(hit.n_restore, r->n_prompt);
        e->stats.cached_tokens += (uint64_t)r->n_cached;
    }
    return FST_OK;
}

/* Positions from n_committed on to the next one that prefill stops at; 0: nowhere. */
int64_t prefix_stop(const fst_engine *e, const fst_request *r)
{
    int64_t stop = round_up(r->n_committed + 1, PREFIX_STRIDE);

    if (!e->prefix)
        return 0;
    if (r->n_fork > r->n_committed)
        stop = FST_MIN(stop, r->n_fork);
    return stop - r->n_committed;
}

/* A snapshot at n, if it is new and its rows are all still there. */
static void keep_at(fst_engine *e, fst_request *r, int64_t n)
{
    struct tree_salt salt = salt_of(r);

    if (n <= r->n_kept || n > r->n_committed || r->n_written - n > kv_snapshot_slack(&e->kv))
        return;
    enum fst_status rc = tree_take(&e->tree, r->slot, &salt, r->ids, n, r->n_written, &r->hold);
    if (rc == FST_OK)
        r->n_kept = n;
    else if (rc != FST_EBUDGET) /* no room is no fault: somebody else will compute it again */
        log_warn("prefix", "a snapshot at %lld was not kept: %s", (long long)n, fst_error_text());
}

void prefix_keep(fst_engine *e, fst_request *r, int64_t n_before, bool ends)
{
    int64_t stride = r->n_committed / PREFIX_STRIDE * PREFIX_STRIDE;

    if (!e->prefix)
        return;
    if (n_before < r->n_prompt && r->n_committed >= r->n_prompt)
        keep_at(e, r, r->n_prompt - 1);
    if (r->n_fork > n_before)
        keep_at(e, r, r->n_fork);
    if (stride > n_before)
        keep_at(e, r, stride);
    if (ends) /* not what was computed behind the last token that was given out */
        keep_at(e, r, FST_MIN(r->n_committed, r->n_known - 1));
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
}

void prefix_close(fst_engine *e)
{
    tree_release(&e->tree);
}
