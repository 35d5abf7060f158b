/* noise.c - what agents put into system texts and change at every request.
 *
 * A changed byte at the front of a prompt makes all of it new.  Two rules, each with its switch
 * (chat_defaults): a coding agent's billing line says nothing to a model and is dropped; date and time
 * say something, so their lines can only be moved behind what stays the same, and only if the operator
 * wants it. */
#include "chat/noise.h"

#include <strings.h>

static const char billing[] = "x-anthropic-billing-header:";

/* What such lines begin with, after marks of lists and headings, in any case. */
static const char *const date_starts[] = {
    "today's date",
    "today\xe2\x80\x99s date",
    "today is",
    "date:",
    "date and time:",
    "current date",
    "the current date",
    "current time",
    "the current time",
    "time:",
    "local time",
    "current local time",
    "current datetime",
    "it is now",
    "now:",
};
enum { DATE_LINE_MAX = 200 }; /* longer ones say more than a date */

static bool starts_with(const char *s, size_t len, const char *start)
{
    size_t n = strlen(start);

    return len >= n && strncasecmp(s, start, n) == 0;
}

static const char *line_end(const char *s, const char *end)
{
    const char *nl = memchr(s, '\n', (size_t)(end - s));

    return nl ? nl : end;
}

bool noise_is_date(const char *line, size_t len)
{
    size_t skip = 0;
    bool has_digit = false;

    while (skip < len && strchr(" \t-*#>_", line[skip]) && line[skip])
        skip++;
    if (len - skip > DATE_LINE_MAX)
        return false;
    for (size_t i = skip; i < len; i++)
        has_digit |= line[i] >= '0' && line[i] <= '9';
    for (size_t i = 0; has_digit && i < FST_COUNT(date_starts); i++)
        if (starts_with(line + skip, len - skip, date_starts[i]))
            return true;
    return false;
}

/* A copy of m with parts of its own; NULL and r->failed without memory. */
static struct chat_message *copy_of(struct chat_request *r, const struct chat_message *m)
{
    struct chat_message *copy = arena_alloc(&r->arena, sizeof *copy);
    struct chat_part *parts = arena_calloc(&r->arena, m->n_parts, sizeof *parts);

    if (!copy || !parts) {
        r->failed = true;
        return NULL;
    }
    *copy = *m;
    memcpy(parts, m->parts, m->n_parts * sizeof *parts);
    copy->parts = parts;
    return copy;
}

/* The line may be a part of its own, or the first of the text; empty parts before it do not count. */
const struct chat_message *noise_without_billing(struct chat_request *r,
                                                 const struct chat_message *m)
{
    struct chat_message *copy = NULL;

    for (size_t i = 0; i < m->n_parts && m->parts[i].is_text; i++) {
        struct chat_str s = m->parts[i].text;
        const char *end = s.data + s.len, *at = s.data;
        bool hit = false;

        while (starts_with(at, (size_t)(end - at), billing)) {
            at = line_end(at, end);
            while (at < end && (*at == '\n' || *at == '\r'))
                at++;
            hit = true;
        }
        if (hit) {
            if (!copy && !(copy = copy_of(r, m)))
                return m;
            copy->parts[i].text = (struct chat_str){at, (size_t)(end - at)};
        }
        if (at < end)
            break;
    }
    return copy ? copy : m;
}

const struct chat_message *noise_without_dates(struct chat_request *r, const struct chat_message *m,
                                               struct buf *lines)
{
    struct chat_message *copy = NULL;

    for (size_t i = 0; i < m->n_parts; i++) {
        struct chat_str s = m->parts[i].text;
        const char *end = s.data + s.len;
        struct buf rest = {0};
        bool hit = false;

        if (!m->parts[i].is_text)
            continue;
        for (const char *at = s.data, *stop; at < end; at = stop) {
            const char *nl = line_end(at, end);
            bool is_date = noise_is_date(at, (size_t)(nl - at));
            stop = nl < end ? nl + 1 : end;
            buf_append(is_date ? lines : &rest, at, (size_t)((is_date ? nl : stop) - at));
            if (is_date)
                buf_putc(lines, '\n');
            hit |= is_date;
        }
        r->failed |= rest.failed || lines->failed;
        if (hit && !r->failed && (copy || (copy = copy_of(r, m))))
            copy->parts[i].text = chat_copy(r, buf_str(&rest), rest.len);
        buf_release(&rest);
    }
    return copy ? copy : m;
}
