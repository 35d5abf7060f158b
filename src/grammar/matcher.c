/* matcher.c - where one reply stands, and what may come next. */
#include "grammar/space.h"

enum { ROLLBACK_DEFAULT = 64, BYTES_DEFAULT = 12 << 20 };

static uint32_t *place_of(const struct matcher *m)
{
    return &m->place[m->at];
}

static void push(struct matcher *m, uint32_t place)
{
    m->at = (m->at + 1) % m->cap;
    m->place[m->at] = place;
    m->n = FST_MIN(m->n + 1, m->cap - 1);
}

/* ---- life ---------------------------------------------------------------------------------------- */

static struct matcher *alone(int cap)
{
    struct matcher *m = mem_calloc(1, sizeof *m);

    if (m)
        m->place = mem_calloc((size_t)cap, sizeof *m->place);
    if (!m || !m->place) {
        mem_free(m);
        return NULL;
    }
    m->cap = cap;
    return m;
}

static void join(struct matcher *m, struct space *s, uint32_t place)
{
    FST_ASSERT(!m->space);
    m->space = s;
    m->prev = NULL;
    m->next = s->matchers;
    if (m->next)
        m->next->prev = m;
    s->matchers = m;
    m->at = m->n = 0;
    m->place[0] = place;
}

/* Every byte that the grammar writes has a token of its own: otherwise masks could be empty. */
static enum fst_status check_bytes(const struct grammar *g, const struct grammar_vocab *v)
{
    bool has[256] = {false};

    for (int b = 0; b < 256; b++)
        for (uint32_t i = v->all.root[b]; i < v->all.root[b + 1]; i = v->all.node[i].skip)
            has[b] |= v->all.node[i].id >= 0;
    for (uint32_t k = 0; k < g->n_spans; k++)
        for (int b = g->span[k].lo; b <= g->span[k].hi; b++)
            if (!has[b])
                return fst_error(FST_EINVAL,
                                 b == GRAMMAR_MARK
                                     ? "grammar: the vocabulary has no token for the mark"
                                     : "grammar: the vocabulary has no token for byte %d",
                                 b);
    return FST_OK;
}

enum fst_status matcher_new(struct matcher **out, struct grammar *g, const struct grammar_vocab *v,
                            const struct matcher_opts *opts)
{
    struct matcher_opts o = opts ? *opts : (struct matcher_opts){0};
    struct space *s;

    *out = NULL;
    FST_TRY(check_bytes(g, v));
    FST_TRY(space_new(&s, g, v, o.space_bytes ? o.space_bytes : BYTES_DEFAULT));
    *out = alone((o.rollback_max > 0 ? o.rollback_max : ROLLBACK_DEFAULT) + 1);
    if (!*out) {
        space_unref(s);
        return fst_error(FST_ENOMEM, "grammar: out of memory for a matcher");
    }
    join(*out, s, s->start);
    return FST_OK;
}

enum fst_status matcher_new_detached(struct matcher **out, const struct matcher *like)
{
    *out = alone(like->cap);
    return *out ? FST_OK : fst_error(FST_ENOMEM, "grammar: out of memory for a matcher");
}

void matcher_attach(struct matcher *f, struct matcher *m)
{
    FST_ASSERT(f->cap == m->cap);
    join(f, m->space, *place_of(m));
    m->space->refs++;
}

void matcher_detach(struct matcher *m)
{
    struct space *s = m->space;

    if (!s)
        return;
    if (m->prev)
        m->prev->next = m->next;
    else
        s->matchers = m->next;
    if (m->next)
        m->next->prev = m->prev;
    m->space = NULL;
    space_unref(s);
}

enum fst_status matcher_fork(struct matcher **out, struct matcher *m)
{
    FST_TRY(matcher_new_detached(out, m));
    matcher_attach(*out, m);
    return FST_OK;
}

void matcher_free(struct matcher *m)
{
    if (!m)
        return;
    matcher_detach(m);
    mem_free(m->place);
    mem_free(m);
}

void matcher_reset(struct matcher *m)
{
    m->at = m->n = 0;
    m->place[0] = m->space->start;
}

/* ---- moving --------------------------------------------------------------------------------------- */

/* *place after text; PLACE_DEAD and the number of bytes that went, or all.  Negative: FST_EBUDGET. */
static int64_t follow(struct matcher *m, uint32_t *place, const char *text, size_t len)
{
    struct space *s = m->space;

    for (size_t i = 0; i < len; i++) {
        uint32_t to = space_step(s, *place, (uint8_t)text[i]);

        if (to == PLACE_UNKNOWN) {
            if (!space_collect(s, place, 1))
                return fst_error(FST_EBUDGET, "grammar: one position does not fit the memory");
            to = space_step(s, *place, (uint8_t)text[i]);
            if (to == PLACE_UNKNOWN)
                return fst_error(FST_EBUDGET, "grammar: one position does not fit the memory");
        }
        if (to == PLACE_DEAD)
            return (int64_t)i;
        *place = to;
    }
    return (int64_t)len;
}

enum fst_status matcher_advance(struct matcher *m, int32_t id)
{
    uint32_t place = *place_of(m);
    const char *text;
    size_t len;
    int64_t n;

    if (id == m->space->v->eos) {
        if (!matcher_is_accepting(m))
            return FST_EINVAL;
        push(m, PLACE_DEAD);
        return FST_OK;
    }
    text = vocab_bytes(m->space->v, id, &len);
    if (!len)
        return FST_EINVAL;
    n = follow(m, &place, text, len);
    if (n < 0)
        return (enum fst_status)n;
    if ((size_t)n < len)
        return FST_EINVAL;
    push(m, place);
    return FST_OK;
}

size_t matcher_advance_text(struct matcher *m, const char *text, size_t len)
{
    uint32_t place = *place_of(m);
    int64_t n = follow(m, &place, text, len);

    if (n == (int64_t)len)
        push(m, place);
    return n < 0 ? 0 : (size_t)n;
}

void matcher_rollback(struct matcher *m, int n)
{
    FST_ASSERT(n >= 0);
    FST_ASSERT(n <= m->n);
    m->at = (m->at - n + m->cap) % m->cap;
    m->n -= n;
}

int matcher_undoable(const struct matcher *m)
{
    return m->n;
}

bool matcher_is_accepting(const struct matcher *m)
{
    return m->space->now.place[*place_of(m)].accept;
}

bool matcher_is_over(const struct matcher *m)
{
    const struct place *p = &m->space->now.place[*place_of(m)];
    return !p->n_ways;
}

uint32_t matcher_least_tokens(struct matcher *m)
{
    return *place_of(m) == PLACE_DEAD ? 0 : space_tokens(m->space, *place_of(m));
}

/* ---- masks ---------------------------------------------------------------------------------------- */

/* The ready mask of the matcher's place, made now if need be; NULL: FST_EBUDGET. */
static const uint32_t *plain_mask(struct matcher *m, uint32_t *peak)
{
    struct space *s = m->space;
    struct place *p = &s->now.place[*place_of(m)];
    struct mask_slot *slot;

    s->stats.masks++;
    if (p->mask >= 0 && s->mask[p->mask].place == *place_of(m)) {
        s->stats.masks_cached++;
        *peak = p->peak;
        return s->mask[p->mask].bits;
    }
    slot = &s->mask[s->next_mask];
    slot->place = PLACE_UNKNOWN;
    if (space_mask(s, *place_of(m), MATCHER_NO_LIMIT, slot->bits, peak) < 0)
        return NULL;
    p = &s->now.place[*place_of(m)]; /* the walk may have moved it */
    p->mask = s->next_mask;
    p->peak = *peak;
    slot->place = *place_of(m);
    s->next_mask = (s->next_mask + 1) % s->n_masks;
    return slot->bits;
}

enum fst_status matcher_mask(struct matcher *m, uint32_t room, uint32_t *mask)
{
    struct space *s = m->space;
    const struct grammar_vocab *v = s->v;
    const uint32_t *plain;
    uint32_t peak;

    if (*place_of(m) == PLACE_DEAD) {
        memset(mask, 0, v->words * sizeof *mask);
        return FST_OK;
    }
    plain = plain_mask(m, &peak);
    if (!plain)
        return FST_EBUDGET;
    if (room == MATCHER_NO_LIMIT || (room && room - 1 >= peak) ||
        room < space_tokens(s, *place_of(m))) {
        memcpy(mask, plain, v->words * sizeof *mask);
    } else if (!room) { /* accepting: nothing but EOS fits */
        memset(mask, 0, v->words * sizeof *mask);
    } else {
        FST_TRY(space_mask(s, *place_of(m), room - 1, mask, &peak));
    }
    if (v->eos >= 0 && matcher_is_accepting(m))
        mask[v->eos / 32] |= 1u << (v->eos % 32);
    return FST_OK;
}

size_t matcher_mask_words(const struct matcher *m)
{
    return m->space->v->words;
}

int matcher_mask_block(struct matcher *m, const int32_t *draft, int n, uint32_t room,
                       uint32_t *masks)
{
    enum fst_status rc = FST_OK;
    int done = 0, moved = 0;

    FST_ASSERT(n < m->cap - 1);
    for (int i = 0; i <= n; i++) {
        uint32_t left =
            room == MATCHER_NO_LIMIT ? room : room - (uint32_t)FST_MIN((uint32_t)i, room);

        rc = matcher_mask(m, left, masks + (size_t)i * matcher_mask_words(m));
        if (rc < 0)
            break;
        done = i + 1;
        if (i < n) {
            const uint32_t *mask = masks + (size_t)i * matcher_mask_words(m);
            if (draft[i] < 0 || draft[i] >= m->space->v->n_ids ||
                !(mask[draft[i] / 32] >> (draft[i] % 32) & 1))
                break;
            rc = matcher_advance(m, draft[i]);
            if (rc < 0)
                break;
            moved++;
        }
    }
    matcher_rollback(m, moved);
    return done ? done : (int)rc;
}

size_t matcher_forced(struct matcher *m, char *out, size_t cap)
{
    struct space *s = m->space;
    uint32_t place = *place_of(m);
    size_t n = 0;

    while (n < cap && !s->now.place[place].accept && place != PLACE_DEAD) {
        uint32_t only = PLACE_DEAD;
        int byte = -1;

        for (int b = 0; b < 256; b++) {
            uint32_t to = space_step(s, place, (uint8_t)b);
            if (to == PLACE_DEAD)
                continue;
            if (to == PLACE_UNKNOWN || byte >= 0)
                return n; /* more than one, or no room to see */
            byte = b;
            only = to;
        }
        if (byte < 0 || byte == GRAMMAR_MARK)
            return n;
        out[n++] = (char)byte;
        place = only;
    }
    return n;
}

struct matcher_stats matcher_stats(const struct matcher *m)
{
    return m->space->stats;
}
