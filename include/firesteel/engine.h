/* engine.h - the door of the engine: open a checkpoint, submit requests of token ids, read tokens.
 *
 * The engine knows ids, not text, and no HTTP.  One thread of its own runs all steps (continuous
 * batching of prefill chunks, decode rows and verify blocks).  Every function here may be called
 * from any thread unless it says otherwise, and none blocks on the step loop.
 *
 * Determinism: ids, log-probabilities, finish reason and usage of a request depend on the
 * checkpoint, the prompt and the request's own options alone: not on other requests, on chunking,
 * on threads, on drafting or on the KV layout. */
#ifndef FIRESTEEL_ENGINE_H
#define FIRESTEEL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "firesteel/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fst_engine fst_engine;
typedef struct fst_request fst_request;

/* ------------------------------------------------------------------ engine */

enum { FST_SPEC_MAX = 8 };

/* A block of drafts against the target's own draws. */
struct fst_spec_round {
    float temperature;
    int n_drafts;
    int accepted;                   /* leading ones that were right */
    float confidence[FST_SPEC_MAX]; /* (n_drafts) logits of the confidence head, as it says */
};

/* Zero or NULL means the default given. */
struct fst_engine_opts {
    const char *model_dir;  /* folder of a published checkpoint; required */
    const char *device;     /* "cpu"; "cuda", "hip" */
    const char *kernels;    /* "auto"; see kernels_select */
    const char *kv_layout;  /* "unified-fp8"; "unified-bf16", "paged" */
    const char *index_keys; /* "fp4"; "fp8" */
    const char *precision;  /* "native"; "reference" (fp32, nothing quantised but weights) */
    const char
        *spec_algorithm; /* NULL: what the checkpoint bundles; "dspark", "mtp" or "eagle", "none"
                                   (any case) */
    /* "auto": who drafts, how long and what of it is verified follows from what it is expected to bring and
     * what it costs here; "static": all that is drafted is verified; "compact": of full blocks what the
     * confidences say pays; "cap": as compact, but everything is computed (to judge the choice).  Results
     * are the same. */
    const char *verify_mode;
    const char *
        spec_accept; /* "coupled"; "rejection": classic rejection sampling above temperature 0 (outside
                                of the promise above: the distribution is the same, the draws are not) */
    int spec_block_size; /* DSpark: draft tokens per round; 0: the checkpoint's; larger is refused */
    int spec_num_steps;  /* MTP: the same; 0: 3, which is the most */
    bool measure_cost;   /* of steps and drafts when the engine opens, 2 s at most; false: learn it
                                       from the first rounds */
    const char
        *cost_path; /* table of costs: read if it was measured here, written at close; NULL */
    const char
        *sts_path; /* calibration of the confidence head; NULL: dspark-sts.json of the model's
                                       folder, where that is there */
    /* Every round whose whole block was verified, from the engine's thread; NULL.  For calibration. */
    void (*on_spec_round)(void *ud, const struct fst_spec_round *round);
    void *on_spec_round_ud;
    int threads;              /* 0: one per core */
    int max_running_requests; /* 0: 16 */
    int max_queued_requests;  /* 0: 1024 */
    int64_t context_length;   /* 0: the checkpoint's, bounded by memory */
    int64_t max_total_tokens; /* KV tokens over all requests; 0: from the memory plan */
    int chunked_prefill_size; /* rows of prefill per step; 0: 512 */
    double
        max_stall_s; /* fewer of them where a step that somebody decodes in would take longer; 0: 0.25; < 0: never */
    uint64_t random_seed; /* seeds requests that bring none; see has_random_seed */
    bool has_random_seed;
    bool profile;               /* keep per-block timings (bench step) */
    bool disable_prefix_cache;  /* compute every prompt whole; same results */
    int64_t prefix_cache_bytes; /* host memory for snapshots; 0: room for 128, 4 GiB at most */
    /* Tiers below the prefixes that are kept: what those let go, and prompts may still go on from. */
    int64_t
        kv_host_bytes; /* host memory; 0: none; -1: by ratio.  Less is left: one line, and none */
    double
        kv_host_ratio; /* places for pages, to KV pages; 0: two, in a quarter of what is left at most */
    const char *kv_host_layout;       /* "page_first_direct"; "layer_first" */
    const char *kv_disk_dir;          /* folder of the tier on disk; NULL: none */
    int64_t kv_disk_bytes;            /* its budget; 0: 4 GiB */
    int64_t kv_disk_write_bytes_hour; /* that may be written in any hour; 0: no limit */
    bool kv_disk_zstd;                /* compressed, where that makes an object smaller */
    const char *kv_write_policy;      /* "write_through"; "write_through_selective", "write_back" */
    const char *kv_load_policy;       /* of the disk: "wait_complete"; "best_effort", "timeout" */
    bool
        check_memory; /* tests: after every step all of KV memory is accounted for, or the process ends */
    bool disable_cuda_graph; /* launch kernel by kernel on a card; results are the same */
    /* Audit: finished requests that are computed again, cold, while there is nothing else to do. */
    double audit_share; /* of requests, by chance, in [0, 1]; 0: none */
    double audit_time;  /* the most of wall time, in (0, 1]; 0: 0.01 */
    /* Records of the last steps, written when something is wrong (src/engine/recorder.h). */
    const char *record_dir; /* folder; NULL: nothing is written */
    int record_files;       /* so many at most, the oldest go; 0: 16 */
    /* Hooks that make the engine wrong or untypical on purpose: refused without debug_hooks, and
     * fst_engine_info.debug_hooks names them (src/engine/debug.h). */
    bool debug_hooks;
    const char *debug_drafter; /* file of known continuations that are proposed instead of drafts */
    int debug_reject_at; /* 1..block: the draft at this place of each round is rejected; 0: off */
    double simulate_acc_len; /* 1..block + 1: tokens of each round, right or wrong; 0: off */
    const char *simulate_acc_method; /* "match-expected"; "multinomial" */
    const char *debug_spoil;         /* "logits@N", "kv@N": output position N, position N; NULL */
    double
        debug_null_model; /* no model: every step takes so many us and draws the same id; 0: off */
    const int32_t *masked_ids; /* ids that are never drawn (rows of the vocabulary without a name
                                    in the tokenizer); copied */
    size_t n_masked_ids;
    /* Progress of opening, from the opening thread; may be NULL. done and total in bytes. */
    void (*on_load)(void *ud, uint64_t done, uint64_t total);
    void *on_load_ud;
};

/* Open the checkpoint, check every tensor, allocate everything, start the step thread.  Blocks until
 * ready.  On failure *out is NULL and fst_error_text() says why. */
enum fst_status fst_engine_open(fst_engine **out, const struct fst_engine_opts *opts);

/* Refuse new requests, cancel what is left, stop the thread, free.  Requests must have been freed
 * or be freed afterwards (they outlive the engine safely).  NULL is fine. */
void fst_engine_close(fst_engine *e);
/* The same; writing what is kept to the tier on disk ends after so many seconds, what was used last first. */
void fst_engine_close_within(fst_engine *e, double seconds);

/* Stop taking requests (submit gives FST_ESHUTDOWN); running ones go on. */
void fst_engine_drain(fst_engine *e);

struct fst_engine_info {
    char model_type[32];
    const char *model_dir; /* borrowed from the engine */
    const char *kernels, *device, *kv_layout, *index_keys, *spec_algorithm, *verify_mode,
        *precision;
    const char *spec_accept;
    const char *debug_hooks; /* NULL: none.  Else what is not to be taken for a result, and why */
    int vocab_size, eos_id, bos_id;
    int gamma;            /* draft tokens per round; 0 when off */
    bool cost_measured;   /* when the engine was opened, or read from cost_path */
    const char *sts_path; /* of the calibration in use; NULL: none */
    int threads, max_running_requests, max_queued_requests, chunked_prefill_size;
    int64_t context_length, max_total_tokens;
    uint64_t weight_bytes, kv_bytes, state_bytes, workspace_bytes;
    uint64_t prefix_cache_bytes; /* room for snapshots; 0: every prompt is computed whole */
    uint64_t kv_host_bytes;      /* of the host tier; 0: there is none */
    const char *kv_disk_dir;     /* of the tier on disk; NULL: there is none */
    uint64_t n_tensors;
    double load_s;
};
void fst_engine_get_info(const fst_engine *e, struct fst_engine_info *out);

struct fst_spec_stats {
    uint64_t verify_steps;                       /* (request, verify round) pairs */
    uint64_t drafted;                            /* draft tokens verified */
    uint64_t accepted;                           /* draft tokens accepted, before stops */
    uint64_t accepted_by_position[FST_SPEC_MAX]; /* rounds that accepted at least k+1 drafts */
    double accept_length; /* (accepted + verify_steps)/verify_steps; 0 without rounds */
};

struct fst_audit_stats {
    uint64_t equal, mismatches; /* requests that were computed again */
    uint64_t abandoned;         /* work came in between too often, or there was no room */
    uint64_t dropped;           /* chosen ones that had to go before their turn */
    uint64_t tokens;            /* rows that were computed again */
    uint64_t ns;                /* time that took */
    int waiting;                /* chosen ones that wait for their turn */
    bool drafting_off;          /* since the first mismatch, until the end of the engine */
};

/* Why a request that decoded verified no draft in a step. */
enum fst_spec_skip {
    FST_SPEC_SKIP_COST,       /* it would not have paid, by what it costs and brings */
    FST_SPEC_SKIP_CONFIDENCE, /* it drafted, and nothing of that was worth verifying */
    FST_SPEC_SKIP_MEASURE,    /* to know what a step without drafts costs */
    FST_SPEC_SKIP_WINDOW,     /* the drafter has not seen the last 128 tokens */
    FST_SPEC_SKIP_PAGES,      /* no page for drafts */
    FST_SPEC_SKIP_CONTEXT,    /* the context or the answer ends here */
    FST_SPEC_SKIP_REQUEST,    /* it asked for none (no_drafting) */
    FST_SPEC_SKIP_AUDIT,      /* an audit has switched drafting off */
    FST_SPEC_SKIPS
};

/* Temperatures: 0; below 0.45; up to 0.8; up to 1.2; beyond. */
enum fst_spec_band {
    FST_SPEC_GREEDY,
    FST_SPEC_COOL,
    FST_SPEC_MILD,
    FST_SPEC_WARM,
    FST_SPEC_HOT,
    FST_SPEC_BANDS
};
struct fst_spec_band_stats {
    uint64_t verify_steps, drafted, accepted; /* as of fst_spec_stats */
};

enum { FST_TIERS_MAX = 2 };

struct fst_tier_stats {
    const char *name;        /* "host", "disk" */
    uint64_t objects, bytes; /* pages and snapshots that are there */
    uint64_t n_put, put_bytes, n_got, got_bytes, n_missed, n_evicted, n_refused, n_bad;
};

struct fst_engine_stats {
    uint64_t steps;                          /* forward passes */
    int running, waiting;                    /* requests now */
    int loading;                             /* of those that run: wait for a tier */
    int64_t kv_tokens_used, kv_tokens_total; /* whole pages */
    int slots_used, slots_total;
    bool lost; /* the device failed: no request can succeed any more, the process should end */
    uint64_t prompt_tokens, cached_tokens, generation_tokens;
    /* Loads from tiers; of these without all that they were for; tokens beyond what was kept above. */
    uint64_t loads, loads_incomplete, loaded_tokens;
    int64_t tier_queue; /* what waits to be copied or is being copied */
    int n_tiers;
    struct fst_tier_stats tier[FST_TIERS_MAX];
    uint64_t requests, finished, aborted, failed, retracted;
    uint64_t resumed_tokens; /* that requests which had lost their places did not compute again */
    uint64_t prefill_rows, decode_rows, verify_rows, draft_rounds;
    double last_decode_tok_s; /* over the last decode window of 40 steps */
    int64_t last_step_ns;     /* CLOCK_MONOTONIC of the last finished step; 0 before the first */
    int64_t heartbeat_ns;     /* CLOCK_MONOTONIC of the last block a step finished */
    int64_t now_ns;
    struct fst_spec_stats spec;
    struct fst_audit_stats audit;
    uint64_t records; /* files written by the recorder */
    struct fst_spec_band_stats spec_band[FST_SPEC_BANDS];
    uint64_t spec_skipped[FST_SPEC_SKIPS]; /* (request, step) pairs without a verified draft */
    uint64_t spec_drafted;                 /* draft tokens proposed, verified or not */
    uint64_t spec_trimmed; /* accepted drafts beyond what was planned for (verify_mode cap) */
    double spec_window_accept_length; /* of the last 60 s; 0 without rounds */
    uint64_t held_rows, resumed_rows; /* captured rows kept aside, and of these injected later */
    /* Sums of time: draft_ns is drafting and injection; a step with prefill rows counts as prefill,
     * else one with a verify block as verify, else as decode, each without draft_ns; step_ns is
     * everything.  And how many steps of each kind (draft: batches) there were. */
    uint64_t step_ns, draft_ns, verify_ns, prefill_ns, decode_ns;
    uint64_t draft_steps, verify_steps_n, prefill_steps_n, decode_steps_n;
    /* On a card: recorded calls that are held (steps, drafts, injections), and launches of one. */
    int graphs;
    uint64_t graph_launches;
    /* On a card: time from the last launch's end in a step to the first of the next, where the host had
     * nothing to wait for: no drafts, no pause. */
    uint64_t gap_ns, gaps;
};
void fst_engine_get_stats(const fst_engine *e, struct fst_engine_stats *out);
void fst_engine_reset_spec_stats(fst_engine *e);
/* Forget every prefix that no request relies on, before the next step; requests that are submitted after
 * this call find none of them. */
void fst_engine_flush_prefixes(fst_engine *e);

/* Timings per block since the last reset; only with opts.profile, and only while no request runs.
 * Returns the number of entries (at most n are written). */
struct fst_block_time {
    const char *name;
    uint64_t ns, calls;
};
int fst_engine_block_times(fst_engine *e, struct fst_block_time *out, int n, bool reset);

/* ------------------------------------------------------------------ grammars */

struct grammar; /* what a reply may be, and the tokens it is made of (src/grammar/grammar.h) */
struct grammar_vocab;
typedef struct fst_grammar fst_grammar;

/* A grammar for requests of one engine, which learn from each other what may follow where.  Takes
 * fst_grammar_bytes of memory; counted.  Any thread.  g: a reference is taken; v: borrowed until this and every
 * request that has it is freed.  FST_EINVAL: the vocabulary cannot write it. */
enum fst_status fst_grammar_new(fst_grammar **out, struct grammar *g,
                                const struct grammar_vocab *v);
fst_grammar *fst_grammar_ref(fst_grammar *g);
void fst_grammar_free(fst_grammar *g); /* gives the reference back; NULL is fine */
size_t fst_grammar_bytes(const fst_grammar *g);

enum fst_gate_event {
    FST_GATE_SHUT,
    FST_GATE_OPEN,  /* the grammar begins behind this id */
    FST_GATE_BLOCK, /* the same, and grammar_text is written */
    FST_GATE_FOUL   /* the grammar cannot be kept any more */
};
enum { FST_GATE_BYTES = 128 };

/* Where in a reply its grammar begins.  Called from the engine's thread for each id of the reply up to there, and
 * with copies of the state to look ahead; what it says must follow from the ids alone. */
struct fst_gate {
    enum fst_gate_event (*feed)(const void *rules, void *state, int32_t id);
    /* Clears the bits of ids that would be foul next; false when there is none.  mask NULL: only that. */
    bool (*bar)(const void *rules, const void *state, uint32_t *mask);
    const void *rules; /* borrowed until the request is freed */
    int32_t
        open_id; /* opens it at any time, and is forced when the room left asks for it; -1: none */
    uint64_t state[FST_GATE_BYTES / 8]; /* before the first id */
};

/* ------------------------------------------------------------------ requests */

enum { FST_TOP_LOGPROBS_MAX = 20, FST_STOP_IDS_MAX = 64 };

struct fst_sampling {
    float temperature; /* 0: greedy; up to 2 and beyond is legal, finite, >= 0 */
    float top_p;       /* (0, 1]; 1 off */
    float min_p;       /* [0, 1]; 0 off */
    int top_k;         /* >= 1; 0 or -1 off */
    /* Before everything else (src/engine/rules.h); reported log-probabilities know nothing of it. */
    float presence_penalty, frequency_penalty; /* [-2, 2] of ids given out; 0 off */
    float repetition_penalty;                  /* (0, 2] of ids of prompt and answer; 1 and 0 off */
    uint64_t seed;
    bool has_seed;   /* false: drawn from the engine's generator */
    uint32_t choice; /* index of this choice among n; enters the noise counter only */
};

struct fst_logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
};

enum fst_finish {
    FST_FINISH_NONE,   /* still going */
    FST_FINISH_STOP,   /* eos or a stop id (matched_id); it is the last of ids */
    FST_FINISH_LENGTH, /* max_new_tokens or the end of the context */
    FST_FINISH_ABORT,  /* cancelled, shut down */
    FST_FINISH_ERROR,  /* status and error say why (deadline, NaN, ...) */
    FST_FINISH_WATCH   /* on_token said stop */
};

/* What follows a token that was given out. */
struct fst_verdict {
    int32_t force; /* the next id, whatever would be drawn; -1: what is drawn */
    bool stop;     /* the answer ends here; */
    int64_t keep;  /* so many tokens of it belong to it */
};

struct fst_request_opts {
    const int32_t *ids; /* prompt, copied; 1 .. context_length-1 ids below vocab_size */
    size_t n_ids;
    int64_t max_new_tokens; /* 0: prefill only; -1: to the end of the context; clamped to it */
    int64_t min_new_tokens; /* eos and stop ids are illegal before; 0 */
    struct fst_sampling sampling;
    bool ignore_eos;
    const int32_t *stop_ids; /* end the request like eos; copied */
    size_t n_stop_ids;
    const struct fst_logit_bias *logit_bias; /* added to the raw logits; copied; each id once */
    size_t n_logit_bias;
    bool logprobs;                /* of the drawn tokens (log-softmax of the raw logits) */
    int top_logprobs;             /* 0 .. FST_TOP_LOGPROBS_MAX alternatives per token */
    int64_t prompt_logprobs_from; /* >= 0: log-probabilities of prompt tokens from this position
                                     (position 0 has none); -1: none */
    int prompt_top_logprobs;
    bool no_drafting; /* this request decodes without drafts */
    /* What may be drawn, from where the gate opens on (NULL: from the first token on).  An answer that its grammar
     * accepts ends with FST_FINISH_STOP also where max_new_tokens ends it (matched_id -1); eos ends it in
     * spite of ignore_eos and min_new_tokens once nothing else is legal. */
    fst_grammar *grammar;        /* referred to; NULL: anything */
    const struct fst_gate *gate; /* copied */
    const char
        *grammar_text; /* of the document: what the prompt (without a gate) or FST_GATE_BLOCK has */
    size_t n_grammar_text;  /* written; bytes, 0xff is the mark; copied */
    uint64_t cache_salt[4]; /* whose prefixes it uses and leaves; equal salts share */
    size_t
        n_preamble; /* so many ids at the beginning are likely to be others' too (system text, tools): a
                          snapshot is kept there; 0: none */
    fst_request
        *after; /* of the same prompt and salt, and living: this one waits in line until that prompt
                             is computed, so that it is computed once; NULL */
    bool report_prefix; /* fill the view's prefix: a walk over everything that is kept */
    double timeout_s;   /* 0: none; counted from submit */
    /* Called from the engine's thread whenever the view changed (new tokens, progress, end).  It
     * must not block nor call the engine; uv_async_send is what it is for.  NULL: poll. */
    void (*on_change)(void *ud);
    void *on_change_ud;
    /* Called from the engine's thread for each token that is given out, in order, also inside of a block of
     * drafts: n tokens are there, `id` is the last of them; `ends`: how the engine ends behind it by itself
     * (STOP, LENGTH: then only `stop` and `keep` are looked at; else NONE).  Before the first draw it is called with n 0 and id -1.  Nothing behind
     * a stop is kept for other requests.  It must not block nor call the engine; its answers must follow from the
     * ids alone.  NULL: nobody asks. */
    struct fst_verdict (*on_token)(void *ud, int64_t n, int32_t id, enum fst_finish ends);
    void *on_token_ud;
    /* With debug_hooks: ids given out at output positions 0 .., whatever is drawn, but for what on_token
     * forces; copied. */
    const int32_t *force_ids;
    size_t n_force_ids;
    int64_t
        debug_retract_at; /* with debug_hooks: behind so many tokens it loses its place; 0: never */
    /* Raw logits of prompt rows, from the engine's thread: row i = logits after prompt token i
     * (vocab floats).  Returning false cancels.  NULL: not wanted. */
    bool (*on_prompt_logits)(void *ud, int64_t pos, const float *logits, int vocab);
    void *on_prompt_logits_ud;
};

void fst_request_opts_default(struct fst_request_opts *o);

/* Validate, copy, queue.  FST_EINVAL names the field, value and what is allowed; FST_EFULL when the
 * queue is full; FST_ESHUTDOWN.  The handle must be freed with fst_request_free. */
enum fst_status fst_request_submit(fst_engine *e, const struct fst_request_opts *o,
                                   fst_request **out);

/* Ask the engine to end the request at the next step; idempotent.  It ends with FST_FINISH_ABORT. */
void fst_request_cancel(fst_request *r);

/* Cancel if still running and give the handle back (the engine frees it when it is done with it). */
void fst_request_free(fst_request *r);

struct fst_top_logprob {
    int32_t id;
    float logprob;
};

/* Why a prompt was computed as far as it was. */
enum fst_prefix_reason {
    FST_PREFIX_UNKNOWN, /* not asked for, or not admitted yet */
    FST_PREFIX_OFF,     /* nothing is kept */
    FST_PREFIX_SCORED,  /* its prompt's log-probabilities or logits are wanted: computed whole */
    FST_PREFIX_NEW,     /* nothing that is kept begins as it does */
    FST_PREFIX_DIFFERS, /* what is kept goes on with another token at `same` */
    FST_PREFIX_ENDS,    /* what is kept ends at `same` */
    FST_PREFIX_DROPPED, /* all of it is kept, but no snapshot near its end */
    FST_PREFIX_WHOLE    /* all but the last token came from the cache */
};
struct fst_prefix_report {
    enum fst_prefix_reason reason;
    size_t same;     /* tokens that it has in common with what is kept */
    size_t boundary; /* position that it was restored at; 0: none */
};

/* What a request has given so far.  Arrays belong to the request, only ever grow up to `n`, and
 * stay valid until fst_request_free; a reader may keep an index and look again after on_change. */
struct fst_request_view {
    const int32_t *ids;                /* (n) drawn tokens, the final eos or stop id included */
    const float *logprobs;             /* (n) or NULL */
    const struct fst_top_logprob *top; /* (n, top_logprobs) or NULL */
    size_t n;
    enum fst_finish finish;    /* n is final once this is not NONE */
    int32_t matched_id;        /* the eos or stop id, else -1 */
    enum fst_status status;    /* of an ERROR finish */
    const char *error;         /* its message, "" otherwise */
    size_t n_prompt, n_cached; /* prompt tokens, and how many came from a cache */
    size_t n_prefilled;        /* prompt tokens whose KV is there (progress; includes cached) */
    size_t queue_place;        /* 1: next in line; 0: it has a slot, or has ended */
    struct fst_prefix_report prefix;
    const float
        *prompt_logprobs; /* (n_prompt) or NULL; entries before `from` and entry 0 are NaN */
    const struct fst_top_logprob *prompt_top; /* (n_prompt, prompt_top_logprobs) or NULL */
    uint64_t seed;                            /* the seed in force */
    struct fst_spec_stats spec;
    double queue_s, prefill_s, decode_s; /* so far; first token at queue_s + prefill_s */
};
void fst_request_get_view(const fst_request *r, struct fst_request_view *out);

/* Wait until finish is set or timeout_s passes (FST_ETIMEOUT); for command-line tools. */
enum fst_status fst_request_wait(fst_request *r, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
