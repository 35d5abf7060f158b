/* gate.c - see gate.h.  What parse.c does with newlines, fences and tags, a byte at a time. */
#include "chat/gate.h"

#include "chat/protocol.h"
#include "chat/tags.h"

struct gate_rules {
    const struct tokenizer *t;
    int32_t mark;
    int32_t *closing; /* owned: ids that can end a tag: they hold a '>' */
    size_t n_closing;
    bool whole; /* some of them hold a whole tag and more */
};

static bool is_newline(char c)
{
    return c == '\r' || c == '\n';
}

void gate_init(struct gate *g, const struct chat_prompt *p, bool of_content)
{
    *g = (struct gate){.in_thoughts = p->start == CHAT_START_REASONING,
                       .of_content = of_content,
                       .tools_on = p->tools_on,
                       .line_start = !p->continued};
}

static enum gate_event feed_byte(struct gate *g, char c);

/* What is held is no tag: its '<' is text. */
static enum gate_event let_go(struct gate *g)
{
    char held[GATE_HELD_MAX];
    uint8_t n = g->n_held;
    enum gate_event e = GATE_SHUT;

    memcpy(held, g->held, n);
    g->n_held = 0;
    fence_feed(&g->fence, held, 1);
    g->line_start = false;
    for (uint8_t i = 1; i < n && e == GATE_SHUT; i++)
        e = feed_byte(g, held[i]);
    return e;
}

static enum gate_event feed_byte(struct gate *g, char c)
{
    enum tag_match end, open = TAG_NO;
    size_t len;

    if (!g->n_held && c != '<') {
        fence_feed(&g->fence, &c, 1);
        g->line_start = is_newline(c);
        return GATE_SHUT;
    }
    if (!g->n_held)
        g->held_line = g->line_start && !fence_inside(&g->fence);
    g->held[g->n_held++] = c;
    end = tag_literal(g->held, g->n_held, PROTOCOL_END_THINK);
    if (g->held_line && g->tools_on)
        open = tag_calls_open(g->held, g->n_held, &len);
    if (end == TAG_YES) {
        g->n_held = 0;
        if (!g->in_thoughts)
            return GATE_SHUT;
        g->in_thoughts = false;
        g->line_start = true;
        g->fence = (struct fence){0};
        return g->of_content ? GATE_OPEN : GATE_SHUT;
    }
    if (open == TAG_YES)
        return GATE_FOUL;
    if ((end == TAG_MORE || open == TAG_MORE) && g->n_held < GATE_HELD_MAX)
        return GATE_SHUT;
    return let_go(g);
}

enum gate_event gate_feed(const struct gate_rules *rules, struct gate *g, int32_t id)
{
    size_t len;
    const char *s = tokenizer_bytes(rules->t, id, &len);
    enum gate_event e = GATE_SHUT;

    if (id == rules->mark && g->n_held == 1 && g->held_line && g->tools_on)
        return GATE_BLOCK;
    if (tokenizer_is_special(rules->t, id))
        return GATE_SHUT;
    for (size_t i = 0; i < len && e != GATE_FOUL; i++)
        if (e == GATE_OPEN)
            e = is_newline(s[i]) ? GATE_OPEN : GATE_FOUL;
        else
            e = feed_byte(g, s[i]);
    return e;
}

bool gate_bar(const struct gate_rules *rules, const struct gate *g, uint32_t *mask)
{
    bool any = false;

    if (!g->n_held && !rules->whole)
        return false;
    for (size_t i = 0; i < rules->n_closing; i++) {
        int32_t id = rules->closing[i];
        struct gate next = *g;
        if (gate_feed(rules, &next, id) != GATE_FOUL)
            continue;
        any = true;
        if (!mask)
            break;
        mask[id / 32] &= ~(1u << (id % 32));
    }
    return any;
}

enum fst_status gate_rules_new(struct gate_rules **out, const struct tokenizer *t)
{
    struct gate_rules *g = mem_calloc(1, sizeof *g);
    int32_t n = tokenizer_vocab_size(t);
    size_t len, count = 0;

    *out = NULL;
    if (!g)
        return fst_error(FST_ENOMEM, "no memory for a gate");
    g->t = t;
    g->mark = tokenizer_specials(t)->dsml;
    for (int round = 0; round < 2; round++) { /* count, then fill */
        count = 0;
        for (int32_t id = 0; id < n; id++) {
            const char *s = tokenizer_bytes(t, id, &len);
            if (memchr(s, '>', len) && !tokenizer_is_special(t, id)) {
                if (round)
                    g->closing[count] = id;
                count++;
            }
        }
        if (!round && !(g->closing = mem_calloc(count + 1, sizeof *g->closing))) {
            mem_free(g);
            return fst_error(FST_ENOMEM, "no memory for a gate");
        }
    }
    g->n_closing = count;
    for (size_t i = 0; i < count; i++) {
        struct gate fresh = {
            .in_thoughts = true, .of_content = true, .tools_on = true, .line_start = true};
        g->whole |= gate_feed(g, &fresh, g->closing[i]) == GATE_FOUL;
    }
    *out = g;
    return FST_OK;
}

void gate_rules_free(struct gate_rules *g)
{
    if (g)
        mem_free(g->closing);
    mem_free(g);
}
