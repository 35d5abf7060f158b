/* status.c - names, texts and the thread's last error message. */
#include <stdio.h>

#include "firesteel/status.h"

static _Thread_local char last_error[1024];

const char *fst_status_name(enum fst_status rc)
{
    switch (rc) {
#define CASE(name, value, text)                                                                    \
    case FST_##name:                                                                               \
        return #name;
        FST_STATUS_MAP(CASE)
#undef CASE
    }
    return "E?";
}

const char *fst_status_text(enum fst_status rc)
{
    switch (rc) {
#define CASE(name, value, text)                                                                    \
    case FST_##name:                                                                               \
        return text;
        FST_STATUS_MAP(CASE)
#undef CASE
    }
    return "unknown status";
}

enum fst_status fst_verror(enum fst_status rc, const char *fmt, va_list ap)
{
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    return rc;
}

enum fst_status fst_error(enum fst_status rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fst_verror(rc, fmt, ap);
    va_end(ap);
    return rc;
}

const char *fst_error_text(void)
{
    return last_error;
}

int fst_exit_status(enum fst_status rc)
{
    if (rc == FST_OK)
        return 0;
    if (rc == FST_EINVAL)
        return 2;
    return rc == FST_EMACHINE || rc == FST_EIO || rc == FST_ENOMEM ? 3 : 1;
}
