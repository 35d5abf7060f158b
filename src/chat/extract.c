/* extract.c - see extract.h. */
#include "chat/extract.h"

enum { BEFORE, BARE, FENCED, AFTER };

static const char fence_end[] = "\n```";

void extract_release(struct extract *x)
{
    buf_release(&x->skipped);
}

static bool fence_opened(const struct extract *x)
{
    const char *s = buf_str(&x->skipped);

    return memmem(s, x->skipped.len, "```json\n", 8) || memmem(s, x->skipped.len, "```\n", 4);
}

/* Inside the fence: text leaves up to a possible end. */
static void feed_fenced(struct extract *x, const char *text, size_t len, uint64_t at,
                        extract_fn *emit, void *ud)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == fence_end[x->matched]) {
            x->matched++;
            if (x->matched < sizeof fence_end - 1)
                continue;
            if (i + 1 > x->matched)
                emit(ud, text, i + 1 - x->matched, at);
            x->where = AFTER;
            return;
        }
        if (x->matched > i) /* part of what was held lies before this piece */
            emit(ud, fence_end, x->matched - i, at - (x->matched - i));
        x->matched = text[i] == '\n';
    }
    if (len > x->matched)
        emit(ud, text, len - x->matched, at);
}

void extract_feed(struct extract *x, const char *text, size_t len, uint64_t at, extract_fn *emit,
                  void *ud)
{
    size_t i = 0;

    x->end = at + len;
    if (x->where == BEFORE) {
        while (i < len && text[i] != '{' && text[i] != '[')
            i++;
        buf_append(&x->skipped, text, i);
        if (i == len)
            return;
        x->where = fence_opened(x) ? FENCED : BARE;
    }
    if (x->where == BARE)
        emit(ud, text + i, len - i, at + i);
    else if (x->where == FENCED)
        feed_fenced(x, text + i, len - i, at + i, emit, ud);
}

void extract_end(struct extract *x, extract_fn *emit, void *ud)
{
    if (x->where == BEFORE && x->skipped.len)
        emit(ud, x->skipped.data, x->skipped.len, x->end - x->skipped.len);
    if (x->where == FENCED && x->matched)
        emit(ud, fence_end, x->matched, x->end - x->matched);
    x->where = AFTER;
}
