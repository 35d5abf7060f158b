/* Rejected drafts leave no trace: after many rounds of verifying blocks with random accept lengths,
 * every live row, entry, index key and compressor input and the next logits have the bits of a fresh
 * prefill of the committed tokens (dspark rollback without copies; ring = window + gamma). */
#include "support/rig.h"

static struct weights *t1, *small;
static struct kernels sets[3];
static int n_sets;

static int setup(void **state)
{
    struct hashweights_spec a = hashweights_dspark(), b = rig_small(HASHWEIGHTS_FP4);
    (void)state;
    t1 = rig_weights(&a);
    small = rig_weights(&b);
    n_sets = rig_sets(sets);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weights_free(t1);
    weights_free(small);
    return 0;
}

static void same_rows(const struct rig *a, int sa, const struct rig *b, int sb, int64_t n)
{
    const struct kv_spec *spec = &a->kv.spec;
    float x[512], y[512];
    char what[96];
    for (int l = 0; l < spec->n_layers; l++) {
        int ratio = spec->ratio[l];
        /* what the query at n-1 saw, plus the drafters' window of n-window .. n-1 */
        for (int64_t p = FST_MAX(0, n - spec->window); p < n; p++) {
            kv_read_window(&a->kv, l, sa, p, x);
            kv_read_window(&b->kv, l, sb, p, y);
            snprintf(what, sizeof what, "layer %d, window row %lld of %lld", l, (long long)p,
                     (long long)n);
            rig_same(x, y, spec->head_dim, what);
        }
        for (int64_t e = 0; ratio && e < n / ratio; e++) {
            kv_read_entry(&a->kv, l, sa, e, x);
            kv_read_entry(&b->kv, l, sb, e, y);
            snprintf(what, sizeof what, "layer %d, entry %lld of %lld tokens", l, (long long)e,
                     (long long)n);
            rig_same(x, y, spec->head_dim, what);
        }
        for (int64_t e = 0; ratio == 4 && e < n / 4; e++) {
            kv_read_index(&a->kv, l, sa, e, x);
            kv_read_index(&b->kv, l, sb, e, y);
            snprintf(what, sizeof what, "layer %d, index key %lld", l, (long long)e);
            rig_same(x, y, spec->index_dim, what);
        }
        /* inputs of the open group, with overlap those of the group before it too */
        int64_t from = ratio == 4 ? n / 4 * 4 - 4 : ratio ? n / 128 * 128 : n;
        for (int64_t p = FST_MAX(0, from); p < n; p++) {
            const struct kv_layer *la = &a->kv.layer[l], *lb = &b->kv.layer[l];
            int64_t wide = (ratio == 4 ? 4 : 2) * (int64_t)spec->head_dim;
            snprintf(what, sizeof what, "layer %d, state of position %lld", l, (long long)p);
            rig_same(la->state + (sa * la->state_ring + p % la->state_ring) * wide,
                     lb->state + (sb * lb->state_ring + p % lb->state_ring) * wide, wide, what);
            wide = 4 * (int64_t)spec->index_dim;
            if (ratio == 4)
                rig_same(la->index_state + (sa * la->state_ring + p % la->state_ring) * wide,
                         lb->index_state + (sb * lb->state_ring + p % lb->state_ring) * wide, wide,
                         what);
        }
    }
}

/* One fresh prefill of ids[0..n-1], its rows, and the logits of one more token. */
static void same_as_fresh(const struct rig_opts *o, struct rig *r, int slot, const int32_t *ids,
                          int64_t n)
{
    struct rig f;
    rig_open(&f, o);
    rig_slot(&f); /* another slot, other pages: addresses must not matter */
    int fresh = rig_slot(&f);
    for (int64_t at = 0; at < n; at += o->max_rows) {
        int len = (int)FST_MIN(o->max_rows, n - at);
        rig_run(&f, fresh, at, ids + at, len);
        rig_inject(&f, 0, len);
    }
    same_rows(r, slot, &f, fresh, n);
    float *want = rig_run(&f, fresh, n, ids + n, 1);
    rig_same(rig_run(r, slot, n, ids + n, 1), want, r->vocab, "the next logits");
    /* the drafter sees the same windows: same block */
    int32_t a[8], b[8];
    float ca[8], cb[8];
    struct draw_params draw = {.temperature = 0.7f, .seed = 11};
    uint32_t out = 3;
    struct draft_batch d = {.n = 1,
                            .gamma = 5,
                            .slot = &slot,
                            .n_committed = &n,
                            .anchor = ids + n,
                            .draw = &draw,
                            .out_pos = &out,
                            .ids = a,
                            .conf = ca};
    rig_ok(model_draft(r->m, &r->kv, &d));
    d.slot = &fresh;
    d.ids = b;
    d.conf = cb;
    rig_ok(model_draft(f.m, &f.kv, &d));
    assert_memory_equal(a, b, 5 * sizeof *a);
    rig_same(ca, cb, 5, "the drafter's confidence");
    rig_close(&f);
}

/* Rounds on one slot: a block of gamma+1 rows, k of its drafts kept, the rest noise. */
static void play(const struct rig_opts *o, int gamma, int rounds, int start, int checks,
                 uint64_t seed, uint8_t (*seen)[8])
{
    struct rig r;
    struct test_rng rng = {seed};
    int32_t *ids = calloc((size_t)o->context, sizeof *ids), block[9];
    assert_non_null(ids);
    hashweights_tokens(ids, (int)o->context, o->w->config.vocab_size, seed);
    rig_open(&r, o);
    int slot = rig_slot(&r);
    int64_t n = start;
    if (n) {
        rig_run(&r, slot, 0, ids, (int)n);
        rig_inject(&r, 0, (int)n);
        kv_commit(&r.kv, slot, n);
    }
    for (int i = 0; i < rounds && n + gamma + 1 < o->context; i++) {
        int k = test_below(&rng, gamma + 1);
        for (int j = 0; seen && j <= gamma && seen[n % 128][k]; j++)
            k = (k + 1) % (gamma + 1); /* what has not been played here */
        for (int j = 0; j <= gamma; j++)
            block[j] = j <= k ? ids[n + j] : test_below(&rng, r.vocab);
        rig_run(&r, slot, n, block, gamma + 1);
        rig_inject(&r, 0, k + 1);
        if (seen)
            seen[n % 128][k] = 1;
        n += k + 1;
        kv_commit(&r.kv, slot, n);
        if (checks && (i + 1) % FST_MAX(1, rounds / checks) == 0) {
            same_as_fresh(o, &r, slot, ids,
                          n); /* its one more row is rewritten by the next round */
        }
    }
    same_as_fresh(o, &r, slot, ids, n);
    rig_ok(kv_check(&r.kv));
    rig_close(&r);
    free(ids);
}

static void test_reference(void **state)
{
    struct rig_opts o = {.w = t1,
                         .precision = PRECISION_REFERENCE,
                         .format = ROW_F32,
                         .index_format = INDEX_F32,
                         .max_rows = 128,
                         .n_slots = 2,
                         .context = 700,
                         .drafting = true};
    (void)state;
    for (int gamma = 1; gamma <= 8; gamma++) {
        o.block = gamma + 1;
        play(&o, gamma, test_size(24, 150, 2), test_size(140 - 17 * gamma, 100, 10), 1,
             (uint64_t)gamma, NULL);
    }
}

static void test_native(void **state)
{
    (void)state;
    for (int i = 0; i < n_sets; i++) {
        struct rig_opts o = {.w = small,
                             .kernels = &sets[i],
                             .precision = PRECISION_NATIVE,
                             .format = ROW_FP8,
                             .index_format = INDEX_FP4,
                             .max_rows = 128,
                             .n_slots = 2,
                             .context = 900,
                             .block = 6,
                             .drafting = true};
        play(&o, 5, test_size(sets[i].flags ? 60 : 14, 250, 2), 120, 2, 5, NULL);
        o.format = ROW_BF16;
        o.index_format = INDEX_FP8;
        play(&o, 5, test_size(sets[i].flags ? 30 : 5, 250, 2), 1, 1, 6, NULL);
    }
}

/* Long: rounds until every (n mod 128, k) has been played. */
static void test_all_residues(void **state)
{
    uint8_t seen[128][8] = {0};
    int want = 128 * 6, have = 0;
    (void)state;
    if (!test_size(0, 1, 0)) {
        print_message("sampled only: FST_TEST_SIZE=long plays every (n mod 128, k)\n");
        skip();
    }
    struct rig_opts o = {.w = t1,
                         .precision = PRECISION_REFERENCE,
                         .format = ROW_F32,
                         .index_format = INDEX_F32,
                         .max_rows = 128,
                         .n_slots = 2,
                         .context = 2000,
                         .block = 6,
                         .drafting = true};
    for (uint64_t seed = 1; have < want && seed < 60; seed++) {
        play(&o, 5, 520, (int)seed, 2, seed, seen);
        have = 0;
        for (int i = 0; i < 128 * 8; i++)
            have += seen[i / 8][i % 8];
    }
    assert_int_equal(have, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_native),
                                       cmocka_unit_test(test_all_residues)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
