/* progress.c - drawing the progress line. */
#include "base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define DRAW_EVERY_NS INT64_C(100000000)
#define BAR_COLUMNS   24

static int terminal_width(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

static bool wants_color(void)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return !(no && *no) && term && strcmp(term, "dumb") != 0;
}

/* "3.1 of 7.4 GB", "3.1 GB" */
static void put_amount(struct buf *out, const struct progress *p, int64_t done)
{
    static const struct {
        double size;
        const char *name;
    } units[] = {{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}};
    double scale = (double)FST_MAX(p->total, done);

    if (p->unit == PROGRESS_BYTES) {
        for (size_t i = 0; i < FST_COUNT(units); i++) {
            if (scale < units[i].size && i + 1 < FST_COUNT(units))
                continue;
            buf_printf(out, "%.1f", (double)done / units[i].size);
            if (p->total > 0)
                buf_printf(out, " of %.1f", (double)p->total / units[i].size);
            buf_printf(out, " %s", units[i].name);
            return;
        }
    }
    buf_printf(out, "%lld", (long long)done);
    if (p->total > 0)
        buf_printf(out, " of %lld", (long long)p->total);
    if (p->unit == PROGRESS_TOKENS)
        buf_puts(out, " tokens");
}

static void put_rate(struct buf *out, const struct progress *p, int64_t done, double seconds)
{
    double rate = seconds > 0 ? (double)done / seconds : 0;

    if (p->unit == PROGRESS_BYTES)
        buf_printf(out, "  %.2f GB/s", rate * 1e-9);
    else
        buf_printf(out, rate < 10 ? "  %.1f/s" : "  %.0f/s", rate);
    if (p->total > 0 && done > 0 && done < p->total) {
        double left = (double)(p->total - done) / rate;
        if (left < 90)
            buf_printf(out, "  %.0f s left", left);
        else if (left < 5400)
            buf_printf(out, "  %.0f min left", left / 60);
        else
            buf_printf(out, "  %.1f h left", left / 3600);
    }
}

/* Full blocks and one block of eighths. */
static void put_bar(struct buf *out, double part, int columns)
{
    int eighths = (int)(part * columns * 8);

    for (int i = 0; i < columns; i++) {
        int k = FST_MIN(FST_MAX(eighths - 8 * i, 0), 8);
        char block[4] = {'\xe2', '\x96', (char)(0x90 - k),
                         0}; /* U+2588 full ... U+258F one eighth */
        buf_puts(out, k ? block : " ");
    }
}

/* Columns of text that holds blocks of three bytes. */
static int columns_of(const struct buf *b)
{
    int n = 0;
    for (size_t i = 0; i < b->len; i++)
        n += ((unsigned char)b->data[i] & 0xc0) != 0x80;
    return n;
}

void progress_render(struct buf *out, const struct progress *p, int64_t done, int64_t elapsed_ns,
                     int width, bool color)
{
    struct buf tail = {0};
    int room;
    double part = p->total > 0 ? (double)FST_MIN(done, p->total) / (double)p->total : 0;

    if (p->total > 0)
        buf_printf(&tail, "  %3.0f%%", 100 * part);
    buf_puts(&tail, "  ");
    put_amount(&tail, p, done);
    put_rate(&tail, p, done, clock_seconds(elapsed_ns));
    room = width - (int)strlen(p->what) - columns_of(&tail);
    buf_printf(out, "%.*s", width, p->what);
    if (p->total > 0 && room >= 6) {
        buf_puts(out, "  ");
        buf_puts(out, color ? "\x1b[36m" : "");
        put_bar(out, part, FST_MIN(room - 2, BAR_COLUMNS));
        buf_puts(out, color ? "\x1b[0m" : "");
    }
    if (room >= 0)
        buf_puts(out, buf_str(&tail));
    buf_release(&tail);
}

void progress_start(struct progress *p, const char *what, enum progress_unit unit, int64_t total)
{
    p->what = what;
    p->unit = unit;
    p->total = total;
    p->start_ns = clock_ns();
    atomic_store(&p->done, 0);
    atomic_store(&p->next_draw_ns, isatty(STDERR_FILENO) ? p->start_ns + DRAW_EVERY_NS : INT64_MAX);
}

static void put_line(const struct buf *b)
{
    /* The terminal may be gone; there is nobody to tell. */
    if (write(STDERR_FILENO, b->data, b->len) < 0)
        return;
}

void progress_add(struct progress *p, int64_t done)
{
    int64_t sum = atomic_fetch_add(&p->done, done) + done;
    int64_t next = atomic_load(&p->next_draw_ns);
    struct buf line = {0};
    int64_t now;

    if (next == INT64_MAX)
        return;
    now = clock_ns();
    if (now < next || !atomic_compare_exchange_strong(&p->next_draw_ns, &next, now + DRAW_EVERY_NS))
        return;
    buf_puts(&line, "\r");
    progress_render(&line, p, sum, now - p->start_ns, terminal_width() - 1, wants_color());
    buf_puts(&line, "\x1b[K");
    put_line(&line);
    buf_release(&line);
}

void progress_end(struct progress *p)
{
    struct buf line = {0};

    if (atomic_exchange(&p->next_draw_ns, INT64_MAX) == INT64_MAX)
        return;
    buf_puts(&line, "\r\x1b[K");
    put_line(&line);
    buf_release(&line);
}
