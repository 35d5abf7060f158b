/* replay.h - run a record of the engine's last steps again, and say where it differs.
 *
 * A record (docs/audit.md) names the checkpoint, the engine's options and, of each step, the rows that were
 * computed and what was drawn behind them.  By the determinism rule the same build on the same kind of device
 * gives the same bits: where it does not, either the record was made by a fault that does not come again, or this
 * machine has one. */
#ifndef FIRESTEEL_REPLAY_H
#define FIRESTEEL_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "firesteel/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zero or NULL: as the record says. */
struct fst_replay_opts {
    const char *model_dir, *device, *kernels;
    int threads;
};

struct fst_replay_report {
    char reason[64], detail[512], time[40], debug_hooks[256]; /* from the record; "" */
    uint64_t steps, spans, rows; /* that were run again; rows with draws */
    uint64_t hashes;             /* rows whose logits were compared too */
    uint64_t drafts;             /* draft tokens that were compared */
    uint64_t left_out;           /* spans of requests whose ids are not in the record */
    uint64_t differing;          /* rows */
    char first[512];             /* the first of them; "" */
    /* Requests that the audit had chosen: their tokens as a cold prefill. */
    uint64_t audited_requests, audited_rows, audited_differing;
    char audited_first[512];
};

/* Read, open the checkpoint, run.  FST_OK whether it is equal or not.  FST_EFORMAT names file, line and field;
 * FST_EUNSUPPORTED for a redacted record, which holds no ids; FST_EINVAL for other weights.  Blocks. */
enum fst_status fst_replay(const char *path, const struct fst_replay_opts *o,
                           struct fst_replay_report *out);

#ifdef __cplusplus
}
#endif
#endif
