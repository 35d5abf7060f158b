/* vocab.h - inside of struct tokenizer; for the files of this folder only. */
#ifndef FST_TOKENIZER_VOCAB_H
#define FST_TOKENIZER_VOCAB_H

#include "tokenizer/tokenizer.h"

enum {
    VOCAB_IDS_MAX = 1 << 22,   /* an id beyond this is a damaged file */
    VOCAB_MERGES_MAX = 1 << 22 /* ranks fit in the upper half of a heap key */
};

struct vocab_token {
    uint32_t at, len; /* bytes in blob, followed by NUL; len 0: no name */
    bool is_added;
    bool is_special;    /* skip_special_tokens leaves it out */
    bool is_normalized; /* added: found in a second scan only */
    bool
        is_whole; /* its own bytes encode to just this id, so a piece equal to it needs no merging */
};

/* One merge: pair of ids to rank and result.  Open addressing; result -1 marks a free slot. */
struct vocab_merge {
    int32_t left, right;
    int32_t rank, result;
};

/* An edge of the trie of added tokens.  Open addressing; to 0 (the root) marks a free slot. */
struct vocab_edge {
    uint32_t from_and_byte; /* node << 8 | byte */
    uint32_t to;
};

struct tokenizer {
    int32_t n_ids; /* highest named id + 1 */
    struct vocab_token *token;
    char *blob;
    size_t blob_len;

    uint32_t *piece_slot; /* id + 1 of ordinary tokens by hash of their bytes; 0 free */
    uint32_t piece_mask;
    uint32_t longest; /* bytes of the longest ordinary token */
    int32_t byte_id[256];

    struct vocab_merge *merge;
    uint32_t merge_mask;

    struct vocab_edge *edge;
    uint32_t edge_mask;
    int32_t *node_id; /* id that ends at a trie node, or -1 */
    uint32_t n_nodes;
    bool first_byte[256]; /* an added token begins so */
    bool has_normalized;

    struct tokenizer_specials special;
};

/* load.c: vocabulary from JSON.  bpe.c: */
uint32_t vocab_hash(const char *s, size_t len);
/* Ordinary token with these bytes, or -1. */
int32_t vocab_find(const struct tokenizer *t, const char *s, size_t len);
const struct vocab_merge *vocab_find_merge(const struct tokenizer *t, int32_t left, int32_t right);
/* Ids of one piece by merging alone. */
enum fst_status bpe_merge(const struct tokenizer *t, const char *piece, size_t len,
                          struct tokenizer_ids *out);

/* added.c: the trie.  init and insert return false when out of memory. */
bool added_init(struct tokenizer *t);
bool added_insert(struct tokenizer *t, int32_t id);
/* Length of the longest added token at text[pos] with the wanted normalized flag, all of whose bytes
 * are allowed (NULL: all are); 0 for none.  *id is set for a hit. */
size_t added_match(const struct tokenizer *t, const char *text, size_t pos, size_t len,
                   const uint8_t *allowed, bool normalized, int32_t *id);

#endif
