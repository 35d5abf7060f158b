/* keep.h - answers that outlive their connection.
 *
 * A request with the header X-Firesteel-Keep: SECONDS (or "background": true of /v1/responses) is not
 * cancelled when its client goes.  Its events are numbered from 1, over all its choices, and kept, and
 * so is its whole answer.  Whoever has the token of X-Firesteel-Resume and the same API key reads on:
 * GET /v1/streams/TOKEN?after=N, or the whole with /result.
 *
 * Life: keep_open makes one for a gen that is about to start; it lives on behind the gen.  After so
 * many seconds without a reader a running gen is cancelled, an ended one is forgotten.
 * Bounds: KEEP_LOG_MAX bytes of events each, beyond which the oldest go, and keep_max_streams of them.
 * Threads: the server thread only. */
#ifndef FST_SERVER_KEEP_H
#define FST_SERVER_KEEP_H

#include "server/app.h"

enum { KEEP_LOG_MAX = 8 << 20 };

struct keep {
    struct server *s;
    struct keep *prev, *next;
    struct gen *g; /* borrowed; NULL: it has ended */
    char token[33];
    char id[64];         /* of the gen */
    char *key;           /* owned: the API key it belongs to */
    bool stream, failed; /* failed: its events end with an error */
    int keep_ms;
    int64_t until_ms; /* while nobody reads */

    struct buf log; /* events as they were sent */
    size_t *ends;   /* (n), owned: where each of them ends in log */
    size_t n, cap;
    uint64_t first; /* number of the oldest that is kept */
    int status;     /* of the whole answer; 0: not there yet */
    struct buf answer;
};

/* The header; false after recording an error in g->err. */
bool keep_read(struct gen *g);
/* "seconds" within what the server allows, for gen.keep_s. */
bool keep_set(struct gen *g, int64_t seconds, const char *param);
/* Room for g's; false after recording an error in g->err. */
bool keep_open(struct gen *g);
uint64_t keep_next(const struct keep *k); /* number of the next event */
void keep_event(struct keep *k, const struct buf *event);
void keep_answer(struct keep *k, int status, const struct buf *json);
void keep_touch(struct keep *k); /* somebody was here: its time begins anew */
/* The gen is being freed: k goes with it unless there is an answer. */
void keep_without_gen(struct keep *k);

/* Of that gen id and API key; NULL: none. */
struct keep *keep_find(const struct server *s, const char *id, const char *key);
/* Events behind number `after`, then what comes; or 4xx. */
void keep_send(struct keep *k, struct exch *x, uint64_t after);

void keep_tick(struct server *s, int64_t now_ms);
void keep_free_all(struct server *s); /* with their gens */
uint64_t keep_bytes(const struct server *s);

#endif
