/* emulate_sm90.cc - the portable table with the entries of kernels/sm90 that the emulation can run. */
#define GPU_WAVE 32
#include "kernels/sm90/mma.cuh"

static size_t scratch(const struct kernel_limits *l)
{
    size_t most = FST_MAX(attention_sm90_scratch(l), index_sm90_scratch(l));
    most = FST_MAX(most, route_sm90_scratch(l));
    return FST_MAX(GPU_NAME(kernels_scratch)(l), most);
}

static enum fst_status pick_route(const struct route_args *a, struct stream *s)
{
    return sm90_route(a) ? route_sm90(a, s) : GPU_NAME(route)(a, s);
}

extern "C" bool kernels_fill_sm90_emulated(void *table, size_t bytes);
extern "C" bool kernels_fill_sm90_emulated(void *table, size_t bytes)
{
    struct kernels *k = (struct kernels *)table;
    if (!GPU_NAME(kernels_fill)(table, bytes))
        return false;
    k->attention = attention_sm90;
    k->index_topk = index_topk_sm90;
    k->route = pick_route;
    k->scratch = scratch;
    return true;
}
