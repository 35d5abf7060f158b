/* stage.c - the rows of a call at the places where kernels read them.
 *
 * A caller's arrays may move and lie in host memory, which each kernel that reads them would fetch over
 * the bus, about 1 us at a time and ten kernels a layer.  So the arrays go to the device once per call,
 * in one copy, to places that depend on the number of rows alone: recorded launches find them again. */
#include <string.h>

#include "model/v4/v4.h"

enum { ARRAYS = 6 };

/* Elements of an array: span_first has one more than there are rows. */
static int64_t line(int n_rows)
{
    return round_up((int64_t)n_rows + 1, 16);
}

int64_t v4_rows_ints(int n_rows)
{
    return ARRAYS * line(n_rows);
}

static struct v4_rows places(int32_t *p, int n_rows)
{
    int64_t n = line(n_rows);
    return (struct v4_rows){.slot = p,
                            .pos = p + n,
                            .id = p + 2 * n,
                            .span = p + 3 * n,
                            .pick = p + 4 * n,
                            .span_first = p + 5 * n};
}

struct v4_rows v4_rows_of(const struct model *m, int n_rows)
{
    FST_ASSERT(n_rows <= m->max_rows);
    return places(m->work.rows, n_rows);
}

struct v4_rows v4_rows_shared(const struct model *m, int n_rows)
{
    FST_ASSERT(n_rows <= m->max_rows);
    return places(m->work.rows_shared, n_rows);
}

/* While every row sees at most topk entries all of them are chosen and index queries are not asked
 * for: up to position 4*topk + 2 a kindling step is 5 % shorter (55 us of 1.1 ms, AVX-512). */
static void look_at(struct model *m, const int32_t *pos, int n_rows)
{
    m->scored = false;
    for (int i = 0; i < n_rows; i++)
        m->scored |= (pos[i] + 1) / 4 > m->c->index_topk;
}

enum fst_status v4_send_pages(struct model *m, struct kv *kv, const struct rows *rows)
{
    for (int i = 0; i < rows->n_spans; i++)
        FST_TRY(kv_send_pages(kv, m->stream, rows->slot[rows->span_first[i]]));
    return FST_OK;
}

struct rows v4_take_rows(struct model *m, const struct kv *kv, const struct rows *rows,
                         const int32_t *id, const int32_t *pick, int n_pick)
{
    struct v4_rows to = v4_rows_shared(m, rows->n_rows), at = v4_rows_of(m, rows->n_rows);
    size_t bytes = (size_t)rows->n_rows * sizeof(int32_t);
    memcpy(to.slot, rows->slot, bytes);
    memcpy(to.pos, rows->pos, bytes);
    memcpy(to.id, id, bytes);
    memcpy(to.span, rows->span, bytes);
    memcpy(to.span_first, rows->span_first, ((size_t)rows->n_spans + 1) * sizeof(int32_t));
    if (n_pick)
        memcpy(to.pick, pick, (size_t)n_pick * sizeof(int32_t));
    look_at(m, rows->pos, rows->n_rows);
    return (struct rows){.n_rows = rows->n_rows,
                         .n_spans = rows->n_spans,
                         .slot = at.slot,
                         .pos = at.pos,
                         .id = at.id,
                         .span = at.span,
                         .span_first = at.span_first,
                         .pages = kv_pages_for_kernels(kv),
                         .page_stride = rows->page_stride};
}

enum fst_status v4_send_rows(struct model *m, int n_rows)
{
    return stream_copy(m->stream, m->work.rows, m->work.rows_shared,
                       (size_t)v4_rows_ints(n_rows) * sizeof(int32_t));
}
