/* log.h - one event, one line: `2026-11-29T16:15:43.123Z info kv match len=20480 why=...`.
 *
 *     log_info("kv match", "len=%d of=%d why=%s", len, of, why);
 *
 * The first text names the event, the second lists key=value pairs; a value that comes from outside
 * goes through log_value.  Lines go to stderr.  Before log_start they are written at once (tools,
 * tests); after it a thread writes them from a bounded ring, so that no caller ever waits for a
 * terminal or a pipe that nobody reads: a full ring drops the line and a later `log dropped` counts
 * it.  Control bytes are written as \xNN, so an event cannot forge another.  Any thread. */
#ifndef FST_LOG_H
#define FST_LOG_H

#include "base/base.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

#define LOG_LINE_MAX 4096 /* longer lines are cut */

/* The arguments are not evaluated when the level is off. */
#define log_error(...) LOG_AT(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  LOG_AT(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  LOG_AT(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) LOG_AT(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define LOG_AT(level, ...)                                                                         \
    do {                                                                                           \
        if (log_on(level))                                                                         \
            log_write(level, __VA_ARGS__);                                                         \
    } while (0)

/* fmt may be "" for an event without pairs. */
void log_write(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool log_on(enum log_level level);
void log_set_level(enum log_level level); /* info at first */
const char *log_level_name(enum log_level level);
#define LOG_LEVEL_WORDS "error warn info debug" /* for an option table; the index is the level */

/* s as one value: as it is, or in quotes when it is empty or holds blanks, quotes, '=' or control
 * bytes.  out holds size bytes; a long value ends in "...".  Returns out. */
const char *log_value(char *out, size_t size, const char *s, size_t len);

/* Starts and ends the writing thread.  log_stop waits up to a second for the ring to empty. */
enum fst_status log_start(void);
void log_stop(void);
/* Where lines go (one or more, each with its newline), instead of to stderr; NULL: back to stderr.  For tests,
 * and for --log-file.  Called by the writing thread, or by the caller before log_start. */
typedef void log_sink_fn(void *ud, const char *lines, size_t len);
void log_set_sink(log_sink_fn *sink, void *ud);

#endif
