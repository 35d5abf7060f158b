/* space.c - makes places, remembers them, drops them. */
#include "grammar/space.h"
#include "base/hash.h"

enum {
    PLACES_MIN = 2048,
    PLACES_MAX = 1 << 16,
    WAYS_PER_PLACE = 6,
    OPENS_PER_PLACE = 2,
    MASKS = 48
};

static uint32_t plus(uint32_t a, uint32_t b)
{
    return a >= GRAMMAR_INF || b >= GRAMMAR_INF - a ? GRAMMAR_INF : a + b;
}

static uint32_t hash3(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = (a * 0x9e3779b97f4a7c15u) ^ (b * 0xc2b2ae3d27d4eb4fu) ^ (c * 0x165667b19e3779f9u);
    return (uint32_t)((h ^ (h >> 29)) * 0xbf58476d1ce4e5b9u >> 32);
}

static uint32_t hash_ways(const struct way *w, uint32_t n, bool accept)
{
    return (uint32_t)hash64(w, n * sizeof *w, accept);
}

static uint32_t *row_of(struct space *s, uint32_t place)
{
    return s->row + (size_t)place * s->g->n_classes;
}

/* ---- open calls ------------------------------------------------------------------------------- */

static void set_open(struct space *s, struct open_call *o, uint32_t call, uint32_t count,
                     uint32_t parent)
{
    const struct call_edge *e = &s->g->call[call];
    uint32_t body = s->g->state[s->g->rule[e->rule].start].least;
    uint64_t again = count < e->min ? (uint64_t)(e->min - count) * body : 0;
    uint32_t least = again >= GRAMMAR_INF ? GRAMMAR_INF : (uint32_t)again;

    least = plus(least, plus(s->g->state[e->ret].least, s->now.open[parent].least));
    *o = (struct open_call){.call = call,
                            .count = count,
                            .parent = parent,
                            .least = least,
                            .depth = s->now.open[parent].depth + 1};
}

/* Number of this open call; 0 when there is no room (is_full is then set). */
static uint32_t find_open(struct space *s, uint32_t call, uint32_t count, uint32_t parent)
{
    uint32_t *slot, i;

    if (s->g->call[call].max == GRAMMAR_INF) /* beyond min the count says nothing more */
        count = FST_MIN(count, s->g->call[call].min);
    slot = &s->open_slot[hash3(call, count, parent) & s->slot_mask];
    for (i = *slot; i; i = s->now.open[i].next) {
        const struct open_call *o = &s->now.open[i];
        if (o->call == call && o->count == count && o->parent == parent)
            return i;
    }
    if (s->now.n_opens == s->open_cap) {
        s->is_full = true;
        return 0;
    }
    i = s->now.n_opens++;
    set_open(s, &s->now.open[i], call, count, parent);
    s->now.open[i].next = *slot;
    *slot = i;
    return i;
}

/* ---- places ------------------------------------------------------------------------------------ */

static void make_begin(struct space *s)
{
    s->n_look = s->n_kept = 0;
    s->kept_accept = false;
    if (++s->round == 0) {
        memset(s->seen_round, 0, 2 * SPACE_LOOK_MAX * sizeof *s->seen_round);
        s->round = 1;
    }
}

static void look_at(struct space *s, uint32_t state, uint32_t open)
{
    uint32_t h = hash3(state, open, 1);

    if (s->now.open[open].depth + s->g->state[state].depth > s->g->depth_max)
        return;
    for (;; h++) {
        uint32_t k = h & (2 * SPACE_LOOK_MAX - 1);
        if (s->seen_round[k] != s->round) {
            if (s->n_look == SPACE_LOOK_MAX) {
                s->stats.cut++;
                return;
            }
            s->seen_round[k] = s->round;
            s->seen[k] = s->n_look;
            s->look[s->n_look++] = (struct way){state, open};
            return;
        }
        if (s->look[s->seen[k]].state == state && s->look[s->seen[k]].open == open)
            return;
    }
}

static void enter(struct space *s, uint32_t call, uint32_t count, uint32_t parent)
{
    const struct call_edge *e = &s->g->call[call];
    uint32_t open = parent;

    if (s->now.open[parent].depth + s->g->state[e->ret].depth > s->g->depth_max)
        return;
    if (!e->is_tail) {
        if (s->now.open[parent].depth + 1 + s->g->state[s->g->rule[e->rule].start].depth >
            s->g->depth_max)
            return;
        open = find_open(s, call, count, parent);
        if (!open)
            return;
    }
    look_at(s, s->g->rule[e->rule].start, open);
}

/* Everything reachable from `look` without a byte. */
static void spread(struct space *s)
{
    const struct grammar *g = s->g;

    for (uint32_t i = 0; i < s->n_look && !s->is_full; i++) {
        const struct way w = s->look[i];
        const struct state *q = &g->state[w.state];

        for (uint32_t k = 0; k < q->n_calls; k++)
            enter(s, q->call_at + k, 1, w.open);
        if (q->accept && !w.open) {
            s->kept_accept = true;
        } else if (q->accept) {
            const struct open_call o = s->now.open[w.open];
            const struct call_edge *e = &g->call[o.call];

            if (o.count < e->max)
                enter(s, o.call, o.count + 1, o.parent);
            if (o.count >= e->min)
                look_at(s, e->ret, o.parent);
        }
        if (q->n_spans)
            s->kept[s->n_kept++] = w;
    }
}

static uint32_t cost_of(const struct space *s, const struct way *w)
{
    return plus(s->g->state[w->state].least, s->now.open[w->open].least);
}

static int by_value(const void *a, const void *b)
{
    const struct way *x = a, *y = b;
    return x->state != y->state ? (x->state > y->state) - (x->state < y->state)
                                : (x->open > y->open) - (x->open < y->open);
}

/* The GRAMMAR_WAYS_MAX ways with the shortest texts, by counting their costs' bits from the top. */
static void keep_cheapest(struct space *s)
{
    uint32_t lo = 0, hi = GRAMMAR_INF, n = 0;

    while (lo < hi) { /* lowest bound that at least MAX ways keep */
        uint32_t mid = lo + (hi - lo) / 2, m = 0;
        for (uint32_t i = 0; i < s->n_kept; i++)
            m += cost_of(s, &s->kept[i]) <= mid;
        if (m >= GRAMMAR_WAYS_MAX)
            hi = mid;
        else
            lo = mid + 1;
    }
    for (int equal = 0; equal < 2; equal++)
        for (uint32_t i = n; i < s->n_kept && n < GRAMMAR_WAYS_MAX; i++) {
            uint32_t cost = cost_of(s, &s->kept[i]);
            if (equal ? cost == lo : cost < lo) {
                struct way w = s->kept[n];
                s->kept[n++] = s->kept[i];
                s->kept[i] = w;
            }
        }
    s->n_kept = n;
    s->stats.cut++;
}

/* The place of the ways in `kept`; PLACE_UNKNOWN when memory is full. */
static uint32_t make_end(struct space *s)
{
    uint32_t *slot, i;
    struct place *p;

    if (s->is_full)
        return PLACE_UNKNOWN;
    if (!s->n_kept && !s->kept_accept)
        return PLACE_DEAD;
    if (s->n_kept > GRAMMAR_WAYS_MAX)
        keep_cheapest(s);
    if (s->n_kept > 1)
        qsort(s->kept, s->n_kept, sizeof *s->kept, by_value);
    slot = &s->place_slot[hash_ways(s->kept, s->n_kept, s->kept_accept) & s->slot_mask];
    for (i = *slot; i; i = s->now.place[i].next) {
        p = &s->now.place[i];
        if (p->n_ways == s->n_kept && p->accept == s->kept_accept &&
            memcmp(s->now.way + p->way_at, s->kept, s->n_kept * sizeof *s->kept) == 0)
            return i;
    }
    if (s->now.n_places == s->place_cap || s->now.n_ways + s->n_kept > s->way_cap) {
        s->is_full = true;
        return PLACE_UNKNOWN;
    }
    i = s->now.n_places++;
    p = &s->now.place[i];
    *p = (struct place){.way_at = s->now.n_ways,
                        .n_ways = s->n_kept,
                        .accept = s->kept_accept,
                        .least = s->kept_accept ? 0 : GRAMMAR_INF,
                        .tokens = GRAMMAR_NONE,
                        .peak = GRAMMAR_NONE,
                        .next = *slot,
                        .mask = -1};
    for (uint32_t k = 0; k < s->n_kept; k++) {
        uint32_t cost = cost_of(s, &s->kept[k]);
        p->least = FST_MIN(p->least, cost);
        s->now.way[s->now.n_ways++] = s->kept[k];
    }
    *slot = i;
    memset(row_of(s, i), 0, s->g->n_classes * sizeof *s->row);
    s->stats.states++;
    return i;
}

uint32_t space_step(struct space *s, uint32_t place, uint8_t byte)
{
    uint32_t *to = &row_of(s, place)[s->g->class_of[byte]];
    const struct place *p = &s->now.place[place];

    if (*to != PLACE_UNKNOWN)
        return *to;
    make_begin(s);
    for (uint32_t i = 0; i < p->n_ways; i++) {
        const struct way w = s->now.way[p->way_at + i];
        const struct span_edge *e = grammar_span(s->g, &s->g->state[w.state], byte);
        if (e)
            look_at(s, e->to, w.open);
    }
    spread(s);
    *to = make_end(s);
    return *to;
}

struct leads {      /* of the characters of one kind */
    uint32_t to;    /* the first legal place met */
    bool dead, two; /* some are not legal; there is a second place */
};

/* Notes where the characters lead whose first bytes led to `at`: `left` bytes are missing, the next one
 * of lo..hi.  False when memory is full. */
static bool note_leads(struct space *s, uint32_t at, int left, int lo, int hi, struct leads *l)
{
    uint32_t last = PLACE_UNKNOWN;

    if (at == PLACE_DEAD) {
        l->dead = true;
        return true;
    }
    if (!left) {
        l->two |= l->to && l->to != at;
        l->to = at;
        return true;
    }
    for (int b = lo; b <= hi; b++) {
        uint32_t next = space_step(s, at, (uint8_t)b);

        if (next == PLACE_UNKNOWN ||
            (next != last && !note_leads(s, next, left - 1, 0x80, 0xbf, l)))
            return false;
        last = next;
    }
    return true;
}

bool space_kinds(struct space *s, uint32_t place)
{
    struct place *p = &s->now.place[place];
    struct leads leads[VOCAB_KINDS] = {{0}};

    if (p->has_kinds)
        return true;
    for (int lead = 0; lead <= 0xf4; lead++) {
        int kind = vocab_kind((uint8_t)lead), n = lead < 0x80 ? 1 : vocab_safe_lead(lead), lo, hi;
        uint32_t to;

        if (kind < 0)
            continue;
        to = space_step(s, place, (uint8_t)lead);
        vocab_second_byte(lead, &lo, &hi);
        if (to == PLACE_UNKNOWN || !note_leads(s, to, n - 1, lo, hi, &leads[kind]))
            return false;
    }
    p->to = PLACE_DEAD;
    for (int k = 0; k < VOCAB_KINDS && p->to == PLACE_DEAD; k++) /* letters first, then digits */
        if (leads[k].to && !leads[k].two)
            p->to = leads[k].to;
    for (int k = 0; k < VOCAB_KINDS; k++) {
        uint64_t bit = (uint64_t)1 << k;
        if (!leads[k].to)
            p->none_to |= bit;
        else if (leads[k].to == p->to && !leads[k].two)
            *(leads[k].dead ? &p->some_to : &p->all_to) |= bit;
    }
    p->has_kinds = true;
    return true;
}

static uint32_t make_start(struct space *s)
{
    make_begin(s);
    look_at(s, s->g->rule[0].start, 0);
    spread(s);
    s->kept_accept |= s->g->accepts_empty;
    return make_end(s);
}

/* ---- dropping places ---------------------------------------------------------------------------- */

static void pool_reset(struct space *s)
{
    s->now.n_places = PLACE_FIRST;
    s->now.n_ways = 0;
    s->now.n_opens = 1; /* open 0 stays zero */
    s->now.place[PLACE_DEAD] =
        (struct place){.least = GRAMMAR_INF, .tokens = GRAMMAR_INF, .peak = 0, .mask = -1};
    memset(s->place_slot, 0, (s->slot_mask + 1) * sizeof *s->place_slot);
    memset(s->open_slot, 0, (s->slot_mask + 1) * sizeof *s->open_slot);
    for (uint32_t k = 0; k < s->g->n_classes; k++)
        row_of(s, PLACE_DEAD)[k] = PLACE_DEAD;
    for (int i = 0; i < s->n_masks; i++)
        s->mask[i].place = PLACE_UNKNOWN;
    s->is_full = false;
}

/* s->now is the new pool, s->other the old one. */
static uint32_t move_open(struct space *s, uint32_t open)
{
    uint32_t chain = open, up;

    /* turn the chain of what is not moved yet around: its `next` is free to be used now */
    for (up = 0; chain && !s->moved_open[chain]; chain = s->other.open[chain].parent) {
        s->other.open[chain].next = up;
        up = chain;
    }
    while (up) {
        const struct open_call *o = &s->other.open[up];
        s->moved_open[up] =
            find_open(s, o->call, o->count, o->parent ? s->moved_open[o->parent] : 0);
        up = o->next;
    }
    return open ? s->moved_open[open] : 0;
}

static uint32_t move_place(struct space *s, uint32_t place)
{
    const struct place *p = &s->other.place[place];

    if (place < PLACE_FIRST || s->moved_place[place])
        return place < PLACE_FIRST ? place : s->moved_place[place];
    /* make_end finds a place of the same ways, whatever their order was */
    make_begin(s);
    for (uint32_t i = 0; i < p->n_ways; i++) {
        const struct way *w = &s->other.way[p->way_at + i];
        s->kept[s->n_kept++] = (struct way){w->state, move_open(s, w->open)};
    }
    s->kept_accept = p->accept;
    s->moved_place[place] = make_end(s);
    return s->moved_place[place];
}

bool space_collect(struct space *s, uint32_t *path, uint32_t n)
{
    struct space_pool old = s->now;

    s->stats.collections++;
    s->now = s->other;
    s->other = old;
    memset(s->moved_place, 0, old.n_places * sizeof *s->moved_place);
    memset(s->moved_open, 0, old.n_opens * sizeof *s->moved_open);
    pool_reset(s);
    s->start = move_place(s, s->start);
    for (struct matcher *m = s->matchers; m; m = m->next)
        for (int i = 0; i <= m->n; i++) {
            uint32_t *p = &m->place[(m->at - i + m->cap) % m->cap];
            *p = move_place(s, *p);
        }
    for (uint32_t i = 0; i < n; i++)
        path[i] = move_place(s, path[i]);
    FST_ASSERT(!s->is_full); /* no more than there were before */
    return s->now.n_places < s->place_cap - s->place_cap / 8 &&
           s->now.n_ways < s->way_cap - s->way_cap / 8 &&
           s->now.n_opens < s->open_cap - s->open_cap / 8;
}

/* ---- life ---------------------------------------------------------------------------------------- */

static bool pool_init(struct space *s, struct space_pool *p)
{
    p->place = mem_calloc(s->place_cap, sizeof *p->place);
    p->way = mem_calloc(s->way_cap, sizeof *p->way);
    p->open = mem_calloc(s->open_cap, sizeof *p->open);
    return p->place && p->way && p->open;
}

static void pool_release(struct space_pool *p)
{
    mem_free(p->place);
    mem_free(p->way);
    mem_free(p->open);
}

static bool take_memory(struct space *s, size_t bytes)
{
    size_t words = s->v->words * sizeof(uint32_t), each, places;
    uint32_t slots = 1;

    s->n_masks = MASKS;
    bytes -= FST_MIN(bytes, MASKS * words);
    each = s->g->n_classes * sizeof *s->row +
           2 * (sizeof(struct place) + WAYS_PER_PLACE * sizeof(struct way) +
                OPENS_PER_PLACE * sizeof(struct open_call));
    places = bytes / each;
    places = FST_MIN(FST_MAX(places, PLACES_MIN), PLACES_MAX);
    s->place_cap = (uint32_t)places;
    s->way_cap = FST_MAX(s->place_cap * WAYS_PER_PLACE, 160u * GRAMMAR_WAYS_MAX);
    s->open_cap = FST_MAX(s->place_cap * OPENS_PER_PLACE, 1u << 15);
    while (slots < s->place_cap)
        slots *= 2;
    s->slot_mask = slots - 1;
    s->row = mem_calloc((size_t)s->place_cap * s->g->n_classes, sizeof *s->row);
    s->place_slot = mem_calloc(slots, sizeof *s->place_slot);
    s->open_slot = mem_calloc(slots, sizeof *s->open_slot);
    s->moved_place = mem_calloc(s->place_cap, sizeof *s->moved_place);
    s->moved_open = mem_calloc(s->open_cap, sizeof *s->moved_open);
    s->look = mem_calloc(SPACE_LOOK_MAX, sizeof *s->look);
    s->kept = mem_calloc(SPACE_LOOK_MAX, sizeof *s->kept);
    s->seen = mem_calloc(2 * SPACE_LOOK_MAX, sizeof *s->seen);
    s->seen_round = mem_calloc(2 * SPACE_LOOK_MAX, sizeof *s->seen_round);
    s->text = mem_alloc(SPACE_TEXT_MAX);
    s->cost = mem_alloc((SPACE_TEXT_MAX + 1) * sizeof *s->cost);
    s->frame_call = mem_alloc((s->g->depth_max + 2) * sizeof *s->frame_call);
    s->frame_count = mem_alloc((s->g->depth_max + 2) * sizeof *s->frame_count);
    s->mask = mem_calloc(MASKS, sizeof *s->mask);
    for (int i = 0; s->mask && i < MASKS; i++)
        if (!(s->mask[i].bits = mem_alloc(words)))
            return false;
    return s->row && s->place_slot && s->open_slot && s->moved_place && s->moved_open && s->look &&
           s->kept && s->seen && s->seen_round && s->text && s->cost && s->frame_call &&
           s->frame_count && s->mask && pool_init(s, &s->now) && pool_init(s, &s->other);
}

enum fst_status space_new(struct space **out, struct grammar *g, const struct grammar_vocab *v,
                          size_t bytes)
{
    struct space *s = mem_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    s->refs = 1;
    s->g = grammar_ref(g);
    s->v = v;
    if (!take_memory(s, bytes)) {
        space_unref(s);
        return fst_error(FST_ENOMEM, "grammar: out of memory for a matcher");
    }
    pool_reset(s);
    s->start = make_start(s);
    if (s->start == PLACE_UNKNOWN) {
        space_unref(s);
        return fst_error(FST_EBUDGET, "grammar: the start does not fit the matcher's memory");
    }
    *out = s;
    return FST_OK;
}

void space_unref(struct space *s)
{
    if (--s->refs)
        return;
    pool_release(&s->now);
    pool_release(&s->other);
    for (int i = 0; s->mask && i < s->n_masks; i++)
        mem_free(s->mask[i].bits);
    mem_free(s->mask);
    mem_free(s->row);
    mem_free(s->place_slot);
    mem_free(s->open_slot);
    mem_free(s->moved_place);
    mem_free(s->moved_open);
    mem_free(s->look);
    mem_free(s->kept);
    mem_free(s->seen);
    mem_free(s->seen_round);
    mem_free(s->text);
    mem_free(s->cost);
    mem_free(s->frame_call);
    mem_free(s->frame_count);
    grammar_unref(s->g);
    mem_free(s);
}
