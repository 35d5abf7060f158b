/* memory_inside.h - the memory's state, for memory.c and memory_file.c. */
#ifndef FST_CHAT_MEMORY_INSIDE_H
#define FST_CHAT_MEMORY_INSIDE_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/file.h"
#include "chat/memory.h"

struct memory_node;

struct memory_slot {
    struct memory_slot *next; /* in its bucket */
    struct memory_node *node;
    uint32_t call;
};

/* A turn, with everything it points to in one piece of memory. */
struct memory_node {
    struct chat_turn turn; /* first: a turn that was handed out leads back to its node */
    atomic_int refs;       /* the memory's, the waiting list's, the readers' */
    struct memory_node *older, *newer;
    struct memory_slot *slots; /* (n_calls) */
    size_t bytes;              /* of this piece */
    size_t record_bytes;       /* in the file */
    bool held;                 /* in the memory; under the lock */
    bool in_file;              /* under the lock */
};

struct memory_list {
    struct memory_node **node; /* owned; each counts a reference */
    size_t n, cap;
};

struct chat_memory {
    struct chat_memory_opts o;
    struct hash128 secret; /* of tenants */

    pthread_mutex_t lock;        /* everything up to the file's part; held for no call that waits */
    struct memory_slot **bucket; /* (mask + 1); owned */
    size_t mask;
    struct memory_node *oldest, *newest;
    struct chat_memory_stats stats;
    struct memory_list waiting; /* to be written */
    uint64_t live_bytes;        /* of records whose turn is still held */
    bool keeps;                 /* there is a file */

    pthread_mutex_t file_lock; /* taken before `lock`; the rest of this struct */
    struct file_log log;
    bool damaged; /* it is to be written anew */
    char path[PATH_MAX];
};

/* No reply is as long; a record's length fits its field. */
enum { MEMORY_TURN_MAX = 64 << 20 };

enum fst_status memory_no_memory(void);
/* Whether a turn is within the bounds. */
static inline bool memory_fits(const struct chat_memory *m, const struct memory_node *n)
{
    return n->turn.n_calls <= m->o.max_ids && n->bytes <= m->o.max_bytes &&
           n->bytes <= MEMORY_TURN_MAX;
}
/* Whether the ids of a turn may stand in a prompt. */
bool memory_ids_fine(const struct tokenizer *t, const int32_t *ids, size_t n);
enum fst_status memory_node_new(struct memory_node **out, const struct chat_turn *t);
void memory_node_unref(struct memory_node *n);
/* Takes over the caller's reference; the lock is held. */
void memory_insert(struct chat_memory *m, struct memory_node *n);
bool memory_list_push(struct memory_list *l, struct memory_node *n); /* takes a reference */
void memory_list_release(struct memory_list *l);

/* memory_file.c.  Reads what the folder holds; warns and goes on without it when it cannot. */
void memory_file_open(struct chat_memory *m);
size_t memory_record_bytes(const struct chat_turn *t);

#endif
