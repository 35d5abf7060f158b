/* arena.c - bump allocation over a list of blocks. */
#include "base/arena.h"

#define ARENA_ALIGN 16

struct arena_block {
    struct arena_block *next;
    size_t size, used; /* of data */
    _Alignas(ARENA_ALIGN) unsigned char data[];
};

void arena_init(struct arena *a, size_t block_size, size_t limit)
{
    FST_ASSERT(block_size >= 64);
    *a = (struct arena){.block_size = block_size, .limit = limit};
}

void arena_release(struct arena *a)
{
    for (struct arena_block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    arena_init(a, a->block_size, a->limit);
}

void arena_reset(struct arena *a)
{
    for (struct arena_block *b = a->blocks; b; b = b->next)
        b->used = 0;
    a->current = a->blocks;
}

/* A block with room for size bytes becomes current: one that is kept from before, or a new one. */
static bool next_block(struct arena *a, size_t size)
{
    struct arena_block *b = a->current ? a->current->next : NULL;
    size_t want = FST_MAX(size, a->block_size);

    /* A kept block that is too small stays empty until the next reset. */
    for (; b; b = b->next) {
        a->current = b;
        if (b->size >= size)
            return true;
    }
    if (want > SIZE_MAX - sizeof *b)
        return false;
    if (a->limit && (want > a->limit || a->held > a->limit - want)) {
        want = size; /* the last piece may be smaller than a block */
        if (want > a->limit || a->held > a->limit - want)
            return false;
    }
    b = mem_alloc(sizeof *b + want);
    if (!b)
        return false;
    b->next = NULL;
    b->size = want;
    b->used = 0;
    if (a->current)
        a->current->next = b;
    else
        a->blocks = b;
    a->current = b;
    a->held += want;
    return true;
}

void *arena_alloc(struct arena *a, size_t size)
{
    struct arena_block *b = a->current;
    void *p;

    if (size > SIZE_MAX - ARENA_ALIGN)
        return NULL;
    size = (FST_MAX(size, 1) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (!b || b->size - b->used < size) {
        if (!next_block(a, size))
            return NULL;
        b = a->current;
    }
    FST_ASSERT(b->size - b->used >= size);
    p = b->data + b->used;
    b->used += size;
    memset(p, 0, size);
    return p;
}

void *arena_calloc(struct arena *a, size_t n, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(n, size, &total))
        return NULL;
    return arena_alloc(a, total);
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
    char *p = len < SIZE_MAX ? arena_alloc(a, len + 1) : NULL;
    if (p && len)
        memcpy(p, s, len);
    return p;
}
