#include "engine/masks.h"

#include <stdatomic.h>

struct fst_grammar {
    atomic_int refs;
    struct matcher *trunk;
    size_t bytes;
};

enum { SPACE_BYTES = 12 << 20 };

enum fst_status fst_grammar_new(fst_grammar **out, struct grammar *g, const struct grammar_vocab *v)
{
    const struct matcher_opts o = {.rollback_max = 1, .space_bytes = SPACE_BYTES};
    fst_grammar *f = mem_calloc(1, sizeof *f);
    enum fst_status rc;

    *out = NULL;
    if (!f)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    atomic_init(&f->refs, 1);
    f->bytes = grammar_bytes(g) + SPACE_BYTES;
    if ((rc = matcher_new(&f->trunk, g, v, &o)) < 0) {
        mem_free(f);
        return rc;
    }
    *out = f;
    return FST_OK;
}

fst_grammar *fst_grammar_ref(fst_grammar *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void fst_grammar_free(fst_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    matcher_free(g->trunk);
    mem_free(g);
}

size_t fst_grammar_bytes(const fst_grammar *g)
{
    return g->bytes;
}

/* ------------------------------------------------------------------ life */

enum fst_status masks_init(struct masks *s, const struct fst_request_opts *o, int vocab)
{
    enum fst_status rc;

    *s = (struct masks){0};
    if (!o->grammar)
        return FST_OK;
    if (matcher_mask_words(o->grammar->trunk) != (size_t)div_up(vocab, 32))
        return fst_error(FST_EINVAL, "grammar: made for another vocabulary");
    if ((rc = matcher_new_detached(&s->m, o->grammar->trunk)) < 0)
        return rc;
    s->of = fst_grammar_ref(o->grammar);
    s->has_gate = o->gate != NULL;
    if (o->gate)
        s->gate = *o->gate;
    s->n_text = o->n_grammar_text;
    s->text = mem_alloc(s->n_text + 1);
    if (!s->text) {
        masks_release(s);
        return fst_error(FST_ENOMEM, "request: no memory");
    }
    if (s->n_text)
        memcpy(s->text, o->grammar_text, s->n_text);
    return FST_OK;
}

void masks_release(struct masks *s)
{
    FST_ASSERT(!s->attached);
    matcher_free(s->m);
    mem_free(s->text);
    fst_grammar_free(s->of);
    *s = (struct masks){0};
}

void masks_leave(struct masks *s)
{
    if (s->attached)
        matcher_detach(s->m);
    s->attached = false;
    s->phase = MASKS_NEW;
}

static void lose(struct masks *s, enum fst_status rc)
{
    s->phase = MASKS_LOST;
    s->rc = rc;
}

static void turn_on(struct masks *s, bool with_text)
{
    s->phase = MASKS_ON;
    if (with_text && matcher_advance_text(s->m, s->text, s->n_text) != s->n_text)
        lose(s, FST_EINVAL);
}

/* The first time that the engine asks. */
static void begin(struct masks *s)
{
    if (s->phase != MASKS_NEW)
        return;
    if (!s->attached)
        matcher_attach(s->m, s->of->trunk);
    else
        matcher_reset(s->m);
    s->attached = true;
    s->rc = FST_OK;
    s->phase = MASKS_SHUT;
    if (s->has_gate)
        memcpy(s->state, s->gate.state, sizeof s->state);
    s->least = matcher_least_tokens(s->m);
    if (!s->has_gate)
        turn_on(s, s->n_text > 0);
}

/* ------------------------------------------------------------------ rules */

static void reset(void *ud)
{
    struct masks *s = ud;

    s->phase = MASKS_NEW;
}

static enum fst_status take(void *ud, int32_t id)
{
    struct masks *s = ud;
    enum fst_gate_event event;
    enum fst_status rc;

    begin(s);
    if (s->phase == MASKS_ON) {
        if ((rc = matcher_advance(s->m, id)) < 0)
            lose(s, rc == FST_EBUDGET ? rc : FST_OK); /* else the id was forced by a hook */
        return FST_OK;
    }
    if (s->phase != MASKS_SHUT)
        return FST_OK;
    event = s->gate.feed(s->gate.rules, s->state, id);
    if (event == FST_GATE_FOUL)
        lose(s, FST_OK);
    else if (event != FST_GATE_SHUT)
        turn_on(s, event == FST_GATE_BLOCK);
    return FST_OK;
}

/* Has the shut gate to be opened by the next token, with so much room? */
static bool must_open(const struct masks *s, int64_t room)
{
    return s->gate.open_id >= 0 && room == (int64_t)s->least + 1;
}

static enum fst_status mask(void *ud, int64_t room, uint32_t *words)
{
    struct masks *s = ud;
    size_t n = matcher_mask_words(s->of->trunk);
    enum fst_status rc;

    begin(s);
    if (s->phase == MASKS_ON) {
        rc = matcher_mask(s->m, (uint32_t)FST_MIN(room, (int64_t)UINT32_MAX - 1), words);
        if (rc == FST_OK)
            return FST_OK;
        lose(s, rc);
    }
    if (s->phase == MASKS_SHUT && must_open(s, room)) {
        memset(words, 0, n * sizeof *words);
        words[s->gate.open_id / 32] |= 1u << (s->gate.open_id % 32);
        return FST_OK;
    }
    memset(words, 0xff, n * sizeof *words);
    if (s->phase == MASKS_SHUT)
        s->gate.bar(s->gate.rules, s->state, words);
    return FST_OK;
}

static bool idle(void *ud, int64_t room, const int32_t *draft, int n)
{
    struct masks *s = ud;
    uint64_t state[FST_GATE_BYTES / 8];

    begin(s);
    if (s->phase != MASKS_SHUT)
        return s->phase == MASKS_LOST;
    memcpy(state, s->state, sizeof state);
    for (int i = 0; i <= n; i++) {
        if (must_open(s, room - i) || s->gate.bar(s->gate.rules, state, NULL))
            return false;
        if (i < n && s->gate.feed(s->gate.rules, state, draft[i]) != FST_GATE_SHUT)
            return false;
    }
    return true;
}

struct rules_mask masks_rules(struct masks *s)
{
    if (!s->of)
        return (struct rules_mask){0};
    return (struct rules_mask){.mask = mask, .take = take, .reset = reset, .idle = idle, .ud = s};
}

bool masks_accepting(const struct masks *s)
{
    return s->phase == MASKS_ON && (matcher_is_accepting(s->m) || matcher_is_over(s->m));
}

bool masks_over(const struct masks *s)
{
    return s->phase == MASKS_ON && matcher_is_over(s->m);
}
