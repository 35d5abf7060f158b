/* load.c - tokenizer.json to struct tokenizer.
 *
 * Refuses, by the name of the first field that differs, everything that this tokenizer does not do:
 * silently different ids would be worse than no start. */
#include "tokenizer/vocab.h"

#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"

enum { FILE_MAX = 256 << 20 }; /* DeepSeek-V4's is 6.4 MB */

static const char digits_regex[] = "\\p{N}{1,3}";
static const char cjk_regex[] = "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f"
                                "\xe3\x82\xa0-\xe3\x83\xbf]+";
static const char words_regex[] =
    "[!\"#$%&'()*+,\\-./"
    ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";

struct loader {
    struct tokenizer *t;
    const char *name; /* for messages */
    struct buf blob;
};

static enum fst_status no_memory(const struct loader *l)
{
    return fst_error(FST_ENOMEM, "%s: no memory for the vocabulary", l->name);
}

/* ---- the byte-level alphabet ---------------------------------------------------------------- */

static bool is_own_cp(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* byte_of[code point] for U+0000-U+01FF; -1: not in the alphabet.  Printable bytes stand for
 * themselves, the other 68 follow from U+0100 in ascending order. */
static void fill_alphabet(int16_t byte_of[0x200])
{
    int n = 0;

    for (int cp = 0; cp < 0x200; cp++)
        byte_of[cp] = -1;
    for (unsigned b = 0; b < 256; b++)
        byte_of[is_own_cp(b) ? (int)b : 0x100 + n++] = (int16_t)b;
}

/* Appends the bytes that a token's spelling stands for; false if it is not in the alphabet. */
static bool append_bytes(struct buf *out, const int16_t *byte_of, const char *s, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        int k = utf8_decode(s + i, len - i, &cp);
        if (k <= 0 || cp >= 0x200 || byte_of[cp] < 0)
            return false;
        buf_putc(out, (char)byte_of[cp]);
        i += (size_t)k;
    }
    return true;
}

/* ---- is it our kind? ------------------------------------------------------------------------ */

static enum fst_status differs(const struct loader *l, const char *field, const char *expected)
{
    return fst_error(FST_EUNSUPPORTED,
                     "%s: %s: only %s is supported (byte-level BPE as DeepSeek-V4 publishes it)",
                     l->name, field, expected);
}

static bool is_text(json_val *v, const char *text)
{
    size_t len;
    const char *s = json_string(v, &len);

    return s && len == strlen(text) && memcmp(s, text, len) == 0;
}

static bool is_empty_text(json_val *v)
{
    return json_is_null(v) || is_text(v, "");
}

static enum fst_status check_split(const struct loader *l, json_val *v, int i, const char *regex)
{
    char field[64];

    snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[%d]", i);
    if (!is_text(json_get(v, "type"), "Split"))
        return differs(l, field, "type Split");
    snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[%d].pattern", i);
    if (!is_text(json_get(json_get(v, "pattern"), "Regex"), regex))
        return differs(l, field, regex);
    snprintf(field, sizeof field, "pre_tokenizer.pretokenizers[%d].behavior", i);
    if (!is_text(json_get(v, "behavior"), "Isolated") || json_bool(json_get(v, "invert"), false))
        return differs(l, field, "Isolated, not inverted,");
    return FST_OK;
}

static enum fst_status check_kind(const struct loader *l, json_val *root)
{
    json_val *model = json_get(root, "model"), *norm = json_get(root, "normalizer");
    json_val *pre = json_get(root, "pre_tokenizer"), *post = json_get(root, "post_processor");
    json_val *list = json_get(pre, "pretokenizers"), *level;
    double dropout = 0;

    if (json_type_of(root) != JSON_OBJECT || json_type_of(model) != JSON_OBJECT)
        return fst_error(FST_EFORMAT, "%s: no \"model\" object: this is no tokenizer.json",
                         l->name);
    if (!is_text(json_get(model, "type"), "BPE"))
        return differs(l, "model.type", "BPE");
    if (!json_is_null(json_get(model, "unk_token")))
        return differs(l, "model.unk_token", "null");
    if (json_real(json_get(model, "dropout"), &dropout) && dropout != 0)
        return differs(l, "model.dropout", "null");
    if (json_bool(json_get(model, "byte_fallback"), false))
        return differs(l, "model.byte_fallback", "false");
    if (json_bool(json_get(model, "ignore_merges"), false))
        return differs(l, "model.ignore_merges", "false");
    if (!is_empty_text(json_get(model, "continuing_subword_prefix")))
        return differs(l, "model.continuing_subword_prefix", "null");
    if (!is_empty_text(json_get(model, "end_of_word_suffix")))
        return differs(l, "model.end_of_word_suffix", "null");
    if (!json_is_null(norm) && !(is_text(json_get(norm, "type"), "Sequence") &&
                                 json_count(json_get(norm, "normalizers")) == 0))
        return differs(l, "normalizer", "null or an empty Sequence");
    if (!is_text(json_get(pre, "type"), "Sequence") || json_count(list) != 4)
        return differs(l, "pre_tokenizer", "a Sequence of three Splits and ByteLevel");
    FST_TRY(check_split(l, json_at(list, 0), 0, digits_regex));
    FST_TRY(check_split(l, json_at(list, 1), 1, cjk_regex));
    FST_TRY(check_split(l, json_at(list, 2), 2, words_regex));
    level = json_at(list, 3);
    if (!is_text(json_get(level, "type"), "ByteLevel") ||
        json_bool(json_get(level, "add_prefix_space"), true) ||
        json_bool(json_get(level, "use_regex"), true))
        return differs(l, "pre_tokenizer.pretokenizers[3]",
                       "ByteLevel without prefix space and regex");
    if (!json_is_null(post) && !is_text(json_get(post, "type"), "ByteLevel"))
        return differs(l, "post_processor", "null or ByteLevel");
    if (!is_text(json_get(json_get(root, "decoder"), "type"), "ByteLevel"))
        return differs(l, "decoder", "ByteLevel");
    return FST_OK;
}

/* ---- vocabulary ----------------------------------------------------------------------------- */

/* Highest id of "vocab" and "added_tokens". */
static enum fst_status count_ids(struct loader *l, json_val *vocab, json_val *added)
{
    int64_t id, max = -1;

    if (json_type_of(vocab) != JSON_OBJECT)
        return fst_error(FST_EFORMAT, "%s: model.vocab: expected object, got %s", l->name,
                         json_type_name(json_type_of(vocab)));
    if (json_type_of(added) != JSON_ARRAY)
        return fst_error(FST_EFORMAT, "%s: added_tokens: expected array, got %s", l->name,
                         json_type_name(json_type_of(added)));
    for (size_t i = 0; i < json_count(vocab); i++) {
        const char *key;
        size_t len;
        if (!json_int(json_member(vocab, i, &key, &len), &id) || id < 0 || id >= VOCAB_IDS_MAX)
            return fst_error(FST_EFORMAT, "%s: model.vocab[\"%s\"]: expected an id below %d",
                             l->name, key, VOCAB_IDS_MAX);
        max = FST_MAX(max, id);
    }
    for (size_t i = 0; i < json_count(added); i++) {
        if (!json_int(json_get(json_at(added, i), "id"), &id) || id < 0 || id >= VOCAB_IDS_MAX)
            return fst_error(FST_EFORMAT, "%s: added_tokens[%zu].id: expected an id below %d",
                             l->name, i, VOCAB_IDS_MAX);
        max = FST_MAX(max, id);
    }
    l->t->n_ids = (int32_t)max + 1;
    l->t->token = mem_calloc((size_t)l->t->n_ids, sizeof *l->t->token);
    return l->t->token ? FST_OK : no_memory(l);
}

static enum fst_status read_added(struct loader *l, json_val *added)
{
    for (size_t i = 0; i < json_count(added); i++) {
        json_val *v = json_at(added, i);
        struct vocab_token *tok;
        int64_t id = 0;
        size_t len;
        const char *text = json_string(json_get(v, "content"), &len);
        char field[64];

        json_int(json_get(v, "id"), &id);
        if (!text || len == 0 || memchr(text, 0, len))
            return fst_error(FST_EFORMAT, "%s: added_tokens[%zu].content: expected a text", l->name,
                             i);
        snprintf(field, sizeof field, "added_tokens[%zu]", i);
        if (json_bool(json_get(v, "lstrip"), false) || json_bool(json_get(v, "rstrip"), false) ||
            json_bool(json_get(v, "single_word"), false))
            return differs(l, field, "lstrip, rstrip and single_word false");
        tok = &l->t->token[id];
        if (tok->len)
            return fst_error(FST_EFORMAT, "%s: added_tokens[%zu]: id %" PRId64 " is named twice",
                             l->name, i, id);
        tok->at = (uint32_t)l->blob.len;
        tok->len = (uint32_t)len;
        tok->is_added = true;
        tok->is_special = json_bool(json_get(v, "special"), false);
        tok->is_normalized = json_bool(json_get(v, "normalized"), false);
        l->t->has_normalized |= tok->is_normalized;
        buf_append(&l->blob, text, len);
        buf_putc(&l->blob, 0);
    }
    return FST_OK;
}

static enum fst_status read_vocab(struct loader *l, json_val *vocab, const int16_t *byte_of)
{
    for (size_t i = 0; i < json_count(vocab); i++) {
        const char *key;
        size_t len, at = l->blob.len;
        int64_t id = 0;
        struct vocab_token *tok;

        json_int(json_member(vocab, i, &key, &len), &id);
        tok = &l->t->token[id];
        if (tok->is_added)
            continue; /* listed in both places, as 0, 1 and 2 are */
        if (tok->len)
            return fst_error(FST_EFORMAT, "%s: model.vocab: id %" PRId64 " is named twice", l->name,
                             id);
        if (len == 0 || !append_bytes(&l->blob, byte_of, key, len))
            return fst_error(FST_EFORMAT,
                             "%s: model.vocab[\"%s\"]: not spelled in the byte-level alphabet",
                             l->name, key);
        tok->at = (uint32_t)at;
        tok->len = (uint32_t)(l->blob.len - at);
        l->t->longest = FST_MAX(l->t->longest, tok->len);
        buf_putc(&l->blob, 0);
    }
    return l->blob.failed ? no_memory(l) : FST_OK;
}

static uint32_t table_size(size_t n)
{
    uint32_t size = 16;

    while (size < 2 * n)
        size *= 2;
    return size;
}

/* Hash of ordinary tokens, trie of added ones, ids of the 256 bytes. */
static enum fst_status index_tokens(struct loader *l)
{
    struct tokenizer *t = l->t;
    uint32_t size = table_size((size_t)t->n_ids);

    t->piece_slot = mem_calloc(size, sizeof *t->piece_slot);
    if (!t->piece_slot)
        return no_memory(l);
    t->piece_mask = size - 1;
    for (int32_t id = 0; id < t->n_ids; id++) {
        const struct vocab_token *tok = &t->token[id];
        uint32_t h;

        if (!tok->len)
            continue;
        if (tok->is_added) {
            if (tokenizer_special(t, t->blob + tok->at) >= 0)
                return fst_error(FST_EFORMAT, "%s: added token \"%s\" has two ids", l->name,
                                 t->blob + tok->at);
            if (!added_insert(t, id))
                return no_memory(l);
            continue;
        }
        h = vocab_hash(t->blob + tok->at, tok->len) & t->piece_mask;
        while (t->piece_slot[h])
            h = (h + 1) & t->piece_mask;
        t->piece_slot[h] = (uint32_t)id + 1;
    }
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        t->byte_id[b] = vocab_find(t, &c, 1);
        if (t->byte_id[b] < 0)
            return fst_error(FST_EFORMAT, "%s: model.vocab: byte 0x%02x has no token", l->name, b);
    }
    return FST_OK;
}

/* ---- merges --------------------------------------------------------------------------------- */

/* The two spellings of merge i: "a b" or ["a", "b"]. */
static bool merge_sides(json_val *v, const char *side[2], size_t len[2])
{
    const char *s, *space;
    size_t n;

    if (json_type_of(v) == JSON_ARRAY) {
        side[0] = json_string(json_at(v, 0), &len[0]);
        side[1] = json_string(json_at(v, 1), &len[1]);
        return json_count(v) == 2 && side[0] && side[1];
    }
    s = json_string(v, &n);
    space = s ? memchr(s, ' ', n) : NULL;
    if (!space)
        return false;
    side[0] = s;
    len[0] = (size_t)(space - s);
    side[1] = space + 1;
    len[1] = n - len[0] - 1;
    return true;
}

static void put_merge(struct tokenizer *t, struct vocab_merge m)
{
    uint32_t h = ((uint32_t)m.left * 0x9e3779b1u ^ (uint32_t)m.right * 0x85ebca77u);

    h = (h ^ h >> 15) & t->merge_mask;
    while (t->merge[h].result >= 0 && !(t->merge[h].left == m.left && t->merge[h].right == m.right))
        h = (h + 1) & t->merge_mask;
    t->merge[h] = m; /* of two equal lines the later counts */
}

static enum fst_status read_merges(struct loader *l, json_val *merges, const int16_t *byte_of)
{
    struct tokenizer *t = l->t;
    size_t n = json_count(merges);
    uint32_t size = table_size(n);
    struct buf both = {0};
    enum fst_status rc = FST_OK;

    if (json_type_of(merges) != JSON_ARRAY || n > VOCAB_MERGES_MAX)
        return fst_error(FST_EFORMAT, "%s: model.merges: expected an array of at most %d, got %s",
                         l->name, VOCAB_MERGES_MAX, json_type_name(json_type_of(merges)));
    t->merge = mem_alloc(size * sizeof *t->merge);
    if (!t->merge)
        return no_memory(l);
    t->merge_mask = size - 1;
    for (uint32_t i = 0; i < size; i++)
        t->merge[i] = (struct vocab_merge){-1, -1, -1, -1};
    for (size_t i = 0; i < n; i++) {
        const char *side[2];
        size_t len[2], left_len;
        struct vocab_merge m = {.rank = (int32_t)i};

        buf_reset(&both);
        if (!merge_sides(json_at(merges, i), side, len) ||
            !append_bytes(&both, byte_of, side[0], len[0])) {
            rc = fst_error(FST_EFORMAT, "%s: model.merges[%zu]: expected two tokens", l->name, i);
            break;
        }
        left_len = both.len;
        if (!append_bytes(&both, byte_of, side[1], len[1]) || both.failed) {
            rc = both.failed ? no_memory(l)
                             : fst_error(FST_EFORMAT, "%s: model.merges[%zu]: expected two tokens",
                                         l->name, i);
            break;
        }
        m.left = vocab_find(t, both.data, left_len);
        m.right = vocab_find(t, both.data + left_len, both.len - left_len);
        m.result = vocab_find(t, both.data, both.len);
        if (m.left < 0 || m.right < 0 || m.result < 0) {
            rc = fst_error(FST_EFORMAT,
                           "%s: model.merges[%zu]: a side or the result is not in the vocabulary",
                           l->name, i);
            break;
        }
        put_merge(t, m);
    }
    buf_release(&both);
    return rc;
}

/* Which tokens their own bytes encode to (all but a handful, in practice). */
static enum fst_status find_whole(struct loader *l)
{
    struct tokenizer *t = l->t;
    struct tokenizer_ids ids = {0};
    enum fst_status rc = FST_OK;

    for (int32_t id = 0; id < t->n_ids && rc == FST_OK; id++) {
        struct vocab_token *tok = &t->token[id];
        if (tok->is_added || !tok->len)
            continue;
        ids.n = 0;
        rc = bpe_merge(t, t->blob + tok->at, tok->len, &ids);
        tok->is_whole = rc == FST_OK && ids.n == 1 && ids.id[0] == id;
    }
    tokenizer_ids_release(&ids);
    return rc;
}

/* ---- special tokens ------------------------------------------------------------------------- */

#define BAR    "\xef\xbd\x9c" /* U+FF5C */
#define BLANK  "\xe2\x96\x81" /* U+2581 */
#define TAG(s) "<" BAR s BAR ">"

static enum fst_status find_specials(struct loader *l)
{
    struct tokenizer *t = l->t;
    struct tokenizer_specials *s = &t->special;
    const struct {
        const char *text;
        int32_t *id;
        bool required;
    } want[] = {
        {TAG("begin" BLANK "of" BLANK "sentence"), &s->bos, true},
        {TAG("end" BLANK "of" BLANK "sentence"), &s->eos, true},
        {TAG("User"), &s->user, true},
        {TAG("Assistant"), &s->assistant, true},
        {"<think>", &s->think, true},
        {"</think>", &s->end_think, true},
        {BAR "DSML" BAR, &s->dsml, true},
        {TAG(BLANK "pad" BLANK), &s->pad, false},
        {TAG("latest_reminder"), &s->latest_reminder, false},
        {TAG("action"), &s->action, false},
        {TAG("query"), &s->query, false},
        {TAG("authority"), &s->authority, false},
        {TAG("domain"), &s->domain, false},
        {TAG("title"), &s->title, false},
        {TAG("read_url"), &s->read_url, false},
    };

    for (size_t i = 0; i < FST_COUNT(want); i++) {
        *want[i].id = tokenizer_special(t, want[i].text);
        if (*want[i].id < 0 && want[i].required)
            return fst_error(FST_EUNSUPPORTED, "%s: added_tokens has no \"%s\"", l->name,
                             want[i].text);
    }
    t->token[s->think].is_special = false;
    t->token[s->end_think].is_special = false;
    t->token[s->dsml].is_special = false;
    return FST_OK;
}

/* ---- doors ---------------------------------------------------------------------------------- */

static enum fst_status build(struct loader *l, json_val *root)
{
    json_val *model = json_get(root, "model");
    int16_t byte_of[0x200];

    fill_alphabet(byte_of);
    FST_TRY(check_kind(l, root));
    FST_TRY(count_ids(l, json_get(model, "vocab"), json_get(root, "added_tokens")));
    FST_TRY(read_added(l, json_get(root, "added_tokens")));
    FST_TRY(read_vocab(l, json_get(model, "vocab"), byte_of));
    l->t->blob_len = l->blob.len;
    l->t->blob = buf_detach(&l->blob);
    if (!l->t->blob)
        return no_memory(l);
    FST_TRY(index_tokens(l));
    FST_TRY(read_merges(l, json_get(model, "merges"), byte_of));
    FST_TRY(find_whole(l));
    return find_specials(l);
}

enum fst_status tokenizer_parse(struct tokenizer **out, const char *json, size_t len,
                                const char *name)
{
    struct json_doc *doc = NULL;
    struct loader l = {.name = name};
    enum fst_status rc;

    *out = NULL;
    rc = json_parse(&doc, json, len);
    if (rc == FST_EFORMAT) {
        char why[512];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(rc, "%s: %s", name, why);
    }
    if (rc < 0)
        return rc;
    l.t = mem_calloc(1, sizeof *l.t);
    if (!l.t)
        rc = no_memory(&l);
    else {
        rc = added_init(l.t) ? build(&l, json_root(doc)) : no_memory(&l);
    }
    buf_release(&l.blob);
    json_free(doc);
    if (rc < 0)
        tokenizer_free(l.t);
    else
        *out = l.t;
    return rc;
}

enum fst_status tokenizer_load(struct tokenizer **out, const char *path)
{
    struct buf text = {0};
    enum fst_status rc;

    *out = NULL;
    rc = file_read(&text, path, FILE_MAX);
    if (rc == FST_OK)
        rc = tokenizer_parse(out, buf_str(&text), text.len, path);
    buf_release(&text);
    return rc;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    mem_free(t->token);
    mem_free(t->blob);
    mem_free(t->piece_slot);
    mem_free(t->merge);
    mem_free(t->edge);
    mem_free(t->node_id);
    mem_free(t);
}
