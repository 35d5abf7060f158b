/* tiers_far.c - pages of a card, gathered and scattered in batches. */
#include "kv/tiers_far.h"

#include "kv/snapshot.h"

static enum fst_status count(void *ud, uint8_t *at, size_t bytes)
{
    (void)at;
    *(int64_t *)ud += div_up((int64_t)bytes, COPY_PIECE_MAX);
    return FST_OK;
}

static size_t list_bytes(const struct tiers_far *f)
{
    return (size_t)(TIERS_FAR_LANES * f->n_pieces) * sizeof *f->piece;
}

static size_t batch_bytes(const struct tiers_far *f)
{
    return (size_t)(f->batch * f->page_bytes);
}

enum fst_status tiers_far_init(struct tiers_far *f, const struct kv *kv,
                               const struct kernels *kernels, struct stream *stream, int batch)
{
    const struct device *d = kv->spec.device;
    *f = (struct tiers_far){.kv = kv, .kernels = kernels, .stream = stream, .batch = batch};
    f->page_bytes = kv_page_bytes(kv, NULL);
    (void)kv_page_runs(kv, 0, count, &f->n_pieces);
    f->n_pieces *= batch;
    f->piece = device_alloc_shared(d, list_bytes(f));
    f->far = device_alloc(d, TIERS_FAR_LANES * batch_bytes(f));
    f->near = device_alloc_shared(d, batch_bytes(f));
    if (f->piece && f->far && f->near)
        return FST_OK;
    return fst_error(FST_ENOMEM, "tiers: %zu bytes of the card's memory for %d pages on their way",
                     TIERS_FAR_LANES * batch_bytes(f), TIERS_FAR_LANES * batch);
}

void tiers_far_release(struct tiers_far *f)
{
    if (!f->kv)
        return;
    const struct device *d = f->kv->spec.device;
    (void)stream_sync(f->stream); /* a device that has failed is not waited for */
    device_free_shared(d, f->piece, list_bytes(f));
    if (f->far)
        device_free(d, f->far, TIERS_FAR_LANES * batch_bytes(f));
    device_free_shared(d, f->near, batch_bytes(f));
    *f = (struct tiers_far){0};
}

struct list {
    struct tiers_far *f;
    struct copy_piece *piece; /* of the lane */
    int64_t n;
    uint8_t *place; /* of the next run */
    bool out;       /* of the pages */
};

static enum fst_status add(void *ud, uint8_t *run, size_t all)
{
    struct list *l = ud;
    int64_t bytes = (int64_t)all;
    for (int64_t i = 0; i < bytes; i += COPY_PIECE_MAX) {
        uint8_t *place = l->place + i;
        FST_ASSERT(l->n < l->f->n_pieces);
        l->piece[l->n++] = (struct copy_piece){l->out ? place : run + i, l->out ? run + i : place,
                                               FST_MIN(bytes - i, (int64_t)COPY_PIECE_MAX)};
    }
    l->place += bytes;
    return FST_OK;
}

static void add_page(struct list *l, int32_t page, int i)
{
    l->place = tiers_far_place(l->f, i, false);
    (void)kv_page_runs(l->f->kv, page, add, l);
}

static enum fst_status launch(struct list *l)
{
    struct copy_pieces_args a = {l->piece, (int)l->n};
    return l->n ? l->f->kernels->copy_pieces(&a, l->f->stream) : FST_OK;
}

static struct list list_of(struct tiers_far *f, bool out)
{
    return (struct list){.f = f, .piece = f->piece + f->lane * f->n_pieces, .out = out};
}

enum fst_status tiers_far_turn(struct tiers_far *f)
{
    f->lane = (f->lane + 1) % TIERS_FAR_LANES;
    f->is_near = false;
    return f->lane == 0 ? stream_sync(f->stream) : FST_OK;
}

enum fst_status tiers_far_gather(struct tiers_far *f, const int32_t *page, int n)
{
    struct list l = list_of(f, true);
    FST_ASSERT(n <= f->batch);
    for (int i = 0; i < n; i++)
        add_page(&l, page[i], i);
    return launch(&l);
}

enum fst_status tiers_far_near(struct tiers_far *f, int n)
{
    if (f->is_near)
        return FST_OK;
    FST_TRY(
        stream_copy(f->stream, f->near, tiers_far_place(f, 0, false), (size_t)(n * f->page_bytes)));
    FST_TRY(stream_sync(f->stream));
    f->is_near = true;
    return FST_OK;
}

enum fst_status tiers_far_scatter(struct tiers_far *f, const int32_t *page, int n, const bool *use,
                                  const bool *from_near)
{
    struct list l = list_of(f, false);
    bool nears = false;
    FST_ASSERT(n <= f->batch);
    for (int i = 0; i < n; i++) {
        if (!use[i])
            continue;
        nears |= from_near[i];
        if (from_near[i])
            FST_TRY(stream_copy(f->stream, tiers_far_place(f, i, false),
                                tiers_far_place(f, i, true), (size_t)f->page_bytes));
        add_page(&l, page[i], i);
    }
    FST_TRY(launch(&l));
    return nears ? stream_sync(f->stream) : FST_OK;
}
