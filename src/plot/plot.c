#include "plot/plot.h"

#include <math.h>

#include "plot/scale.h"

enum { WIDTH = 760, LEFT = 78, RIGHT = 24, TOP = 74, HEIGHT = 300, LINE = 15, CAPTION_CHARS = 112 };
enum { BAR_HEIGHT = 18, WORD_WIDTH = 230 };

/* Colours of a page of each kind: text and lines have a contrast of at least 4.5 to its ground, the grid is faint. */
static const char style[] =
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1f2933}"
    ".title{font-size:15px;font-weight:600}.caption{font-family:ui-monospace,monospace;font-size:"
    "10.5px;"
    "fill:#52606d}.ground{fill:#ffffff}.grid{stroke:#d9dee4;stroke-width:1}.axis{stroke:#52606d;"
    "stroke-width:1}.line{fill:none;stroke-width:2}"
    ".s0{stroke:#0b62a8;fill:#0b62a8}.s1{stroke:#b4450a;fill:#b4450a}.s2{stroke:#13743a;fill:#"
    "13743a}"
    ".s3{stroke:#6d28d9;fill:#6d28d9}.s4{stroke:#b91c1c;fill:#b91c1c}.s5{stroke:#0e6b80;fill:#"
    "0e6b80}"
    ".s6{stroke:#7c5a00;fill:#7c5a00}.s7{stroke:#4b5563;fill:#4b5563}.line{fill:none}"
    "@media "
    "(prefers-color-scheme:dark){text{fill:#e4e7eb}.caption{fill:#9aa5b1}.ground{fill:#111827}"
    ".grid{stroke:#2b3645}.axis{stroke:#9aa5b1}"
    ".s0{stroke:#60a5fa;fill:#60a5fa}.s1{stroke:#fb923c;fill:#fb923c}.s2{stroke:#4ade80;fill:#"
    "4ade80}"
    ".s3{stroke:#c4b5fd;fill:#c4b5fd}.s4{stroke:#f87171;fill:#f87171}.s5{stroke:#67e8f9;fill:#"
    "67e8f9}"
    ".s6{stroke:#facc15;fill:#facc15}.s7{stroke:#cbd5e1;fill:#cbd5e1}.line{fill:none}}";
static const char *const dashes[] = {"", "6 4", "2 3", "10 3 2 3", "4 2", "1 4", "12 4", "3 6"};

static void put_text(struct buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        switch (s[i]) {
        case '<':
            buf_puts(b, "&lt;");
            break;
        case '>':
            buf_puts(b, "&gt;");
            break;
        case '&':
            buf_puts(b, "&amp;");
            break;
        case '"':
            buf_puts(b, "&quot;");
            break;
        default:
            buf_putc(b, (unsigned char)s[i] < 0x20 ? ' ' : s[i]);
        }
}

static void text_at(struct buf *b, double x, double y, const char *anchor, const char *class_,
                    const char *s)
{
    buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"", x, y, anchor);
    if (class_)
        buf_printf(b, " class=\"%s\"", class_);
    buf_putc(b, '>');
    put_text(b, s, strlen(s));
    buf_puts(b, "</text>\n");
}

/* The mark of series i around a point. */
static void mark_at(struct buf *b, size_t i, double x, double y)
{
    switch (i % 4) {
    case 0:
        buf_printf(b, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" class=\"s%zu\"/>\n", x, y, i);
        break;
    case 1:
        buf_printf(b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\" class=\"s%zu\"/>\n",
                   x - 3.5, y - 3.5, i);
        break;
    case 2:
        buf_printf(b, "<path d=\"M%.1f %.1fl4.5 8h-9z\" class=\"s%zu\"/>\n", x, y - 5, i);
        break;
    default:
        buf_printf(b, "<path d=\"M%.1f %.1fl5 5l-5 5l-5 -5z\" class=\"s%zu\"/>\n", x, y - 5, i);
    }
}

/* ------------------------------------------------------------------ ranges */

static void widen(double v, double *lo, double *hi)
{
    *lo = fmin(*lo, v);
    *hi = fmax(*hi, v);
}

static enum fst_status range(const struct plot *p, bool of_x, double *lo, double *hi)
{
    const struct plot_axis *axis = of_x ? &p->x : &p->y;
    *lo = INFINITY;
    *hi = -INFINITY;
    for (size_t s = 0; s < p->n_series; s++)
        for (size_t i = 0; i < p->series[s].n; i++) {
            double v = of_x ? p->series[s].x[i] : p->series[s].y[i];
            if (isnan(v) || isnan(p->series[s].y[i]))
                continue;
            if (isinf(v) || (axis->log && v <= 0))
                return fst_error(FST_EINVAL, "plot: \"%s\" cannot show %g", axis->label, v);
            widen(v, lo, hi);
        }
    return *lo <= *hi ? FST_OK : fst_error(FST_EINVAL, "plot: no values for \"%s\"", axis->label);
}

static enum fst_status check(const struct plot *p)
{
    size_t points = 0;
    bool bars = p->kind != PLOT_LINES;
    for (size_t s = 0; s < p->n_series && s < PLOT_SERIES_MAX; s++)
        points += p->series[s].n;
    if (!p->n_series || !points)
        return fst_error(FST_EINVAL, "plot: nothing to draw");
    if (p->n_series > PLOT_SERIES_MAX || points > PLOT_POINTS_MAX || p->n_words > PLOT_WORDS_MAX)
        return fst_error(FST_EINVAL, "plot: more than %d series, %d points or %d bars",
                         PLOT_SERIES_MAX, PLOT_POINTS_MAX, PLOT_WORDS_MAX);
    for (size_t s = 0; s < p->n_series; s++)
        FST_ASSERT(!bars || p->series[s].n <= p->n_words);
    return FST_OK;
}

/* ------------------------------------------------------------------ frame */

/* In one row, or two. */
static void put_legend(struct buf *b, const struct plot *p)
{
    double x = LEFT, y = 44;
    for (size_t s = 0; s < p->n_series; s++) {
        double width = 40 + 7.0 * (double)strlen(p->series[s].name);
        if (x + width > WIDTH && x > LEFT) {
            x = LEFT;
            y += 17;
        }
        mark_at(b, s, x, y);
        if (p->kind == PLOT_LINES)
            buf_printf(b,
                       "<path d=\"M%.1f %.1fh24\" class=\"line s%zu\" stroke-dasharray=\"%s\"/>\n",
                       x - 12, y, s, dashes[s]);
        text_at(b, x + 16, y + 4, "start", NULL, p->series[s].name);
        x += width;
    }
}

static int caption_lines(const struct plot *p)
{
    return (int)div_up((int64_t)strlen(p->caption), CAPTION_CHARS);
}

/* At blanks where there is one in the last third of a line. */
static void put_caption(struct buf *b, const struct plot *p, double y)
{
    const char *s = p->caption;
    for (size_t left = strlen(s); left; y += LINE) {
        size_t n = FST_MIN(left, (size_t)CAPTION_CHARS);
        for (size_t k = n; n < left && k > CAPTION_CHARS * 2 / 3; k--)
            if (s[k] == ' ') {
                n = k;
                break;
            }
        buf_printf(b, "<text x=\"16\" y=\"%.1f\" class=\"caption\">", y);
        put_text(b, s, n);
        buf_puts(b, "</text>\n");
        s += n;
        left -= n;
        while (left && *s == ' ')
            s++, left--;
    }
}

static void put_head(struct buf *b, const struct plot *p, double height)
{
    buf_printf(
        b,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" viewBox=\"0 0 %d "
        "%.0f\" role=\"img\">\n<title>",
        WIDTH, height, WIDTH, height);
    put_text(b, p->title, strlen(p->title));
    buf_printf(
        b, "</title>\n<style>%s</style>\n<rect class=\"ground\" width=\"%d\" height=\"%.0f\"/>\n",
        style, WIDTH, height);
    text_at(b, 16, 26, "start", "title", p->title);
    if (p->n_series > 1 || p->kind == PLOT_LINES)
        put_legend(b, p);
}

static void grid_line(struct buf *b, double x1, double y1, double x2, double y2, const char *class_)
{
    buf_printf(b, "<path d=\"M%.1f %.1fL%.1f %.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class_);
}

/* ------------------------------------------------------------------ kinds */

static void y_axis(struct buf *b, const struct plot *p, const struct scale *y)
{
    char text[32];
    for (int i = 0; i < y->n_ticks; i++) {
        double at = scale_place(y, y->tick[i]);
        grid_line(b, LEFT, at, WIDTH - RIGHT, at, i ? "grid" : "axis");
        scale_text(text, y->tick[i]);
        text_at(b, LEFT - 8, at + 4, "end", NULL, text);
    }
    buf_printf(b, "<text transform=\"translate(18 %d) rotate(-90)\" text-anchor=\"middle\">",
               TOP + HEIGHT / 2);
    put_text(b, p->y.label, strlen(p->y.label));
    buf_puts(b, "</text>\n");
}

static void draw_line(struct buf *b, const struct plot *p, size_t s, const struct scale *x,
                      const struct scale *y)
{
    const struct plot_series *r = &p->series[s];
    bool pen = false;
    buf_printf(b, "<path class=\"line s%zu\" stroke-dasharray=\"%s\" d=\"", s, dashes[s]);
    for (size_t i = 0; i < r->n; i++) {
        if (isnan(r->y[i])) {
            pen = false;
            continue;
        }
        buf_printf(b, "%c%.1f %.1f", pen ? 'L' : 'M', scale_place(x, r->x[i]),
                   scale_place(y, r->y[i]));
        pen = true;
    }
    buf_puts(b, "\"/>\n");
    for (size_t i = 0; i < r->n && r->n <= 200; i++)
        if (!isnan(r->y[i]))
            mark_at(b, s, scale_place(x, r->x[i]), scale_place(y, r->y[i]));
}

static enum fst_status lines(struct buf *b, const struct plot *p)
{
    double lo, hi;
    struct scale x, y;
    char text[32];
    double foot = TOP + HEIGHT;
    FST_TRY(range(p, true, &lo, &hi));
    scale_init(&x, p->x.log, lo, hi, LEFT, WIDTH - LEFT - RIGHT);
    FST_TRY(range(p, false, &lo, &hi));
    scale_init(&y, p->y.log, lo, hi, foot, -HEIGHT);
    put_head(b, p, foot + 62 + LINE * caption_lines(p));
    y_axis(b, p, &y);
    for (int i = 0; i < x.n_ticks; i++) {
        double at = scale_place(&x, x.tick[i]);
        grid_line(b, at, TOP, at, foot, i ? "grid" : "axis");
        scale_text(text, x.tick[i]);
        text_at(b, at, foot + 18, "middle", NULL, text);
    }
    text_at(b, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, foot + 38, "middle", NULL, p->x.label);
    for (size_t s = 0; s < p->n_series; s++)
        draw_line(b, p, s, &x, &y);
    put_caption(b, p, foot + 60);
    return FST_OK;
}

static enum fst_status bars(struct buf *b, const struct plot *p)
{
    double lo, hi, foot = TOP + HEIGHT, room = (double)(WIDTH - LEFT - RIGHT) / (double)p->n_words;
    double width = 0.8 * room / (double)p->n_series;
    struct scale y;
    char text[32];
    FST_TRY(range(p, false, &lo, &hi));
    scale_init(&y, p->y.log, lo, hi, foot, -HEIGHT);
    put_head(b, p, foot + 62 + LINE * caption_lines(p));
    y_axis(b, p, &y);
    for (size_t k = 0; k < p->n_words; k++) {
        double left = LEFT + room * ((double)k + 0.1);
        text_at(b, LEFT + room * ((double)k + 0.5), foot + 18, "middle", NULL, p->words[k]);
        for (size_t s = 0; s < p->n_series; s++) {
            if (k >= p->series[s].n || isnan(p->series[s].y[k]))
                continue;
            double v = p->series[s].y[k], top = scale_place(&y, v);
            double at = left + width * (double)s;
            buf_printf(
                b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"s%zu\"/>\n",
                at, top, fmax(width - 2, 1), foot - top, s);
            scale_text(text, v);
            if (width >= 34)
                text_at(b, at + width / 2 - 1, top - 4, "middle", NULL, text);
        }
    }
    text_at(b, LEFT + (WIDTH - LEFT - RIGHT) / 2.0, foot + 38, "middle", NULL, p->x.label);
    put_caption(b, p, foot + 60);
    return FST_OK;
}

static enum fst_status bars_across(struct buf *b, const struct plot *p)
{
    double lo, hi, foot = TOP + BAR_HEIGHT * (double)p->n_words;
    double height = (BAR_HEIGHT - 5) / (double)p->n_series;
    struct scale x;
    char text[32];
    FST_TRY(range(p, false, &lo, &hi));
    scale_init(&x, p->y.log, lo, hi, WORD_WIDTH, WIDTH - WORD_WIDTH - RIGHT - 40);
    put_head(b, p, foot + 62 + LINE * caption_lines(p));
    for (int i = 0; i < x.n_ticks; i++) {
        double at = scale_place(&x, x.tick[i]);
        grid_line(b, at, TOP - 6, at, foot, i ? "grid" : "axis");
        scale_text(text, x.tick[i]);
        text_at(b, at, foot + 18, "middle", NULL, text);
    }
    for (size_t k = 0; k < p->n_words; k++) {
        double top = TOP + BAR_HEIGHT * (double)k;
        text_at(b, WORD_WIDTH - 8, top + 10, "end", NULL, p->words[k]);
        for (size_t s = 0; s < p->n_series; s++) {
            if (k >= p->series[s].n || isnan(p->series[s].y[k]))
                continue;
            double v = p->series[s].y[k], end = scale_place(&x, v);
            buf_printf(
                b, "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"s%zu\"/>\n",
                WORD_WIDTH, top + height * (double)s, end - WORD_WIDTH, height, s);
            scale_text(text, v);
            if (p->n_series == 1)
                text_at(b, end + 5, top + 10, "start", NULL, text);
        }
    }
    text_at(b, WORD_WIDTH + (WIDTH - WORD_WIDTH - RIGHT) / 2.0, foot + 38, "middle", NULL,
            p->y.label);
    put_caption(b, p, foot + 60);
    return FST_OK;
}

enum fst_status plot_svg(struct buf *out, const struct plot *p)
{
    FST_TRY(check(p));
    enum fst_status rc = p->kind == PLOT_LINES  ? lines(out, p)
                         : p->kind == PLOT_BARS ? bars(out, p)
                                                : bars_across(out, p);
    if (rc < 0)
        return rc;
    buf_puts(out, "</svg>\n");
    return out->failed ? fst_error(FST_ENOMEM, "plot: no memory") : FST_OK;
}
