/* json.c - JSON by jansson, with what jansson alone loses.
 *
 * A text goes through three steps.  (1) check() walks it once, without recursion, and finds every
 * fault at its exact byte: jansson's own positions are those of its read-ahead.  (2) Each number is
 * replaced by its index, so that jansson sees small integers and the spelling stays here: jansson
 * rejects 1e999 and 2^64 and turns 1.10 into 1.1.  (3) jansson builds strings and objects, and
 * build() lays one json_val per value over them, in arrays: a tokenizer's vocabulary has 128 000
 * members, and jansson reaches the i-th in i steps. */

/* jansson and json.h share some names; inside this file jansson's get another. */
#define JSON_OBJECT  JANSSON_OBJECT
#define JSON_ARRAY   JANSSON_ARRAY
#define JSON_STRING  JANSSON_STRING
#define JSON_INTEGER JANSSON_INTEGER
#define JSON_REAL    JANSSON_REAL
#define JSON_TRUE    JANSSON_TRUE
#define JSON_FALSE   JANSSON_FALSE
#define JSON_NULL    JANSSON_NULL
#include <jansson.h>
#undef JSON_OBJECT
#undef JSON_ARRAY
#undef JSON_STRING
#undef JSON_INTEGER
#undef JSON_REAL
#undef JSON_TRUE
#undef JSON_FALSE
#undef JSON_NULL
#undef JSON_COMPACT
#undef json_is_null

#include "base/json.h"

#include <math.h>
#include <pthread.h>

#include "base/hash.h"
#include "base/number.h"
#include "base/rng.h"
#include "base/utf8.h"

#define JSON_MAX_DEPTH 256
/* Objects up to this size are searched in order: a hash costs as much as eight short compares. */
#define JSON_SMALL_OBJECT 8

struct json_member {
    const char *key; /* borrowed from jansson */
    size_t key_len;
    struct json_val *val;
};

struct json_val {
    enum json_type type;
    size_t n; /* bytes, elements or members */
    union {
        const char *text;      /* number or string */
        struct json_val *item; /* array: n values in a row */
        struct {
            struct json_member *member;
            uint32_t *slot; /* member index + 1 by hash; NULL for small objects */
            uint32_t mask;
        } object;
    };
};

struct json_doc {
    json_t *tree;
    struct json_val *vals; /* all values */
    struct json_member *members;
    uint32_t *slots;
    char *numbers; /* spellings, each followed by NUL */
    struct json_val *root;
    /* while building */
    size_t *number_at; /* offsets in numbers, with one more at the end */
    size_t n_vals, n_members, n_slots;
};

static pthread_once_t json_once = PTHREAD_ONCE_INIT;
/* Another one in each process: who sends an object cannot choose keys that all share a slot. */
static uint64_t json_seed;

/* jansson reports most failures to allocate as faults of the text, leaks after some and reads through
 * the null pointer after others (2.14, lex_scan).  So it gets its memory all the same where the
 * system has any left, and json_parse refuses afterwards. */
static _Thread_local bool json_starved;

static void *json_alloc(size_t size)
{
    void *p = mem_alloc(size);
    if (!p) {
        json_starved = true;
        p = malloc(size ? size : 1);
    }
    return p;
}

static void setup(void)
{
    json_set_alloc_funcs(json_alloc, mem_free);
    json_seed = rng_os();
}

/* ---- 1. checking ------------------------------------------------------------------------------ */

struct json_check {
    const char *text;
    size_t len, at;
    struct buf plain;   /* the text with numbers replaced */
    struct buf numbers; /* spellings */
    struct buf number_at;
    size_t copied; /* text before this is in plain */
    size_t n_numbers, n_vals, n_members, n_slots;
    size_t open_members[JSON_MAX_DEPTH]; /* members so far of the open objects */
    bool is_object[JSON_MAX_DEPTH];
    int depth;
};

static enum fst_status fault(size_t at, const char *what)
{
    return fst_error(FST_EFORMAT, "Invalid JSON at byte %zu: %s", at, what);
}

/* "expected X, found Y" for the byte at c->at. */
static enum fst_status unexpected(const struct json_check *c, const char *expected)
{
    unsigned char b;

    if (c->at >= c->len)
        return fst_error(FST_EFORMAT, "Invalid JSON at byte %zu: expected %s, found end of text",
                         c->at, expected);
    b = (unsigned char)c->text[c->at];
    if (b > 0x20 && b < 0x7f)
        return fst_error(FST_EFORMAT, "Invalid JSON at byte %zu: expected %s, found '%c'", c->at,
                         expected, b);
    return fst_error(FST_EFORMAT, "Invalid JSON at byte %zu: expected %s, found byte 0x%02x", c->at,
                     expected, b);
}

static void skip_space(struct json_check *c)
{
    while (c->at < c->len && (c->text[c->at] == ' ' || c->text[c->at] == '\n' ||
                              c->text[c->at] == '\r' || c->text[c->at] == '\t'))
        c->at++;
}

static bool is_digit(const struct json_check *c)
{
    return c->at < c->len && c->text[c->at] >= '0' && c->text[c->at] <= '9';
}

/* Four hex digits at s[i..]; -1 if there are none. */
static int hex4(const char *s, size_t i, size_t len)
{
    int v = 0;

    if (len - i < 4)
        return -1;
    for (size_t k = i; k < i + 4; k++) {
        char ch = s[k];
        int d;
        if (ch >= '0' && ch <= '9')
            d = ch - '0';
        else if ((ch | 0x20) >= 'a' && (ch | 0x20) <= 'f')
            d = (ch | 0x20) - 'a' + 10;
        else
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* \uXXXX at c->at (the backslash); moves past it and, for a pair, past both. */
static enum fst_status check_unicode_escape(struct json_check *c, bool is_key)
{
    const char *s = c->text;
    int v = hex4(s, c->at + 2, c->len);

    if (v < 0)
        return fault(c->at, "\\u needs four hexadecimal digits");
    if (v == 0 && is_key)
        return fault(c->at, "NUL character in a key");
    if (v >= 0xdc00 && v <= 0xdfff)
        return fault(c->at, "low surrogate without a high one before it");
    if (v >= 0xd800 && v <= 0xdbff) {
        int low = -1;
        if (c->len - c->at >= 12 && s[c->at + 6] == '\\' && s[c->at + 7] == 'u')
            low = hex4(s, c->at + 8, c->len);
        if (low < 0xdc00 || low > 0xdfff)
            return fault(c->at, "high surrogate without a low one after it");
        c->at += 6;
    }
    c->at += 6;
    return FST_OK;
}

static enum fst_status check_string(struct json_check *c, bool is_key)
{
    size_t start = c->at++;

    while (c->at < c->len) {
        unsigned char b = (unsigned char)c->text[c->at];
        uint32_t cp;
        int k;

        if (b == '"') {
            c->at++;
            return FST_OK;
        }
        if (b < 0x20)
            return fst_error(FST_EFORMAT,
                             "Invalid JSON at byte %zu: control character 0x%02x in a string must "
                             "be escaped",
                             c->at, b);
        if (b == '\\') {
            if (c->at + 1 >= c->len)
                break;
            b = (unsigned char)c->text[c->at + 1];
            if (b == 'u')
                FST_TRY(check_unicode_escape(c, is_key));
            else if (b != 0 && strchr("\"\\/bfnrt", b))
                c->at += 2;
            else
                return fault(c->at, "unknown escape in a string");
            continue;
        }
        if (b < 0x80) {
            c->at++;
            continue;
        }
        k = utf8_decode(c->text + c->at, c->len - c->at, &cp);
        if (k <= 0)
            return fault(c->at, "invalid UTF-8");
        c->at += (size_t)k;
    }
    return fault(start, "string without an end");
}

/* buf_printf would format each twice, to learn its length. */
static void put_index(struct buf *b, size_t x)
{
    char digits[24], *p = digits + sizeof digits;

    do {
        *--p = (char)('0' + x % 10);
        x /= 10;
    } while (x > 0);
    buf_append(b, p, (size_t)(digits + sizeof digits - p));
}

static enum fst_status check_number(struct json_check *c)
{
    size_t start = c->at;
    size_t where;

    if (c->text[c->at] == '-')
        c->at++;
    if (!is_digit(c))
        return unexpected(c, "a digit");
    if (c->text[c->at] == '0')
        c->at++;
    else
        while (is_digit(c))
            c->at++;
    if (is_digit(c))
        return fault(start, "number with a leading zero");
    if (c->at < c->len && c->text[c->at] == '.') {
        c->at++;
        if (!is_digit(c))
            return unexpected(c, "a digit");
        while (is_digit(c))
            c->at++;
    }
    if (c->at < c->len && (c->text[c->at] | 0x20) == 'e') {
        c->at++;
        if (c->at < c->len && (c->text[c->at] == '+' || c->text[c->at] == '-'))
            c->at++;
        if (!is_digit(c))
            return unexpected(c, "a digit");
        while (is_digit(c))
            c->at++;
    }
    buf_append(&c->plain, c->text + c->copied, start - c->copied);
    put_index(&c->plain, c->n_numbers++);
    c->copied = c->at;
    where = c->numbers.len;
    buf_append(&c->number_at, &where, sizeof where);
    buf_append(&c->numbers, c->text + start, c->at - start);
    buf_putc(&c->numbers, 0);
    return FST_OK;
}

static enum fst_status check_word(struct json_check *c)
{
    static const char *const words[] = {"true", "false", "null"};

    for (size_t i = 0; i < FST_COUNT(words); i++) {
        size_t n = strlen(words[i]);
        if (c->len - c->at >= n && memcmp(c->text + c->at, words[i], n) == 0) {
            c->at += n;
            return FST_OK;
        }
    }
    return unexpected(c, "a value");
}

static uint32_t slots_for(size_t n_members)
{
    uint32_t n = 16;

    if (n_members <= JSON_SMALL_OBJECT)
        return 0;
    while (n < 2 * n_members)
        n *= 2;
    return n;
}

/* "key" : at c->at, which is somewhere before the quote. */
static enum fst_status check_key(struct json_check *c, const char *expected)
{
    skip_space(c);
    if (c->at >= c->len || c->text[c->at] != '"')
        return unexpected(c, expected);
    FST_TRY(check_string(c, true));
    skip_space(c);
    if (c->at >= c->len || c->text[c->at] != ':')
        return unexpected(c, "':'");
    c->at++;
    c->n_members++;
    c->open_members[c->depth - 1]++;
    return FST_OK;
}

/* After a value: closes what ends here and leaves c->at before the next value, or at the end with
 * depth 0. */
static enum fst_status check_after_value(struct json_check *c)
{
    while (c->depth > 0) {
        bool is_object = c->is_object[c->depth - 1];
        char close = is_object ? '}' : ']';

        skip_space(c);
        if (c->at < c->len && c->text[c->at] == ',') {
            c->at++;
            return is_object ? check_key(c, "a key") : FST_OK;
        }
        if (c->at >= c->len || c->text[c->at] != close)
            return unexpected(c, is_object ? "',' or '}'" : "',' or ']'");
        c->at++;
        if (is_object)
            c->n_slots += slots_for(c->open_members[c->depth - 1]);
        c->depth--;
    }
    return FST_OK;
}

static enum fst_status check(struct json_check *c)
{
    for (;;) {
        char ch;

        skip_space(c);
        if (c->at >= c->len)
            return unexpected(c, "a value");
        ch = c->text[c->at];
        c->n_vals++;
        if (ch == '{' || ch == '[') {
            if (c->depth == JSON_MAX_DEPTH)
                return fst_error(FST_EFORMAT,
                                 "Invalid JSON at byte %zu: nested deeper than %d levels", c->at,
                                 JSON_MAX_DEPTH);
            c->at++;
            c->is_object[c->depth] = ch == '{';
            c->open_members[c->depth++] = 0;
            skip_space(c);
            if (c->at < c->len && c->text[c->at] == (ch == '{' ? '}' : ']')) {
                c->at++;
                c->depth--;
            } else {
                if (ch == '{')
                    FST_TRY(check_key(c, "a key or '}'"));
                continue;
            }
        } else if (ch == '"')
            FST_TRY(check_string(c, false));
        else if (ch == '-' || (ch >= '0' && ch <= '9'))
            FST_TRY(check_number(c));
        else
            FST_TRY(check_word(c));
        FST_TRY(check_after_value(c));
        if (c->depth == 0)
            break;
    }
    skip_space(c);
    if (c->at < c->len)
        return unexpected(c, "end of text");
    buf_append(&c->plain, c->text + c->copied, c->len - c->copied);
    buf_append(&c->number_at, &c->numbers.len, sizeof c->numbers.len);
    return FST_OK;
}

/* ---- 3. values over jansson's tree -------------------------------------------------------------- */

static void index_members(struct json_val *v)
{
    uint32_t mask = v->object.mask;

    for (size_t i = 0; i < v->n; i++) {
        const struct json_member *m = &v->object.member[i];
        uint32_t h = (uint32_t)hash64(m->key, m->key_len, json_seed) & mask;
        while (v->object.slot[h])
            h = (h + 1) & mask;
        v->object.slot[h] = (uint32_t)i + 1;
    }
}

/* Fills v from t; at most JSON_MAX_DEPTH deep, as check() saw to. */
static void build(struct json_doc *d, struct json_val *v, json_t *t)
{
    size_t i = 0, k;

    switch (json_typeof(t)) {
    case JANSSON_NULL:
        v->type = JSON_NULL;
        break;
    case JANSSON_FALSE:
        v->type = JSON_FALSE;
        break;
    case JANSSON_TRUE:
        v->type = JSON_TRUE;
        break;
    case JANSSON_REAL:
        FST_ASSERT(!"a number was not replaced by its index");
        break;
    case JANSSON_INTEGER:
        k = (size_t)json_integer_value(t);
        v->type = JSON_NUMBER;
        v->text = d->numbers + d->number_at[k];
        v->n = d->number_at[k + 1] - d->number_at[k] - 1;
        break;
    case JANSSON_STRING:
        v->type = JSON_STRING;
        v->text = json_string_value(t);
        v->n = json_string_length(t);
        break;
    case JANSSON_ARRAY:
        v->type = JSON_ARRAY;
        v->n = json_array_size(t);
        v->item = d->vals + d->n_vals;
        d->n_vals += v->n;
        for (i = 0; i < v->n; i++)
            build(d, &v->item[i], json_array_get(t, i));
        break;
    case JANSSON_OBJECT:
        v->type = JSON_OBJECT;
        v->n = json_object_size(t);
        v->object.member = d->members + d->n_members;
        d->n_members += v->n;
        for (void *it = json_object_iter(t); it; it = json_object_iter_next(t, it)) {
            struct json_member *m = &v->object.member[i++];
            m->key = json_object_iter_key(it);
            m->key_len = json_object_iter_key_len(it);
            m->val = &d->vals[d->n_vals++];
            build(d, m->val, json_object_iter_value(it));
        }
        if (v->n > JSON_SMALL_OBJECT) {
            v->object.slot = d->slots + d->n_slots;
            v->object.mask = slots_for(v->n) - 1;
            d->n_slots += slots_for(v->n);
            index_members(v);
        }
        break;
    }
}

enum fst_status json_parse(struct json_doc **out, const char *text, size_t len)
{
    const size_t no_limit = SIZE_MAX / 4;
    struct json_check c = {.text = text, .len = len};
    struct json_doc *d = NULL;
    json_error_t err;
    enum fst_status rc;

    *out = NULL;
    pthread_once(&json_once, setup);
    c.plain.limit = c.numbers.limit = c.number_at.limit = no_limit;
    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        c.at = c.copied = 3;
    rc = check(&c);
    if (rc < 0)
        goto out;
    d = mem_calloc(1, sizeof *d);
    if (!d || c.plain.failed || c.numbers.failed || c.number_at.failed)
        goto no_memory;
    json_starved = false;
    d->tree = json_loadb(buf_str(&c.plain), c.plain.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);
    /* With a tree too: a string whose buffer could not grow has lost bytes without a word. */
    if (json_starved)
        goto no_memory;
    if (!d->tree) { /* the property test finds no such text; if there is one, it is the sender's */
        rc = fst_error(FST_EFORMAT, "Invalid JSON: %s", err.text);
        goto out;
    }
    d->vals = mem_calloc(c.n_vals, sizeof *d->vals);
    d->members = mem_calloc(c.n_members, sizeof *d->members);
    d->slots = mem_calloc(c.n_slots, sizeof *d->slots);
    if (!d->vals || !d->members || !d->slots)
        goto no_memory;
    d->numbers = c.numbers.data;
    d->number_at = (size_t *)(void *)c.number_at.data;
    c.numbers.data = NULL;
    d->root = &d->vals[d->n_vals++];
    build(d, d->root, d->tree);
    FST_ASSERT(d->n_vals <= c.n_vals);
    FST_ASSERT(d->n_slots <= c.n_slots);
    d->number_at = NULL;
    *out = d;
    d = NULL;
    goto out;
no_memory:
    rc = fst_error(FST_ENOMEM, "JSON text of %zu bytes: out of memory", len);
out:
    json_free(d);
    buf_release(&c.plain);
    buf_release(&c.numbers);
    buf_release(&c.number_at);
    return rc;
}

void json_free(struct json_doc *d)
{
    if (!d)
        return;
    json_decref(d->tree);
    mem_free(d->vals);
    mem_free(d->members);
    mem_free(d->slots);
    mem_free(d->numbers);
    mem_free(d);
}

/* ---- reading ------------------------------------------------------------------------------------ */

json_val *json_root(const struct json_doc *d)
{
    return d->root;
}

enum json_type json_type_of(json_val *v)
{
    return v ? v->type : JSON_NULL;
}

const char *json_type_name(enum json_type t)
{
    switch (t) {
    case JSON_NULL:
        return "null";
    case JSON_FALSE:
    case JSON_TRUE:
        return "boolean";
    case JSON_NUMBER:
        return "number";
    case JSON_STRING:
        return "string";
    case JSON_ARRAY:
        return "array";
    case JSON_OBJECT:
        return "object";
    }
    return "?";
}

bool json_bool(json_val *v, bool fallback)
{
    if (json_type_of(v) == JSON_TRUE)
        return true;
    return json_type_of(v) == JSON_FALSE ? false : fallback;
}

bool json_int(json_val *v, int64_t *out)
{
    const char *s;
    uint64_t x = 0;
    bool minus;

    if (json_type_of(v) != JSON_NUMBER)
        return false;
    s = v->text;
    minus = *s == '-';
    for (s += minus; *s >= '0' && *s <= '9'; s++)
        if (__builtin_mul_overflow(x, (uint64_t)10, &x) ||
            __builtin_add_overflow(x, (uint64_t)(*s - '0'), &x))
            return false;
    if (*s == '.')
        for (s++; *s == '0'; s++)
            ;
    if (*s != 0 || x > (uint64_t)INT64_MAX + minus)
        return false;
    *out = minus ? (int64_t)(0 - x) : (int64_t)x;
    return true;
}

bool json_real(json_val *v, double *out)
{
    if (json_type_of(v) != JSON_NUMBER)
        return false;
    *out = number_parse(v->text, NULL);
    return true;
}

const char *json_number_text(json_val *v, size_t *len)
{
    if (json_type_of(v) != JSON_NUMBER)
        return NULL;
    if (len)
        *len = v->n;
    return v->text;
}

const char *json_string(json_val *v, size_t *len)
{
    if (json_type_of(v) != JSON_STRING)
        return NULL;
    if (len)
        *len = v->n;
    return v->text;
}

size_t json_count(json_val *v)
{
    return json_type_of(v) == JSON_ARRAY || json_type_of(v) == JSON_OBJECT ? v->n : 0;
}

json_val *json_at(json_val *v, size_t i)
{
    return json_type_of(v) == JSON_ARRAY && i < v->n ? &v->item[i] : NULL;
}

static bool is_key(const struct json_member *m, const char *key, size_t len)
{
    return m->key_len == len && memcmp(m->key, key, len) == 0;
}

json_val *json_get(json_val *v, const char *key)
{
    size_t len = strlen(key);

    if (json_type_of(v) != JSON_OBJECT)
        return NULL;
    if (!v->object.slot) {
        for (size_t i = 0; i < v->n; i++)
            if (is_key(&v->object.member[i], key, len))
                return v->object.member[i].val;
        return NULL;
    }
    for (uint32_t h = (uint32_t)hash64(key, len, json_seed) & v->object.mask; v->object.slot[h];
         h = (h + 1) & v->object.mask) {
        const struct json_member *m = &v->object.member[v->object.slot[h] - 1];
        if (is_key(m, key, len))
            return m->val;
    }
    return NULL;
}

json_val *json_member(json_val *v, size_t i, const char **key, size_t *key_len)
{
    if (json_type_of(v) != JSON_OBJECT || i >= v->n)
        return NULL;
    if (key)
        *key = v->object.member[i].key;
    if (key_len)
        *key_len = v->object.member[i].key_len;
    return v->object.member[i].val;
}

/* ---- writing ------------------------------------------------------------------------------------ */

static void put_string(struct buf *b, const char *s, size_t len, bool safe)
{
    size_t i = 0, plain = 0; /* s[plain..i) waits to be copied as it is */

    buf_putc(b, '"');
    while (i < len) {
        unsigned char ch = (unsigned char)s[i];
        uint32_t cp = ch;
        int k = 1;

        if (ch >= 0x20 && ch < 0x80 && ch != '"' && ch != '\\') {
            i++;
            continue;
        }
        if (ch >= 0x80) {
            k = utf8_decode(s + i, len - i, &cp);
            if (k > 0 && !(safe && (cp == 0x85 || cp == 0x2028 || cp == 0x2029))) {
                i += (size_t)k;
                continue;
            }
        }
        buf_append(b, s + plain, i - plain);
        if (k <= 0) {
            buf_puts(b, UTF8_REPLACEMENT);
            k = k == 0 ? (int)(len - i) : -k;
        } else if (ch == '"' || ch == '\\') {
            buf_putc(b, '\\');
            buf_putc(b, (char)ch);
        } else if (ch >= 0x08 && ch <= 0x0d && ch != 0x0b) {
            buf_putc(b, '\\');
            buf_putc(b, "btn?fr"[ch - 0x08]);
        } else {
            buf_printf(b, "\\u%04x", (unsigned)cp);
        }
        i += (size_t)k;
        plain = i;
    }
    buf_append(b, s + plain, len - plain);
    buf_putc(b, '"');
}

void json_put_string(struct buf *b, const char *s, size_t len)
{
    put_string(b, s, len, false);
}

void json_put_string_safe(struct buf *b, const char *s, size_t len)
{
    put_string(b, s, len, true);
}

void json_put_double(struct buf *b, double x)
{
    if (isfinite(x))
        number_put(b, x);
    else
        buf_puts(b, "null");
}

static void put_number(struct buf *b, json_val *v, enum json_style style)
{
    double x;

    if (style == JSON_COMPACT) {
        buf_append(b, v->text, v->n);
    } else if (strpbrk(v->text, ".eE")) {
        json_real(v, &x);
        if (isinf(x))
            buf_puts(b, x < 0 ? "-Infinity" : "Infinity");
        else
            json_put_double(b, x);
    } else if (v->n == 2 && memcmp(v->text, "-0", 2) == 0) {
        buf_putc(b, '0');
    } else {
        buf_append(b, v->text, v->n);
    }
}

void json_put(struct buf *b, json_val *v, enum json_style style)
{
    const char *comma = style == JSON_PYTHON ? ", " : ",";

    switch (json_type_of(v)) {
    case JSON_NULL:
        buf_puts(b, "null");
        break;
    case JSON_FALSE:
        buf_puts(b, "false");
        break;
    case JSON_TRUE:
        buf_puts(b, "true");
        break;
    case JSON_NUMBER:
        put_number(b, v, style);
        break;
    case JSON_STRING:
        json_put_string(b, v->text, v->n);
        break;
    case JSON_ARRAY:
        buf_putc(b, '[');
        for (size_t i = 0; i < v->n; i++) {
            if (i > 0)
                buf_puts(b, comma);
            json_put(b, &v->item[i], style);
        }
        buf_putc(b, ']');
        break;
    case JSON_OBJECT:
        buf_putc(b, '{');
        for (size_t i = 0; i < v->n; i++) {
            const struct json_member *m = &v->object.member[i];
            if (i > 0)
                buf_puts(b, comma);
            json_put_string(b, m->key, m->key_len);
            buf_puts(b, style == JSON_PYTHON ? ": " : ":");
            json_put(b, m->val, style);
        }
        buf_putc(b, '}');
        break;
    }
}
