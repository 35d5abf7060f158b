/* options_file.c - the file of --config: the small part of YAML that options need. */
#include "base/options.h"

#include <limits.h>

#include "base/file.h"
#include "base/options_inside.h"

#define MAX_CONFIG ((size_t)1 << 20)

struct config_reader {
    struct options *o;
    const char *path;
    int line;
    struct option_value *list; /* the option whose `- item` lines may follow */
};

static enum fst_status config_fault(const struct config_reader *c, const char *what)
{
    return fst_error(FST_EINVAL, "%s:%d: %s", c->path, c->line, what);
}

static char *trim(char *s)
{
    size_t n;
    s += strspn(s, " \t\r");
    n = strlen(s);
    while (n > 0 && strchr(" \t\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

/* One scalar at *s up to a stop character (or the end): unquoted in place, *s moves behind it. */
static enum fst_status config_scalar(const struct config_reader *c, char **s, const char *stops,
                                     char **value)
{
    char *p = *s + strspn(*s, " \t"), *w;

    *value = w = p;
    if (*p == '"' || *p == '\'') {
        char quote = *p++;
        *value = w = p;
        for (;; p++) {
            if (*p == 0)
                return config_fault(c, "a quote is not closed");
            if (*p == quote && quote == '\'' && p[1] == quote) {
                p++;
            } else if (*p == quote) {
                break;
            } else if (*p == '\\' && quote == '"') {
                p++;
                if (*p != '"' && *p != '\\' && *p != 'n' && *p != 't')
                    return config_fault(c, "only \\\" \\\\ \\n \\t are known in quotes");
                *p = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
            }
            *w++ = *p;
        }
        p++;
        p += strspn(p, " \t");
        if (*p && *p != '#' && !strchr(stops, *p))
            return config_fault(c, "text after a closing quote");
        *s = p;
        *w = 0;
        return FST_OK;
    }
    while (*p && !strchr(stops, *p) &&
           !(*p == '#' && (p == *value || p[-1] == ' ' || p[-1] == '\t')))
        p++;
    *s = p;
    /* The stop character must survive for the caller: trim by moving the end only. */
    for (w = p; w > *value && strchr(" \t", w[-1]); w--)
        ;
    if (w < p)
        *w = 0;
    return FST_OK;
}

static enum fst_status config_set(struct config_reader *c, struct option_value *v, const char *text)
{
    char where[PATH_MAX + OPTIONS_MAX_NAME + 32];
    char *source;

    snprintf(where, sizeof where, "%s:%d", c->path, c->line);
    /* Items of a list share the line of its name. */
    source = c->list && c->list->given && c->list == v
                 ? NULL
                 : arena_strndup(&c->o->texts, where, strlen(where));
    if (!source && !(c->list == v && v->source))
        return options_no_memory();
    snprintf(where, sizeof where, "%s:%d: %s", c->path, c->line, v->def->name);
    return options_set(c->o, v, text, where, source ? source : v->source);
}

/* [a, b] after the name. */
static enum fst_status config_inline_list(struct config_reader *c, struct option_value *v, char *s)
{
    c->list = v;
    for (s++;;) {
        char *value, stop;

        FST_TRY(config_scalar(c, &s, ",]", &value));
        stop = *s;
        if (stop != ',' && stop != ']')
            return config_fault(c, "a list [a, b] must close on its line");
        *s++ = 0;
        if (*value || stop == ',')
            FST_TRY(config_set(c, v, value));
        if (stop == ']')
            break;
    }
    s += strspn(s, " \t");
    c->list = NULL;
    return *s == 0 || *s == '#' ? FST_OK : config_fault(c, "text after a list");
}

static enum fst_status config_line(struct config_reader *c, char *line)
{
    bool indented = *line == ' ' || *line == '\t';
    char *s = trim(line), *value, where[PATH_MAX + 32];
    struct option_value *v;
    size_t n;

    if (*s == 0 || *s == '#' || strcmp(s, "---") == 0)
        return FST_OK;
    if (*s == '-' && (s[1] == ' ' || s[1] == 0)) {
        if (!c->list)
            return config_fault(c, "\"- item\" without the name of a list above it");
        s++;
        FST_TRY(config_scalar(c, &s, "", &value));
        *s = 0;
        return config_set(c, c->list, value);
    }
    if (indented)
        return config_fault(c, "nested values are not known here; expected `name: value`");
    n = strcspn(s, ":");
    if (s[n] != ':' || (s[n + 1] && s[n + 1] != ' ' && s[n + 1] != '\t'))
        return config_fault(c, "expected `name: value`");
    snprintf(where, sizeof where, "%s:%d: ", c->path, c->line);
    v = options_find(c->o, s, n);
    if (!v)
        return options_unknown(c->o, where, "", s, n);
    if (options_is_builtin(v))
        return config_fault(c, "help and config cannot be set in a file");
    c->list = NULL;
    s += n + 1;
    s += strspn(s, " \t");
    if (v->def->type == OPTION_LIST && *s == '[')
        return config_inline_list(c, v, s);
    FST_TRY(config_scalar(c, &s, "", &value));
    if (v->def->type == OPTION_LIST && *value == 0) {
        c->list = v;
        return FST_OK;
    }
    *s = 0;
    return config_set(c, v, value);
}

enum fst_status options_read_file(struct options *o, const char *path)
{
    struct config_reader c = {.o = o, .path = path};
    struct buf text = {0};
    enum fst_status rc = file_read(&text, path, MAX_CONFIG);

    for (char *line = text.data, *next; rc == FST_OK && line && *line; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : line + strlen(line);
        if (end)
            *end = 0;
        c.line++;
        rc = config_line(&c, line);
    }
    buf_release(&text);
    return rc;
}
