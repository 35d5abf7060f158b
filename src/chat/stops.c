/* stops.c - Knuth, Morris and Pratt, one automaton per stop string (there are at most 64). */
#include "chat/stops.h"

enum fst_status stops_init(struct stops *s, const struct chat_str *list, size_t n)
{
    *s = (struct stops){0};
    if (n == 0)
        return FST_OK;
    s->one = mem_calloc(n, sizeof *s->one);
    if (!s->one)
        goto no_memory;
    for (size_t i = 0; i < n; i++) {
        struct stops_one *o = &s->one[i];

        if (list[i].len == 0 || list[i].len > UINT32_MAX) {
            stops_release(s);
            return fst_error(FST_EINVAL, "stop[%zu]: a stop string must not be empty", i);
        }
        s->n = i + 1;
        o->len = (uint32_t)list[i].len;
        o->text = mem_alloc(o->len);
        o->back = mem_alloc(o->len * sizeof *o->back);
        if (!o->text || !o->back)
            goto no_memory;
        memcpy(o->text, list[i].data, o->len);
        o->back[0] = 0;
        for (uint32_t at = 1, k = 0; at < o->len; at++) {
            while (k && o->text[at] != o->text[k])
                k = o->back[k - 1];
            k += o->text[at] == o->text[k];
            o->back[at] = k;
        }
    }
    return FST_OK;
no_memory:
    stops_release(s);
    return fst_error(FST_ENOMEM, "no memory for stop strings");
}

void stops_release(struct stops *s)
{
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->one[i].text);
        mem_free(s->one[i].back);
    }
    mem_free(s->one);
    *s = (struct stops){0};
}

void stops_reset(struct stops *s)
{
    for (size_t i = 0; i < s->n; i++)
        s->one[i].matched = 0;
}

bool stops_feed(struct stops *s, const char *text, size_t len, size_t *used, int *index)
{
    for (size_t at = 0; s->n && at < len; at++) {
        int hit = -1;

        for (size_t i = 0; i < s->n; i++) {
            struct stops_one *o = &s->one[i];
            uint32_t k = o->matched;
            while (k && o->text[k] != text[at])
                k = o->back[k - 1];
            k += o->text[k] == text[at];
            o->matched = k;
            if (k == o->len && (hit < 0 || k > s->one[hit].len))
                hit = (int)i;
        }
        if (hit >= 0) {
            *used = at + 1;
            *index = hit;
            return true;
        }
    }
    *used = len;
    return false;
}

size_t stops_held(const struct stops *s)
{
    uint32_t held = 0;

    for (size_t i = 0; i < s->n; i++)
        held = FST_MAX(held, s->one[i].matched);
    return held;
}
