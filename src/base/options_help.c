/* options_help.c - the text of --help, from the tables. */
#include "base/options.h"

#include "base/options_inside.h"

#define HELP_COLUMNS 100
#define HELP_INDENT  34

static void put_wrapped(struct buf *out, const char *text, int column, int indent)
{
    const char *word;
    size_t n;

    while ((n = options_next_word(&text, &word)) > 0) {
        if (column + 1 + (int)n > HELP_COLUMNS && column > indent) {
            buf_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            buf_putc(out, ' ');
            column++;
        }
        buf_append(out, word, n);
        column += (int)n;
    }
    buf_putc(out, '\n');
}

static void put_names(struct buf *out, const struct option_def *d)
{
    const char *aliases = d->alias, *word;
    const char *arg = d->arg;
    size_t n;

    while ((n = options_next_word(&aliases, &word)) > 0)
        if (n == 1)
            buf_printf(out, "-%c, ", *word);
    buf_printf(out, "--%s", d->name);
    for (aliases = d->alias; (n = options_next_word(&aliases, &word)) > 0;)
        if (n > 1)
            buf_printf(out, ", --%.*s", (int)n, word);
    if (arg) {
        buf_printf(out, " %s", arg);
    } else if (d->type == OPTION_WORD) {
        const char *words = d->words;
        for (int i = 0; (n = options_next_word(&words, &word)) > 0; i++)
            buf_printf(out, "%s%.*s", i ? "|" : " ", (int)FST_MIN(n, strcspn(word, "=")), word);
    } else if (d->type != OPTION_FLAG) {
        static const char *const by_type[] = {"", "N", "BYTES", "X", "TEXT", "", "TEXT"};
        buf_printf(out, " %s", by_type[d->type]);
    }
}

static void put_option(struct buf *out, const struct option_def *d)
{
    struct buf text = {0}, names = {0};
    int column = HELP_INDENT;

    put_names(&names, d);
    buf_printf(out, "  %s", buf_str(&names));
    if (names.len + 4 > HELP_INDENT)
        buf_printf(out, "\n%*s", HELP_INDENT, "");
    else
        buf_printf(out, "%*s", HELP_INDENT - 2 - (int)names.len, "");
    buf_puts(&text, d->help);
    if (text.len && text.data[text.len - 1] != '.')
        buf_putc(&text, '.');
    if (d->no_use)
        buf_puts(&text, " Accepted without effect.");
    if (d->initial && d->type != OPTION_FLAG)
        buf_printf(&text, " [%s]", d->initial);
    else if (d->initial && !strcmp(d->initial, "true"))
        buf_printf(&text, " [on; --no-%s]", d->name);
    put_wrapped(out, buf_str(&text), column, HELP_INDENT);
    buf_release(&text);
    buf_release(&names);
}

static void put_group(struct buf *out, const struct option_group *g)
{
    buf_printf(out, "\n%s:\n", g->title);
    for (size_t i = 0; i < g->n; i++)
        if (g->defs[i].help)
            put_option(out, &g->defs[i]);
}

void options_help(const struct options *o, struct buf *out)
{
    buf_printf(out, "Usage: %s %s\n", o->program, o->usage);
    for (size_t i = 0; i < o->n_groups; i++)
        put_group(out, &o->groups[i]);
    put_group(out, &options_builtin);
    buf_puts(out,
             "\nEvery option can also be given as " OPTIONS_ENV_PREFIX
             "NAME in the environment (dashes "
             "become\nunderscores) or in the file of --config. The command line wins, then the "
             "environment.\n");
}
