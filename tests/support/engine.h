/* engine.h - requests of an engine that a test waits for. */
#ifndef TESTS_SUPPORT_ENGINE_H
#define TESTS_SUPPORT_ENGINE_H

#include <stdlib.h>
#include <string.h>

#include "firesteel/engine.h"
#include "support/cm.h"

/* The bundled target with an MTP block; the build makes it (cmake/tests.cmake). */
#define ENGINE_MTP_MODEL "build/kindling-mtp"

/* An engine on the model and the device of FST_TEST_DEVICE (cuda: the promise on a card), with these sizes where o
 * has none.  Algorithm mtp is on ENGINE_MTP_MODEL, whose answers are kindling's. */
static inline fst_engine *engine_of_test(struct fst_engine_opts o, const char *model_dir,
                                         int64_t context_length, int max_running)
{
    fst_engine *e;
    bool mtp = o.spec_algorithm && strcmp(o.spec_algorithm, "mtp") == 0;
    o.model_dir = mtp ? ENGINE_MTP_MODEL : model_dir;
    o.kernels = getenv("FIRESTEEL_KERNELS");
    o.device = getenv("FST_TEST_DEVICE");
    if (!o.context_length)
        o.context_length = context_length;
    if (!o.max_running_requests)
        o.max_running_requests = max_running;
    if (fst_engine_open(&e, &o) < 0)
        fail_msg("%s", fst_error_text());
    return e;
}

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
