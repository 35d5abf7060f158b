/* flags.c - what the command line says about prompts: remembered calls, lines of system texts. */
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
    {.name = "keep-billing-header",
     .type = OPTION_FLAG,
     .help = "leave x-anthropic-billing-header lines at the front of system texts"},
    {.name = "move-date-lines",
     .type = OPTION_FLAG,
     .help = "move date and time lines of system texts behind the last user turn"},
};
const struct option_group server_prompt_group = OPTION_GROUP("Prompts", defs);

void server_prompt_opts(struct server_opts *s, const struct options *o)
{
    s->call_memory_ids = (size_t)options_int(o, "tool-memory-max-ids", 100000);
    s->call_memory_bytes = (size_t)options_int(o, "tool-memory-max-bytes", 256 << 20);
    s->call_memory_dir = options_text(o, "tool-memory-dir");
    if (options_flag(o, "disable-exact-dsml-tool-replay"))
        s->call_memory_ids = 0;
    s->chat.drop_billing_line = !options_flag(o, "keep-billing-header");
    s->chat.move_date_lines = options_flag(o, "move-date-lines");
}
