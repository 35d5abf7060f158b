/* arena.h - memory that is freed in one go: everything of one request, or of one step.
 *
 * A bump allocator over blocks.  One owner, one thread at a time.  arena_reset keeps the blocks, so
 * that an arena in a pool stops calling the heap once it has seen its largest request. */
#ifndef FST_ARENA_H
#define FST_ARENA_H

#include "base/base.h"

struct arena_block;

struct arena {
    struct arena_block *blocks;  /* in use order; owned */
    struct arena_block *current; /* borrowed from blocks; NULL before the first */
    size_t block_size;           /* bytes asked from the heap at a time */
    size_t limit;                /* of all blocks together, 0: none */
    size_t held;                 /* bytes of all blocks */
};

/* No memory is taken yet. */
void arena_init(struct arena *a, size_t block_size, size_t limit);
void arena_release(struct arena *a); /* back to the state after arena_init */
void arena_reset(struct arena *a);   /* all pointers die, the blocks stay */

/* 16-byte aligned, zeroed.  NULL when the heap or the limit gives no more.  size 0 is fine. */
void *arena_alloc(struct arena *a, size_t size);
void *arena_calloc(struct arena *a, size_t n, size_t size); /* NULL also on overflow */
/* Copies len bytes and adds a NUL. */
char *arena_strndup(struct arena *a, const char *s, size_t len);

#endif
