/* response_store.c - the last answers of /v1/responses, for GET and previous_response_id.
 *
 * An entry has its whole conversation, so that any other may go.  Bodies are read on helper threads:
 * one lock guards the ring, and what is found is copied out under it. */
#include <pthread.h>

#include "server/responses.h"

enum { STORE_BYTES = 256 << 20 };

struct entry {
    char id[64];
    char *key; /* owned */
    struct buf answer, items;
};

struct response_store {
    pthread_mutex_t lock;
    struct entry *ring; /* (n), owned; the oldest at first */
    size_t n, first, used;
    size_t bytes;
};

struct response_store *response_store_new(int n)
{
    struct response_store *t = mem_calloc(1, sizeof *t);
    if (!t || !(t->ring = mem_calloc((size_t)n, sizeof *t->ring))) {
        mem_free(t);
        return NULL;
    }
    t->n = (size_t)n;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

static size_t bytes_of(const struct entry *e)
{
    return e->answer.len + e->items.len;
}

static void release(struct entry *e)
{
    mem_free(e->key);
    buf_release(&e->answer);
    buf_release(&e->items);
    *e = (struct entry){0};
}

static void drop_oldest(struct response_store *t)
{
    struct entry *e = &t->ring[t->first];
    t->bytes -= bytes_of(e);
    release(e);
    t->first = (t->first + 1) % t->n;
    t->used--;
}

void response_store_free(struct response_store *t)
{
    if (!t)
        return;
    while (t->used)
        drop_oldest(t);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->ring);
    mem_free(t);
}

bool response_store_put(struct response_store *t, const char *id, const char *key,
                        const struct buf *answer, const struct buf *items)
{
    struct entry e = {.key = mem_strdup(key)};
    snprintf(e.id, sizeof e.id, "%s", id);
    buf_append(&e.answer, answer->data, answer->len);
    buf_append(&e.items, items->data, items->len);
    if (!e.key || answer->failed || items->failed || e.answer.failed || e.items.failed ||
        bytes_of(&e) > STORE_BYTES) {
        release(&e);
        return false;
    }
    pthread_mutex_lock(&t->lock);
    while (t->used == t->n || (t->used && t->bytes + bytes_of(&e) > STORE_BYTES))
        drop_oldest(t);
    t->ring[(t->first + t->used++) % t->n] = e;
    t->bytes += bytes_of(&e);
    pthread_mutex_unlock(&t->lock);
    return true;
}

bool response_store_get(struct response_store *t, const char *id, const char *key,
                        struct buf *answer, struct buf *items)
{
    bool found = false;
    if (!t)
        return false;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < t->used && !found; i++) {
        const struct entry *e = &t->ring[(t->first + i) % t->n];
        if (strcmp(e->id, id) != 0 || !auth_equal(key, e->key))
            continue;
        found = true;
        if (answer)
            buf_append(answer, e->answer.data, e->answer.len);
        if (items)
            buf_append(items, e->items.data, e->items.len);
    }
    pthread_mutex_unlock(&t->lock);
    return found && !(answer && answer->failed) && !(items && items->failed);
}
