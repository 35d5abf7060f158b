/* mover.c - gathers and scatters a snapshot's bytes. */
#include "kv/mover.h"

#include "kv/snapshot.h"

enum { PIECES = 4096 };

enum fst_status mover_init(struct kv_mover *m, const struct kv *kv, const struct kernels *kernels,
                           struct stream *stream)
{
    const struct device *d = kv->spec.device;
    *m = (struct kv_mover){.kv = kv, .kernels = kernels, .stream = stream};
    FST_ASSERT(!kernels == !stream);
    if (!kernels)
        return FST_OK;
    m->piece = device_alloc_shared(d, PIECES * sizeof *m->piece);
    if (!m->piece)
        return fst_error(FST_ENOMEM, "snapshots: %zu bytes for lists of copies",
                         PIECES * sizeof *m->piece);
    if (!d)
        return FST_OK;
    m->staging_bytes = round_up(kv_snapshot_bytes(kv, KERN_PAGE - 1), 64);
    m->staging = device_alloc(d, (size_t)m->staging_bytes);
    if (!m->staging)
        return fst_error(FST_ENOMEM, "snapshots: %lld bytes of the card's memory",
                         (long long)m->staging_bytes);
    return stream_init(&m->side, d, NULL, stream->precision, 0);
}

void mover_release(struct kv_mover *m)
{
    if (!m->kernels)
        return;
    const struct device *d = m->kv->spec.device;
    (void)mover_settle(m); /* a device that has failed is not waited for */
    device_free_shared(d, m->piece, PIECES * sizeof *m->piece);
    if (m->staging)
        device_free(d, m->staging, (size_t)m->staging_bytes);
    if (m->side.queue)
        stream_release(&m->side);
    *m = (struct kv_mover){0};
}

enum fst_status mover_settle(struct kv_mover *m)
{
    bool launched = m->launched, sending = m->sending;
    m->launched = m->sending = false;
    if (launched)
        FST_TRY(stream_sync(m->stream));
    return sending ? stream_sync(&m->side) : FST_OK;
}

enum fst_status mover_sent(struct kv_mover *m)
{
    bool sending = m->sending;
    m->sending = false;
    return sending ? stream_sync(&m->side) : FST_OK;
}

/* ------------------------------------------------------------------ one snapshot */

struct move {
    struct kv_mover *m;
    struct mover_chunks c;
    int64_t at; /* in the chunk, or in staging */
    bool out;   /* from KV memory */
};

/* What the side still sends comes first. */
static enum fst_status launch(struct kv_mover *m)
{
    struct copy_pieces_args a = {m->piece, m->n_pieces};
    m->n_pieces = 0;
    FST_TRY(mover_sent(m));
    m->launched = m->kv->spec.device;
    return m->kernels->copy_pieces(&a, m->stream);
}

static enum fst_status add(struct move *v, uint8_t *kept, uint8_t *run, int64_t bytes)
{
    struct kv_mover *m = v->m;
    for (int64_t i = 0; i < bytes; i += COPY_PIECE_MAX) {
        if (m->n_pieces == PIECES) {
            FST_TRY(launch(m));
            FST_TRY(mover_settle(m));
        }
        m->piece[m->n_pieces++] =
            (struct copy_piece){v->out ? kept + i : run + i, v->out ? run + i : kept + i,
                                FST_MIN(bytes - i, (int64_t)COPY_PIECE_MAX)};
    }
    return FST_OK;
}

/* The chunk that the next byte belongs to, and how much of it is left. */
static uint8_t *place(struct move *v, int64_t *left)
{
    if (v->at == v->c.chunk_bytes) {
        v->c.first = v->c.next[v->c.first];
        v->at = 0;
    }
    FST_ASSERT(v->c.first > 0);
    *left = v->c.chunk_bytes - v->at;
    return v->c.arena + (int64_t)(v->c.first - 1) * v->c.chunk_bytes + v->at;
}

static enum fst_status each_run(void *ud, uint8_t *run, size_t all)
{
    struct move *v = ud;
    struct kv_mover *m = v->m;
    int64_t bytes = (int64_t)all, left;
    if (m->staging) {
        FST_TRY(add(v, m->staging + v->at, run, bytes));
        v->at += bytes;
        return FST_OK;
    }
    while (bytes > 0) {
        uint8_t *kept = place(v, &left);
        int64_t here = FST_MIN(bytes, left);
        if (m->kernels)
            FST_TRY(add(v, kept, run, here));
        else
            FST_TRY(device_copy(m->kv->spec.device, v->out ? kept : run, v->out ? run : kept,
                                (size_t)here));
        v->at += here;
        run += here;
        bytes -= here;
    }
    return FST_OK;
}

/* Staging to chunks or back, on the side. */
static enum fst_status chunks(struct move *v, int64_t bytes)
{
    struct kv_mover *m = v->m;
    int64_t left;
    v->at = 0;
    m->sending = true;
    for (int64_t i = 0; i < bytes;) {
        uint8_t *kept = place(v, &left), *far = m->staging + i;
        int64_t here = FST_MIN(bytes - i, left);
        FST_TRY(stream_copy(&m->side, v->out ? kept : far, v->out ? far : kept, (size_t)here));
        v->at += here;
        i += here;
    }
    return FST_OK;
}

static enum fst_status gather(struct move *v, int slot, int64_t n)
{
    struct kv_mover *m = v->m;
    m->n_pieces = 0;
    FST_TRY(kv_snapshot_runs(m->kv, slot, n, each_run, v));
    return m->n_pieces ? launch(m) : FST_OK;
}

enum fst_status mover_take(struct kv_mover *m, int slot, int64_t n, const struct mover_chunks *to)
{
    struct move v = {m, *to, 0, true};
    FST_TRY(mover_settle(m));
    FST_TRY(gather(&v, slot, n));
    if (!m->staging)
        return FST_OK;
    FST_TRY(mover_settle(m)); /* the side does not wait for the stream */
    return chunks(&v, v.at);
}

enum fst_status mover_put(struct kv_mover *m, int slot, int64_t n, const struct mover_chunks *from)
{
    struct move v = {m, *from, 0, false};
    FST_TRY(mover_settle(m));
    if (m->staging) { /* the list is made meanwhile */
        FST_TRY(chunks(&v, kv_snapshot_bytes(m->kv, n)));
        v = (struct move){m, *from, 0, false};
    }
    return gather(&v, slot, n);
}
