/* options.c - values from the file, the environment and the command line, by one table.
 *
 * Every text that becomes a value goes through options_set(), whatever it came from; all texts live in
 * one arena until options_free. */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

#include "base/number.h"
#include "base/options_inside.h"

#define MAX_LIST 256 /* values of one repeated option */

static const struct option_def builtin[] = {
    {.name = "help",
     .alias = "h",
     .type = OPTION_FLAG,
     .initial = "false",
     .help = "Show this text."},
    {.name = "config",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "Read options from FILE: a line `name: value` each."},
};
const struct option_group options_builtin = OPTION_GROUP("General", builtin);

bool options_is_builtin(const struct option_value *v)
{
    return v->def == &builtin[0] || v->def == &builtin[1];
}

/* ---- names -------------------------------------------------------------------------------------- */

/* name equals the spelling s of n bytes, where '_' counts as '-'. */
static bool same_name(const char *name, const char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n && name[i]; i++)
        if (name[i] != (s[i] == '_' ? '-' : s[i]))
            return false;
    return i == n && name[i] == 0;
}

/* Next blank-separated word of *list: its length, 0 at the end. */
size_t options_next_word(const char **list, const char **word)
{
    const char *s = *list ? *list : "";
    size_t n;

    s += strspn(s, " ");
    n = strcspn(s, " ");
    *word = s;
    *list = s + n;
    return n;
}

static bool has_name(const struct option_def *d, const char *s, size_t n)
{
    const char *aliases = d->alias, *word;
    char one[OPTIONS_MAX_NAME];
    size_t k;

    if (same_name(d->name, s, n))
        return true;
    while ((k = options_next_word(&aliases, &word)) > 0) {
        FST_ASSERT(k < sizeof one);
        memcpy(one, word, k);
        one[k] = 0;
        if (same_name(one, s, n))
            return true;
    }
    return false;
}

struct option_value *options_find(const struct options *o, const char *s, size_t n)
{
    for (size_t i = 0; i < o->n_vals; i++)
        if (has_name(o->vals[i].def, s, n))
            return &o->vals[i];
    return NULL;
}

static const struct option_value *get(const struct options *o, const char *name)
{
    const struct option_value *v = options_find(o, name, strlen(name));
    FST_ASSERT(v != NULL);
    return v;
}

/* Edits (insert, delete, replace, swap of neighbours) between two short words. */
static int distance(const char *a, const char *b)
{
    int row[3][OPTIONS_MAX_NAME + 1];
    int na = (int)strnlen(a, OPTIONS_MAX_NAME), nb = (int)strnlen(b, OPTIONS_MAX_NAME);

    for (int j = 0; j <= nb; j++)
        row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            best = FST_MIN(best, FST_MIN(up[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = FST_MIN(best, up2[j - 2] + 1);
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

struct nearest {
    const char *word;
    int distance;
    const char *name;
};

static void nearest_try(struct nearest *n, const char *name)
{
    int d = distance(n->word, name);
    if (d < n->distance) {
        n->distance = d;
        n->name = name;
    }
}

/* A third of the letters may be wrong, at least one and at most five. */
static void nearest_init(struct nearest *n, const char *word)
{
    int len = (int)strnlen(word, OPTIONS_MAX_NAME);
    *n = (struct nearest){.word = word, .distance = FST_MIN(FST_MAX(len / 3, 1), 5) + 1};
}

const char *options_nearest(const char *word, const char *const *names, size_t n)
{
    struct nearest near;

    nearest_init(&near, word);
    for (size_t i = 0; i < n; i++)
        nearest_try(&near, names[i]);
    return near.name;
}

enum fst_status options_unknown(struct options *o, const char *source, const char *dashes,
                                const char *s, size_t n)
{
    char word[OPTIONS_MAX_NAME + 1];
    struct nearest near;

    n = FST_MIN(n, (size_t)OPTIONS_MAX_NAME);
    for (size_t i = 0; i < n; i++)
        word[i] = s[i] == '_' ? '-' : s[i];
    word[n] = 0;
    nearest_init(&near, word);
    for (size_t i = 0; i < o->n_vals; i++) {
        const char *aliases = o->vals[i].def->alias, *alias;
        size_t k;

        if (!o->vals[i].def->help)
            continue;
        nearest_try(&near, o->vals[i].def->name);
        while ((k = options_next_word(&aliases, &alias)) > 1) {
            char *copy = arena_strndup(&o->texts, alias, k);
            if (copy)
                nearest_try(&near, copy);
        }
    }
    if (near.name)
        return fst_error(FST_EINVAL, "%sunknown option %s%.*s; did you mean %s%s?", source, dashes,
                         (int)n, s, dashes, near.name);
    return fst_error(FST_EINVAL, "%sunknown option %s%.*s (see %s --help)", source, dashes, (int)n,
                     s, o->program);
}

/* ---- values ------------------------------------------------------------------------------------- */

static bool parse_flag(const char *s, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < FST_COUNT(yes); i++) {
        if (strcasecmp(s, yes[i]) == 0 || strcasecmp(s, no[i]) == 0) {
            *out = strcasecmp(s, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_int(const char *s, int64_t *out)
{
    char *end;

    if (*s == 0 || isspace((unsigned char)*s))
        return false;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return errno == 0 && *end == 0;
}

/* A number and a unit: K M G T (and KiB ...) are powers of 1024, kB KB MB GB TB of 1000. */
static bool parse_size(const char *s, int64_t *out)
{
    char *end;
    double x = number_parse(s, &end), unit = 1;
    const char *letters = "kmgt", *p;

    if (end == s || isspace((unsigned char)*s) || !isfinite(x) || strpbrk(s, "xX"))
        return false;
    if (*end && (p = strchr(letters, tolower((unsigned char)*end))) != NULL) {
        double base = strcasecmp(end + 1, "b") == 0 ? 1000 : 1024;
        if (end[1] && strcasecmp(end + 1, "b") != 0 && strcasecmp(end + 1, "ib") != 0)
            return false;
        for (p++; p > letters; p--)
            unit *= base;
    } else if (*end && strcasecmp(end, "b") != 0) {
        return false;
    }
    x *= unit;
    if (x < 0 || x >= 0x1p63)
        return false;
    *out = (int64_t)x;
    return true;
}

static bool parse_float(const char *s, double *out)
{
    char *end;

    if (*s == 0 || isspace((unsigned char)*s))
        return false;
    *out = number_parse(s, &end);
    return *end == 0 && isfinite(*out);
}

/* Index of s in "a b=c d": a 0, b and c 1, d 2; -1. */
static int parse_word(const char *words, const char *s)
{
    const char *word;
    size_t n;

    for (int i = 0; (n = options_next_word(&words, &word)) > 0; i++) {
        while (n > 0) {
            const char *eq = memchr(word, '=', n);
            size_t k = eq ? (size_t)(eq - word) : n;
            if (strlen(s) == k && strncasecmp(s, word, k) == 0)
                return i;
            word += FST_MIN(k + 1, n);
            n -= FST_MIN(k + 1, n);
        }
    }
    return -1;
}

/* True when text is a value of the type; fills v. */
static bool parse_value(struct option_value *v, const char *text)
{
    const struct option_def *d = v->def;

    switch (d->type) {
    case OPTION_FLAG:
        return parse_flag(text, &v->flag);
    case OPTION_INT:
        if (!parse_int(text, &v->i))
            return false;
        v->x = (double)v->i;
        break;
    case OPTION_SIZE:
        if (!parse_size(text, &v->i))
            return false;
        v->x = (double)v->i;
        break;
    case OPTION_FLOAT:
        if (!parse_float(text, &v->x))
            return false;
        break;
    case OPTION_WORD:
        v->i = parse_word(d->words, text);
        return v->i >= 0;
    case OPTION_TEXT:
    case OPTION_LIST:
        return true;
    }
    return (d->min == 0 && d->max == 0) || (v->x >= d->min && v->x <= d->max);
}

static void describe_type(const struct option_def *d, char *out, size_t size)
{
    static const char *const kinds[] = {
        "true or false", "an integer", "a size (4096, 512MiB, 80GB)", "a number", "text",
        "one of ",       "text"};
    const char *kind = kinds[d->type];
    size_t n;

    if (d->type == OPTION_WORD) {
        const char *words = d->words, *word;
        size_t at = (size_t)snprintf(out, size, "%s", kind);
        while ((n = options_next_word(&words, &word)) > 0 && at < size) {
            n = FST_MIN(n, strcspn(word, "="));
            at += (size_t)snprintf(out + at, size - at, "%s%.*s", at > 7 ? ", " : "", (int)n, word);
        }
    } else if ((d->min == 0 && d->max == 0) || d->type == OPTION_SIZE) {
        snprintf(out, size, "%s", kind);
    } else if (d->max >= 0x1p62) {
        snprintf(out, size, "%s of at least %.10g", kind, d->min);
    } else {
        snprintf(out, size, "%s from %.10g to %.10g", kind, d->min, d->max);
    }
}

enum fst_status options_no_memory(void)
{
    return fst_error(FST_ENOMEM, "options: out of memory");
}

static enum fst_status add_item(struct options *o, struct option_value *v, const char *text,
                                const char *source)
{
    /* A stronger source replaces the whole list. */
    if (!v->list) {
        v->list = arena_calloc(&o->texts, MAX_LIST, sizeof *v->list);
        if (!v->list)
            return options_no_memory();
    }
    if (!v->source || strcmp(v->source, source) != 0)
        v->n_list = 0;
    if (v->n_list == MAX_LIST)
        return fst_error(FST_EINVAL, "--%s: given more than %d times", v->def->name, MAX_LIST);
    v->list[v->n_list++] = text;
    return FST_OK;
}

/* The one door of all values.  where names the place for messages: "--port", "FIRESTEEL_PORT",
 * "serve.yaml:3: port"; source is what options_source says. */
enum fst_status options_set(struct options *o, struct option_value *v, const char *text,
                            const char *where, const char *source)
{
    const struct option_def *d = v->def;
    struct option_value fresh = *v;
    char expected[512];

    text = arena_strndup(&o->texts, text, strlen(text));
    if (!text)
        return options_no_memory();
    fresh.set = parse_value(&fresh, text);
    if (!fresh.set && !(d->initial && strcasecmp(text, d->initial) == 0)) {
        describe_type(d, expected, sizeof expected);
        return fst_error(FST_EINVAL, "%s: \"%s\" is not %s", where, text, expected);
    }
    if (d->type == OPTION_LIST)
        FST_TRY(add_item(o, &fresh, text, source));
    if (d->no_use && !fresh.given) {
        struct buf line = {0};
        char *copy;
        buf_printf(&line, "%s has no effect here: %s", where, d->no_use);
        copy = line.failed ? NULL : arena_strndup(&o->texts, line.data, line.len);
        buf_release(&line);
        if (!copy)
            return options_no_memory();
        o->notices[o->n_notices++] = copy;
    }
    fresh.text = text;
    fresh.given = true;
    fresh.source = source;
    *v = fresh;
    return FST_OK;
}

/* ---- environment -------------------------------------------------------------------------------- */

static enum fst_status env_value(struct options *o, struct option_value *v, const char *var)
{
    const char *text = getenv(var);
    char *source;

    if (!text || !*text)
        return FST_OK;
    source = arena_strndup(&o->texts, var, strlen(var));
    if (!source)
        return options_no_memory();
    if (v->def->type != OPTION_LIST)
        return options_set(o, v, text, source, source);
    for (;;) {
        size_t n = strcspn(text, ",");
        char *item = arena_strndup(&o->texts, text, n);
        if (!item)
            return options_no_memory();
        FST_TRY(options_set(o, v, item, source, source));
        if (text[n] == 0)
            return FST_OK;
        text += n + 1;
    }
}

static enum fst_status read_environment(struct options *o)
{
    for (size_t i = 0; i < o->n_vals; i++) {
        struct option_value *v = &o->vals[i];
        const char *more = v->def->env, *word;
        char var[sizeof OPTIONS_ENV_PREFIX + OPTIONS_MAX_NAME];
        size_t n, at = sizeof OPTIONS_ENV_PREFIX - 1;

        if (options_is_builtin(v))
            continue;
        while ((n = options_next_word(&more, &word)) > 0) {
            FST_ASSERT(n < sizeof var);
            memcpy(var, word, n);
            var[n] = 0;
            FST_TRY(env_value(o, v, var));
        }
        memcpy(var, OPTIONS_ENV_PREFIX, at);
        for (const char *p = v->def->name; *p; p++)
            var[at++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        var[at] = 0;
        FST_TRY(env_value(o, v, var));
    }
    return FST_OK;
}

/* ---- command line ------------------------------------------------------------------------------- */

struct arg_reader {
    struct options *o;
    int argc, i;
    char **argv;
    bool only_special; /* first pass: --help and --config, and that all names are known */
};

static enum fst_status arg_set(struct arg_reader *a, struct option_value *v, const char *text,
                               const char *name, size_t n)
{
    char where[OPTIONS_MAX_NAME + 8];

    snprintf(where, sizeof where, "%.*s", (int)FST_MIN(n, (size_t)OPTIONS_MAX_NAME), name);
    if (a->only_special) {
        if (v->def == &builtin[0])
            a->o->help_wanted = true;
        if (v->def != &builtin[1])
            return FST_OK;
    } else if (v->def == &builtin[1]) {
        return FST_OK;
    }
    return options_set(a->o, v, text, where, "command line");
}

/* The option v, written as the first n bytes of name; value NULL: take the next word if one is
 * needed. */
static enum fst_status arg_option(struct arg_reader *a, struct option_value *v, const char *name,
                                  size_t n, const char *value)
{
    if (!value && v->def->type == OPTION_FLAG)
        value = "true";
    if (!value) {
        if (a->i + 1 >= a->argc)
            return fst_error(FST_EINVAL, "%.*s needs a value", (int)n, name);
        value = a->argv[++a->i];
    }
    return arg_set(a, v, value, name, n);
}

static enum fst_status arg_long(struct arg_reader *a, const char *word)
{
    size_t n = strcspn(word, "=");
    struct option_value *v = options_find(a->o, word + 2, n - 2);

    if (!v && n > 5 && (strncmp(word, "--no-", 5) == 0 || strncmp(word, "--no_", 5) == 0)) {
        v = options_find(a->o, word + 5, n - 5);
        if (v && v->def->type == OPTION_FLAG && word[n] == 0)
            return arg_set(a, v, "false", word, n);
        if (v && v->def->type != OPTION_FLAG)
            return fst_error(FST_EINVAL, "%.*s: --%s takes a value", (int)n, word, v->def->name);
        v = NULL;
    }
    if (!v)
        return options_unknown(a->o, "", "--", word + 2, n - 2);
    return arg_option(a, v, word, n, word[n] ? word + n + 1 : NULL);
}

/* -m value, -mvalue, -sys value: names of one letter, or a whole alias. */
static enum fst_status arg_short(struct arg_reader *a, const char *word)
{
    size_t n = strcspn(word, "=");
    struct option_value *v = options_find(a->o, word + 1, n - 1);

    if (v)
        return arg_option(a, v, word, n, word[n] ? word + n + 1 : NULL);
    v = options_find(a->o, word + 1, 1);
    if (!v || v->def->type == OPTION_FLAG)
        return options_unknown(a->o, "", "-", word + 1, n - 1);
    return arg_option(a, v, word, 2, word + 2);
}

static enum fst_status read_args(struct options *o, int argc, char **argv, bool only_special)
{
    struct arg_reader a = {.o = o, .argc = argc, .argv = argv, .only_special = only_special};
    bool options_end = false;

    o->n_args = 0;
    for (a.i = 1; a.i < argc; a.i++) {
        const char *word = argv[a.i];
        if (!options_end && strcmp(word, "--") == 0) {
            options_end = true;
        } else if (options_end || word[0] != '-' || word[1] == 0 ||
                   isdigit((unsigned char)word[1])) {
            o->args[o->n_args++] = word;
        } else {
            FST_TRY(word[1] == '-' ? arg_long(&a, word) : arg_short(&a, word));
        }
        if (o->help_wanted)
            return FST_OK;
    }
    return FST_OK;
}

enum fst_status options_parse(struct options *o, int argc, char **argv)
{
    o->args = arena_calloc(&o->texts, (size_t)FST_MAX(argc, 1), sizeof *o->args);
    if (!o->args)
        return options_no_memory();
    FST_TRY(read_args(o, argc, argv, true));
    if (o->help_wanted)
        return FST_OK;
    if (options_text(o, "config"))
        FST_TRY(options_read_file(o, options_text(o, "config")));
    FST_TRY(read_environment(o));
    return read_args(o, argc, argv, false);
}

/* ---- life cycle --------------------------------------------------------------------------------- */

static void add_group(struct options *o, const struct option_group *g)
{
    for (size_t i = 0; i < g->n; i++) {
        struct option_value *v = &o->vals[o->n_vals];
        const char *aliases = g->defs[i].alias, *word;
        size_t k;

        FST_ASSERT(strlen(g->defs[i].name) < OPTIONS_MAX_NAME);
        FST_ASSERT(!options_find(o, g->defs[i].name, strlen(g->defs[i].name)));
        while ((k = options_next_word(&aliases, &word)) > 0)
            FST_ASSERT(!options_find(o, word, k));
        v->def = &g->defs[i];
        v->source = "default";
        if (v->def->initial && v->def->type != OPTION_LIST) {
            v->set = parse_value(v, v->def->initial);
            v->text = v->set ? v->def->initial : NULL;
        }
        o->n_vals++;
    }
}

enum fst_status options_new(struct options **out, const char *program, const char *usage,
                            const struct option_group *groups, size_t n_groups)
{
    size_t n = FST_COUNT(builtin);
    struct options *o;

    *out = NULL;
    for (size_t i = 0; i < n_groups; i++)
        n += groups[i].n;
    o = mem_calloc(1, sizeof *o);
    if (!o)
        return options_no_memory();
    arena_init(&o->texts, 16384, 0);
    o->program = program;
    o->usage = usage;
    o->groups = groups;
    o->n_groups = n_groups;
    o->vals = arena_calloc(&o->texts, n, sizeof *o->vals);
    o->notices = arena_calloc(&o->texts, n, sizeof *o->notices);
    if (!o->vals || !o->notices) {
        options_free(o);
        return options_no_memory();
    }
    add_group(o, &options_builtin);
    for (size_t i = 0; i < n_groups; i++)
        add_group(o, &groups[i]);
    *out = o;
    return FST_OK;
}

void options_free(struct options *o)
{
    if (!o)
        return;
    arena_release(&o->texts);
    mem_free(o);
}

/* ---- reading ------------------------------------------------------------------------------------ */

bool options_help_wanted(const struct options *o)
{
    return o->help_wanted;
}

bool options_flag(const struct options *o, const char *name)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_FLAG);
    return v->set && v->flag;
}

int64_t options_int(const struct options *o, const char *name, int64_t if_not_set)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_INT || v->def->type == OPTION_SIZE);
    return v->set ? v->i : if_not_set;
}

double options_float(const struct options *o, const char *name, double if_not_set)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_FLOAT);
    return v->set ? v->x : if_not_set;
}

const char *options_text(const struct options *o, const char *name)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_TEXT);
    return v->set ? v->text : NULL;
}

int options_word(const struct options *o, const char *name)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_WORD);
    return v->set ? (int)v->i : -1;
}

size_t options_list(const struct options *o, const char *name, const char *const **items)
{
    const struct option_value *v = get(o, name);
    FST_ASSERT(v->def->type == OPTION_LIST);
    *items = v->list;
    return v->n_list;
}

bool options_is_given(const struct options *o, const char *name)
{
    return get(o, name)->given;
}

const char *options_source(const struct options *o, const char *name)
{
    return get(o, name)->source;
}

size_t options_args(const struct options *o, const char *const **args)
{
    *args = o->args;
    return o->n_args;
}

const char *options_notice(const struct options *o, size_t i)
{
    return i < o->n_notices ? o->notices[i] : NULL;
}
