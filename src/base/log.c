/* log.c - formatting an event, and the ring between callers and stderr. */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"

/* 256 KiB are about 1500 lines: a second of the busiest log at level info. */
#define LOG_RING_SIZE    ((size_t)256 << 10)
#define LOG_STOP_WAIT_NS INT64_C(1000000000)
#define LOG_POLL_MS      50

static _Atomic int log_level = LOG_LEVEL_INFO;

static struct {
    pthread_mutex_t lock; /* held for copies only, never while writing out */
    pthread_cond_t filled;
    char *ring;       /* LOG_RING_SIZE bytes; NULL: no thread */
    size_t head, len; /* first unread byte, bytes used */
    uint64_t dropped;
    int64_t stop_at; /* 0: run; otherwise give up at this time */
    pthread_t thread;
    log_sink_fn *sink;
    void *sink_ud;
} lg = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    FST_ASSERT((size_t)level < FST_COUNT(names));
    return names[level];
}

bool log_on(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void log_set_level(enum log_level level)
{
    atomic_store(&log_level, (int)level);
}

void log_set_sink(log_sink_fn *sink, void *ud)
{
    pthread_mutex_lock(&lg.lock);
    lg.sink = sink;
    lg.sink_ud = ud;
    pthread_mutex_unlock(&lg.lock);
}

static bool needs_quotes(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] <= ' ' || s[i] == '"' || s[i] == '=' || s[i] == '\\' ||
            s[i] == 0x7f)
            return true;
    return len == 0;
}

/* Length of UTF-8 text cut to at most n bytes between two characters. */
static size_t cut(const char *s, size_t n)
{
    while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
        n--;
    return n;
}

const char *log_value(char *out, size_t size, const char *s, size_t len)
{
    bool quotes = needs_quotes(s, len);
    size_t n = 0, i = 0;

    FST_ASSERT(size >= 16);
    if (quotes)
        out[n++] = '"';
    while (i < len) {
        unsigned char ch = (unsigned char)s[i];
        size_t k = 1; /* bytes of this character */
        size_t w;     /* bytes it takes in out */

        if (ch >= 0xc0)
            while (i + k < len && k < 4 && ((unsigned char)s[i + k] & 0xc0) == 0x80)
                k++;
        w = ch < ' ' || ch == 0x7f ? 4 : ch == '"' || ch == '\\' ? 2 : k;
        if (n + w + 5 > size) { /* "...", the quote and the NUL must fit behind it */
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (w == 4 && k == 1) {
            snprintf(out + n, 5, "\\x%02x", ch);
        } else {
            if (w == 2 && k == 1)
                out[n] = '\\';
            memcpy(out + n + w - k, s + i, k);
        }
        n += w;
        i += k;
    }
    if (quotes)
        out[n++] = '"';
    out[n] = 0;
    return out;
}

/* line[from..n) without control bytes; at most size bytes.  Returns the new length. */
static size_t defuse(char *line, size_t from, size_t n, size_t size)
{
    char clean[LOG_LINE_MAX];
    size_t k = 0;

    for (size_t i = from; i < n; i++) {
        unsigned char ch = (unsigned char)line[i];
        if (ch >= ' ' && ch != 0x7f) {
            if (from + k + 1 > size)
                break;
            clean[k++] = (char)ch;
        } else {
            if (from + k + 4 > size)
                break;
            snprintf(clean + k, 5, "\\x%02x", ch);
            k += 4;
        }
    }
    memcpy(line + from, clean, k);
    return from + k;
}

static void write_out(log_sink_fn *sink, void *ud, const char *s, size_t len)
{
    if (sink) {
        sink(ud, s, len);
        return;
    }
    while (len > 0) {
        ssize_t n = write(STDERR_FILENO, s, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* a closed stderr is no reason to stop */
        s += n;
        len -= (size_t)n;
    }
}

static void ring_put(const char *s, size_t len)
{
    size_t at = (lg.head + lg.len) % LOG_RING_SIZE;
    size_t first = FST_MIN(len, LOG_RING_SIZE - at);

    FST_ASSERT(lg.len + len <= LOG_RING_SIZE);
    memcpy(lg.ring + at, s, first);
    memcpy(lg.ring, s + first, len - first);
    lg.len += len;
}

/* Copies as many whole lines as chunk holds; none is longer than it. */
static size_t ring_peek(char chunk[LOG_LINE_MAX])
{
    size_t n = FST_MIN(lg.len, (size_t)LOG_LINE_MAX);
    size_t first = FST_MIN(n, LOG_RING_SIZE - lg.head);

    memcpy(chunk, lg.ring + lg.head, first);
    memcpy(chunk + first, lg.ring, n - first);
    while (n > 0 && chunk[n - 1] != '\n')
        n--;
    FST_ASSERT(n > 0);
    return n;
}

static void emit(const char *line, size_t len)
{
    log_sink_fn *sink;
    void *ud;

    pthread_mutex_lock(&lg.lock);
    if (lg.ring) {
        if (lg.len + len > LOG_RING_SIZE) {
            lg.dropped++;
        } else {
            ring_put(line, len);
            pthread_cond_signal(&lg.filled);
        }
        pthread_mutex_unlock(&lg.lock);
        return;
    }
    sink = lg.sink;
    ud = lg.sink_ud;
    pthread_mutex_unlock(&lg.lock);
    write_out(sink, ud, line, len);
}

void log_write(enum log_level level, const char *event, const char *fmt, ...)
{
    char line[LOG_LINE_MAX + 1], when[CLOCK_ISO_SIZE];
    const size_t room = LOG_LINE_MAX - 1; /* before the newline */
    size_t from, n;
    va_list ap;
    int k;

    clock_iso(when, clock_wall_ns());
    k = snprintf(line, room, "%s %s ", when, log_level_name(level));
    from = (size_t)k;
    k = snprintf(line + from, room - from, "%s%s", event, *fmt ? " " : "");
    n = FST_MIN(from + (size_t)FST_MAX(k, 0), room - 1);
    va_start(ap, fmt);
    k = vsnprintf(line + n, room - n, fmt, ap);
    va_end(ap);
    n += (size_t)FST_MAX(k, 0);
    if (n > room - 1) {
        n = cut(line, room - 4);
        memcpy(line + n, "...", 3);
        n += 3;
    }
    n = defuse(line, from, n, room);
    line[n++] = '\n';
    emit(line, n);
}

/* Waits until stderr takes PIPE_BUF bytes without blocking (which is what POLLOUT means for a
 * pipe); false when the ring must be given up. */
static bool may_write(void)
{
    for (;;) {
        struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
        int64_t stop_at;

        if (poll(&p, 1, LOG_POLL_MS) != 0)
            return true;
        pthread_mutex_lock(&lg.lock);
        stop_at = lg.stop_at;
        pthread_mutex_unlock(&lg.lock);
        if (stop_at && clock_ns() >= stop_at)
            return false;
    }
}

static void *writer_main(void *arg)
{
    char chunk[LOG_LINE_MAX]; /* PIPE_BUF: written in one piece */

    (void)arg;
    pthread_mutex_lock(&lg.lock);
    for (;;) {
        log_sink_fn *sink;
        void *ud;
        size_t n;

        while (lg.len == 0 && lg.dropped == 0 && lg.stop_at == 0)
            pthread_cond_wait(&lg.filled, &lg.lock);
        if (lg.len == 0 && lg.dropped > 0) {
            char when[CLOCK_ISO_SIZE];
            clock_iso(when, clock_wall_ns());
            n = (size_t)snprintf(chunk, sizeof chunk, "%s warn log dropped lines=%llu\n", when,
                                 (unsigned long long)lg.dropped);
            ring_put(chunk, n);
            lg.dropped = 0;
        }
        if (lg.len == 0)
            break; /* told to stop */
        n = ring_peek(chunk);
        sink = lg.sink;
        ud = lg.sink_ud;
        pthread_mutex_unlock(&lg.lock);
        if (!sink && !may_write()) {
            pthread_mutex_lock(&lg.lock);
            break;
        }
        write_out(sink, ud, chunk, n);
        pthread_mutex_lock(&lg.lock);
        lg.head = (lg.head + n) % LOG_RING_SIZE;
        lg.len -= n;
    }
    pthread_mutex_unlock(&lg.lock);
    return NULL;
}

enum fst_status log_start(void)
{
    sigset_t all, before;
    int err;

    pthread_mutex_lock(&lg.lock);
    FST_ASSERT(!lg.ring);
    lg.ring = mem_alloc(LOG_RING_SIZE);
    lg.head = lg.len = 0;
    lg.dropped = 0;
    lg.stop_at = 0;
    err = lg.ring ? 0 : ENOMEM;
    pthread_mutex_unlock(&lg.lock);
    if (!err) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        err = pthread_create(&lg.thread, NULL, writer_main, NULL);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (err) {
        pthread_mutex_lock(&lg.lock);
        mem_free(lg.ring);
        lg.ring = NULL;
        pthread_mutex_unlock(&lg.lock);
        return fst_error(err == ENOMEM ? FST_ENOMEM : FST_EMACHINE, "log thread: %s",
                         strerror(err));
    }
    return FST_OK;
}

void log_stop(void)
{
    pthread_mutex_lock(&lg.lock);
    if (!lg.ring) {
        pthread_mutex_unlock(&lg.lock);
        return;
    }
    lg.stop_at = clock_ns() + LOG_STOP_WAIT_NS;
    pthread_cond_signal(&lg.filled);
    pthread_mutex_unlock(&lg.lock);
    pthread_join(lg.thread, NULL);
    pthread_mutex_lock(&lg.lock);
    mem_free(lg.ring);
    lg.ring = NULL;
    pthread_mutex_unlock(&lg.lock);
}
