/* sts.c - fit, store and load temperatures of the confidence head. */
#include "spec/sts.h"

#include <math.h>

#include "base/file.h"
#include "base/json.h"

enum { BINS = 15, GRID = 41, ROUNDS_MIN = 400, HELD_OUT = 4 };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void spec_survival(const struct spec_sts *sts, const float *logit, int n, double *survive)
{
    double s = 1;
    for (int j = 0; j < n; j++) {
        double c = sigmoid((double)logit[j] / (sts ? (double)sts->temperature[j] : 1.0));
        s *= c >= 0 && c <= 1 ? c : 0;
        survive[j] = s;
    }
}

/* ------------------------------------------------------------------ fit */

struct fit {
    const struct spec_round *round;
    size_t n;
    double *product; /* (n) of the confidences before this position */
};

static bool held_out(size_t i)
{
    return i % HELD_OUT == HELD_OUT - 1;
}

/* Of product * sigmoid(logit / t) against "the first j + 1 are right", over the rounds of one part. */
static double ece(const struct fit *f, int j, double t, bool held)
{
    double said[BINS] = {0}, right[BINS] = {0}, error = 0;
    size_t count[BINS] = {0}, n = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (held_out(i) != held)
            continue;
        double p = f->product[i] * sigmoid((double)f->round[i].logit[j] / t);
        int b = (int)FST_MIN(p * BINS, BINS - 1);
        said[b] += p;
        right[b] += f->round[i].accepted > j;
        count[b]++;
        n++;
    }
    for (int b = 0; b < BINS; b++)
        error += fabs(said[b] - right[b]);
    return n ? error / (double)n : 0;
}

static void multiply(struct fit *f, int j, double t)
{
    for (size_t i = 0; i < f->n; i++)
        f->product[i] *= sigmoid((double)f->round[i].logit[j] / t);
}

static void restart(struct fit *f)
{
    for (size_t i = 0; i < f->n; i++)
        f->product[i] = 1;
}

static double best_temperature(const struct fit *f, int j)
{
    double best = 1, least = ece(f, j, 1, false);
    for (int g = 0; g < GRID; g++) {
        double t = 0.1 * pow(100, g / (double)(GRID - 1)), e = ece(f, j, t, false);
        if (e < least) {
            least = e;
            best = t;
        }
    }
    return best;
}

static double mean(const double *x, int n)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += x[i];
    return n ? s / n : 0;
}

enum fst_status spec_sts_fit(const struct spec_round *round, size_t n, int gamma,
                             struct spec_sts *out, struct spec_sts_report *report)
{
    struct fit f = {.round = round, .n = n};

    FST_ASSERT(gamma > 0);
    FST_ASSERT(gamma <= FST_SPEC_MAX);
    *out = (struct spec_sts){.gamma = gamma};
    *report = (struct spec_sts_report){.n_held_out = n / HELD_OUT, .n_fitted = n - n / HELD_OUT};
    if (n < ROUNDS_MIN)
        return fst_error(FST_EINVAL, "calibration needs %d rounds or more, got %zu", ROUNDS_MIN, n);
    f.product = mem_calloc(n, sizeof *f.product);
    if (!f.product)
        return fst_error(FST_ENOMEM, "calibration: no memory for %zu rounds", n);
    restart(&f);
    for (int j = 0; j < gamma; j++) {
        report->ece_before[j] = ece(&f, j, 1, true);
        multiply(&f, j, 1);
    }
    restart(&f);
    for (int j = 0; j < gamma; j++) {
        double t = best_temperature(&f, j);
        out->temperature[j] = (float)t;
        report->ece_after[j] = ece(&f, j, t, true);
        multiply(&f, j, t);
    }
    mem_free(f.product);
    double was = mean(report->ece_before, gamma), is = mean(report->ece_after, gamma);
    if (!(is < was))
        return fst_error(
            FST_EUNSUPPORTED,
            "calibration does not help: mean error %.4f with it, %.4f without, on %llu "
            "rounds that were held out",
            is, was, (unsigned long long)report->n_held_out);
    return FST_OK;
}

/* ------------------------------------------------------------------ files */

static void put_array(struct buf *b, const char *name, const double *x, int n)
{
    buf_printf(b, "  \"%s\": [", name);
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%.6g", i ? ", " : "", x[i]);
    buf_puts(b, "]");
}

enum fst_status spec_sts_save(const struct spec_sts *s, const struct spec_sts_report *report,
                              const char *dataset, const char *path)
{
    struct buf b = {0};
    double t[FST_SPEC_MAX];
    for (int i = 0; i < s->gamma; i++)
        t[i] = (double)s->temperature[i];
    buf_puts(&b, "{\n");
    put_array(&b, "temperatures", t, s->gamma);
    buf_puts(&b, ",\n  \"dataset\": ");
    json_put_string(&b, dataset, strlen(dataset));
    buf_printf(&b, ",\n  \"num_samples\": %llu,\n",
               (unsigned long long)(report->n_fitted + report->n_held_out));
    put_array(&b, "ece_before", report->ece_before, s->gamma);
    buf_puts(&b, ",\n");
    put_array(&b, "ece_after", report->ece_after, s->gamma);
    buf_puts(&b, "\n}\n");
    enum fst_status rc = b.failed ? fst_error(FST_ENOMEM, "%s: out of memory", path)
                                  : file_write(path, b.data, b.len);
    buf_release(&b);
    return rc;
}

static enum fst_status get_array(json_val *root, const char *path, const char *name, int n,
                                 bool positive, double *out)
{
    json_val *a = json_get(root, name);
    if (json_type_of(a) != JSON_ARRAY)
        return fst_error(FST_EFORMAT, "%s: \"%s\" must be an array of numbers", path, name);
    if (json_count(a) != (size_t)n)
        return fst_error(FST_EUNSUPPORTED, "%s: \"%s\" holds %zu numbers, a block has %d drafts",
                         path, name, json_count(a), n);
    for (int i = 0; i < n; i++)
        if (!json_real(json_at(a, (size_t)i), &out[i]) || !isfinite(out[i]) ||
            (positive ? !(out[i] > 0) : !(out[i] >= 0)))
            return fst_error(FST_EFORMAT, "%s: \"%s\"[%d] must be a %s number", path, name, i,
                             positive ? "positive" : "non-negative");
    return FST_OK;
}

static enum fst_status read_sts(json_val *root, const char *path, int gamma, struct spec_sts *out)
{
    double t[FST_SPEC_MAX], before[FST_SPEC_MAX], after[FST_SPEC_MAX];
    FST_TRY(get_array(root, path, "temperatures", gamma, true, t));
    FST_TRY(get_array(root, path, "ece_before", gamma, false, before));
    FST_TRY(get_array(root, path, "ece_after", gamma, false, after));
    if (!(mean(after, gamma) < mean(before, gamma)))
        return fst_error(FST_EUNSUPPORTED,
                         "%s: does not help: mean error %.4f with it (ece_after), %.4f without",
                         path, mean(after, gamma), mean(before, gamma));
    out->gamma = gamma;
    for (int i = 0; i < gamma; i++)
        out->temperature[i] = (float)t[i];
    return FST_OK;
}

enum fst_status spec_sts_load(struct spec_sts *out, int gamma, const char *path)
{
    struct json_doc *doc = NULL;
    struct buf text = {0};
    struct spec_sts s = {0};
    enum fst_status rc = file_read(&text, path, 1 << 20);

    if (rc == FST_OK && (rc = json_parse(&doc, text.data, text.len)) < 0) {
        char why[256];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(rc, "%s: %s", path, why);
    }
    if (rc == FST_OK)
        rc = read_sts(json_root(doc), path, gamma, &s);
    if (rc == FST_OK)
        *out = s;
    json_free(doc);
    buf_release(&text);
    return rc;
}
