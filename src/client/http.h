/* http.h - an HTTP/1.1 client of one thread: many requests at once over one epoll set.
 *
 * A call is the caller's struct: it says what to send and hears of the answer.  Times are those right behind
 * the recv() that brought the bytes.  Connections are kept and used again; when a kept one turns out to have
 * been closed by the server before a byte of the answer, the request is sent once more over a new one.
 *
 * http:// alone: to measure through TLS, put a local proxy in between.  All calls belong to one thread. */
#ifndef FST_CLIENT_HTTP_H
#define FST_CLIENT_HTTP_H

#include "base/base.h"

struct http;      /* a server */
struct http_conn; /* a connection to it */

struct http_call {
    const char *bytes; /* borrowed: the whole request */
    size_t len;
    void *ud;
    /* Called from http_turn and http_submit; each may be NULL but on_done.  t_ns: clock_ns. */
    void (*on_head)(void *ud, int status, int64_t t_ns);
    void (*on_body)(void *ud, const char *data, size_t len, int64_t t_ns);
    /* The last of a call.  rc below 0: `why` says what happened (fst_error_text is the same). */
    void (*on_done)(void *ud, enum fst_status rc, const char *why, int64_t t_ns);

    /* Inside. */
    struct http_conn *conn;
    size_t sent;
    int status;
    bool fresh; /* over a connection of its own */
};

/* url: "http://host:port" with or without a path, which is put before every path of http_request; "host:port"
 * alone will do.  FST_EINVAL, FST_EIO (the name is not known), FST_ENOMEM. */
enum fst_status http_open(struct http **out, const char *url);
/* Calls that are under way are dropped without on_done. */
void http_close(struct http *h);            /* NULL is fine */
const char *http_url(const struct http *h); /* without a slash at its end */
bool http_is_local(const struct http *h);   /* on this machine, by its address */

/* The bytes of a request; method "GET" has no body.  key: of "Authorization: Bearer", or NULL. */
void http_request(struct buf *out, const struct http *h, const char *method, const char *path,
                  const char *key, const char *body, size_t len);

/* Start a call; it may fail, and be done, at once. */
void http_submit(struct http *h, struct http_call *c);
/* Drop it without on_done; its connection is closed. */
void http_drop(struct http *h, struct http_call *c);
/* Wait for bytes, at most so long, and pass them on. */
void http_turn(struct http *h, int timeout_ms);

/* One request and its whole answer, while nothing else runs.  body NULL: GET.  FST_ETIMEOUT after
 * timeout_ms; any status is FST_OK. */
enum fst_status http_fetch(struct http *h, const char *path, const char *key, const char *body,
                           int timeout_ms, int *status, struct buf *out);

struct http_counts {
    uint64_t connections, reads, bytes;
};
void http_get_counts(const struct http *h, struct http_counts *out);

#endif
