/* tiers_far.c - pages of a card, gathered and scattered in batches. */
#include "kv/tiers_far.h"

#include "kv/snapshot.h"

static enum fst_status count(void *ud, uint8_t *at, size_t bytes)
{
    (void)at;
    *(int64_t *)ud += div_up((int64_t)bytes, COPY_PIECE_MAX);
    return FST_OK;
}

enum fst_status tiers_far_init(struct tiers_far *f, const struct kv *kv,
                               const struct kernels *kernels, struct stream *stream, int batch)
{
    const struct device *d = kv->spec.device;
    *f = (struct tiers_far){.kv = kv, .kernels = kernels, .stream = stream, .batch = batch};
    f->page_bytes = kv_page_bytes(kv, NULL);
    (void)kv_page_runs(kv, 0, count, &f->n_pieces);
    f->n_pieces *= batch;
    size_t bytes = (size_t)(batch * f->page_bytes);
    f->piece = device_alloc_shared(d, (size_t)f->n_pieces * sizeof *f->piece);
    f->far = device_alloc(d, bytes);
    f->near = device_alloc_shared(d, bytes);
    if (f->piece && f->far && f->near)
        return FST_OK;
    return fst_error(FST_ENOMEM, "tiers: %zu bytes of the card's memory for %d pages on their way",
                     bytes, batch);
}

void tiers_far_release(struct tiers_far *f)
{
    if (!f->kv)
        return;
    const struct device *d = f->kv->spec.device;
    size_t bytes = (size_t)(f->batch * f->page_bytes);
    (void)stream_sync(f->stream); /* a device that has failed is not waited for */
    device_free_shared(d, f->piece, (size_t)f->n_pieces * sizeof *f->piece);
    if (f->far)
        device_free(d, f->far, bytes);
    device_free_shared(d, f->near, bytes);
    *f = (struct tiers_far){0};
}

struct list {
    struct tiers_far *f;
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
        l->f->piece[l->n++] =
            (struct copy_piece){l->out ? place : run + i, l->out ? run + i : place,
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
    struct copy_pieces_args a = {l->f->piece, (int)l->n};
    return l->n ? l->f->kernels->copy_pieces(&a, l->f->stream) : FST_OK;
}

enum fst_status tiers_far_gather(struct tiers_far *f, const int32_t *page, int n)
{
    struct list l = {.f = f, .out = true};
    FST_ASSERT(n <= f->batch);
    f->is_near = false;
    FST_TRY(stream_sync(f->stream)); /* the list may be in use */
    for (int i = 0; i < n; i++)
        add_page(&l, page[i], i);
    return launch(&l);
}

enum fst_status tiers_far_near(struct tiers_far *f, int n)
{
    if (f->is_near)
        return FST_OK;
    FST_TRY(stream_copy(f->stream, f->near, f->far, (size_t)(n * f->page_bytes)));
    FST_TRY(stream_sync(f->stream));
    f->is_near = true;
    return FST_OK;
}

enum fst_status tiers_far_scatter(struct tiers_far *f, const int32_t *page, int n, const bool *use,
                                  const bool *from_near)
{
    struct list l = {.f = f};
    FST_ASSERT(n <= f->batch);
    FST_TRY(stream_sync(f->stream));
    for (int i = 0; i < n; i++) {
        if (!use[i])
            continue;
        if (from_near[i])
            FST_TRY(stream_copy(f->stream, tiers_far_place(f, i, false),
                                tiers_far_place(f, i, true), (size_t)f->page_bytes));
        add_page(&l, page[i], i);
    }
    FST_TRY(launch(&l));
    return stream_sync(f->stream);
}
