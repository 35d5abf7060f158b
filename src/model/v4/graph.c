/* graph.c - calls of the same shape are recorded once and launched as one from then on (device.h).
 *
 * Which launches a call makes, and with which arguments, follows from struct v4_key; what differs from
 * one step to the next lies in arrays at fixed places (stage.c).  The first call of a key runs as it is:
 * a card loads the code of a kernel at its first launch, which no recording may do.  The second is
 * recorded, the third and later ones are launches of the recording.  Long steps are never recorded:
 * their kernels take longer than the host needs to launch them. */
#include <string.h>

#include "base/log.h"
#include "model/v4/v4.h"

void v4_graphs_init(struct model *m)
{
    m->graphs.on = stream_can_capture(m->stream) && !m->opts.disable_graphs;
}

void v4_graphs_free(struct model *m)
{
    for (int i = 0; i < m->graphs.n; i++)
        stream_graph_free(m->stream, m->graphs.graph[i].graph);
    m->graphs.n = 0;
}

/* One failure is enough: what made it will not go away, and steps work without. */
static void give_up(struct model *m)
{
    log_warn("graphs off", "why=%s", fst_error_text());
    v4_graphs_free(m);
    m->graphs.on = false;
}

static bool same(const struct v4_key *a, const struct v4_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static struct v4_graph *find(struct v4_graphs *g, const struct v4_key *key)
{
    for (int i = 0; i < g->n; i++)
        if (same(&g->graph[i].key, key))
            return &g->graph[i];
    return NULL;
}

/* Whether the key has come before; if not, it is remembered in the place of the oldest. */
static bool seen(struct v4_graphs *g, const struct v4_key *key)
{
    for (int i = 0; i < g->n_seen; i++)
        if (same(&g->seen[i], key))
            return true;
    g->seen[g->next_seen] = *key;
    g->next_seen = (g->next_seen + 1) % V4_GRAPHS;
    g->n_seen = FST_MIN(g->n_seen + 1, (int)V4_GRAPHS);
    return false;
}

/* A free place, or that of the graph whose last use is longest ago. */
static struct v4_graph *place(struct model *m)
{
    struct v4_graphs *g = &m->graphs;
    struct v4_graph *old = g->graph;
    if (g->n < V4_GRAPHS)
        return &g->graph[g->n++];
    for (int i = 1; i < g->n; i++)
        if (g->graph[i].used < old->used)
            old = &g->graph[i];
    stream_graph_free(m->stream, old->graph);
    return old;
}

/* The recording of a call, or NULL when there can be none. */
static void *record(struct model *m, v4_enqueue_fn *enqueue, void *ud)
{
    void *graph;
    if (stream_capture_begin(m->stream) < 0)
        return NULL;
    enum fst_status rc = enqueue(m, ud), end = stream_capture_end(m->stream, &graph);
    if (rc == FST_OK && end == FST_OK)
        return graph;
    stream_graph_free(m->stream, graph);
    return NULL;
}

static enum fst_status enqueue_or_launch(struct model *m, const struct v4_key *key,
                                         v4_enqueue_fn *enqueue, void *ud)
{
    struct v4_graphs *g = &m->graphs;
    /* DSpark's: of any number of rows, each once in a while.  MTP's are in every round, of a few shapes as long as
     * few requests draft; of more they would crowd out the steps' recordings. */
    bool rare = key->call == V4_INJECT_HELD &&
                (m->c->has_dspark || key->n_rows > 2 * MODEL_MTP_STEPS || key->n_spans > 2);
    if (!g->on || rare || m->opts.profile || key->n_rows > MODEL_GRAPH_ROWS_MAX)
        return enqueue(m, ud);
    struct v4_graph *at = find(g, key);
    if (!at && !seen(g, key))
        return enqueue(m, ud);
    if (!at) {
        void *graph = record(m, enqueue, ud);
        if (!graph) {
            give_up(m);
            return enqueue(m, ud);
        }
        at = place(m);
        *at = (struct v4_graph){.key = *key, .graph = graph};
    }
    at->used = ++g->turn;
    if (m->opts.heartbeat)
        *m->opts.heartbeat = v4_now();
    if (stream_graph_launch(m->stream, at->graph) < 0) {
        give_up(m);
        return enqueue(m, ud);
    }
    g->replayed++;
    return FST_OK;
}

enum fst_status v4_begin(struct model *m)
{
    if (!m->under_way)
        return FST_OK;
    m->under_way = false;
    return stream_sync(m->stream);
}

enum fst_status v4_run(struct model *m, const struct v4_key *key, v4_enqueue_fn *enqueue, void *ud,
                       bool wait)
{
    m->under_way = true;
    FST_TRY(stream_mark(m->stream, DEVICE_MARK_BEGIN));
    FST_TRY(enqueue_or_launch(m, key, enqueue, ud));
    return wait ? v4_begin(m) : FST_OK;
}

struct model_graphs model_graphs_of(const struct model *m)
{
    return (struct model_graphs){.held = m->graphs.n, .replayed = m->graphs.replayed};
}
