/* check_draw.c - tokens from logits, and the Markov chain of a draft block. */
#include "checkkern.h"

#include "kernels/philox.h"

static void run_draw(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                     int first, int n)
{
    struct draw_args a = *(struct draw_args *)t->ud;
    (void)c;
    a.logits += (int64_t)first * a.vocab;
    a.draw += first;
    a.out_pos += first;
    a.id += first;
    a.lse += first;
    a.logit += first;
    a.n = n;
    FST_ASSERT(k->draw(&a, s) == FST_OK);
}

/* Draw of a row by the header's scalar functions: what every set must agree with. */
static int32_t plain_draw(const float *l, int vocab, const struct draw_params *d, uint32_t out_pos,
                          bool drafts)
{
    float best = -INFINITY;
    int32_t id = 0;
    for (int v = 0; v < vocab; v++) {
        float x = l[v];
        if (isnan(x) && !drafts)
            return -1;
        if (d->temperature > 0)
            x = x / d->temperature + philox_gumbel(d->seed, (uint32_t)v, out_pos, d->choice);
        if (x > best) {
            best = x;
            id = v;
        }
    }
    return id;
}

static void case_draw(struct ck *c, int n, int vocab, bool drafts)
{
    struct ck_case t = {.entry = "draw", .n_rows = n, .n_ref = n, .run = run_draw};
    struct draw_params *d = ck_alloc(c, (size_t)n * sizeof *d);
    uint32_t *out_pos = ck_alloc(c, (size_t)n * 4);
    float *l = ck_alloc(c, (size_t)n * (size_t)vocab * 4);
    snprintf(t.label, sizeof t.label, "vocab %d%s", vocab, drafts ? ", drafts" : "");
    for (int i = 0; i < n; i++) {
        float *row = l + (int64_t)i * vocab;
        ck_floats(c, row, vocab, 0, 3);
        d[i] = (struct draw_params){i % 3 == 0 ? 0 : 0.3f + 0.2f * (float)(i % 7),
                                    (uint32_t)(i % 2), ck_next(c)};
        out_pos[i] = (uint32_t)ck_below(c, 1 << 20);
        if (i % 16 == 3) /* all equal: the lowest id */
            for (int v = 0; v < vocab; v++)
                row[v] = 1.25f;
        if (i % 16 == 6) { /* a tie at the top, across chunks and lanes */
            row[vocab - 1] = row[vocab / 2] = 90;
        }
        if (i % 16 == 8) /* the best one is masked */
            row[vocab / 5] = 100;
        if (i % 16 == 7)
            row[ck_below(c, vocab)] = NAN;
        if (i % 16 == 9) /* masked down to one token */
            for (int v = 0; v < vocab; v++)
                if (v != vocab / 3)
                    row[v] = -INFINITY;
    }
    struct ck_shape wide = ck_kindling;
    wide.vocab = vocab;
    ck_scratch(c, &wide, n, 1);
    int32_t *masked = ck_alloc(c, 2 * sizeof *masked); /* in the first and the last chunk */
    masked[0] = vocab / 5;
    masked[1] = vocab - 2;
    struct draw_args a = {.logits = l,
                          .draw = d,
                          .out_pos = out_pos,
                          .ahead = drafts ? 2 : 0,
                          .drafts = drafts,
                          .masked = masked,
                          .n = n,
                          .vocab = vocab,
                          .n_masked = 2};
    ck_out_int(&t, c, "id", &a.id, 1);
    ck_out(&t, c, "lse", &a.lse, 1, 1e-10);
    ck_out(&t, c, "logit", &a.logit, 1, 1e-10);
    t.ud = &a;
    t.bytes = (int64_t)n * vocab * 4;
    ck_run(c, &t);
    if (c->bench || c->k.flags == 0)
        return;
    run_draw(c, &t, &c->k, &c->s, 0, n);
    for (int i = 0; i < n; i++) {
        int32_t want =
            plain_draw(l + (int64_t)i * vocab, vocab, &d[i], out_pos[i] + a.ahead, drafts);
        ck_verdict(c, a.id[i] == want, "draw", "row %d: %d, philox.h says %d", i, (int)a.id[i],
                   (int)want);
    }
}

struct chain_case {
    struct draft_chain_args a;
    struct mat w1, w2, conf;
};

static void run_chain(struct ck *c, struct ck_case *t, const struct kernels *k, struct stream *s,
                      int first, int n)
{
    struct chain_case *u = t->ud;
    struct draft_chain_args a = u->a;
    int64_t g = (int64_t)first * a.gamma;
    (void)c;
    a.base += g * a.vocab;
    a.y += g * a.dim;
    a.anchor += first;
    a.draw += first;
    a.out_pos += first;
    a.id += g;
    a.conf = a.conf ? a.conf + g : NULL;
    a.corrected = a.corrected ? a.corrected + g * a.vocab : NULL;
    a.n = n;
    FST_ASSERT(k->draft_chain(&a, s) == FST_OK);
}

static void case_chain(struct ck *c, const struct ck_shape *m, int n, int n_ref, bool all)
{
    struct ck_case t = {
        .entry = "draft_chain", .n_rows = n, .n_ref = FST_MIN(n, n_ref), .run = run_chain};
    int gamma = 5;
    struct chain_case u = {
        .a = {.n = n, .gamma = gamma, .vocab = m->vocab, .dim = m->dim, .rank = m->rank}};
    snprintf(t.label, sizeof t.label, "%s%s", m->name, all ? ", all outputs" : "");
    ck_scratch(c, m, n, 1);
    u.w1 = ck_mat(c, WEIGHT_BF16, m->vocab, m->rank, 4);
    u.w2 = ck_mat(c, WEIGHT_BF16, m->vocab, m->rank, 4);
    u.a.w1 = &u.w1;
    u.a.w2 = &u.w2;
    float *base = ck_alloc(c, (size_t)(n * gamma) * (size_t)m->vocab * 4);
    float *y = ck_alloc(c, (size_t)(n * gamma * m->dim) * 4);
    ck_floats(c, base, (int64_t)n * gamma * m->vocab, 0, 2);
    ck_activations(c, y, n * gamma, m->dim, 1);
    int32_t *anchor = ck_alloc(c, (size_t)n * 4);
    uint32_t *out_pos = ck_alloc(c, (size_t)n * 4);
    struct draw_params *d = ck_alloc(c, (size_t)n * sizeof *d);
    for (int i = 0; i < n; i++) {
        anchor[i] = ck_below(c, m->vocab);
        out_pos[i] = (uint32_t)i * 5;
        d[i] = (struct draw_params){i % 2 ? 0.8f : 0, 0, ck_next(c)};
    }
    u.a.base = base;
    u.a.y = y;
    u.a.anchor = anchor;
    u.a.out_pos = out_pos;
    u.a.draw = d;
    ck_out_int(&t, c, "id", &u.a.id, gamma);
    if (all) {
        u.conf = ck_mat(c, WEIGHT_BF16, 1, m->dim + m->rank, 1);
        u.a.conf_proj = &u.conf;
        ck_out(&t, c, "conf", &u.a.conf, gamma, 1e-6);
        ck_out(&t, c, "corrected", &u.a.corrected, (int64_t)gamma * m->vocab, 1e-6);
    }
    t.ud = &u;
    t.macs = (int64_t)n * gamma * m->vocab * m->rank;
    t.bytes = (int64_t)gamma * m->vocab * m->rank * 2 + (int64_t)n * gamma * m->vocab * 4;
    ck_run(c, &t);
}

void check_draw(struct ck *c)
{
    if (c->bench) {
        if (ck_wanted(c, "draw")) {
            case_draw(c, 1, 4096, false);
            case_draw(c, 6, 4096, false);
            case_draw(c, 6, 129280, false);
        }
        if (ck_wanted(c, "draft_chain")) {
            case_chain(c, &ck_kindling, 1, 1, true);
            case_chain(c, &ck_kindling, 32, 1, true);
        }
        ck_free_all(c);
        return;
    }
    if (ck_wanted(c, "draw")) {
        case_draw(c, c->sweep ? 16 : 70, 4096, false);
        case_draw(c, 17, 4999, true);
        case_draw(c, 9, 7, false);
    }
    ck_free_all(c);
    if (ck_wanted(c, "draft_chain")) {
        case_chain(c, &ck_kindling, c->sweep || !c->k.flags ? 4 : 70, 4, true);
        ck_free_all(c);
        case_chain(c, &ck_kindling, 3, 3, false);
        ck_free_all(c);
        case_chain(c, &ck_flash, 2, 2, true);
    }
    ck_free_all(c);
}
