/* A snapshot's bytes: all that a reader behind it may read, in every format, and nothing else. */
#include "kernels/rows.h"
#include "kv/snapshot.h"
#include "kv/tree.h"
#include "support/cm.h"
#include "support/far.h"

enum { SLOTS = 3, PAGES = 9, CONTEXT = 1200, ALL_MAX = 64 };

static const enum row_format row_formats[] = {ROW_FP8, ROW_BF16, ROW_F32, ROW_PAGED};
static const enum index_format key_formats[] = {INDEX_FP4, INDEX_FP8, INDEX_F32};

static struct kv_spec spec_of(enum row_format format, enum index_format index)
{
    return (struct kv_spec){.n_layers = 4, /* the last one is a draft stage */
                            .ratio = {0, 4, 128, 0},
                            .head_dim = 512,
                            .rope_dim = 64,
                            .index_dim = 128,
                            .window = 128,
                            .carry_floats = 36,
                            .block = 6,
                            .format = format,
                            .index_format = index,
                            .n_slots = SLOTS,
                            .n_pages = PAGES,
                            .context_length = CONTEXT};
}

/* Other bytes in all of KV memory: rows, keys, states; not in the host's tables. */
static void fill(struct kv *kv, uint64_t seed)
{
    struct test_rng r = {seed};
    for (int b = 0; b < kv->n_blocks; b++) {
        uint8_t *p = kv->blocks[b].p;
        if (kv->blocks[b].shared)
            continue;
        for (size_t i = 0; i + 8 <= kv->blocks[b].bytes; i += 8) {
            uint64_t x = test_next(&r);
            memcpy(p + i, &x, sizeof x);
        }
    }
}

struct all { /* a copy of all that */
    uint8_t *p[ALL_MAX];
};

static void save(const struct kv *kv, struct all *a)
{
    assert_true(kv->n_blocks <= ALL_MAX);
    for (int b = 0; b < kv->n_blocks; b++) {
        a->p[b] = malloc(kv->blocks[b].bytes);
        assert_non_null(a->p[b]);
        memcpy(a->p[b], kv->blocks[b].p, kv->blocks[b].bytes);
    }
}

static void forget(const struct kv *kv, struct all *a)
{
    for (int b = 0; b < kv->n_blocks; b++)
        free(a->p[b]);
}

/* The same place in the copy. */
static uint8_t *in_copy(const struct kv *kv, const struct all *a, const void *at)
{
    for (int b = 0; b < kv->n_blocks; b++) {
        const uint8_t *p = kv->blocks[b].p, *x = at;
        if (x >= p && x < p + kv->blocks[b].bytes)
            return a->p[b] + (x - p);
    }
    fail_msg("outside of KV memory");
    return NULL;
}

struct pair { /* what slot `from` held when it was copied is what slot `to` has to hold */
    const struct kv *kv;
    const struct all *copy; /* of all memory, where the expectation grows */
    const struct all *then; /* memory at the snapshot */
    int from, to;
    const int32_t *then_pages; /* of `from` */
};

static void expect(const struct pair *p, const void *from, const void *to, int64_t bytes)
{
    memcpy(in_copy(p->kv, p->copy, to), in_copy(p->kv, p->then, from), (size_t)bytes);
}

static void expect_row(const struct pair *p, const struct kv_layer *l, int64_t from, int64_t to)
{
    static const int64_t bytes[] = {[ROW_FP8] = 512, [ROW_BF16] = 1024, [ROW_F32] = 2048};
    if (l->format == ROW_PAGED) {
        uint8_t *scale_from, *scale_to;
        uint8_t *a = rows_paged(l, from, &scale_from), *b = rows_paged(l, to, &scale_to);
        expect(p, a, b, 576);
        expect(p, scale_from, scale_to, 8);
        return;
    }
    expect(p, l->nope + from * bytes[l->format], l->nope + to * bytes[l->format], bytes[l->format]);
    if (l->format == ROW_FP8)
        expect(p, l->rope + from * 128, l->rope + to * 128, 128);
}

static void expect_key(const struct pair *p, const struct kv_layer *l, int64_t from_page,
                       int64_t to_page, int64_t t)
{
    static const int64_t page[] = {[INDEX_FP4] = 4352, [INDEX_FP8] = 8448, [INDEX_F32] = 32768};
    static const int64_t key[] = {[INDEX_FP4] = 64, [INDEX_FP8] = 128, [INDEX_F32] = 512};
    int64_t v = key[l->index_format];
    uint8_t *a = l->index_keys + from_page * page[l->index_format];
    uint8_t *b = l->index_keys + to_page * page[l->index_format];
    expect(p, a + t * v, b + t * v, v);
    if (l->index_format != INDEX_F32)
        expect(p, a + 64 * v + 4 * t, b + 64 * v + 4 * t, 4);
}

/* A position's inputs: kv | score; of one whose group is over, the overlap's half of each. */
static void expect_inputs(const struct pair *p, float *state, int ring, int width, int64_t pos,
                          bool half)
{
    float *a = state + (p->from * ring + pos % ring) * 2 * width;
    float *b = state + (p->to * ring + pos % ring) * 2 * width;
    for (int i = 0; i < 2; i++)
        expect(p, a + i * width, b + i * width, width * 4 / (half ? 2 : 1));
}

/* All that positions from n on can read, beside full pages: written out once more. */
static void expect_all(const struct pair *p, int64_t n)
{
    const struct kv *kv = p->kv;
    const int32_t *to = kv->pages + p->to * kv->page_stride;
    for (int i = 0; i < kv->spec.n_layers; i++) {
        const struct kv_layer *l = &kv->layer[i];
        for (int64_t pos = FST_MAX(0, n - 128); pos < n; pos++)
            expect_row(p, l, p->from * l->ring + pos % l->ring, p->to * l->ring + pos % l->ring);
        if (l->ratio == 4)
            for (int64_t pos = FST_MAX(0, n / 4 * 4 - 4); pos < n; pos++) {
                expect_inputs(p, l->state, 32, 1024, pos, n % 256 == 0);
                expect_inputs(p, l->index_state, 32, 256, pos, n % 256 == 0);
            }
        if (l->ratio == 128)
            for (int64_t pos = n / 128 * 128; pos < n; pos++)
                expect_inputs(p, l->state, 256, 512, pos, false);
        if (n % 256 == 0 || !l->ratio)
            continue;
        int64_t a = p->then_pages[n / 256], b = to[n / 256], per_page = 256 / l->ratio;
        for (int64_t e = 0; e < n % 256 / l->ratio; e++) {
            expect_row(p, l, l->compressed_base + a * per_page + e,
                       l->compressed_base + b * per_page + e);
            if (l->ratio == 4)
                expect_key(p, l, a, b, e);
        }
    }
    const int64_t ring = 133, width = 36, last = (n - 1) % ring;
    expect(p, kv->carry + (p->from * ring + last) * width,
           kv->carry + (p->to * ring + last) * width, width * 4);
}

static void ids_of(int32_t *ids, int64_t n, uint64_t seed)
{
    struct test_rng r = {seed};
    for (int64_t i = 0; i < n; i++)
        ids[i] = test_below(&r, 1 << 17);
}

/* How bytes are copied: each run by itself, by a kernel, by a card's kernel and queues. */
enum way { BY_RUN, BY_KERNEL, FAR_AWAY, WAYS };

/* The card's memory within reach of this test, until its device is called. */
static void reach(enum way way)
{
    if (way == FAR_AWAY)
        far_open(PROT_READ | PROT_WRITE);
}

/* Snapshot of one slot at n, all memory changes, another slot goes on from it. */
static void round_trip(enum row_format format, enum index_format index, int64_t n,
                       int64_t chunk_bytes, enum way way)
{
    static const struct tree_salt salt = {{1, 2, 3, 4}};
    struct kv_spec spec = spec_of(format, index);
    struct tree_opts o = {.budget_bytes = 8 << 20, .chunk_bytes = chunk_bytes, .hash_mask = ~0ull};
    struct kernels k;
    struct stream stream;
    if (way == FAR_AWAY) {
        spec.device = &far_device;
        assert_true(far_device.kernels(&k, sizeof k, true));
    } else
        kernels_init(&k, kernels_probe());
    assert_int_equal(stream_init(&stream, spec.device, NULL, PRECISION_NATIVE, 0), FST_OK);
    if (way != BY_RUN) {
        o.kernels = &k;
        o.stream = &stream;
    }
    struct kv kv;
    struct tree t;
    struct tree_hold none = {0}, hold = {0};
    struct tree_hit hit;
    struct all then, now;
    int32_t ids[CONTEXT], then_pages[8];
    int other, from, to;
    ids_of(ids, CONTEXT, (uint64_t)n);
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    assert_int_equal(tree_init(&t, &kv, &o), FST_OK);
    assert_int_equal(kv_slot_open(&kv, &other), FST_OK);
    assert_int_equal(kv_reserve(&kv, other, 300), FST_OK);
    assert_int_equal(kv_slot_open(&kv, &from), FST_OK);
    assert_int_equal(kv_reserve(&kv, from, n + 7), FST_OK);
    kv_commit(&kv, from, n);
    reach(way);
    fill(&kv, 1);
    save(&kv, &then);
    memcpy(then_pages, kv.pages + from * kv.page_stride, (size_t)kv.page_stride * 4);
    assert_int_equal(tree_take(&t, from, &salt, ids, n, n, &none), FST_OK);
    tree_unlock(&t, &none);
    assert_int_equal(tree_check(&t), FST_OK);
    int32_t shared[8];
    memcpy(shared, kv.pages + from * kv.page_stride, sizeof shared);
    kv_slot_close(&kv, other);
    kv_slot_close(&kv, from);
    assert_int_equal(mover_settle(&t.mover), FST_OK);
    reach(way);
    fill(&kv, 2);

    assert_int_equal(kv_slot_open(&kv, &other), FST_OK); /* so that slots differ */
    assert_int_equal(kv_slot_open(&kv, &to), FST_OK);
    assert_int_not_equal(from, to);
    assert_int_equal(kv_reserve(&kv, other, 200), FST_OK);
    reach(way);
    save(&kv, &now);
    tree_match(&t, &salt, ids, n + 1, &hit);
    assert_int_equal(hit.n_restore, n);
    assert_int_equal(tree_restore(&t, to, &hit, n + 1, &hold), FST_OK);
    assert_int_equal(kv.slots[to].n_committed, n);
    assert_int_equal(kv.slots[to].n_pages, n / 256 + 1);
    assert_memory_equal(kv.pages + to * kv.page_stride, shared, (size_t)(n / 256) * 4);
    assert_int_equal(tree_check(&t), FST_OK);
    assert_int_equal(mover_settle(&t.mover), FST_OK);
    reach(way);
    struct pair p = {&kv, &now, &then, from, to, then_pages};
    expect_all(&p, n);
    for (int b = 0; b < kv.n_blocks; b++)
        if (!kv.blocks[b].shared && memcmp(kv.blocks[b].p, now.p[b], kv.blocks[b].bytes) != 0)
            fail_msg("format %d, keys %d, n %lld: block %d differs", format, index, (long long)n,
                     b);
    forget(&kv, &now);
    forget(&kv, &then);
    tree_release(&t);
    kv_release(&kv);
    stream_release(&stream);
}

static void test_all_formats(void **state)
{
    static const int64_t at[] = {1,   2,   3,   4,   5,   7,   8,   127, 128,  129,  255,
                                 256, 257, 383, 384, 511, 512, 513, 640, 1000, 1023, 1024};
    (void)state;
    for (size_t f = 0; f < FST_COUNT(row_formats); f++)
        for (size_t k = 0; k < FST_COUNT(key_formats); k++)
            for (size_t i = (f + k) % 2; i < FST_COUNT(at); i += test_size(1, 1, 4))
                round_trip(row_formats[f], key_formats[k], at[i], i % 2 ? 4096 : 64 * 129,
                           (enum way)((f + i / 2) % WAYS));
}

static void test_every_position(void **state)
{
    (void)state;
    for (int64_t n = 1; n < 600; n += test_size(29, 1, 97))
        round_trip(ROW_PAGED, INDEX_FP4, n, 65536, (enum way)(n % WAYS));
}

/* Bytes are those of the sizing formulas: decision figures and budgets speak of them. */
static void test_sizes(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct kv_spec spec = spec_of(row_formats[i % 4], key_formats[i / 4]);
        struct sizing_spec z;
        struct kv kv;
        assert_int_equal(kv_init(&kv, &spec), FST_OK);
        kv_sizing(&spec, &z);
        for (int64_t n = 128; n < 128 + 2 * 256; n++)
            assert_int_equal(kv_snapshot_bytes(&kv, n), sizing_snapshot_at(&z, 128, n).total);
        int64_t row = sizing_snapshot_at(&z, 128, 128).window / 128; /* of all layers */
        assert_int_equal(kv_snapshot_bytes(&kv, 1), row + 4 * (2048 + 512) + 4 * 1024 + 4 * 36);
        kv_release(&kv);
    }
}

static enum fst_status count(void *ud, uint8_t *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i]++;
    *(int64_t *)ud += (int64_t)bytes;
    return FST_OK;
}

/* The runs of all pages cover each byte of entries and keys once, and no other: what pads a page of the
 * paged layout is left out, window rows and states are a slot's. */
static void test_page_runs(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        struct kv_spec spec = spec_of(row_formats[i % 4], key_formats[i / 4]);
        int64_t parts[4], all = 0, seen = 0;
        struct kv kv;
        assert_int_equal(kv_init(&kv, &spec), FST_OK);
        assert_int_equal(kv_page_bytes(&kv, parts), kv_page_bytes(&kv, NULL));
        for (int b = 0; b < kv.n_blocks; b++)
            if (!kv.blocks[b].shared)
                memset(kv.blocks[b].p, 0, kv.blocks[b].bytes);
        for (int32_t page = 0; page <= PAGES; page++)
            assert_int_equal(kv_page_runs(&kv, page, count, &seen), FST_OK);
        for (int l = 0; l < spec.n_layers; l++) {
            int64_t rows = spec.ratio[l] ? KERN_PAGE / spec.ratio[l] : 0;
            int64_t row =
                rows_bytes(spec.format, 512) + (spec.format == ROW_FP8 ? ROWS_ROPE_BYTES : 0);
            int64_t keys = spec.ratio[l] == 4 ? rows_index_page_bytes(spec.index_format, 128) : 0;
            assert_int_equal(parts[l], rows * row + keys);
            all += parts[l];
        }
        assert_int_equal(kv_page_bytes(&kv, NULL), all);
        assert_int_equal(seen, (PAGES + 1) * all);
        for (int b = 0; b < kv.n_blocks; b++)
            for (size_t k = 0; !kv.blocks[b].shared && k < kv.blocks[b].bytes; k++) {
                uint8_t n = ((uint8_t *)kv.blocks[b].p)[k];
                assert_true(n <= 1);
                seen -= n;
            }
        assert_int_equal(seen, 0);
        kv_release(&kv);
    }
}

/* How far a ring may have run ahead.  A slot's memory is written position by position, as kernels do,
 * each row with its position; up to the slack all rows of a snapshot are still those of their
 * positions, one further and the oldest is gone. */
struct scan {
    const struct kv *kv;
    int64_t wrong;
};

static enum fst_status count_wrong(void *ud, uint8_t *at, size_t bytes)
{
    struct scan *s = ud;
    for (size_t i = 0; i < bytes; i += sizeof(float)) {
        float x;
        memcpy(&x, at + i, sizeof x);
        s->wrong += x < 0;
    }
    return FST_OK;
}

static void write_position(const struct kv *kv, int slot, int64_t pos, float x)
{
    for (int i = 0; i < kv->spec.n_layers; i++) {
        const struct kv_layer *l = &kv->layer[i];
        float *row = (float *)(void *)l->nope + rows_window(l, slot, pos) * kv->spec.head_dim;
        for (int d = 0; d < kv->spec.head_dim; d++)
            row[d] = x;
        if (!l->ratio)
            continue;
        int width = (l->ratio == 4 ? 4 : 2) * kv->spec.head_dim;
        for (int d = 0; d < width; d++)
            l->state[(slot * l->state_ring + pos % l->state_ring) * width + d] = x;
        if (l->ratio == 4)
            for (int d = 0; d < 4 * kv->spec.index_dim; d++)
                l->index_state[(slot * l->state_ring + pos % l->state_ring) * 4 *
                                   kv->spec.index_dim +
                               d] = x;
    }
}

static int64_t wrong_rows(int64_t n, int block, int lag, int64_t ahead, int64_t *slack)
{
    struct kv_spec spec = spec_of(ROW_F32, INDEX_F32);
    struct kv kv;
    int slot;
    spec.head_dim = 4;
    spec.rope_dim = spec.index_dim = 2;
    spec.block = block;
    spec.lag = lag;
    assert_int_equal(kv_init(&kv, &spec), FST_OK);
    struct scan s = {&kv, 0};
    *slack = kv_snapshot_slack(&kv);
    assert_int_equal(*slack, block * (1 + lag) - 1);
    assert_int_equal(kv_slot_open(&kv, &slot), FST_OK);
    assert_int_equal(kv_reserve(&kv, slot, n + ahead), FST_OK);
    for (int64_t pos = 0; pos < n; pos++)
        write_position(&kv, slot, pos, 1);
    for (int64_t pos = n; pos < n + ahead; pos++)
        write_position(&kv, slot, pos, -1);
    assert_int_equal(kv_snapshot_runs(&kv, slot, n, count_wrong, &s), FST_OK);
    kv_release(&kv);
    return s.wrong;
}

static void test_slack(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        static const int block[] = {1, 6, 6, 13, 26}, lag[] = {0, 0, 1, 1, 0};
        for (int64_t n = 300; n < 300 + 260; n += test_size(3, 1, 37)) {
            int64_t slack;
            (void)wrong_rows(n, block[i], lag[i], 0, &slack);
            assert_int_equal(wrong_rows(n, block[i], lag[i], slack, &slack), 0);
            assert_true(wrong_rows(n, block[i], lag[i], slack + 1, &slack) > 0);
        }
    }
}

/* The same bytes in a ring of another size: of a server that drafts another number of tokens. */
struct bytes {
    uint8_t *p;
    size_t at;
    bool out;
};

static enum fst_status move(void *ud, uint8_t *at, size_t bytes)
{
    struct bytes *b = ud;
    memcpy(b->out ? b->p + b->at : at, b->out ? at : b->p + b->at, bytes);
    b->at += bytes;
    return FST_OK;
}

static int in_last_slot(struct kv *kv, int64_t n)
{
    int slot;
    for (int i = 0; i < kv->spec.n_slots; i++)
        assert_int_equal(kv_slot_open(kv, &slot), FST_OK);
    assert_int_equal(kv_reserve(kv, slot, n), FST_OK);
    return slot;
}

static void other_ring(int64_t n)
{
    struct kv_spec spec = spec_of(ROW_FP8, INDEX_FP4);
    struct test_rng r = {(uint64_t)n};
    struct kv a, b;
    float x[512], y[512];
    assert_int_equal(kv_init(&a, &spec), FST_OK);
    spec.block = 1;
    spec.n_slots = 1;
    assert_int_equal(kv_init(&b, &spec), FST_OK);
    assert_int_not_equal(a.ring, b.ring);
    int from = in_last_slot(&a, n), to = in_last_slot(&b, n);
    for (int64_t pos = 0; pos < n; pos++)
        for (int i = 0; i < spec.n_layers; i++) {
            for (int d = 0; d < 512; d++)
                x[d] = (float)(test_below(&r, 15) - 7);
            rows_store(&a.layer[i], rows_window(&a.layer[i], from, pos), x, 512, 64);
        }
    int64_t bytes = kv_snapshot_bytes(&a, n);
    assert_int_equal(kv_snapshot_bytes(&b, n), bytes);
    struct bytes all = {malloc((size_t)bytes), 0, true};
    assert_non_null(all.p);
    assert_int_equal(kv_snapshot_runs(&a, from, n, move, &all), FST_OK);
    assert_int_equal(all.at, bytes);
    all = (struct bytes){all.p, 0, false};
    assert_int_equal(kv_snapshot_runs(&b, to, n, move, &all), FST_OK);
    for (int64_t pos = n - 128; pos < n; pos++)
        for (int i = 0; i < spec.n_layers; i++) {
            kv_read_window(&a, i, from, pos, x);
            kv_read_window(&b, i, to, pos, y);
            assert_memory_equal(x, y, sizeof x);
        }
    free(all.p);
    kv_release(&a);
    kv_release(&b);
}

static void test_other_ring(void **state)
{
    (void)state;
    for (int64_t n = 250; n < 650; n += test_size(61, 7, 200))
        other_ring(n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_formats), cmocka_unit_test(test_every_position),
        cmocka_unit_test(test_other_ring),  cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_slack),       cmocka_unit_test(test_page_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
