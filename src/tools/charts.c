#include "tools/charts.h"

#include <math.h>

#include "plot/plot.h"

enum { Y_MAX = 4, VALUES_MAX = 512 };

/* Charts of numbers over a number: a series for each y, and for each value of `split`. */
struct chart {
    const char *kind, *row, *title, *x, *x_label, *y_label;
    bool x_log, y_log;
    struct {
        const char *key, *name;
    } y[Y_MAX];
    const char *split;
};
static const struct chart charts[] = {
    [CHART_THROUGHPUT] = {"throughput",
                          "serve",
                          "Throughput against concurrency",
                          "max_concurrency",
                          "requests under way at most",
                          "tokens per second",
                          true,
                          false,
                          {{"output_throughput", "output"},
                           {"total_throughput", "input and output"}},
                          "backend"},
    [CHART_LATENCY] = {"latency",
                       "serve",
                       "Latency against concurrency",
                       "max_concurrency",
                       "requests under way at most",
                       "milliseconds",
                       true,
                       true,
                       {{"median_ttft_ms", "TTFT median"},
                        {"p99_ttft_ms", "TTFT P99"},
                        {"median_itl_ms", "ITL median"},
                        {"p99_itl_ms", "ITL P99"}},
                       NULL},
    [CHART_FRONTIER] = {"frontier",
                        "frontier",
                        "Speed by context",
                        "ctx",
                        "context, tokens",
                        "tokens per second",
                        true,
                        true,
                        {{"prefill_tok_s", "reading"}, {"decode_tok_s", "writing"}},
                        NULL},
    [CHART_AGENT] = {"agent",
                     "agent",
                     "Tokens computed in each turn of a conversation",
                     "turn",
                     "turn",
                     "tokens",
                     false,
                     false,
                     {{"recomputed_tokens", "computed"}, {"new_tokens", "new"}},
                     NULL},
    [CHART_HTTP] = {"http",
                    "http",
                    "Time of a token without a model",
                    "max_concurrency",
                    "streams at once",
                    "microseconds of a core",
                    true,
                    true,
                    {{"time_us", "all"}},
                    "route"},
};

/* Numbers and names of a chart while it is made. */
struct sheet {
    double x[PLOT_SERIES_MAX][VALUES_MAX], y[PLOT_SERIES_MAX][VALUES_MAX];
    char name[PLOT_SERIES_MAX][96], word[PLOT_WORDS_MAX][96];
    const char *words[PLOT_WORDS_MAX];
    struct plot_series series[PLOT_SERIES_MAX];
    size_t n;
};

static const char *name_of(json_val *row)
{
    const char *s = json_string(json_get(row, "name"), NULL);
    return s ? s : json_get(row, "output_throughput") ? "serve" : "";
}

static double number(json_val *row, const char *key)
{
    double x;
    return json_real(json_get(row, key), &x) ? x : (double)NAN;
}

/* A series by its name: found, or new; NULL: there are too many. */
static struct plot_series *series(struct sheet *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->name[i], name))
            return &s->series[i];
    if (s->n == PLOT_SERIES_MAX)
        return NULL;
    snprintf(s->name[s->n], sizeof s->name[0], "%s", name);
    s->series[s->n] = (struct plot_series){s->name[s->n], s->x[s->n], s->y[s->n], 0};
    return &s->series[s->n++];
}

static void add_point(struct sheet *s, struct plot_series *r, double x, double y)
{
    size_t i = (size_t)(r - s->series);
    if (r->n == VALUES_MAX || isnan(x) || isnan(y))
        return;
    s->x[i][r->n] = x;
    s->y[i][r->n++] = y;
}

static void by_x(struct sheet *s)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 1; k < s->series[i].n; k++)
            for (size_t j = k; j > 0 && s->x[i][j] < s->x[i][j - 1]; j--) {
                double x = s->x[i][j], y = s->y[i][j];
                s->x[i][j] = s->x[i][j - 1];
                s->y[i][j] = s->y[i][j - 1];
                s->x[i][j - 1] = x;
                s->y[i][j - 1] = y;
            }
}

static enum fst_status draw(struct buf *svg, struct sheet *s, struct plot *p, const char *what)
{
    size_t points = 0;
    for (size_t i = 0; i < s->n; i++)
        points += s->series[i].n;
    if (!points)
        return fst_error(FST_EINVAL, "plot: no row has %s", what);
    p->series = s->series;
    p->n_series = s->n;
    p->words = s->words;
    return plot_svg(svg, p);
}

/* ------------------------------------------------------------------ kinds */

static enum fst_status over_numbers(struct buf *svg, struct sheet *s, const struct chart *c,
                                    json_val *const *row, size_t n, const char *caption)
{
    char name[96];
    const char *first = NULL;
    bool many = false;
    for (size_t i = 0; i < n && c->split; i++) {
        const char *v = json_string(json_get(row[i], c->split), NULL);
        if (strcmp(name_of(row[i]), c->row) || !v)
            continue;
        many |= first && strcmp(first, v);
        first = first ? first : v;
    }
    for (size_t k = 0; k < Y_MAX && c->y[k].key; k++)
        for (size_t i = 0; i < n; i++) {
            const char *v = c->split ? json_string(json_get(row[i], c->split), NULL) : NULL;
            if (strcmp(name_of(row[i]), c->row))
                continue;
            if (many && v)
                snprintf(name, sizeof name, "%s%s%s", v, c->y[1].key ? ", " : "",
                         c->y[1].key ? c->y[k].name : "");
            else
                snprintf(name, sizeof name, "%s", c->y[k].name);
            struct plot_series *r = series(s, name);
            if (!r)
                return fst_error(FST_EINVAL, "plot: more than %d series", PLOT_SERIES_MAX);
            double x = number(row[i], c->x), y = number(row[i], c->y[k].key);
            if (!(c->x_log && x <= 0) && !(c->y_log && y <= 0))
                add_point(s, r, x, y);
        }
    by_x(s);
    struct plot p = {.kind = PLOT_LINES,
                     .title = c->title,
                     .caption = caption,
                     .x = {c->x_label, c->x_log},
                     .y = {c->y_label, c->y_log}};
    char what[128];
    snprintf(what, sizeof what, "%s and %s", c->x, c->y[0].key);
    return draw(svg, s, &p, what);
}

/* Percentiles of one run. */
static enum fst_status percentiles(struct buf *svg, struct sheet *s, json_val *row,
                                   const char *caption)
{
    static const char *const of[] = {"ttft", "tpot", "itl", "e2e_latency"};
    static const char *const names[] = {"TTFT", "TPOT", "ITL", "E2E"};
    static const char *const at[] = {"median", "p90", "p95", "p99"};
    static const char *const words[] = {"median", "P90", "P95", "P99"};
    char key[64];
    for (size_t k = 0; k < FST_COUNT(of); k++) {
        struct plot_series *r = series(s, names[k]);
        for (size_t i = 0; i < FST_COUNT(at); i++) {
            snprintf(key, sizeof key, "%s_%s_ms", at[i], of[k]);
            double y = number(row, key);
            if (y > 0)
                add_point(s, r, (double)i, y);
        }
    }
    for (size_t i = 0; i < FST_COUNT(words); i++)
        s->words[i] = words[i];
    struct plot p = {.kind = PLOT_BARS,
                     .title = "Latency of requests and tokens",
                     .caption = caption,
                     .x = {"percentile", false},
                     .y = {"milliseconds", true},
                     .n_words = FST_COUNT(words)};
    for (size_t i = 0; i < s->n; i++) /* a bar belongs to its word */
        if (s->series[i].n != FST_COUNT(words))
            s->series[i].n = 0;
    return draw(svg, s, &p, "percentiles");
}

/* Numbers of an array, a series for each row. */
static enum fst_status of_arrays(struct buf *svg, struct sheet *s, const char *key,
                                 json_val *const *row, size_t n, struct plot *p)
{
    char name[96];
    for (size_t i = 0; i < n; i++) {
        json_val *list = json_get(row[i], key);
        double c = number(row[i], "max_concurrency"), v;
        if (!json_count(list))
            continue;
        if (isnan(c))
            snprintf(name, sizeof name, "%s %zu", name_of(row[i]), i + 1);
        else
            snprintf(name, sizeof name, "concurrency %.0f", c);
        struct plot_series *r = series(s, name);
        if (!r)
            return fst_error(FST_EINVAL, "plot: more than %d series", PLOT_SERIES_MAX);
        r->n = 0; /* the last row of a name */
        for (size_t k = 0; k < json_count(list) && k < PLOT_WORDS_MAX; k++) {
            if (json_real(json_at(list, k), &v))
                add_point(s, r, (double)k, v);
            snprintf(s->word[k], sizeof s->word[0], "%zu", k + 1);
            s->words[k] = s->word[k];
            p->n_words = FST_MAX(p->n_words, k + 1);
        }
    }
    return draw(svg, s, p, key);
}

static enum fst_status of_floors(struct buf *svg, struct sheet *s, json_val *const *row, size_t n,
                                 struct plot *p)
{
    struct plot_series *r = series(s, "fraction of floor");
    for (size_t i = 0; i < n && p->n_words < PLOT_WORDS_MAX; i++) {
        const char *kind = json_string(json_get(row[i], "kind"), NULL);
        const char *site = json_string(json_get(row[i], "layer_kind"), NULL);
        double f = number(row[i], "fraction_of_floor"), rows = number(row[i], "rows");
        if (isnan(f))
            continue;
        snprintf(s->word[p->n_words], sizeof s->word[0], "%.40s%s%.12s%s%.8s, %.0f rows",
                 name_of(row[i]), kind && *kind ? " " : "", kind ? kind : "", site ? " " : "",
                 site ? site : "", isnan(rows) ? 0 : rows);
        s->words[p->n_words] = s->word[p->n_words];
        add_point(s, r, (double)p->n_words++, 100 * f);
    }
    return draw(svg, s, p, "fraction_of_floor");
}

int charts_kind_of(json_val *const *row, size_t n)
{
    size_t serve = 0;
    for (size_t i = 0; i < n; i++) {
        const char *name = name_of(row[i]);
        serve += !strcmp(name, "serve");
        for (int k = 0; k < (int)FST_COUNT(charts); k++)
            if (charts[k].row && strcmp(charts[k].row, "serve") && !strcmp(charts[k].row, name))
                return k;
        if (json_get(row[i], "rates_tok_s"))
            return CHART_RUNS;
        if (json_get(row[i], "fraction_of_floor"))
            return CHART_FLOOR;
    }
    return serve > 1 ? CHART_THROUGHPUT : serve ? CHART_LATENCY : -1;
}

enum fst_status charts_draw(struct buf *svg, enum chart_kind kind, json_val *const *row, size_t n,
                            const char *caption)
{
    struct sheet *s = mem_calloc(1, sizeof *s);
    struct plot accept = {.kind = PLOT_BARS,
                          .title = "Drafts accepted by position",
                          .caption = caption,
                          .x = {"position in the block", false},
                          .y = {"share of rounds that accepted so many", false}};
    struct plot runs = {.kind = PLOT_BARS,
                        .title = "Speed of one stream, run by run",
                        .caption = caption,
                        .x = {"run", false},
                        .y = {"output tokens per second", false}};
    struct plot floors = {.kind = PLOT_BARS_ACROSS,
                          .title = "Floor over time, operation by operation",
                          .caption = caption,
                          .x = {"", false},
                          .y = {"percent of what the machine could (100: at the floor)", false}};
    enum fst_status rc;
    size_t serve = 0, last = 0;
    if (!s)
        return fst_error(FST_ENOMEM, "plot: no memory");
    for (size_t i = 0; i < n; i++)
        if (!strcmp(name_of(row[i]), "serve")) {
            serve++;
            last = i;
        }
    if (kind == CHART_ACCEPT)
        rc = of_arrays(svg, s, "accepted_by_position", row, n, &accept);
    else if (kind == CHART_RUNS)
        rc = of_arrays(svg, s, "rates_tok_s", row, n, &runs);
    else if (kind == CHART_FLOOR)
        rc = of_floors(svg, s, row, n, &floors);
    else if (kind == CHART_LATENCY && serve == 1)
        rc = percentiles(svg, s, row[last], caption);
    else
        rc = over_numbers(svg, s, &charts[kind], row, n, caption);
    mem_free(s);
    return rc;
}
