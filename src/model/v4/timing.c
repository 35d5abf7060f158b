/* timing.c - time spent per block.
 *
 * A device with marks notes the times itself and is read when the marks are used up or somebody asks;
 * elsewhere every block is waited for. */
#include <time.h>

#include "model/v4/v4.h"

int64_t v4_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool has_marks(const struct model *m)
{
    return m->stream->device && m->stream->device->mark;
}

static void add(struct model *m, int block, int site, int64_t ns)
{
    struct model_timing *t = &m->timing[block];
    t->ns += ns;
    t->calls++;
    t->at[site].ns += ns;
    t->at[site].calls++;
}

static enum fst_status read_marks(struct model *m)
{
    int n = m->n_marked;
    m->n_marked = 0;
    if (n > 0)
        FST_TRY(stream_sync(m->stream));
    for (int i = 0; i < n; i++) {
        double us = 0;
        FST_TRY(m->stream->device->between(2 * i, 2 * i + 1, &us));
        add(m, m->marked[i].block, m->marked[i].site, (int64_t)(us * 1e3));
    }
    return FST_OK;
}

enum fst_status v4_block_begins(struct model *m)
{
    m->block_start = v4_now();
    if (!has_marks(m))
        return FST_OK;
    if (m->n_marked == (int)FST_COUNT(m->marked))
        FST_TRY(read_marks(m));
    return m->stream->device->mark(m->stream->queue, 2 * m->n_marked);
}

enum fst_status v4_block_ends(struct model *m, int block)
{
    if (!has_marks(m)) {
        FST_TRY(stream_sync(m->stream));
        add(m, block, (int)m->site, v4_now() - m->block_start);
        return FST_OK;
    }
    m->marked[m->n_marked].block = (uint8_t)block;
    m->marked[m->n_marked].site = (uint8_t)m->site;
    return m->stream->device->mark(m->stream->queue, 2 * m->n_marked++ + 1);
}

/* A device that failed has times no more; whoever syncs next learns why. */
int model_timings(struct model *m, const struct model_timing **out)
{
    (void)read_marks(m);
    *out = m->timing;
    return V4_BLOCKS;
}

void model_timings_reset(struct model *m)
{
    (void)read_marks(m);
    for (int i = 0; i < V4_BLOCKS; i++)
        m->timing[i] = (struct model_timing){.name = m->timing[i].name};
}

void model_profile(struct model *m, bool on)
{
    m->opts.profile = on;
}

enum model_site model_site_now(const struct model *m)
{
    return m->site;
}
