/* flags_audit.c - flags about whether results can be trusted: accept rule, audit, records, debug hooks. */
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "speculative-accept",
     .type = OPTION_WORD,
     .initial = "coupled",
     .words = "coupled rejection",
     .help = "what accepts a draft above temperature 0.  coupled: it is the token that is drawn "
             "without drafting too.  rejection: classic rejection sampling, same distribution, "
             "other tokens than without drafting"},
    {.name = "speculative-accept-threshold-single",
     .type = OPTION_FLOAT,
     .initial = "1",
     .min = 0,
     .max = 1,
     .help = "1 alone: what accepts more than it should changes results"},
    {.name = "speculative-accept-threshold-acc",
     .type = OPTION_FLOAT,
     .initial = "1",
     .min = 0,
     .max = 1,
     .help = "1 alone"},
    {.name = "audit-share",
     .type = OPTION_FLOAT,
     .initial = "0.01",
     .min = 0,
     .max = 1,
     .help = "so many of the finished requests, by chance, are computed again in idle time and "
             "compared; 0: none"},
    {.name = "audit-time",
     .type = OPTION_FLOAT,
     .initial = "0.01",
     .min = 1e-6,
     .max = 1,
     .help = "share of time that may take"},
    {.name = "crash-dump-folder",
     .alias = "record-dir",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "where a record of the last steps is written when something is wrong; it holds "
             "prompts and answers as ids"},
    {.name = "crash-dump-files",
     .type = OPTION_INT,
     .initial = "16",
     .min = 1,
     .max = 10000,
     .help = "so many records at most; the oldest go"},
    {.name = "debug-hooks",
     .type = OPTION_FLAG,
     .help = "allow what follows; every answer says so"},
    {.name = "debug-drafter",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "propose the continuations of this file instead of drafts"},
    {.name = "debug-reject-at",
     .type = OPTION_INT,
     .min = 0,
     .max = FST_SPEC_MAX,
     .arg = "K",
     .help = "reject draft K of every round"},
    {.name = "simulate-acc-len",
     .type = OPTION_FLOAT,
     .min = -1,
     .max = FST_SPEC_MAX + 1,
     .env = "SGLANG_SIMULATE_ACC_LEN",
     .arg = "A",
     .help = "accept so many tokens a round, the bonus included, right or wrong: to time, not to "
             "read.  -1: off"},
    {.name = "simulate-acc-method",
     .type = OPTION_WORD,
     .initial = "match-expected",
     .words = "match-expected multinomial",
     .env = "SGLANG_SIMULATE_ACC_METHOD",
     .help = "how a whole number is made of it"},
    {.name = "debug-spoil",
     .type = OPTION_TEXT,
     .arg = "logits@N|kv@N",
     .help = "make one row wrong, for the audit to find"},
    {.name = "debug-null-model",
     .type = OPTION_FLOAT,
     .arg = "US",
     .help = "compute nothing: every step takes so many microseconds and draws the same id"},
};
const struct option_group tool_audit_group = OPTION_GROUP("Audit and debug hooks", defs);

enum fst_status tool_audit_opts(const struct options *o, struct fst_engine_opts *e)
{
    static const char *const thresholds[] = {"speculative-accept-threshold-single",
                                             "speculative-accept-threshold-acc"};
    static const char *const rules[] = {"coupled", "rejection"};
    static const char *const methods[] = {"match-expected", "multinomial"};

    for (size_t i = 0; i < FST_COUNT(thresholds); i++) {
        double x = options_float(o, thresholds[i], 1);
        if (x < 1)
            return fst_error(FST_EUNSUPPORTED,
                             "--%s %g: only 1 is served, since less accepts tokens that the model "
                             "would not have drawn",
                             thresholds[i], x);
    }
    e->spec_accept = rules[options_word(o, "speculative-accept")];
    e->audit_share = options_float(o, "audit-share", 0);
    e->audit_time = options_float(o, "audit-time", 0);
    e->record_dir = options_text(o, "crash-dump-folder");
    e->record_files = (int)options_int(o, "crash-dump-files", 0);
    e->debug_hooks = options_flag(o, "debug-hooks");
    e->debug_drafter = options_text(o, "debug-drafter");
    e->debug_reject_at = (int)options_int(o, "debug-reject-at", 0);
    double length = options_float(o, "simulate-acc-len", -1);
    e->simulate_acc_len = length == -1 ? 0 : length;
    e->simulate_acc_method = methods[options_word(o, "simulate-acc-method")];
    e->debug_spoil = options_text(o, "debug-spoil");
    e->debug_null_model = options_float(o, "debug-null-model", 0);
    return FST_OK;
}
