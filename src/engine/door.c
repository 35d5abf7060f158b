/* door.c - the part of an engine that its requests may still touch after it is gone. */
#include "engine/engine_int.h"

struct door *door_new(int max_waiting, uint64_t max_request_bytes, uint64_t seed)
{
    struct door *d = mem_calloc(1, sizeof *d);

    if (!d)
        return NULL;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    d->refs = 1;
    d->max_waiting = max_waiting;
    d->max_request_bytes = max_request_bytes;
    d->seed_state = seed;
    return d;
}

void door_ref(struct door *d)
{
    pthread_mutex_lock(&d->lock);
    d->refs++;
    pthread_mutex_unlock(&d->lock);
}

void door_unref(struct door *d)
{
    int left;

    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    left = --d->refs;
    pthread_mutex_unlock(&d->lock);
    if (left > 0)
        return;
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

void door_kick(struct door *d)
{
    pthread_mutex_lock(&d->lock);
    d->kick = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}
