/* status.h - how every fallible call of firesteel reports.
 *
 * A function that can fail returns enum fst_status: 0 for success, negative otherwise.  The message
 * is worded once, where the fault is found, by fst_error(); it stays in thread-local storage until
 * the next fst_error() of that thread.  Callers pass the code on (FST_TRY) or handle it, and never
 * word it again.  FST_EAGAIN ("not now") and FST_EBUDGET ("does not fit") are results that callers
 * are expected to handle. */
#ifndef FIRESTEEL_STATUS_H
#define FIRESTEEL_STATUS_H

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, value, text */
#define FST_STATUS_MAP(X)                                                                          \
    X(OK, 0, "ok")                                                                                 \
    X(EINVAL, -1, "invalid argument")                                                              \
    X(EFORMAT, -2, "malformed data")                                                               \
    X(EIO, -3, "input or output failed")                                                           \
    X(ENOMEM, -4, "out of memory")                                                                 \
    X(ENOTFOUND, -5, "not found")                                                                  \
    X(EUNSUPPORTED, -6, "not supported")                                                           \
    X(EAGAIN, -7, "not now")                                                                       \
    X(EBUDGET, -8, "does not fit")                                                                 \
    X(EFULL, -9, "queue is full")                                                                  \
    X(ECANCELED, -10, "canceled")                                                                  \
    X(ETIMEOUT, -11, "deadline passed")                                                            \
    X(EMACHINE, -12, "the machine lacks something")                                                \
    X(ENUMERIC, -13, "not a number in the model's output")                                         \
    X(ESHUTDOWN, -14, "shutting down")                                                             \
    X(EINTERNAL, -15, "internal fault")

enum fst_status {
#define FST_STATUS_ENUM(name, value, text) FST_##name = value,
    FST_STATUS_MAP(FST_STATUS_ENUM)
#undef FST_STATUS_ENUM
};

/* "EFORMAT" and "malformed data"; unknown codes give "E?" and "unknown status". */
const char *fst_status_name(enum fst_status rc);
const char *fst_status_text(enum fst_status rc);

/* Store the message of this thread and return rc.  At most 1023 bytes are kept. */
enum fst_status fst_error(enum fst_status rc, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
enum fst_status fst_verror(enum fst_status rc, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));

/* The message of this thread's last fst_error(), "" before the first.  Valid until the next. */
const char *fst_error_text(void);

/* Exit status of a program that failed with rc: 2 wrong usage, 3 the machine lacks something, 1. */
int fst_exit_status(enum fst_status rc);

#define FST_TRY(call)                                                                              \
    do {                                                                                           \
        enum fst_status fst_try_rc_ = (call);                                                      \
        if (fst_try_rc_ < 0)                                                                       \
            return fst_try_rc_;                                                                    \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
