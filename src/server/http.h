/* http.h - one HTTP request and its answer ("exchange"), free of sockets and of llhttp.
 *
 * conn.c reads a request, fills a struct exch and hands it to the server's dispatcher; handlers
 * answer through the exch_ calls, at once or later.  Answers of one connection go out in the order
 * of its requests, because the next request is parsed only when the answer before it is complete.
 *
 * Life: an exch belongs to its connection.  A handler may use it until it calls exch_reply or
 * exch_stream_end, or until its on_gone is called (the client left, or read too slowly); after
 * that the pointer is dead.  on_gone is never called from inside an exch_ call, always from the
 * loop.  Threads: the server thread only. */
#ifndef FST_SERVER_HTTP_H
#define FST_SERVER_HTTP_H

#include "base/base.h"

enum http_verb { VERB_GET, VERB_HEAD, VERB_POST, VERB_PUT, VERB_DELETE, VERB_OPTIONS, VERB_OTHER };

struct http_limits {
    size_t max_header;   /* bytes of request line and headers; 431 above */
    size_t max_body;     /* 413 above */
    size_t max_queue;    /* bytes waiting for a slow reader; above it the exchange is dropped */
    int max_connections; /* 503 above */
    int keep_alive_ms;   /* idle connections are closed after it */
    int header_ms;       /* a request's headers must be whole by then: 408 */
    int body_ms;         /* and its body by then, or so long after its last byte if that is less */
    int body_idle_ms;
};
void http_limits_default(struct http_limits *l);

struct http_header {
    size_t name, value; /* offsets of NUL-terminated strings in exch.head */
};

struct conn;

struct exch {
    struct conn *conn;
    enum http_verb verb;
    char verb_name[16];
    char *path;        /* owned; percent-decoded, without query */
    const char *query; /* after '?', as received; "" when absent */
    int minor;         /* HTTP/1.minor */
    bool keep_alive;
    struct buf head;             /* header names (lower case) and values */
    struct http_header *headers; /* owned */
    size_t n_headers;
    struct buf body; /* a handler may take it over: copy the struct and zero this one */
    char request_id[80];

    /* The answer. */
    struct buf extra;                 /* header lines to add, each with CR LF */
    int status;                       /* 0 until the head went out */
    bool streaming, finished, broken; /* broken: client gone or dropped, writes do nothing */
    int64_t start_ms, last_write_ms;  /* loop clock */
    uint64_t bytes_out;

    /* The handler's, for exchanges that are answered later. */
    void *ud;
    void (*on_gone)(struct exch *x, void *ud);
    void (*on_tick)(struct exch *x, void *ud, int64_t now_ms); /* about every 100 ms; may be NULL */
};

/* First header of that (lower-case) name, or NULL. */
const char *exch_header(const struct exch *x, const char *name);
/* Value of a query parameter copied into out; false when absent.  One that is too long or badly escaped is
 * an empty text. */
bool exch_query(const struct exch *x, const char *name, char *out, size_t cap);
/* Add a header line to the answer; before the head goes out. */
void exch_add_header(struct exch *x, const char *name, const char *value);
/* The whole answer.  type NULL: no Content-Type. */
void exch_reply(struct exch *x, int status, const char *type, const char *body, size_t len);
/* Head of a streamed answer (chunked; HTTP/1.0: until close). */
void exch_stream_begin(struct exch *x, int status, const char *type);
/* One piece: one chunk, one write. */
void exch_stream_write(struct exch *x, const char *data, size_t len);
void exch_stream_end(struct exch *x);
/* End a streamed answer by closing the connection without the last chunk, so that the client
 * cannot take it for complete. */
void exch_stream_break(struct exch *x);

/* Percent-decode src[0..len) in place of dst (cap len + 1); false for a bad escape or a NUL. */
bool http_decode_path(char *dst, const char *src, size_t len);
const char *http_reason(int status);

#endif
