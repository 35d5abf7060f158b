/* options.h - one table of flags: command line, environment, configuration file and --help.
 *
 * A subcommand lists groups; a group is a titled table that several subcommands may share.  Each
 * option can be given, the later winning over the earlier, as
 *
 *     a line `name: value` of the file named by --config (a small part of YAML, below)
 *     FIRESTEEL_SOME_NAME=value in the environment
 *     --some-name value, --some-name=value, --some_name value; -m value for one-letter names
 *
 * A flag takes no value on the command line (--flag, --no-flag, or --flag=off).  An unknown name is
 * FST_EINVAL with the nearest one.  --help (-h) and --config FILE are part of every table.
 *
 * The configuration file: `name: value` a line, '#' comments, values bare or in single or double
 * quotes, lists as [a, b] or as `- a` lines below their name.  Anything deeper is an error.
 *
 * Values are read by name after options_parse; asking for a name that is in no table, or for another
 * type, is an assertion. */
#ifndef FST_OPTIONS_H
#define FST_OPTIONS_H

#include "base/base.h"

enum option_type {
    OPTION_FLAG,  /* true or false */
    OPTION_INT,   /* min..max */
    OPTION_SIZE,  /* bytes, min..max: 4096, 512MiB (or 512M), 80GB */
    OPTION_FLOAT, /* min..max */
    OPTION_TEXT,
    OPTION_WORD, /* one of words, in any case; the value is its index */
    OPTION_LIST  /* may be given again and again; commas separate in the environment */
};

struct option_def {
    const char *name;  /* "max-running-requests", with dashes */
    const char *alias; /* further names, blanks between: "ctx c"; one letter is -c. May be NULL */
    enum option_type type;
    /* What holds when nobody says anything, as text; NULL: not set.  A default that is no value of
     * the type ("auto", "none") also means not set, and may be given as a value. */
    const char *initial;
    const char *help;   /* one or two sentences; NULL: not listed */
    const char *arg;    /* "N", "DIR"; NULL: by type */
    const char *words;  /* OPTION_WORD: "dspark mtp=eagle none": 0, 1 (two spellings), 2 */
    double min, max;    /* both 0: no bounds */
    const char *env;    /* further variables that are honoured, blanks between.  May be NULL */
    const char *no_use; /* accepted without effect, and why: makes a notice when it is given */
};

struct option_group {
    const char *title; /* "Server" */
    const struct option_def *defs;
    size_t n;
};
#define OPTION_GROUP(title_, table_)                                                               \
    {                                                                                              \
        .title = title_, .defs = table_, .n = FST_COUNT(table_)                                    \
    }

struct options;

/* program "firesteel serve"; usage "[options]" or "[options] [TEXT]"; the groups are borrowed until
 * options_free.  Two options of one name are an assertion. */
enum fst_status options_new(struct options **out, const char *program, const char *usage,
                            const struct option_group *groups, size_t n_groups);
void options_free(struct options *o); /* NULL is fine */

/* argv[0] is skipped.  After --help on the command line nothing else is checked. */
enum fst_status options_parse(struct options *o, int argc, char **argv);
bool options_help_wanted(const struct options *o);
void options_help(const struct options *o, struct buf *out);

bool options_flag(const struct options *o, const char *name);
int64_t options_int(const struct options *o, const char *name, int64_t if_not_set); /* and SIZE */
double options_float(const struct options *o, const char *name, double if_not_set);
const char *options_text(const struct options *o, const char *name); /* NULL when not set */
int options_word(const struct options *o, const char *name);         /* -1 when not set */
size_t options_list(const struct options *o, const char *name, const char *const **items);
bool options_is_given(const struct options *o, const char *name); /* by anybody but the default */
/* "default", "command line", "FIRESTEEL_PORT", "serve.yaml:3" */
const char *options_source(const struct options *o, const char *name);

/* Words that are no options. */
size_t options_args(const struct options *o, const char *const **args);
/* Lines to log: options without use that were given.  NULL beyond the last. */
const char *options_notice(const struct options *o, size_t i);
/* The name nearest to `word` among n names, or NULL when none is near (for subcommands too). */
const char *options_nearest(const char *word, const char *const *names, size_t n);

#endif
