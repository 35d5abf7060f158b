/* vocab.h - inside of struct grammar_vocab; for the files of this folder only.
 *
 * Tokens as a trie in preorder: a walk is a loop over an array, a subtree is skipped by an index.
 * Tokens of safe characters alone (printable ASCII but for " \ <, and whole characters beyond ASCII)
 * are half of a vocabulary and nearly all of its nodes; where every run of safe characters is legal
 * their mask is ready, and only the `rest` is walked. */
#ifndef FST_GRAMMAR_VOCAB_H
#define FST_GRAMMAR_VOCAB_H

#include "grammar/inside.h"

enum { VOCAB_TOKEN_MAX = 255, VOCAB_SAFE_STEPS = 16 };

struct trie_node {
    uint32_t skip; /* first node that is not below this one */
    int32_t id;    /* token that ends here, or -1 */
    uint8_t byte;
    uint8_t depth; /* bytes before this one */
};
/* What the tokens of a subtree are made of, behind the bytes in front of it: of this node on. */
struct trie_sort {
    uint64_t kinds;   /* of the characters that begin in it (vocab_kind) */
    uint16_t n_chars; /* of the longest token */
    bool is_whole;    /* UTF-8, and no token ends inside a character */
};
struct trie {
    struct trie_node *node;
    struct trie_sort *sort; /* of each node; NULL: not made */
    uint32_t n;
    uint32_t root[257]; /* first node whose first byte is at least i */
};
/* Tokens of the same kinds of characters, in `sorted` by their number of characters. */
struct vocab_group {
    uint64_t kinds;
    uint32_t first, n;
};
struct vocab_safe {
    int32_t id;
    int32_t n_chars;
};
struct grammar_vocab {
    int32_t n_ids, eos;
    size_t words; /* of a mask */
    struct arena mem;
    char *blob;
    uint32_t *at;  /* n_ids + 1 places in blob */
    int32_t *same; /* next token of the same bytes, or -1 */
    struct trie all, rest;
    uint32_t *safe[VOCAB_SAFE_STEPS + 1]; /* [k]: of at most k characters; [0]: of any length */
    struct vocab_group *group;
    size_t n_groups;
    struct vocab_safe *sorted;
    struct vocab_safe *longer; /* of more than VOCAB_SAFE_STEPS, by n_chars */
    size_t n_longer;
    uint32_t longest; /* bytes of a token */
};

/* Bytes of a safe character that begins with `lead`, 0 if none does. */
static inline int vocab_safe_lead(int lead)
{
    if (lead < 0x80)
        return lead >= 0x20 && lead < 0x7f && lead != '"' && lead != '\\' && lead != '<';
    return lead >= 0xc2 && lead < 0xe0   ? 2
           : lead >= 0xe0 && lead < 0xf0 ? 3
           : lead >= 0xf0 && lead < 0xf5 ? 4
                                         : 0;
}
/* The second bytes that make UTF-8 with this lead. */
static inline void vocab_second_byte(int lead, int *lo, int *hi)
{
    *lo = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    *hi = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
}

/* Kinds of characters that grammars mostly take or leave together: 13 of ASCII, then one for each first
 * byte of longer characters.  64 of them. */
enum { VOCAB_KINDS = 64, VOCAB_KINDS_ASCII = 13 };
static inline int vocab_kind(uint8_t lead)
{
    static const char own[] = " _-./\"\\<";

    if (lead >= 0xc2)
        return lead > 0xf4 ? -1 : VOCAB_KINDS_ASCII + lead - 0xc2;
    if (lead >= 0x80)
        return -1;
    if (lead >= 'a' && lead <= 'z')
        return 0;
    if (lead >= 'A' && lead <= 'Z')
        return 1;
    if (lead >= '0' && lead <= '9')
        return 2;
    if (lead < 0x20 || lead == 0x7f)
        return 3;
    for (int i = 0; i < 8; i++)
        if (own[i] == (char)lead)
            return 5 + i;
    return 4;
}

static inline const char *vocab_bytes(const struct grammar_vocab *v, int32_t id, size_t *len)
{
    *len = id < 0 || id >= v->n_ids ? 0 : v->at[id + 1] - v->at[id];
    return *len ? v->blob + v->at[id] : "";
}

#endif
