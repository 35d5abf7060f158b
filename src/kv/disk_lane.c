/* disk_lane.c - objects in flight: buffers that are kept, operations in pieces. */
#include <errno.h>

#include "base/log.h"
#include "kv/disk_int.h"

bool disk_lane_busy(const struct disk *d)
{
    for (int i = 0; i < DISK_LANES; i++)
        if (d->lane[i].busy)
            return true;
    return false;
}

bool disk_lane_any(const struct disk *d)
{
    uint64_t in_flight = 0;
    int n = 0;
    for (int i = 0; i < DISK_LANES; i++) {
        in_flight += d->lane[i].busy ? d->lane[i].bytes : 0;
        n += d->lane[i].busy;
    }
    /* Two however large: one is read while the other is checked. */
    return n < DISK_LANES && (n < 2 || in_flight < DISK_FLIGHT_BYTES);
}

static void drop_buffer(struct disk *d, struct disk_lane *l)
{
    d->lane_bytes -= l->cap;
    mem_free(l->buf);
    l->buf = NULL;
    l->cap = 0;
}

/* The tightest buffer that is large enough, else the smallest to be replaced. */
static struct disk_lane *choose(struct disk *d, uint64_t bytes)
{
    struct disk_lane *best = NULL;
    for (int i = 0; i < DISK_LANES; i++) {
        struct disk_lane *l = &d->lane[i];
        if (l->busy)
            continue;
        bool fits = l->cap >= bytes, best_fits = best && best->cap >= bytes;
        if (!best || (fits && (!best_fits || l->cap < best->cap)) ||
            (!fits && !best_fits && l->cap < best->cap))
            best = l;
    }
    return best;
}

static bool grow(struct disk *d, struct disk_lane *l, uint64_t bytes)
{
    drop_buffer(d, l);
    for (int i = 0; i < DISK_LANES && d->lane_bytes + bytes > DISK_LANE_BYTES; i++)
        if (!d->lane[i].busy)
            drop_buffer(d, &d->lane[i]);
    l->buf = mem_aligned(DISK_ALIGN, bytes);
    if (!l->buf)
        return false;
    l->cap = bytes;
    d->lane_bytes += bytes;
    return true;
}

struct disk_lane *disk_lane_take(struct disk *d, uint64_t bytes)
{
    struct disk_lane *l = choose(d, bytes);
    int n = (int)div_up((int64_t)bytes, DISK_PIECE);
    bool fine = l->cap >= bytes || grow(d, l, bytes);
    if (fine && l->op_cap < n) {
        struct disk_op *more = mem_realloc(l->op, (size_t)n * sizeof *more);
        fine = more != NULL;
        if (more) {
            l->op = more;
            l->op_cap = n;
        }
    }
    if (!fine) {
        if (!d->said_memory)
            log_warn("disk memory", "bytes=%llu why=no_memory_to_read_or_write_an_object",
                     (unsigned long long)bytes);
        d->said_memory = true;
        return NULL;
    }
    l->busy = true;
    l->bytes = bytes;
    l->fd = -1;
    l->entry = l->error = l->n_left = 0;
    l->cut = false;
    return l;
}

void disk_lane_start(struct disk *d, struct disk_lane *l, bool write)
{
    l->n_ops = l->n_left = (int)div_up((int64_t)l->bytes, DISK_PIECE);
    FST_ASSERT(l->n_ops <= l->op_cap);
    for (int i = 0; i < l->n_ops; i++) {
        uint64_t from = (uint64_t)i * DISK_PIECE;
        l->op[i] = (struct disk_op){.fd = l->fd,
                                    .write = write,
                                    .at = l->buf + from,
                                    .bytes = FST_MIN(l->bytes - from, (uint64_t)DISK_PIECE),
                                    .offset = from,
                                    .ud = l};
    }
    for (int i = 0; i < l->n_ops; i++)
        disk_io_submit(d->io, &l->op[i]);
}

struct disk_lane *disk_lane_done(struct disk *d, bool wait)
{
    for (;;) {
        struct disk_op *op = disk_io_take(d->io, wait);
        FST_ASSERT(op || !wait);
        if (!op)
            return NULL;
        struct disk_lane *l = op->ud;
        if (op->done < 0 && !l->error)
            l->error = (int)-op->done;
        l->cut |= op->done >= 0 && op->done < (int64_t)op->bytes;
        if (--l->n_left == 0)
            return l;
    }
}

void disk_lane_free_all(struct disk *d)
{
    for (int i = 0; i < DISK_LANES; i++) {
        FST_ASSERT(!d->lane[i].busy);
        drop_buffer(d, &d->lane[i]);
        mem_free(d->lane[i].op);
    }
}
