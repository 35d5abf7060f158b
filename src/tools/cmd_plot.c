/* cmd_plot.c - `plot`: charts of what benches wrote. */
#include "base/file.h"
#include "tools/charts.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "kind",
     .type = OPTION_WORD,
     .words = CHART_WORDS,
     .help =
         "throughput, latency: against concurrency (latency of one run: its percentiles). accept: "
         "drafts by "
         "position. floor: fraction of what the machine could. What suits the rows when not given"},
    {.name = "svg",
     .alias = "o",
     .type = OPTION_TEXT,
     .arg = "FILE",
     .help = "where the chart goes; stdout when not given"},
};

enum { ROWS_MAX = 4096 };

struct job {
    struct json_doc *doc[ROWS_MAX]; /* owned */
    size_t n_docs;
    json_val *row[ROWS_MAX]; /* borrowed from docs */
    size_t n;
    struct buf caption;
    size_t more; /* commands that are not in it */
};

static void add_caption(struct job *j, json_val *from)
{
    static const char *const keys[] = {"command", "card", "date", "build", "note"};
    for (size_t i = 0; i < FST_COUNT(keys); i++) {
        size_t n;
        const char *s = json_string(json_get(from, keys[i]), &n);
        if (!s || strstr(buf_str(&j->caption), s))
            continue;
        if (!i && j->caption.len) { /* rows of a sweep differ in little */
            j->more++;
            continue;
        }
        buf_printf(&j->caption, "%s%s%s", j->caption.len ? "  |  " : "", i ? "" : "$ ", s);
    }
}

static enum fst_status add_doc(struct job *j, const char *text, size_t len, const char *path)
{
    char why[400];
    if (j->n_docs == ROWS_MAX)
        return fst_error(FST_EBUDGET, "plot: more than %d lines", ROWS_MAX);
    enum fst_status rc = json_parse(&j->doc[j->n_docs], text, len);
    if (rc < 0) {
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(rc, "%s: %s", path, why);
    }
    json_val *root = json_root(j->doc[j->n_docs++]), *rows = json_get(root, "rows");
    if (json_type_of(root) != JSON_OBJECT)
        return fst_error(FST_EFORMAT, "%s: expected a result file or lines of bench serve", path);
    add_caption(j, root);
    if (!rows && j->n < ROWS_MAX)
        j->row[j->n++] = root;
    for (size_t i = 0; i < json_count(rows) && j->n < ROWS_MAX; i++)
        j->row[j->n++] = json_at(rows, i);
    return FST_OK;
}

/* A result file, or a line each. */
static enum fst_status read_file(struct job *j, const char *path)
{
    struct buf b = {0};
    enum fst_status rc = file_read(&b, path, 0);
    const char *p = buf_str(&b), *end = p + b.len;
    struct json_doc *whole = NULL;
    if (rc == FST_OK && json_parse(&whole, p, b.len) == FST_OK) {
        json_free(whole);
        rc = add_doc(j, p, b.len, path);
        p = end;
    }
    while (rc == FST_OK && p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (n)
            rc = add_doc(j, p, n, path);
        p += n + 1;
    }
    buf_release(&b);
    return rc;
}

static enum fst_status draw(struct job *j, const struct options *o, struct buf *svg)
{
    const char *const *path;
    size_t n = options_args(o, &path);
    int kind = options_word(o, "kind");
    if (!n)
        return fst_error(FST_EINVAL, "plot: expected a result file (see firesteel plot --help)");
    for (size_t i = 0; i < n; i++)
        FST_TRY(read_file(j, path[i]));
    if (kind < 0)
        kind = charts_kind_of(j->row, j->n);
    if (kind < 0)
        return fst_error(FST_EINVAL, "%s: no rows that a chart shows", path[0]);
    if (j->more)
        buf_printf(&j->caption, "  |  and %zu more commands", j->more);
    return charts_draw(svg, (enum chart_kind)kind, j->row, j->n, buf_str(&j->caption));
}

int cmd_plot(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Plot", defs)};
    int status = 0;
    struct options *o = tool_parse_words("firesteel plot", "FILE... [options]", groups,
                                         FST_COUNT(groups), argc, argv, &status);
    if (!o)
        return status;
    struct job *j = mem_calloc(1, sizeof *j);
    struct buf svg = {0};
    enum fst_status rc = j ? draw(j, o, &svg) : fst_error(FST_ENOMEM, "no memory");
    if (rc == FST_OK && options_text(o, "svg"))
        rc = file_write(options_text(o, "svg"), buf_str(&svg), svg.len);
    else if (rc == FST_OK)
        fwrite(buf_str(&svg), 1, svg.len, stdout);
    if (rc < 0)
        status = tool_fail(rc);
    for (size_t i = 0; j && i < j->n_docs; i++)
        json_free(j->doc[i]);
    if (j)
        buf_release(&j->caption);
    mem_free(j);
    buf_release(&svg);
    options_free(o);
    return status;
}
