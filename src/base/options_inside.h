/* options_inside.h - what options.c, options_file.c and options_help.c share; for them alone. */
#ifndef FST_OPTIONS_INSIDE_H
#define FST_OPTIONS_INSIDE_H

#include "base/arena.h"
#include "base/options.h"

#define OPTIONS_MAX_NAME   64
#define OPTIONS_ENV_PREFIX "FIRESTEEL_"

struct option_value {
    const struct option_def *def; /* borrowed */
    bool set, given, flag;
    int64_t i; /* INT, SIZE; index of WORD */
    double x;
    const char *text;  /* as given */
    const char **list; /* LIST */
    size_t n_list;
    const char *source;
};

struct options {
    const char *program, *usage; /* borrowed */
    const struct option_group *groups;
    size_t n_groups;
    struct option_value *vals; /* built-in ones, then group by group */
    size_t n_vals;
    const char **args, **notices;
    size_t n_args, n_notices;
    bool help_wanted;
    struct arena texts;
};

extern const struct option_group options_builtin; /* --help and --config */
bool options_is_builtin(const struct option_value *v);

/* By the first n bytes of s, '_' for '-' allowed; NULL. */
struct option_value *options_find(const struct options *o, const char *s, size_t n);
/* The one door of all values.  where names the place for messages: "--port", "FIRESTEEL_PORT",
 * "serve.yaml:3: port"; source is what options_source says. */
enum fst_status options_set(struct options *o, struct option_value *v, const char *text,
                            const char *where, const char *source);
enum fst_status options_read_file(struct options *o, const char *path);
/* FST_EINVAL with the nearest name; source ("serve.yaml:3: ") and dashes go before it. */
enum fst_status options_unknown(struct options *o, const char *source, const char *dashes,
                                const char *s, size_t n);
enum fst_status options_no_memory(void);
/* Next blank-separated word of *list (which may be NULL): its length, 0 at the end. */
size_t options_next_word(const char **list, const char **word);

#endif
