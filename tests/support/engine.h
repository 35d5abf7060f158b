/* engine.h - requests of an engine that a test waits for. */
#ifndef TESTS_SUPPORT_ENGINE_H
#define TESTS_SUPPORT_ENGINE_H

#include "firesteel/engine.h"
#include "support/cm.h"

/* The view of a request that must end by itself within ten minutes. */
static inline void engine_finished(fst_request *r, struct fst_request_view *v)
{
    if (fst_request_wait(r, 600) < 0)
        fail_msg("%s", fst_error_text());
    fst_request_get_view(r, v);
    if (v->finish == FST_FINISH_ERROR || v->finish == FST_FINISH_ABORT)
        fail_msg("finish %d: %s", v->finish, v->error);
}

#endif
