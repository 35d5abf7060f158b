/* added.c - where added tokens ("<think>", "<|User|>", ...) stand in a text: a byte trie. */
#include "tokenizer/vocab.h"

static uint32_t edge_hash(uint32_t key)
{
    key *= 0x9e3779b1u;
    return key ^ key >> 15;
}

/* Node behind (node, byte), or 0. */
static uint32_t follow(const struct tokenizer *t, uint32_t node, unsigned byte)
{
    uint32_t key = node << 8 | byte;
    uint32_t h = edge_hash(key) & t->edge_mask;

    for (; t->edge[h].to; h = (h + 1) & t->edge_mask)
        if (t->edge[h].from_and_byte == key)
            return t->edge[h].to;
    return 0;
}

/* Room for one more node: both tables double when half full. */
static bool grow(struct tokenizer *t)
{
    uint32_t size = t->edge ? t->edge_mask + 1 : 0;
    struct vocab_edge *old = t->edge;
    int32_t *ids;

    if (size && t->n_nodes < size / 2)
        return true;
    size = size ? size * 2 : 1024;
    ids = mem_realloc(t->node_id, size / 2 * sizeof *ids);
    if (!ids)
        return false;
    t->node_id = ids;
    t->edge = mem_calloc(size, sizeof *t->edge);
    if (!t->edge) {
        t->edge = old;
        return false;
    }
    t->edge_mask = size - 1;
    for (uint32_t i = 0; old && i < size / 2; i++) {
        uint32_t h = edge_hash(old[i].from_and_byte) & t->edge_mask;
        if (!old[i].to)
            continue;
        while (t->edge[h].to)
            h = (h + 1) & t->edge_mask;
        t->edge[h] = old[i];
    }
    mem_free(old);
    if (t->n_nodes == 0) {
        t->n_nodes = 1;
        t->node_id[0] = -1;
    }
    return true;
}

bool added_init(struct tokenizer *t)
{
    return grow(t);
}

bool added_insert(struct tokenizer *t, int32_t id)
{
    const char *text = t->blob + t->token[id].at;
    uint32_t node = 0;

    for (uint32_t i = 0; i < t->token[id].len; i++) {
        unsigned byte = (unsigned char)text[i];
        uint32_t to, h;

        if (!grow(t))
            return false;
        to = follow(t, node, byte);
        if (!to) {
            to = t->n_nodes++;
            t->node_id[to] = -1;
            for (h = edge_hash(node << 8 | byte) & t->edge_mask; t->edge[h].to;)
                h = (h + 1) & t->edge_mask;
            t->edge[h] = (struct vocab_edge){node << 8 | byte, to};
        }
        node = to;
    }
    t->first_byte[(unsigned char)text[0]] = true;
    t->node_id[node] = id;
    return true;
}

size_t added_match(const struct tokenizer *t, const char *text, size_t pos, size_t len,
                   const uint8_t *allowed, bool normalized, int32_t *id)
{
    size_t best = 0;
    uint32_t node = 0;

    for (size_t i = pos; i < len; i++) {
        if (allowed && !(allowed[i >> 3] >> (i & 7) & 1))
            break;
        node = follow(t, node, (unsigned char)text[i]);
        if (!node)
            break;
        if (t->node_id[node] >= 0 && t->token[t->node_id[node]].is_normalized == normalized) {
            best = i + 1 - pos;
            *id = t->node_id[node];
        }
    }
    return best;
}

int32_t tokenizer_special(const struct tokenizer *t, const char *text)
{
    uint32_t node = 0;

    for (const char *p = text; *p; p++) {
        node = follow(t, node, (unsigned char)*p);
        if (!node)
            return -1;
    }
    return t->node_id[node];
}
