/* recorder.c - the rings of recorder.h. */
#include "engine/recorder.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "engine/engine_int.h"

enum fst_status recorder_open(struct recorder *k, const struct fst_engine_opts *o, int max_logits,
                              int max_requests)
{
    uint64_t spans = FST_MAX((uint64_t)RECORDER_SPANS, 2 * (uint64_t)max_requests);
    uint64_t rows = FST_MAX((uint64_t)RECORDER_ROWS, 2 * (uint64_t)max_logits);
    size_t bytes = RECORDER_STEPS * sizeof *k->step + spans * sizeof *k->span +
                   rows * sizeof *k->row + RECORDER_HELD * sizeof *k->held +
                   (size_t)max_logits * sizeof *k->hash;
    uint8_t *p;

    if (o->record_files < 0)
        return fst_error(FST_EINVAL, "--crash-dump-files must be 1 or more, got %d",
                         o->record_files);
    if (o->record_dir) {
        char why[512];
        enum fst_status rc = file_make_folder(o->record_dir);
        if (rc < 0) {
            snprintf(why, sizeof why, "%s", fst_error_text());
            return fst_error(rc, "--crash-dump-folder: %s", why);
        }
        k->dir = mem_strdup(o->record_dir);
    }
    k->block = p = mem_calloc(1, bytes);
    if (!p || (o->record_dir && !k->dir))
        return fst_error(FST_ENOMEM, "recorder: no memory for %zu bytes", bytes);
    k->step = (struct recorder_step *)(void *)p;
    p += RECORDER_STEPS * sizeof *k->step;
    k->span = (struct recorder_span *)(void *)p;
    p += spans * sizeof *k->span;
    k->row = (struct recorder_row *)(void *)p;
    p += rows * sizeof *k->row;
    k->held = (struct recorder_held *)(void *)p;
    p += RECORDER_HELD * sizeof *k->held;
    k->hash = (uint64_t *)(void *)p;
    k->max_spans = spans;
    k->max_rows = rows;
    for (int i = 0; i < RECORDER_HELD; i++)
        k->held[i].next_free = i + 1;
    /* Living requests are bounded too: what is held must not crowd out those that wait. */
    k->held_limit = FST_MIN((uint64_t)RECORDER_HELD_BYTES, mem_available_bytes() / 32);
    k->max_files = o->record_files ? o->record_files : 16;
    k->on = true;
    return FST_OK;
}

/* ------------------------------------------------------------------ requests */

static void give_up(struct recorder *k, struct recorder_held *h)
{
    if (!h->r)
        return;
    k->held_bytes -= h->r->block_bytes;
    request_unref(h->r);
    h->r = NULL;
}

static void let_go(struct recorder *k, int32_t i)
{
    struct recorder_held *h = &k->held[i];

    if (--h->n_spans > 0)
        return;
    give_up(k, h);
    h->number = 0;
    h->next_free = k->free_held;
    k->free_held = i;
}

/* The oldest that is held goes, if its memory is wanted. */
static void make_room(struct recorder *k, uint64_t bytes)
{
    while (k->held_bytes > 0 && k->held_bytes + bytes > k->held_limit) {
        struct recorder_held *oldest = NULL;
        for (int i = 0; i < RECORDER_HELD; i++)
            if (k->held[i].r && (!oldest || k->held[i].order < oldest->order))
                oldest = &k->held[i];
        give_up(k, oldest);
    }
}

/* Index of the request among those held; -1: there is no room for another. */
static int32_t hold(struct recorder *k, fst_request *r)
{
    /* Numbers are given once, so an entry that went to another request does not pass for ours. */
    if (r->held > 0 && k->held[r->held - 1].number == r->number)
        return r->held - 1;
    if (k->free_held >= RECORDER_HELD)
        return -1;
    if (!r->number)
        r->number = ++k->n_requests;
    int32_t i = k->free_held;
    struct recorder_held *h = &k->held[i];
    k->free_held = h->next_free;
    *h = (struct recorder_held){.number = r->number, .order = k->n_held++};
    r->held = i + 1;
    if (r->block_bytes > k->held_limit)
        return i; /* its ids are not kept */
    make_room(k, r->block_bytes);
    atomic_fetch_add(&r->refs, 1);
    k->held_bytes += r->block_bytes;
    h->r = r;
    return i;
}

/* ------------------------------------------------------------------ steps */

static void drop_step(struct recorder *k)
{
    const struct recorder_step *s = &k->step[k->first_step % RECORDER_STEPS];

    for (int i = 0; i < s->n_spans; i++)
        let_go(k, k->span[(s->span + (uint64_t)i) % k->max_spans].held);
    k->first_step++;
}

/* Of the oldest step that is kept; what is being written now if there is none. */
static uint64_t first_span(const struct recorder *k)
{
    return k->first_step == k->n_steps ? k->n_spans : k->step[k->first_step % RECORDER_STEPS].span;
}

static uint64_t first_row(const struct recorder *k)
{
    uint64_t s = first_span(k);
    return s == k->n_spans ? k->n_rows : k->span[s % k->max_spans].row;
}

uint64_t recorder_hash(const float *row, int vocab)
{
    uint64_t h = hash64(row, (size_t)vocab * sizeof *row, 0);
    return h ? h : 1;
}

enum fst_status recorder_look(fst_engine *e, float *logits, int first, int n, int64_t out_pos)
{
    struct recorder *k = &e->recorder;

    if (!k->on)
        return FST_OK;
    for (int i = 0; i < n; i++) {
        float *row = logits + (int64_t)i * e->info.vocab_size;
        k->hash[first + i] = 0;
        if (e->device && (out_pos + i) % RECORDER_CARD_STRIDE != 0)
            continue;
        FST_TRY(sample_host_row(&e->sampler, row, &row));
        k->hash[first + i] = recorder_hash(row, e->info.vocab_size);
    }
    return FST_OK;
}

void recorder_begin(fst_engine *e)
{
    e->recorder.begun = false;
}

/* A new step, if this is the first span of one. */
static struct recorder_step *step_of(struct recorder *k, uint64_t number, int block)
{
    struct recorder_step *s;

    if (k->begun && k->n_steps > k->first_step)
        return &k->step[(k->n_steps - 1) % RECORDER_STEPS];
    k->begun = true;
    if (k->n_steps - k->first_step == RECORDER_STEPS)
        drop_step(k);
    s = &k->step[k->n_steps++ % RECORDER_STEPS];
    *s = (struct recorder_step){
        .number = number, .wall_ns = clock_wall_ns(), .span = k->n_spans, .block = block};
    return s;
}

void recorder_note(fst_engine *e, int s, const struct step_span *span, int sample_first,
                   int n_logits, int n_commit, int n_emit, enum fst_finish finish)
{
    struct recorder *k = &e->recorder;
    fst_request *r = e->span_request[s];
    int32_t held;

    if (!k->on)
        return;
    struct recorder_step *step = step_of(k, e->stats.steps, e->dr.block);
    while (k->n_spans - first_span(k) >= k->max_spans ||
           k->n_rows + (uint64_t)n_logits - first_row(k) > k->max_rows) {
        FST_ASSERT(&k->step[k->first_step % RECORDER_STEPS] != step);
        drop_step(k);
    }
    held = hold(k, r);
    if (held < 0)
        return;
    k->held[held].n_spans++;
    k->span[k->n_spans++ % k->max_spans] = (struct recorder_span){.held = held,
                                                                  .slot = span->slot,
                                                                  .pos = e->span_before[s],
                                                                  .n_rows = span->n_rows,
                                                                  .n_logits = n_logits,
                                                                  .n_commit = n_commit,
                                                                  .n_emit = n_emit,
                                                                  .row = k->n_rows,
                                                                  .kind = span->kind,
                                                                  .finish = (uint8_t)finish};
    step->n_spans++;
    bool by_grammar = e->span_request[s]->masks.of != NULL; /* which no record holds */
    for (int i = 0; i < n_logits; i++) {
        const struct sample_row *x = &e->sample[sample_first + i];
        k->row[k->n_rows++ % k->max_rows] =
            (struct recorder_row){.id = e->row_id[e->span_first[s] + span->n_rows - n_logits + i],
                                  .draw = x->id,
                                  .logprob = x->logprob,
                                  .forced = x->forced || by_grammar,
                                  .hash = k->hash[sample_first + i]};
    }
}

void recorder_close(struct recorder *k)
{
    while (k->on && k->first_step < k->n_steps)
        drop_step(k);
    mem_free(k->block);
    mem_free(k->dir);
    *k = (struct recorder){0};
}
