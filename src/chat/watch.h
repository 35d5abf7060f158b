/* watch.h - a reply while it is sampled: where it ends, and when its thoughts have to.
 *
 * Fed with each id on the thread that samples, it says what may follow:
 *   stop     a stop string, text behind a closed tool block, a loop: the reply ends with `keep` ids
 *   force    the budget of thoughts is spent, or they loop: `</think>` comes next
 * What it says follows from the ids alone.  Stop strings are those of a chat_stream that the reader feeds with the
 * same ids: both end at the same one.
 *
 * Thoughts and content take no memory once it is made; values of tool calls may. */
#ifndef FST_CHAT_WATCH_H
#define FST_CHAT_WATCH_H

#include "chat/stream.h"

struct chat_watch_opts {
    struct chat_stream_opts
        stream;     /* as the reader's; events and call ids of its parser are not used */
    int64_t budget; /* ids sampled in reasoning; -1: no limit */
    bool loops;     /* look for them */
    bool
        bound; /* content is a grammar's, which may ask for such a text: of it no loops but of calls */
};

/* How sampling ends behind an id. */
enum chat_watch_ends { CHAT_WATCH_GOES_ON, CHAT_WATCH_STOP_ID, CHAT_WATCH_LENGTH };

enum chat_watch_loop { CHAT_LOOP_NONE, CHAT_LOOP_TEXT, CHAT_LOOP_CALLS };

struct chat_watch_verdict {
    int32_t force; /* the next id; -1: any */
    bool stop;
    uint64_t keep; /* ids of the reply */
};

struct chat_watch;
enum fst_status chat_watch_new(struct chat_watch **out, const struct chat_watch_opts *o);
void chat_watch_free(struct chat_watch *w); /* NULL is fine */
/* id -1: before the first.  Out of memory it watches no more, as its reader will find too. */
struct chat_watch_verdict chat_watch_feed(struct chat_watch *w, int32_t id,
                                          enum chat_watch_ends ends);
/* What ended the reply, if a loop did. */
enum chat_watch_loop chat_watch_loop(const struct chat_watch *w);
/* Was `</think>` forced? */
bool chat_watch_closed(const struct chat_watch *w);

#endif
