/* flags.c - what the command line says about prompts and grammars: remembered calls, calls that the model begins, blanks in
 * JSON, lines of system texts. */
#include "base/options.h"
#include "server/server.h"

static const struct option_def defs[] = {
    {.name = "tool-memory-max-ids",
     .type = OPTION_INT,
     .initial = "100000",
     .min = 0,
     .max = 1e8,
     .help = "tool calls whose sampled tokens are kept for prompts that send them back; 0: none"},
    {.name = "tool-memory-max-bytes",
     .type = OPTION_SIZE,
     .initial = "256MiB",
     .min = 0,
     .max = 1e12,
     .help = "memory for them"},
    {.name = "tool-memory-dir",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "keep them in a file of this folder too, so that they outlive the server"},
    {.name = "disable-exact-dsml-tool-replay",
     .type = OPTION_FLAG,
     .help = "render calls that are sent back from their text alone"},
    {.name = "tool-grammar",
     .type = OPTION_WORD,
     .initial = "auto",
     .words = "auto off strict",
     .help = "calls that the model begins: auto keeps tags and names, strict also schemas"},
    {.name = "constrained-json-whitespace-pattern",
     .type = OPTION_TEXT,
     .arg = "RE",
     .initial = "[ ]?",
     .help =
         "blanks in JSON that has to be JSON: none, \"[ ]?\" behind ':' and ',', or at most 64 of "
         "\"[\\n\\t ]*\""},
    {.name = "constrained-json-disable-any-whitespace",
     .type = OPTION_FLAG,
     .help = "no blanks in JSON that has to be JSON"},
    {.name = "keep-billing-header",
     .type = OPTION_FLAG,
     .help = "leave x-anthropic-billing-header lines at the front of system texts"},
    {.name = "move-date-lines",
     .type = OPTION_FLAG,
     .help = "move date and time lines of system texts behind the last user turn"},
};
const struct option_group server_prompt_group = OPTION_GROUP("Prompts", defs);

static enum fst_status read_space(struct server_opts *s, const struct options *o)
{
    static const struct {
        const char *pattern;
        enum grammar_space space;
    } known[] = {{"", GRAMMAR_SPACE_COMPACT},
                 {"[ ]?", GRAMMAR_SPACE_ONE},
                 {" ?", GRAMMAR_SPACE_ONE},
                 {"[\\n\\t ]*", GRAMMAR_SPACE_ANY},
                 {"[ \\t\\n]*", GRAMMAR_SPACE_ANY},
                 {"[ \\n\\t]*", GRAMMAR_SPACE_ANY},
                 {"[ \\t\\n\\r]*", GRAMMAR_SPACE_ANY},
                 {"\\s*", GRAMMAR_SPACE_ANY}};
    const char *given = options_text(o, "constrained-json-whitespace-pattern");

    if (options_flag(o, "constrained-json-disable-any-whitespace"))
        given = "";
    for (size_t i = 0; i < FST_COUNT(known); i++)
        if (strcmp(given ? given : "[ ]?", known[i].pattern) == 0) {
            s->json_space = known[i].space;
            return FST_OK;
        }
    return fst_error(FST_EINVAL,
                     "--constrained-json-whitespace-pattern %s: known are \"\", \"[ ]?\" and "
                     "\"[\\n\\t ]*\"",
                     given);
}

enum fst_status server_prompt_opts(struct server_opts *s, const struct options *o)
{
    s->tool_grammar = (enum server_tool_grammar)options_word(o, "tool-grammar");
    s->call_memory_ids = (size_t)options_int(o, "tool-memory-max-ids", 100000);
    s->call_memory_bytes = (size_t)options_int(o, "tool-memory-max-bytes", 256 << 20);
    s->call_memory_dir = options_text(o, "tool-memory-dir");
    if (options_flag(o, "disable-exact-dsml-tool-replay"))
        s->call_memory_ids = 0;
    s->chat.drop_billing_line = !options_flag(o, "keep-billing-header");
    s->chat.move_date_lines = options_flag(o, "move-date-lines");
    return read_space(s, o);
}
