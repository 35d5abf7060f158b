/* The recorder's rings: what is kept of steps, spans, rows and requests when more of each come than there is
 * room for. */
#include "support/cm.h"

#include "engine/engine_int.h"

enum { SLOTS = 40, ROWS = 8 };

/* As much of an engine as the recorder looks at. */
static struct {
    fst_engine e;
    fst_request *span_request[SLOTS];
    int64_t span_before[SLOTS];
    int32_t row_id[SLOTS * ROWS], span_first[SLOTS + 1];
    struct sample_row sample[SLOTS * ROWS];
} f;

static fst_request *request_new(struct door *d, uint64_t bytes)
{
    fst_request *r = mem_calloc(1, sizeof *r);
    assert_non_null(r);
    pthread_mutex_init(&r->pub_lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    door_ref(d);
    r->door = d;
    atomic_init(&r->refs, 1); /* the engine's */
    r->block = mem_alloc(64);
    r->block_bytes = bytes;
    return r;
}

static void check(const struct recorder *k)
{
    uint64_t bytes = 0, spans = 0, counted = 0;

    for (int i = 0; i < RECORDER_HELD; i++) {
        bytes += k->held[i].r ? k->held[i].r->block_bytes : 0;
        counted += k->held[i].number ? (uint64_t)k->held[i].n_spans : 0;
        assert_true(!k->held[i].r || k->held[i].r->number == k->held[i].number);
    }
    assert_int_equal(bytes, k->held_bytes);
    assert_true(bytes <= k->held_limit);
    assert_true(k->n_steps - k->first_step <= RECORDER_STEPS);
    for (uint64_t n = k->first_step; n < k->n_steps; n++) {
        const struct recorder_step *s = &k->step[n % RECORDER_STEPS];
        spans += (uint64_t)s->n_spans;
        assert_true(k->n_spans - s->span <= k->max_spans);
        for (int i = 0; i < s->n_spans; i++) {
            const struct recorder_span *x = &k->span[(s->span + (uint64_t)i) % k->max_spans];
            assert_in_range(x->held, 0, RECORDER_HELD - 1);
            assert_true(k->held[x->held].number > 0);
            assert_true(k->n_rows - x->row <= k->max_rows);
            for (int r = 0; r < x->n_logits; r++) /* as note_step wrote them */
                assert_int_equal(k->row[(x->row + (uint64_t)r) % k->max_rows].draw,
                                 (int32_t)(k->held[x->held].number % 1000));
        }
    }
    assert_int_equal(spans, counted);
}

static void run(uint64_t bytes, int n_steps, int n_slots, int life)
{
    struct door *d = door_new(1, 1, 1);
    fst_request *r[SLOTS] = {0};
    struct test_rng rng = {.s = (uint64_t)n_steps};
    uint64_t before;

    memset(&f, 0, sizeof f);
    fst_engine *e = &f.e;
    e->span_request = f.span_request;
    e->span_before = f.span_before;
    e->row_id = f.row_id;
    e->span_first = f.span_first;
    e->sample = f.sample;
    assert_int_equal(recorder_open(&e->recorder, &(struct fst_engine_opts){0}, SLOTS * ROWS, SLOTS),
                     FST_OK);
    before = mem_count();
    uint64_t made = 0;
    for (int n = 0; n < n_steps; n++) {
        int spans = 1 + test_below(&rng, n_slots), row = 0;
        recorder_begin(e);
        e->stats.steps = (uint64_t)n;
        for (int s = 0; s < spans; s++) {
            int rows = 1 + test_below(&rng, ROWS);
            if (r[s] && test_below(&rng, life) == 0) { /* it ends; others may still know it */
                request_unref(r[s]);
                r[s] = NULL;
            }
            if (!r[s]) {
                r[s] = request_new(d, bytes);
                made += 2;
            }
            f.span_request[s] = r[s];
            f.span_first[s] = row;
            struct step_span x = {.slot = s + 1, .n_rows = rows, .kind = STEP_VERIFY};
            uint64_t number = r[s]->number ? r[s]->number : e->recorder.n_requests + 1;
            for (int i = 0; i < rows; i++)
                f.sample[i].id = (int32_t)(number % 1000);
            recorder_note(e, s, &x, 0, rows, rows, rows, FST_FINISH_NONE);
            row += rows;
        }
        if (n % 997 == 0)
            check(&e->recorder);
    }
    check(&e->recorder);
    assert_int_equal(mem_count() - before, made); /* the recorder takes none */
    assert_true(e->recorder.n_steps > 0);
    for (int s = 0; s < SLOTS; s++)
        if (r[s])
            request_unref(r[s]);
    recorder_close(&e->recorder);
    assert_int_equal(d->refs, 1);
    door_unref(d);
}

static void test_steps(void **state)
{
    (void)state;
    run(1000, test_size(20000, 200000, 5000), 2, 200);
}

static void test_rows(void **state)
{
    (void)state;
    run(1000, test_size(20000, 100000, 3000), SLOTS, 200);
}

/* More requests than are held, by number and by their memory; and some too large for it. */
static void test_requests(void **state)
{
    (void)state;
    run(1000, test_size(20000, 100000, 4000), 4, 2);
    run(1 << 20, test_size(20000, 100000, 4000), 4, 10);
    run((uint64_t)RECORDER_HELD_BYTES + 1, 2000, 4, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_rows),
                                       cmocka_unit_test(test_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
