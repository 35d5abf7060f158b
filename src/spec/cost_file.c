/* cost_file.c - tables of costs as JSON files. */
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "spec/cost.h"

static const char FORMAT[] = "firesteel-cost-1";

static void put_line(struct buf *b, const double *x, int n)
{
    buf_putc(b, '[');
    for (int i = 0; i < n; i++) {
        buf_puts(b, i ? ", " : "");
        json_put_double(b, x[i]);
    }
    buf_putc(b, ']');
}

static void put_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, "  \"%s\": ", name);
    json_put_string(b, text, strlen(text));
    buf_puts(b, ",\n");
}

static void put_number(struct buf *b, const char *name, double x)
{
    buf_printf(b, "  \"%s\": ", name);
    json_put_double(b, x);
    buf_puts(b, ",\n");
}

enum fst_status spec_cost_save(const struct spec_cost *c, const struct spec_machine *m,
                               const char *path)
{
    struct buf b = {0};
    buf_puts(&b, "{\n");
    put_text(&b, "format", FORMAT);
    put_text(&b, "build", m->build);
    put_text(&b, "device", m->device);
    put_text(&b, "model", m->model);
    put_number(&b, "threads", m->threads);
    put_number(&b, "gamma", c->gamma);
    put_number(&b, "inject_call_seconds", c->inject_call_s);
    put_number(&b, "inject_row_seconds", c->inject_row_s);
    put_number(&b, "context_seconds", c->context_s);
    buf_puts(&b, "  \"points\": [\n");
    for (int p = 0; p < c->n; p++) {
        double rows[FST_SPEC_MAX + 1];
        for (int k = 0; k <= c->gamma; k++)
            rows[k] = (double)c->requests[p] * (1 + k);
        buf_printf(&b, "    {\"requests\": %d, \"rows\": ", c->requests[p]);
        put_line(&b, rows, c->gamma + 1);
        buf_puts(&b, ", \"step_seconds\": ");
        put_line(&b, c->step_s[p], c->gamma + 1);
        buf_puts(&b, ", \"draft_seconds\": ");
        put_line(&b, c->draft_s[p], c->gamma);
        buf_puts(&b, p + 1 < c->n ? "},\n" : "}\n");
    }
    buf_puts(&b, "  ]\n}\n");
    enum fst_status rc = b.failed ? fst_error(FST_ENOMEM, "%s: out of memory", path)
                                  : file_write(path, b.data, b.len);
    buf_release(&b);
    return rc;
}

/* ------------------------------------------------------------------ load */

static enum fst_status same_text(json_val *root, const char *path, const char *name,
                                 const char *want)
{
    size_t len = 0;
    const char *s = json_string(json_get(root, name), &len);
    if (!s)
        return fst_error(FST_EFORMAT, "%s: \"%s\" must be a string", path, name);
    if (len != strlen(want) || memcmp(s, want, len) != 0)
        return fst_error(FST_EUNSUPPORTED, "%s: %s is \"%.64s\" there, \"%.64s\" here", path, name,
                         s, want);
    return FST_OK;
}

static enum fst_status same_number(json_val *root, const char *path, const char *name, int want)
{
    int64_t x;
    if (!json_int(json_get(root, name), &x))
        return fst_error(FST_EFORMAT, "%s: \"%s\" must be an integer", path, name);
    if (x != want)
        return fst_error(FST_EUNSUPPORTED, "%s: %s is %lld there, %d here", path, name,
                         (long long)x, want);
    return FST_OK;
}

static enum fst_status seconds(json_val *v, const char *path, const char *name, bool zero,
                               double *out)
{
    if (!json_real(v, out) || !(*out >= 0) || !isfinite(*out) || (!zero && *out == 0))
        return fst_error(FST_EFORMAT, "%s: \"%s\" must hold %s seconds", path, name,
                         zero ? "zero or more" : "positive");
    return FST_OK;
}

static enum fst_status line(json_val *point, const char *path, const char *name, int n, double *out)
{
    json_val *a = json_get(point, name);
    if (json_type_of(a) != JSON_ARRAY || json_count(a) != (size_t)n)
        return fst_error(FST_EFORMAT, "%s: \"%s\" must be an array of %d numbers", path, name, n);
    for (int i = 0; i < n; i++)
        FST_TRY(seconds(json_at(a, (size_t)i), path, name, false, &out[i]));
    return FST_OK;
}

static enum fst_status read_points(json_val *root, const char *path, struct spec_cost *t)
{
    json_val *points = json_get(root, "points");
    size_t n = json_count(points);
    if (json_type_of(points) != JSON_ARRAY || n < 1 || n > SPEC_COST_POINTS)
        return fst_error(FST_EFORMAT, "%s: \"points\" must be an array of 1 to %d objects", path,
                         SPEC_COST_POINTS);
    t->n = (int)n;
    for (int p = 0; p < t->n; p++) {
        json_val *point = json_at(points, (size_t)p);
        int64_t r;
        if (!json_int(json_get(point, "requests"), &r) || r < 1 || r > 1000000 ||
            (p ? r <= t->requests[p - 1] : r != 1))
            return fst_error(FST_EFORMAT, "%s: \"requests\" must be ascending integers from 1 on",
                             path);
        t->requests[p] = (int)r;
        FST_TRY(line(point, path, "step_seconds", t->gamma + 1, t->step_s[p]));
        FST_TRY(line(point, path, "draft_seconds", t->gamma, t->draft_s[p]));
    }
    return FST_OK;
}

static enum fst_status read_table(json_val *root, const char *path, const struct spec_machine *m,
                                  struct spec_cost *t)
{
    FST_TRY(same_text(root, path, "format", FORMAT));
    FST_TRY(same_text(root, path, "build", m->build));
    FST_TRY(same_text(root, path, "device", m->device));
    FST_TRY(same_text(root, path, "model", m->model));
    FST_TRY(same_number(root, path, "threads", m->threads));
    FST_TRY(same_number(root, path, "gamma", t->gamma));
    FST_TRY(seconds(json_get(root, "inject_call_seconds"), path, "inject_call_seconds", true,
                    &t->inject_call_s));
    FST_TRY(seconds(json_get(root, "inject_row_seconds"), path, "inject_row_seconds", true,
                    &t->inject_row_s));
    FST_TRY(
        seconds(json_get(root, "context_seconds"), path, "context_seconds", true, &t->context_s));
    return read_points(root, path, t);
}

enum fst_status spec_cost_load(struct spec_cost *c, const struct spec_machine *m, const char *path)
{
    struct spec_cost t = {.gamma = c->gamma};
    struct json_doc *doc = NULL;
    struct buf text = {0};
    enum fst_status rc = file_read(&text, path, 1 << 20);

    if (rc == FST_OK && (rc = json_parse(&doc, text.data, text.len)) < 0) {
        char why[256];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(rc, "%s: %s", path, why);
    }
    if (rc == FST_OK)
        rc = read_table(json_root(doc), path, m, &t);
    if (rc == FST_OK && !spec_cost_fill(&t))
        rc = fst_error(FST_EFORMAT, "%s: no usable point", path);
    if (rc == FST_OK)
        *c = t;
    json_free(doc);
    buf_release(&text);
    return rc;
}
