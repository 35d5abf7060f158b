/* base.c - assertion failure, counted heap memory, byte buffers. */
#include "base/base.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

_Noreturn void base_assert_failed(const char *file, int line, const char *text)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, text);
    abort();
}

static atomic_uint_least64_t n_allocs;
static atomic_uint_least64_t fail_at; /* absolute count at which one allocation fails; 0 off */

void mem_fail_at(uint64_t n)
{
    atomic_store(&fail_at, n ? atomic_load(&n_allocs) + n : 0);
}

uint64_t mem_count(void)
{
    return atomic_load(&n_allocs);
}

uint64_t mem_available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    unsigned long long kb = 0, limit = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    f = fopen("/sys/fs/cgroup/memory.max", "re");
    if (f && fscanf(f, "%llu", &limit) == 1 && limit / 1024 < kb)
        kb = limit / 1024;
    if (f)
        fclose(f);
    return kb ? (uint64_t)kb * 1024 : (uint64_t)1 << 32;
}

static bool may_allocate(void)
{
    uint64_t n = atomic_fetch_add(&n_allocs, 1) + 1;
    return n != atomic_load(&fail_at);
}

void *mem_alloc(size_t size)
{
    return may_allocate() ? malloc(size ? size : 1) : NULL;
}

void *mem_calloc(size_t n, size_t size)
{
    size_t total;

    if (!may_allocate() || __builtin_mul_overflow(n, size, &total))
        return NULL;
    return calloc(1, total ? total : 1);
}

void *mem_realloc(void *p, size_t size)
{
    return may_allocate() ? realloc(p, size ? size : 1) : NULL;
}

void *mem_aligned(size_t alignment, size_t size)
{
    void *p;
    if (!may_allocate() || posix_memalign(&p, alignment, size ? size : 1) != 0)
        return NULL;
    return p;
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = mem_alloc(n);
    if (p)
        memcpy(p, s, n);
    return p;
}

void mem_free(void *p)
{
    free(p);
}

void buf_release(struct buf *b)
{
    size_t limit = b->limit;
    mem_free(b->data);
    *b = (struct buf){.limit = limit};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = false;
    if (b->data)
        b->data[0] = 0;
}

bool buf_reserve(struct buf *b, size_t more)
{
    size_t limit = b->limit ? b->limit : (size_t)1 << 30;
    size_t cap = b->cap ? b->cap : 64;
    char *p;

    if (b->failed)
        return false;
    if (more > limit || b->len > limit - more) {
        b->failed = true;
        return false;
    }
    if (b->data && b->len + more < b->cap)
        return true;
    while (cap <= b->len + more)
        cap *= 2;
    p = mem_realloc(b->data, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

void buf_append(struct buf *b, const void *data, size_t len)
{
    if (!buf_reserve(b, len))
        return;
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    int n;

    va_start(ap, fmt);
    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    else if (buf_reserve(b, (size_t)n + 1)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

char *buf_detach(struct buf *b)
{
    char *p;

    buf_append(b, "", 0);
    if (b->failed) {
        buf_release(b);
        return NULL;
    }
    p = b->data;
    b->data = NULL;
    buf_release(b);
    return p;
}
