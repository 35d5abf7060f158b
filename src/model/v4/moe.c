/* moe.c - the mixture-of-experts site of a layer (DeepSeek-V4 technical report §2.1). */
#include "model/v4/v4.h"

enum fst_status v4_moe(struct model *m, const struct v4_layer *l, const struct rows *rows)
{
    const struct model_config *c = m->c;
    const struct ffn_weights *w = &l->w->ffn;
    struct v4_work *b = &m->work;
    struct route_args route = {.x = b->a,
                               .gate = &w->gate,
                               .bias = l->w->hash_route ? NULL : w->bias,
                               .tid2eid = l->w->hash_route ? w->tid2eid : NULL,
                               .id = rows->id,
                               .expert = b->expert,
                               .weight = b->weight,
                               .n_rows = rows->n_rows,
                               .k = c->n_experts_per_token,
                               .scale = c->routed_scale};
    FST_TRY(v4_run_route(m, &route));
    struct experts_args experts = {.x = b->a,
                                   .expert = b->expert,
                                   .weight = b->weight,
                                   .experts = l->experts,
                                   .routed = w->experts[0].w1.fmt,
                                   .shared = &l->shared,
                                   .y = b->y,
                                   .n_rows = rows->n_rows,
                                   .k = c->n_experts_per_token,
                                   .n_experts = c->n_experts,
                                   .dim = c->hidden_size,
                                   .moe_dim = c->moe_dim,
                                   .limit = c->swiglu_limit,
                                   .operand = v4_a_operand(m, rows->n_rows)};
    experts.apart = m->kernels->experts_apart && m->kernels->experts_apart(&experts);
    m->y_parts = experts.apart ? experts.k : 0;
    return v4_run_experts(m, &experts);
}
