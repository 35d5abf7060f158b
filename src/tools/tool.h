/* tool.h - what the subcommands share: their table, engine flags, model folder, JSON out.
 * A command returns an exit status: 0 done, 1 failed, 2 wrong usage, 3 the machine lacks something. */
#ifndef FST_TOOLS_TOOL_H
#define FST_TOOLS_TOOL_H

#include "base/base.h"
#include "base/json.h"
#include "base/options.h"
#include "chat/chat.h"
#include "chat/stream.h"
#include "firesteel/engine.h"
#include "tokenizer/tokenizer.h"

int cmd_serve(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_score(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_detokenize(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_kv(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);

/* Flags of every command that opens an engine, and those of them that a plan of its memory asks for;
 * those of every command that reads a model and prints a result (the folder and --json); the folder
 * alone; --json alone. */
extern const struct option_group tool_engine_group;
extern const struct option_group tool_sizing_group;
extern const struct option_group tool_model_group;
extern const struct option_group tool_folder_group;
extern const struct option_group tool_json_group;
/* Accept rule, audit, records and debug hooks, of commands that generate; and their options. */
extern const struct option_group tool_audit_group;
enum fst_status tool_audit_opts(const struct options *o, struct fst_engine_opts *e);

/* Parse.  NULL: --help was printed (*status 0), or the line was wrong (*status 2, message printed).
 * Words that are no options are wrong for tool_parse; tool_parse_words leaves them to the command. */
struct options *tool_parse(const char *program, const char *usage,
                           const struct option_group *groups, size_t n, int argc, char **argv,
                           int *status);
struct options *tool_parse_words(const char *program, const char *usage,
                                 const struct option_group *groups, size_t n, int argc, char **argv,
                                 int *status);
/* Print "firesteel: message" of the last fst_error and return the exit status of rc. */
int tool_fail(enum fst_status rc);
/* The model folder: --model, FIRESTEEL_MODEL, else the bundled one beside the program or in the
 * working directory.  NULL with a message (FST_EMACHINE) when there is none. */
const char *tool_model_dir(const struct options *o);
const char *tool_bundled_dir(void); /* NULL when there is none */
/* --speculative-num-steps as it stands or as --speculative-num-draft-tokens says; 0: neither is given. */
enum fst_status tool_num_steps(const struct options *o, int *steps);
/* Fill from the flags; strings are borrowed from the options. */
enum fst_status tool_engine_opts(const struct options *o, struct fst_engine_opts *e);
/* For a command that computes one request of at most so many tokens, prompt included: no memory for
 * more, unless flags say otherwise. */
void tool_engine_for_one(const struct options *o, struct fst_engine_opts *e, int64_t tokens);
/* Open with a progress line on terminals.  t: ids without a name are never drawn; or NULL. */
enum fst_status tool_engine_open(fst_engine **out, struct fst_engine_opts *e,
                                 const struct tokenizer *t);
/* An integer of -2^63 .. 2^64-1 (negative ones as two's complement); flag is named in messages. */
enum fst_status tool_seed(uint64_t *out, const char *flag, const char *text);
/* --tokenizer FILE, else the model's; a folder counts as its tokenizer.json. */
enum fst_status tool_tokenizer(struct tokenizer **out, const struct options *o);
/* Poll a request to its end: new ids go to the stream (or nowhere: NULL), Ctrl-C cancels.  A stop
 * string ends it before the engine does.  *v is the last view. */
enum fst_status tool_follow(fst_request *req, struct chat_stream *st, struct fst_request_view *v);
double tool_decode_rate(const struct fst_request_view *v, size_t n); /* tokens/s after the first */
enum fst_status tool_read_ids(struct tokenizer_ids *out, const char *path);
enum fst_status tool_parse_ids(struct tokenizer_ids *out, const char *text, size_t len,
                               const char *name);
/* --messages FILE rendered as the server does; reference: as the model's own encoder does, which
 * opens no assistant turn after a conversation that does not end in one of the user's. */
enum fst_status tool_render(struct chat_request *r, struct chat_prompt *p, const char *path,
                            const char *thinking, const char *effort, const char *model_dir,
                            bool reference);
/* One JSON object and a newline on stdout.  main() says so when stdout takes no more. */
int tool_print_json(const struct buf *b);
void tool_put_spec(struct buf *b, const char *algorithm, int gamma, const struct fst_spec_stats *s);
const char *tool_finish_name(enum fst_finish f);
/* Ctrl-C during work: set once SIGINT came (after tool_catch_interrupt). */
void tool_catch_interrupt(void);
bool tool_interrupted(bool reset);

#endif
