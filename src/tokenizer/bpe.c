/* bpe.c - text to ids: added tokens, then pieces, then byte-pair merging.
 *
 * Most pieces are tokens themselves and cost one hash lookup.  The rest is merged: short pieces by
 * looking through their pairs, long ones with a heap of (rank, position), so that a piece of n
 * bytes costs O(n log n) whatever it holds. */
#include "tokenizer/vocab.h"

#include "tokenizer/split.h"

enum {
    /* Up to here a scan over the pairs beats the heap. */
    SHORT_PIECE = 32
};

/* ---- tables --------------------------------------------------------------------------------- */

uint32_t vocab_hash(const char *s, size_t len)
{
    uint64_t h = len * 0x9e3779b97f4a7c15u, w;

    for (; len >= 8; s += 8, len -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    w = 0;
    memcpy(&w, s, len);
    h = (h ^ w) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

int32_t vocab_find(const struct tokenizer *t, const char *s, size_t len)
{
    uint32_t h;

    if (len > t->longest)
        return -1;
    for (h = vocab_hash(s, len) & t->piece_mask; t->piece_slot[h]; h = (h + 1) & t->piece_mask) {
        int32_t id = (int32_t)t->piece_slot[h] - 1;
        if (t->token[id].len == len && memcmp(t->blob + t->token[id].at, s, len) == 0)
            return id;
    }
    return -1;
}

const struct vocab_merge *vocab_find_merge(const struct tokenizer *t, int32_t left, int32_t right)
{
    uint32_t h = ((uint32_t)left * 0x9e3779b1u ^ (uint32_t)right * 0x85ebca77u);

    for (h = (h ^ h >> 15) & t->merge_mask; t->merge[h].result >= 0; h = (h + 1) & t->merge_mask)
        if (t->merge[h].left == left && t->merge[h].right == right)
            return &t->merge[h];
    return NULL;
}

/* ---- merging -------------------------------------------------------------------------------- */

static void merge_short(const struct tokenizer *t, const char *piece, size_t len,
                        struct tokenizer_ids *out)
{
    int32_t id[SHORT_PIECE];
    const struct vocab_merge *pair[SHORT_PIECE]; /* of i and i + 1 */
    size_t n = len;

    for (size_t i = 0; i < n; i++)
        id[i] = t->byte_id[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = vocab_find_merge(t, id[i], id[i + 1]);
    while (n > 1) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++)
            if (pair[i] && (best == n || pair[i]->rank < pair[best]->rank))
                best = i;
        if (best == n)
            break;
        id[best] = pair[best]->result;
        n--;
        for (size_t i = best + 1; i < n; i++)
            id[i] = id[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++)
            pair[i] = pair[i + 1];
        if (best + 1 < n)
            pair[best] = vocab_find_merge(t, id[best], id[best + 1]);
        if (best > 0)
            pair[best - 1] = vocab_find_merge(t, id[best - 1], id[best]);
    }
    memcpy(out->id + out->n, id, n * sizeof *id);
    out->n += n;
}

/* Symbols of a long piece: a list by index.  Dead ones have id -1. */
struct symbol {
    int32_t id;
    uint32_t prev, next;
};

/* Keys are rank << 32 | position, so the smallest is the lowest rank, leftmost on a tie. */
struct heap {
    uint64_t *key;
    size_t n, cap;
};

static void sift_down(struct heap *h, size_t i)
{
    uint64_t k = h->key[i];

    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->key[c + 1] < h->key[c])
            c++;
        if (h->key[c] >= k)
            break;
        h->key[i] = h->key[c];
        i = c;
    }
    h->key[i] = k;
}

static void heap_push(struct heap *h, uint64_t k)
{
    size_t i = h->n++;

    FST_ASSERT(h->n <= h->cap);
    for (; i > 0 && h->key[(i - 1) / 2] > k; i = (i - 1) / 2)
        h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = k;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t k = h->key[0];

    h->key[0] = h->key[--h->n];
    if (h->n)
        sift_down(h, 0);
    return k;
}

static void push_pair(const struct tokenizer *t, struct heap *h, const struct symbol *s,
                      uint32_t at, uint32_t end)
{
    const struct vocab_merge *m;

    if (s[at].next == end)
        return;
    m = vocab_find_merge(t, s[at].id, s[s[at].next].id);
    if (m)
        heap_push(h, (uint64_t)(uint32_t)m->rank << 32 | at);
}

static void merge_all(const struct tokenizer *t, struct symbol *s, uint32_t n, struct heap *h)
{
    while (h->n) {
        uint64_t k = heap_pop(h);
        uint32_t at = (uint32_t)k, right;
        const struct vocab_merge *m;

        /* The pair may have changed since it was pushed; then its new self was pushed too. */
        if (s[at].id < 0 || s[at].next == n)
            continue;
        right = s[at].next;
        m = vocab_find_merge(t, s[at].id, s[right].id);
        if (!m || (uint32_t)m->rank != k >> 32)
            continue;
        s[at].id = m->result;
        s[at].next = s[right].next;
        s[right].id = -1;
        if (s[at].next != n)
            s[s[at].next].prev = at;
        push_pair(t, h, s, at, n);
        if (at > 0)
            push_pair(t, h, s, s[at].prev, n);
    }
}

static enum fst_status merge_long(const struct tokenizer *t, const char *piece, size_t len,
                                  struct tokenizer_ids *out)
{
    uint32_t n = (uint32_t)len;
    struct symbol *s = mem_alloc(len * sizeof *s);
    /* n - 1 pairs at first, and each of at most n - 1 merges takes one and pushes two. */
    struct heap h = {.key = mem_alloc(2 * len * sizeof(uint64_t)), .cap = 2 * len};

    if (!s || !h.key) {
        mem_free(s);
        mem_free(h.key);
        return fst_error(FST_ENOMEM, "tokenizer: no memory to merge a piece of %zu bytes", len);
    }
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct symbol){t->byte_id[(unsigned char)piece[i]], i - 1, i + 1};
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct vocab_merge *m = vocab_find_merge(t, s[i].id, s[i + 1].id);
        if (m)
            h.key[h.n++] = (uint64_t)(uint32_t)m->rank << 32 | i;
    }
    for (size_t i = h.n / 2; i-- > 0;)
        sift_down(&h, i);
    merge_all(t, s, n, &h);
    for (uint32_t i = 0; i < n; i = s[i].next)
        out->id[out->n++] = s[i].id;
    mem_free(s);
    mem_free(h.key);
    return FST_OK;
}

static bool reserve(struct tokenizer_ids *ids, size_t more)
{
    size_t cap = ids->cap ? ids->cap : 64;
    int32_t *p;

    if (more > SIZE_MAX / 16 || ids->n > SIZE_MAX / 16)
        return false;
    while (cap < ids->n + more)
        cap *= 2;
    if (cap == ids->cap)
        return true;
    p = mem_realloc(ids->id, cap * sizeof *p);
    if (!p)
        return false;
    ids->id = p;
    ids->cap = cap;
    return true;
}

enum fst_status bpe_merge(const struct tokenizer *t, const char *piece, size_t len,
                          struct tokenizer_ids *out)
{
    if (!reserve(out, len))
        return fst_error(FST_ENOMEM, "tokenizer: no memory for %zu ids", out->n + len);
    if (len > SHORT_PIECE)
        return merge_long(t, piece, len, out);
    merge_short(t, piece, len, out);
    return FST_OK;
}

/* ---- encoding ------------------------------------------------------------------------------- */

void tokenizer_ids_release(struct tokenizer_ids *ids)
{
    mem_free(ids->id);
    *ids = (struct tokenizer_ids){0};
}

enum fst_status tokenizer_ids_push(struct tokenizer_ids *ids, int32_t id)
{
    if (!reserve(ids, 1))
        return fst_error(FST_ENOMEM, "tokenizer: no memory for %zu ids", ids->n + 1);
    ids->id[ids->n++] = id;
    return FST_OK;
}

/* A run without added tokens. */
static enum fst_status encode_run(const struct tokenizer *t, const char *text, size_t len,
                                  struct tokenizer_ids *out)
{
    struct split s;
    const char *piece;
    size_t n;

    split_init(&s, text, len);
    while (split_next(&s, &piece, &n)) {
        int32_t id = vocab_find(t, piece, n);
        if (id >= 0 && t->token[id].is_whole)
            FST_TRY(tokenizer_ids_push(out, id));
        else
            FST_TRY(bpe_merge(t, piece, n, out));
    }
    return FST_OK;
}

/* Cuts text[from..to) at added tokens of one kind; what lies between goes on to the other kind. */
static enum fst_status encode_scan(const struct tokenizer *t, const char *text, size_t from,
                                   size_t to, const uint8_t *allowed, bool normalized,
                                   struct tokenizer_ids *out)
{
    bool last = normalized || !t->has_normalized;
    size_t start = from, at = from;

    while (at <= to) {
        int32_t id = -1;
        size_t n = 0;

        if (at < to && t->first_byte[(unsigned char)text[at]])
            n = added_match(t, text, at, to, allowed, normalized, &id);
        if (at < to && n == 0) {
            at++;
            continue;
        }
        if (at > start) {
            if (last)
                FST_TRY(encode_run(t, text + start, at - start, out));
            else
                FST_TRY(encode_scan(t, text, start, at, allowed, true, out));
        }
        if (n == 0)
            break;
        FST_TRY(tokenizer_ids_push(out, id));
        at += n;
        start = at;
    }
    return FST_OK;
}

enum fst_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                                 const uint8_t *allowed, struct tokenizer_ids *out)
{
    if (len > INT32_MAX)
        return fst_error(FST_ENOMEM, "tokenizer: a text of %zu bytes is more than 2 GiB", len);
    if (!allowed)
        return encode_run(t, text, len, out);
    return encode_scan(t, text, 0, len, allowed, false, out);
}

enum fst_status tokenizer_encode_text(const struct tokenizer *t, const char *text, size_t len,
                                      bool parse_special, struct tokenizer_ids *out)
{
    if (len > INT32_MAX)
        return fst_error(FST_ENOMEM, "tokenizer: a text of %zu bytes is more than 2 GiB", len);
    if (!parse_special)
        return encode_run(t, text, len, out);
    return encode_scan(t, text, 0, len, NULL, false, out);
}
