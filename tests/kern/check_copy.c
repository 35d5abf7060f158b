/* Copies: pieces of all lengths and alignments, between and around which nothing changes; and how fast. */
#include <string.h>

#include "checkkern.h"

enum { BYTES = 1 << 20, PIECES = 700 };

struct copies {
    uint8_t *from, *to, *want;
    struct copy_piece *piece;
    int n;
    int64_t bytes;
};

/* One behind the other with gaps, from anywhere. */
static void make(struct ck *c, struct copies *x, int most)
{
    int64_t at = 4 * ck_below(c, 8);
    x->n = 0;
    x->bytes = 0;
    for (;;) {
        int64_t bytes = 4 * (1 + ck_below(c, ck_below(c, 3) ? 12 : most / 4));
        if (ck_below(c, 4) == 0)
            at = round_up(at, 16);
        if (at + bytes > BYTES || x->n == PIECES)
            return;
        int64_t from = 4 * ck_below(c, (int)(BYTES - bytes) / 4 + 1);
        if (ck_below(c, 4) == 0)
            from &= ~15;
        x->piece[x->n++] = (struct copy_piece){x->to + at, x->from + from, bytes};
        x->bytes += bytes;
        at += bytes + 4 * ck_below(c, 5);
    }
}

static void compare(struct ck *c, struct copies *x, struct stream *s, const char *what)
{
    struct copy_pieces_args a = {x->piece, x->n};
    memset(x->to, 0x5a, BYTES);
    memset(x->want, 0x5a, BYTES);
    for (int i = 0; i < x->n; i++)
        memcpy(x->want + (x->piece[i].to - x->to), x->piece[i].from, (size_t)x->piece[i].bytes);
    bool ok = c->k.copy_pieces(&a, s) == FST_OK;
    int64_t bad = -1;
    for (int64_t i = 0; i < BYTES && bad < 0; i++)
        if (x->to[i] != x->want[i])
            bad = i;
    ck_verdict(c, ok && bad < 0, "copy_pieces", "%s: %d pieces, byte %lld", what, x->n,
               (long long)bad);
}

/* Pieces of one length, as rows: a snapshot's bytes of V4-Flash. */
enum { ROWS = 416, ROW_BYTES = 8192 };

struct rows_to_copy {
    int32_t *from, *to;
    struct copy_piece *piece;
};

static void run_rows(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct rows_to_copy *x = t->ud;
    (void)c;
    for (int i = first; i < first + n; i++)
        x->piece[i] = (struct copy_piece){(uint8_t *)x->to + (int64_t)i * ROW_BYTES,
                                          (uint8_t *)x->from + (int64_t)i * ROW_BYTES, ROW_BYTES};
    struct copy_pieces_args a = {x->piece + first, n};
    FST_ASSERT(k->copy_pieces(&a, s) == FST_OK);
}

static void rows(struct ck *c)
{
    struct rows_to_copy x = {.from = ck_alloc(c, (size_t)ROWS * ROW_BYTES),
                             .piece = ck_alloc(c, ROWS * sizeof *x.piece)};
    struct ck_case t = {.entry = "copy_pieces",
                        .n_rows = ROWS,
                        .n_ref = ROWS,
                        .run = run_rows,
                        .ud = &x,
                        .bytes = 2 * (int64_t)ROWS * ROW_BYTES};
    snprintf(t.label, sizeof t.label, "%d pieces of %d bytes", (int)ROWS, (int)ROW_BYTES);
    for (int64_t i = 0; i < (int64_t)ROWS * ROW_BYTES / 4; i++)
        x.from[i] = (int32_t)ck_next(c);
    ck_out_int(&t, c, "bytes", &x.to, ROW_BYTES / 4);
    ck_run(c, &t);
    ck_free_all(c);
}

void check_copy(struct ck *c)
{
    struct copies x = {0};
    if (!ck_wanted(c, "copy_pieces"))
        return;
    rows(c);
    if (c->bench)
        return;
    x.from = ck_alloc(c, BYTES);
    x.to = ck_alloc(c, BYTES);
    x.want = ck_alloc(c, BYTES);
    x.piece = ck_alloc(c, PIECES * sizeof *x.piece);
    for (int64_t i = 0; i < BYTES; i += 8) {
        uint64_t v = ck_next(c);
        memcpy(x.from + i, &v, 8);
    }
    compare(c, &x, &c->s, "none");
    static const int most[] = {4, 64, 4096, COPY_PIECE_MAX};
    for (size_t i = 0; i < FST_COUNT(most); i++)
        for (int round = 0; round < (c->emulated ? 1 : 8); round++) {
            make(c, &x, most[i]);
            compare(c, &x, &c->s, "mixed");
        }
    for (int threads = 1; threads < 4 && !c->device && !c->emulated; threads++) {
        struct stream s = c->s;
        s.pool = c->pool[threads];
        compare(c, &x, &s, "threads");
    }
    ck_free_all(c);
}
