/* loop.h - the server thread's event loop: listeners, wake-ups, helper threads, signals, time.
 *
 * loop.c and conn.c are the only files that include uv.h (conn.c also llhttp.h).  All functions
 * belong to the thread that calls loop_run, except loop_wake, which any thread may call. */
#ifndef FST_SERVER_LOOP_H
#define FST_SERVER_LOOP_H

#include "server/http.h"

struct loop;

struct loop_opts {
    struct http_limits limits;
    void *ud;
    void (*dispatch)(void *ud, struct exch *x); /* a whole request has arrived */
    /* A request that never became one (bad HTTP, too large, too slow, too many connections):
     * writes the body of the refusal to out. */
    void (*refuse)(void *ud, const struct exch *x, int status, const char *why, struct buf *out);
    void (*finished)(void *ud, const struct exch *x, const char *peer); /* access log, counters */
    void (*on_wake)(void *ud);                 /* some time after one or more loop_wake */
    void (*on_tick)(void *ud, int64_t now_ms); /* every 100 ms */
    void (*on_signal)(void *ud, int signum);   /* SIGINT, SIGTERM */
};

enum fst_status loop_new(struct loop **out, const struct loop_opts *o);
/* Close everything and free; only when loop_run does not run. */
void loop_free(struct loop *l);

/* Bind and listen on every address of `host` ("localhost" gives 127.0.0.1 and ::1).  port 0 takes
 * a free one; *bound is the port in use.  FST_EIO with the system's reason. */
enum fst_status loop_listen(struct loop *l, const char *host, int port, int *bound);
void loop_run(struct loop *l);
void loop_stop(struct loop *l); /* loop_run returns soon */
void loop_turn(struct loop *l); /* one turn without waiting, for tests that drive the loop */
void loop_wake(struct loop *l);
int64_t loop_now_ms(const struct loop *l); /* monotonic, updated once per turn of the loop */

/* Run work(ud) on a helper thread, then done(ud) on the loop's. */
enum fst_status loop_work(struct loop *l, void (*work)(void *ud), void (*done)(void *ud), void *ud);

struct loop_counts {
    int jobs;                   /* on helper threads */
    int connections, exchanges; /* exchanges: dispatched and not finished */
    uint64_t accepted, refused, requests;
};
void loop_get_counts(const struct loop *l, struct loop_counts *out);
/* Whether an answer that was given is still on its way out of one of the connections. */
bool loop_is_writing(const struct loop *l);
/* Answer what is running, then close; idle connections are closed when their answers are out. */
void loop_close_idle(struct loop *l);
/* Drop every connection and wait for helper threads and callbacks; only when loop_run has ended. */
void loop_close_all(struct loop *l);

/* For conn.c. */
struct conn;
void *loop_uv(struct loop *l); /* uv_loop_t */
const struct loop_opts *loop_options(const struct loop *l);
struct loop_counts *loop_counts_of(struct loop *l);
struct conn **loop_conns(struct loop *l); /* head of the list */
void loop_check_soon(struct loop *l); /* a busy connection must be looked at: does its peer live? */
/* listener: uv_stream_t.  False when there was no memory: the connection still waits there. */
bool conn_accept(struct loop *l, void *listener);
struct conn *conn_next(const struct conn *c);
void conn_tick(struct conn *c, int64_t now_ms);
void conn_close(struct conn *c);
void conn_close_idle(struct conn *c);
bool conn_is_writing(const struct conn *c);
/* Busy connections on which a hang-up would not be read (half-closed, or so much is pipelined that
 * reading stopped): what decides whether the other side still listens (peer.h). */
bool conn_is_deaf(const struct conn *c);
struct peer_table;
void conn_check_peer(struct conn *c, const struct peer_table *t, int64_t now_ms);

#endif
