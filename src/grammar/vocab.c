/* vocab.c - the tokens as tries and ready masks. */
#include "grammar/vocab.h"
#include "base/utf8.h"

struct entry {
    const char *s;
    uint32_t len;
    int32_t id;
    int32_t n_chars;   /* of a safe token; 0: not safe */
    int32_t all_chars; /* of a token of whole characters */
    uint64_t kinds;    /* 0: not whole characters */
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int r = memcmp(x->s, y->s, FST_MIN(x->len, y->len));

    if (r)
        return r;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int by_chars(const void *a, const void *b)
{
    const struct vocab_safe *x = a, *y = b;
    return x->n_chars != y->n_chars ? (x->n_chars > y->n_chars) - (x->n_chars < y->n_chars)
                                    : (x->id > y->id) - (x->id < y->id);
}

/* Kinds of the characters of s, 0 if they are not whole; *n: how many. */
static uint64_t kinds_of(const char *s, size_t len, int32_t *n)
{
    uint64_t kinds = 0;

    *n = 0;
    for (size_t i = 0; i < len; ++*n) {
        uint32_t cp;
        int k = utf8_decode(s + i, len - i, &cp);

        if (k <= 0)
            return 0;
        kinds |= (uint64_t)1 << vocab_kind((uint8_t)s[i]);
        i += (size_t)k;
    }
    return kinds;
}

static int32_t safe_chars(const char *s, size_t len)
{
    int32_t n = 0;

    for (size_t i = 0; i < len; n++) {
        uint32_t cp;
        int k = utf8_decode(s + i, len - i, &cp);

        if (k <= 0 || vocab_safe_lead((uint8_t)s[i]) != k)
            return 0;
        i += (size_t)k;
    }
    return n;
}

/* Entries sorted by bytes, `only_rest`: without safe ones. */
static bool make_trie(struct grammar_vocab *v, struct trie *t, const struct entry *e, size_t n,
                      bool only_rest)
{
    uint32_t open[VOCAB_TOKEN_MAX + 1]; /* node at each depth of the entry before */
    const struct entry *last = NULL;
    size_t n_nodes = 0;

    for (int round = 0; round < 2; round++) { /* count, then fill */
        uint32_t depth = 0;

        if (round) {
            t->node = arena_calloc(&v->mem, n_nodes, sizeof *t->node);
            if (!t->node)
                return false;
        }
        last = NULL;
        n_nodes = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t same = 0;

            if (only_rest && e[i].n_chars)
                continue;
            while (last && same < last->len && same < e[i].len && last->s[same] == e[i].s[same])
                same++;
            for (; round && depth > same; depth--)
                t->node[open[depth - 1]].skip = (uint32_t)n_nodes;
            depth = same;
            for (; depth < e[i].len; depth++, n_nodes++) {
                open[depth] = (uint32_t)n_nodes;
                if (round)
                    t->node[n_nodes] = (struct trie_node){
                        .id = -1, .byte = (uint8_t)e[i].s[depth], .depth = (uint8_t)depth};
            }
            if (round) {
                t->node[open[depth - 1]].id = e[i].id; /* the last of the same bytes */
            }
            last = &e[i];
        }
        for (; round && depth; depth--)
            t->node[open[depth - 1]].skip = (uint32_t)n_nodes;
    }
    t->n = (uint32_t)n_nodes;
    for (uint32_t b = 0, at = 0; b <= 256; b++) {
        while (at < t->n && t->node[at].byte < b)
            at = t->node[at].skip;
        t->root[b] = at;
    }
    return true;
}

/* First where in a character each node stands, from the roots on; then what is below, from the leaves
 * up: a node comes before what is below it. */
static bool make_sorts(struct grammar_vocab *v, struct trie *t)
{
    struct {
        int lead, pos; /* the character's first byte; bytes of it up to here */
        bool ok;
    } at[VOCAB_TOKEN_MAX + 2] = {{0}};

    t->sort = arena_calloc(&v->mem, t->n, sizeof *t->sort);
    if (!t->sort)
        return false;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct trie_node *x = &t->node[i];
        int d = x->depth, len, lo, hi;

        at[d + 1] = at[d];
        len = d && at[d].lead >= 0x80 ? vocab_safe_lead(at[d].lead) : 1;
        if (!d || at[d].pos == len) { /* a character begins */
            at[d + 1].lead = x->byte;
            at[d + 1].pos = 1;
            at[d + 1].ok = (!d || at[d].ok) && vocab_kind(x->byte) >= 0;
            t->sort[i].n_chars = 1;
            if (vocab_kind(x->byte) >= 0)
                t->sort[i].kinds = (uint64_t)1 << vocab_kind(x->byte);
        } else {
            vocab_second_byte(at[d].lead, &lo, &hi);
            at[d + 1].pos++;
            at[d + 1].ok = at[d].ok && (at[d].pos == 1 ? x->byte >= lo && x->byte <= hi
                                                       : (x->byte & 0xc0) == 0x80);
        }
        len = at[d + 1].lead >= 0x80 ? vocab_safe_lead(at[d + 1].lead) : 1;
        t->sort[i].is_whole = at[d + 1].ok && (x->id < 0 || at[d + 1].pos == len);
    }
    for (uint32_t i = t->n; i-- > 0;) {
        struct trie_sort *s = &t->sort[i];
        uint16_t most = 0;

        for (uint32_t k = i + 1; k < t->node[i].skip; k = t->node[k].skip) {
            s->kinds |= t->sort[k].kinds;
            s->is_whole &= t->sort[k].is_whole;
            most = FST_MAX(most, t->sort[k].n_chars);
        }
        s->n_chars = (uint16_t)(s->n_chars + most);
    }
    return true;
}

static void set(uint32_t *mask, int32_t id)
{
    mask[id / 32] |= 1u << (id % 32);
}

static int by_kinds(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;

    if (x->kinds != y->kinds)
        return x->kinds < y->kinds ? -1 : 1;
    return x->all_chars != y->all_chars
               ? (x->all_chars > y->all_chars) - (x->all_chars < y->all_chars)
               : (x->id > y->id) - (x->id < y->id);
}

/* Sorts e anew. */
static bool make_groups(struct grammar_vocab *v, struct entry *e, size_t n)
{
    size_t first = 0, k = 0;

    qsort(e, n, sizeof *e, by_kinds);
    while (first < n && !e[first].kinds)
        first++;
    for (size_t i = first; i < n; i++)
        v->n_groups += i == first || e[i].kinds != e[i - 1].kinds;
    v->group = arena_calloc(&v->mem, v->n_groups + 1, sizeof *v->group);
    v->sorted = arena_calloc(&v->mem, n - first + 1, sizeof *v->sorted);
    if (!v->group || !v->sorted)
        return false;
    for (size_t i = first; i < n; i++) {
        if (i == first || e[i].kinds != e[i - 1].kinds)
            v->group[k++] = (struct vocab_group){e[i].kinds, (uint32_t)(i - first), 0};
        v->group[k - 1].n++;
        v->sorted[i - first] = (struct vocab_safe){e[i].id, e[i].all_chars};
    }
    return true;
}

static bool make_safe(struct grammar_vocab *v, const struct entry *e, size_t n)
{
    for (int k = 0; k <= VOCAB_SAFE_STEPS; k++) {
        v->safe[k] = arena_calloc(&v->mem, v->words, sizeof *v->safe[k]);
        if (!v->safe[k])
            return false;
    }
    for (size_t i = 0; i < n; i++)
        v->n_longer += e[i].n_chars > VOCAB_SAFE_STEPS;
    v->longer = arena_calloc(&v->mem, v->n_longer + 1, sizeof *v->longer);
    if (!v->longer)
        return false;
    v->n_longer = 0;
    for (size_t i = 0; i < n; i++) {
        if (!e[i].n_chars)
            continue;
        set(v->safe[0], e[i].id);
        for (int k = e[i].n_chars; k <= VOCAB_SAFE_STEPS; k++)
            set(v->safe[k], e[i].id);
        if (e[i].n_chars > VOCAB_SAFE_STEPS)
            v->longer[v->n_longer++] = (struct vocab_safe){e[i].id, e[i].n_chars};
    }
    qsort(v->longer, v->n_longer, sizeof *v->longer, by_chars);
    return true;
}

/* Legal tokens and their bytes: no added token but the mark's. */
static size_t collect(struct grammar_vocab *v, const struct tokenizer *t, const char *mark,
                      struct entry *e)
{
    static const char mark_byte[1] = {(char)GRAMMAR_MARK};
    int32_t mark_id = mark && *mark ? tokenizer_special(t, mark) : -1;
    size_t n = 0, used = 0;

    for (int32_t id = 0; id < v->n_ids; id++) {
        size_t len = 0;
        const char *s = tokenizer_bytes(t, id, &len);

        if (id == mark_id) {
            s = mark_byte;
            len = 1;
        } else if (id == v->eos || tokenizer_is_special(t, id) || tokenizer_special(t, s) == id ||
                   memchr(s, GRAMMAR_MARK, len) || len > VOCAB_TOKEN_MAX) {
            len = 0;
        }
        v->at[id] = (uint32_t)used;
        if (!len)
            continue;
        if (e) {
            memcpy(v->blob + used, s, len);
            e[n] = (struct entry){.s = v->blob + used, .len = (uint32_t)len, .id = id};
            e[n].n_chars = safe_chars(s, len);
            e[n].kinds = kinds_of(s, len, &e[n].all_chars);
            v->longest = FST_MAX(v->longest, (uint32_t)len);
        }
        used += len;
        n++;
    }
    v->at[v->n_ids] = (uint32_t)used;
    return n;
}

enum fst_status grammar_vocab_new(struct grammar_vocab **out, const struct tokenizer *t,
                                  int32_t n_ids, int32_t eos, const char *mark)
{
    struct grammar_vocab *v = mem_calloc(1, sizeof *v);
    struct entry *e = NULL;
    enum fst_status rc = FST_ENOMEM;
    size_t n;

    *out = NULL;
    FST_ASSERT(n_ids > 0);
    FST_ASSERT(eos < n_ids);
    if (!v)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    arena_init(&v->mem, 1 << 20, 0);
    v->n_ids = n_ids;
    v->eos = eos;
    v->words = (size_t)div_up(n_ids, 32);
    v->at = arena_calloc(&v->mem, (size_t)n_ids + 1, sizeof *v->at);
    v->same = arena_calloc(&v->mem, (size_t)n_ids, sizeof *v->same);
    if (!v->at || !v->same)
        goto out;
    memset(v->same, 0xff, (size_t)n_ids * sizeof *v->same);
    n = collect(v, t, mark, NULL);
    v->blob = arena_alloc(&v->mem, v->at[n_ids]);
    e = mem_alloc((n + 1) * sizeof *e);
    if (!v->blob || !e)
        goto out;
    collect(v, t, mark, e);
    qsort(e, n, sizeof *e, by_bytes);
    if (!make_trie(v, &v->all, e, n, false) || !make_sorts(v, &v->all))
        goto out;
    for (size_t i = 1; i < n; i++)
        if (e[i].len == e[i - 1].len && memcmp(e[i].s, e[i - 1].s, e[i].len) == 0)
            v->same[e[i].id] = e[i - 1].id;
    if (!make_trie(v, &v->rest, e, n, true) || !make_safe(v, e, n) || !make_groups(v, e, n))
        goto out;
    rc = FST_OK;
    *out = v;
out:
    mem_free(e);
    if (rc < 0) {
        grammar_vocab_free(v);
        fst_error(rc, "grammar: out of memory for the vocabulary");
    }
    return rc;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    arena_release(&v->mem);
    mem_free(v);
}
