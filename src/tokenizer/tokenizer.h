/* tokenizer.h - text to ids and back, for byte-level BPE vocabularies of DeepSeek's kind.
 *
 * Any tokenizer.json of that kind loads: BPE without unknown token or byte fallback, no normaliser,
 * three isolated Splits (digits by three, CJK, words and punctuation) and ByteLevel.  Another kind
 * is refused with what differs.  Special tokens are looked up by their text, never by number.
 *
 * Threads: struct tokenizer is immutable after load; every function here that takes it const may be
 * called from any number of threads at once.
 *
 * Encoding is total: bytes that are no UTF-8 are pieces of no class and keep their value, so that
 * decode(encode(x)) == x for every byte string.  Cost: O(n log n) in the length of a piece. */
#ifndef FST_TOKENIZER_H
#define FST_TOKENIZER_H

#include "base/base.h"

struct tokenizer;

/* `path` is the tokenizer.json itself ("-": standard input).  FST_ENOTFOUND, FST_EIO, FST_EBUDGET
 * (above 256 MiB), FST_EFORMAT (malformed), FST_EUNSUPPORTED (another kind; the message names the
 * first field that differs), FST_ENOMEM. */
enum fst_status tokenizer_load(struct tokenizer **out, const char *path);
/* The same from memory; `name` is for messages. */
enum fst_status tokenizer_parse(struct tokenizer **out, const char *json, size_t len,
                                const char *name);
void tokenizer_free(struct tokenizer *t); /* NULL is fine */

/* Ids that the prompt renderer, the parser and the engine need.  The first seven are always there
 * (load fails without them); the others are -1 where the vocabulary has no such token. */
struct tokenizer_specials {
    int32_t bos, eos, user, assistant, think, end_think, dsml;
    int32_t pad, latest_reminder, action, query, authority, domain, title, read_url;
};
const struct tokenizer_specials *tokenizer_specials(const struct tokenizer *t);
/* Id of the added token with exactly this text, or -1. */
int32_t tokenizer_special(const struct tokenizer *t, const char *text);

/* Highest named id + 1.  The model's table may have more rows: ids without a name decode to "". */
int32_t tokenizer_vocab_size(const struct tokenizer *t);
bool tokenizer_is_named(const struct tokenizer *t, int32_t id);
/* What skip_special_tokens leaves out: added tokens flagged special, except <think>, </think> and
 * the DSML marker, which text parsers need. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* A growing list of ids; zero is a valid start. */
struct tokenizer_ids {
    int32_t *id; /* owned */
    size_t n, cap;
};
void tokenizer_ids_release(struct tokenizer_ids *ids);
enum fst_status tokenizer_ids_push(struct tokenizer_ids *ids, int32_t id);

/* Append the ids of text[0..len) to out.  `allowed` says where added tokens are looked for: bit
 * (i & 7) of byte i / 8 stands for text[i]; an added token counts only where all its bytes are
 * allowed; NULL means nowhere.  Text on both sides of a border of `allowed` is one text: it is split
 * and merged as if the border were not there.  Never adds BOS or EOS.  Only FST_ENOMEM. */
enum fst_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                                 const uint8_t *allowed, struct tokenizer_ids *out);
/* The same with added tokens looked for everywhere (parse_special) or nowhere. */
enum fst_status tokenizer_encode_text(const struct tokenizer *t, const char *text, size_t len,
                                      bool parse_special, struct tokenizer_ids *out);

/* The bytes of one id: borrowed from t, NUL-terminated, may be half a code point; "" with *len 0 for
 * ids without a name (negative or too high ones too). */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, size_t *len);
/* Text of all ids appended to out, always valid UTF-8: what can be none becomes U+FFFD as in Python's
 * bytes.decode(errors="replace").  For streams put tokenizer_bytes through utf8_stream of
 * base/utf8.h, which never splits a code point. */
enum fst_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                                 bool skip_special, struct buf *out);

#endif
