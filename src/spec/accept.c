/* accept.c - acceptance by coupled draws, and counting. */
#include "spec/spec.h"

int spec_accept(const int32_t *draft, const int32_t *draw, int n_draft)
{
    int k = 0;
    while (k < n_draft && draft[k] == draw[k])
        k++;
    return k;
}

static void update_length(struct fst_spec_stats *s)
{
    s->accept_length =
        s->verify_steps ? (double)(s->accepted + s->verify_steps) / (double)s->verify_steps : 0.0;
}

void spec_count(struct fst_spec_stats *s, int n_draft, int k)
{
    if (n_draft <= 0)
        return;
    s->verify_steps++;
    s->drafted += (uint64_t)n_draft;
    s->accepted += (uint64_t)k;
    for (int i = 0; i < k && i < FST_SPEC_MAX; i++)
        s->accepted_by_position[i]++;
    update_length(s);
}

int spec_room(int gamma, int64_t n_committed, int64_t context_length)
{
    int64_t room = context_length - 1 - n_committed; /* the anchor takes one position itself */
    return (int)FST_MAX(0, FST_MIN((int64_t)gamma, room));
}
