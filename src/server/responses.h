/* responses.h - what the files of /v1/responses share.
 *
 * api_responses.c has the endpoints, reads bodies and answers; responses_stream.c writes items, whole
 * answers and the events of a stream; response_store.c keeps answers by their id. */
#ifndef FST_SERVER_RESPONSES_H
#define FST_SERVER_RESPONSES_H

#include "server/gen.h"

enum response_kind { RESPONSE_REASONING, RESPONSE_MESSAGE, RESPONSE_CALL };

/* One item of the output. */
struct response_item {
    enum response_kind kind;
    char id[64];
    size_t from,
        to;    /* bytes of the choice's reasoning or content; from: of a call's arguments, sent */
    int call;  /* index of the choice's call */
    bool open; /* still growing */
    bool cut;  /* the answer ended inside it */
};

/* gen.ud of this dialect. */
struct response {
    bool summary;    /* thoughts are wanted as items */
    bool background; /* answered at once; the client looks again */
    bool store, stored;
    struct buf echo;             /* members that repeat the request, each with a comma before it */
    struct buf before;           /* elements of the conversation up to here, for the store */
    uint64_t sequence;           /* of events */
    bool created;                /* the first two events are out */
    struct response_item *items; /* (n_items), owned */
    size_t n_items, cap;
};

/* The answer as it is now.  status NULL: as the choice ended. */
void response_put(struct gen *g, struct buf *b, const char *status);
/* Its items as elements of a conversation, thoughts always among them. */
void response_put_items(struct gen *g, struct buf *b);

/* The dialect's hooks for streams. */
void response_created(struct gen *g); /* the first two events, once */
void response_event(struct gen_choice *c, const struct chat_event *e);
void response_batch(struct gen_choice *c);
void response_progress(struct gen_choice *c);
void response_choice_end(struct gen_choice *c);
void response_end(struct gen *g, const char *status); /* the last event; status as above */

/* ------------------------------------------------------------------ the store */

struct response_store;
/* At most n answers, and 256 MiB of them: the oldest go.  NULL: no memory.  Locks itself. */
struct response_store *response_store_new(int n);
void response_store_free(struct response_store *t); /* NULL is fine */
/* Copies.  False: no memory. */
bool response_store_put(struct response_store *t, const char *id, const char *key,
                        const struct buf *answer, const struct buf *items);
/* What is kept under that id for that API key, appended to answer and items, of which either may be
 * NULL; false: nothing, or (with failed set in the buffer) no memory. */
bool response_store_get(struct response_store *t, const char *id, const char *key,
                        struct buf *answer, struct buf *items);

#endif
