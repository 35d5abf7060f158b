/* experts.inl - the routed experts of the rows and the shared one.
 *
 * Rows go through in blocks of EXPERT_ROWS, so that the partial outputs of all (row, expert) visits
 * fit into scratch.  Three passes: gate, up and activation per visit; down per visit, kept apart;
 * the sum per row in ascending expert order, shared last, so that the order of a row's sum never
 * depends on the other rows. */
#include "kernels/cpu/linear.h"

enum { EXPERT_ROWS = 256, EXPERT_OUTS = 128, EXPERT_ROW_TILE = 48, EXPERTS_MAX = 512 };

/* One expert and its visits v0 .. v0+n-1. */
struct visited {
    const struct expert_mats *m;
    int v0, n;
    struct lin_job gate, up, down;
};

struct expert_job {
    const struct experts_args *a;
    struct visited *list;
    int n_list, t0, n_rows, outs;
    int32_t *row;    /* (visits) row in the block */
    float *weight;   /* (visits) */
    int32_t *visit;  /* (rows, k+1) visits of a row */
    float *g, *u;    /* (visits, moe_dim) */
    uint8_t *h;      /* (visits) prepared rows for w2 */
    int64_t h_bytes; /* of one; the widest layout */
    float *z;        /* (visits, dim) */
};

static int64_t row_tiles(const struct visited *v)
{
    return div_up(v->n, EXPERT_ROW_TILE);
}

static void hidden_part(const struct expert_job *j, const struct visited *v, int r0, int r1, int o0,
                        int o1)
{
    const struct experts_args *a = j->a;
    enum lin_layout layout = lin_layout_of(&v->m->w2);
    bool quantise = v->m->w2.fmt == WEIGHT_FP8 || v->m->w2.fmt == WEIGHT_FP4;
    vf limit = v_set1(a->limit), below = v_set1(-a->limit);
    lin_part(&v->gate, r0, r1, o0, o1);
    lin_part(&v->up, r0, r1, o0, o1);
    for (int64_t i = v->v0 + r0; i < v->v0 + r1; i++) {
        float *g = j->g + i * a->moe_dim, *u = j->u + i * a->moe_dim;
        vf w = v_set1(j->weight[i]);
        for (int o = o0; o < o1; o += VL) {
            vf x = v_min(v_load(g + o), limit), y = v_max(v_min(v_load(u + o), limit), below);
            v_store(g + o, v_bf16(v_mul(w, v_mul(v_mul(x, v_sigmoid(x)), y))));
        }
        lin_prepare(layout, quantise, g + o0, o1 - o0,
                    j->h + i * j->h_bytes + lin_row_bytes(layout, 128) * (o0 / 128));
    }
}

static void hidden_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct expert_job *j = ud;
    const struct visited *v = j->list;
    int64_t base = 0, tiles = div_up(j->a->moe_dim, j->outs);
    (void)worker;
    for (int64_t u = first; u < last; u++) {
        while (u - base >= row_tiles(v) * tiles)
            base += row_tiles(v++) * tiles;
        int r0 = (int)((u - base) % row_tiles(v)) * EXPERT_ROW_TILE;
        int o0 = (int)((u - base) / row_tiles(v)) * j->outs;
        hidden_part(j, v, r0, FST_MIN(r0 + EXPERT_ROW_TILE, v->n), o0,
                    FST_MIN(o0 + j->outs, j->a->moe_dim));
    }
}

static void down_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct expert_job *j = ud;
    const struct visited *v = j->list;
    int64_t base = 0, tiles = div_up(j->a->dim, EXPERT_OUTS);
    (void)worker;
    for (int64_t u = first; u < last; u++) {
        while (u - base >= row_tiles(v) * tiles)
            base += row_tiles(v++) * tiles;
        int r0 = (int)((u - base) % row_tiles(v)) * EXPERT_ROW_TILE;
        int o0 = (int)((u - base) / row_tiles(v)) * EXPERT_OUTS;
        lin_part(&v->down, r0, FST_MIN(r0 + EXPERT_ROW_TILE, v->n), o0,
                 FST_MIN(o0 + EXPERT_OUTS, j->a->dim));
    }
}

static void sum_body(void *ud, int64_t first, int64_t last, int worker)
{
    const struct expert_job *j = ud;
    int64_t dim = j->a->dim;
    int k = j->a->k;
    (void)worker;
    for (int64_t t = first; t < last; t++) {
        const int32_t *visit = j->visit + t * (k + 1);
        float *y = j->a->y + (j->t0 + t) * dim;
        for (int64_t d = 0; d < dim; d += VL) {
            vf s = v_load(j->z + visit[0] * dim + d);
            for (int i = 1; i <= k; i++)
                s = v_add(s, v_load(j->z + visit[i] * dim + d));
            v_store(y + d, s);
        }
    }
}

/* Visits of the block sorted by expert, the shared expert's last. */
static int list_visits(struct expert_job *j)
{
    const struct experts_args *a = j->a;
    int at[EXPERTS_MAX] = {0}, n = 0, total = 0;
    const int32_t *expert = a->expert + (int64_t)j->t0 * a->k;
    for (int i = 0; i < j->n_rows * a->k; i++) {
        FST_ASSERT(expert[i] >= 0 && expert[i] < a->n_experts);
        at[expert[i]]++;
    }
    for (int e = 0; e < a->n_experts; e++) {
        int count = at[e];
        at[e] = total;
        if (count)
            j->list[n++] = (struct visited){.m = &a->experts[e], .v0 = total, .n = count};
        total += count;
    }
    j->list[n++] = (struct visited){.m = a->shared, .v0 = total, .n = j->n_rows};
    for (int t = 0; t < j->n_rows; t++)
        for (int i = 0; i <= a->k; i++) {
            bool shared = i == a->k;
            int v = shared ? total + t : at[expert[t * a->k + i]]++;
            j->row[v] = t;
            j->weight[v] = shared ? 1.0f : a->weight[(int64_t)(j->t0 + t) * a->k + i];
            j->visit[t * (a->k + 1) + i] = v;
        }
    return n;
}

static void run_block(struct expert_job *j, struct stream *s, struct cut c)
{
    const struct experts_args *a = j->a;
    struct lin_input in = {
        .x = a->x + (int64_t)j->t0 * a->dim, .n_rows = j->n_rows, .n_in = a->dim, .ldx = a->dim};
    int64_t hidden_units = 0, down_units = 0, visits = 0;
    j->n_list = list_visits(j);
    for (int i = 0; i < j->n_list; i++) {
        struct visited *v = &j->list[i];
        float *g = j->g + (int64_t)v->v0 * a->moe_dim, *u = j->u + (int64_t)v->v0 * a->moe_dim;
        v->gate = lin_make(s, &c, &in, &v->m->w1, true, g, a->moe_dim, LIN_ROUND);
        v->up = lin_make(s, &c, &in, &v->m->w3, true, u, a->moe_dim, LIN_ROUND);
        v->gate.n_rows = v->up.n_rows = v->n;
        v->gate.pick_x = v->up.pick_x = j->row + v->v0;
        v->down = (struct lin_job){.w = &v->m->w2,
                                   .x = j->h + v->v0 * j->h_bytes,
                                   .ldx = j->h_bytes,
                                   .y = j->z + (int64_t)v->v0 * a->dim,
                                   .ldy = a->dim,
                                   .n_rows = v->n,
                                   .n_out = a->dim,
                                   .flags = LIN_SEGMENTS};
        hidden_units += row_tiles(v) * div_up(a->moe_dim, j->outs);
        down_units += row_tiles(v) * div_up(a->dim, EXPERT_OUTS);
        visits += v->n;
    }
    int64_t work = visits * a->dim * a->moe_dim;
    simd_spread(s, hidden_units, 2 * work / hidden_units, hidden_body, j);
    simd_spread(s, down_units, work / down_units, down_body, j);
    simd_spread(s, j->n_rows, (int64_t)a->dim * (a->k + 1), sum_body, j);
}

enum fst_status SIMD_NAME(experts)(const struct experts_args *a, struct stream *s)
{
    struct cut c = cut_start(s);
    struct expert_job j = {.a = a, .outs = a->moe_dim % EXPERT_OUTS ? a->moe_dim : EXPERT_OUTS};
    int64_t rows = FST_MIN(a->n_rows, EXPERT_ROWS), visits = rows * (a->k + 1);
    FST_ASSERT(a->n_experts <= EXPERTS_MAX);
    FST_ASSERT(a->dim % VL == 0 && a->moe_dim % VL == 0);
    j.h_bytes = lin_row_bytes_max(a->moe_dim);
    j.list = cut_take(&c, (int64_t)sizeof *j.list * (a->n_experts + 1));
    j.row = cut_take(&c, visits * 4);
    j.weight = cut_take(&c, visits * 4);
    j.visit = cut_take(&c, visits * 4);
    j.g = cut_take(&c, visits * a->moe_dim * 4);
    j.u = cut_take(&c, visits * a->moe_dim * 4);
    j.h = cut_take(&c, visits * j.h_bytes);
    j.z = cut_take(&c, visits * a->dim * 4);
    for (j.t0 = 0; j.t0 < a->n_rows; j.t0 += EXPERT_ROWS) {
        j.n_rows = FST_MIN(EXPERT_ROWS, a->n_rows - j.t0);
        run_block(&j, s, c);
    }
    return FST_OK;
}
