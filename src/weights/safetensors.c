/* safetensors.c - header scanner and checks of one shard. */
#include "weights/safetensors.h"

#include <inttypes.h>

static const struct {
    const char *name;
    int bytes;
} dtypes[] = {
#define ST_ROW(name, bits) {#name, bits / 8},
    ST_DTYPE_MAP(ST_ROW)
#undef ST_ROW
};

const char *st_dtype_name(enum st_dtype t)
{
    FST_ASSERT(t < ST_DTYPES);
    return dtypes[t].name;
}

int st_dtype_bytes(enum st_dtype t)
{
    FST_ASSERT(t < ST_DTYPES);
    return dtypes[t].bytes;
}

/* ---- scanner ----------------------------------------------------------------------------------
 * pos never passes end; at(s) is 0 at the end, which is no valid byte outside a string. */
struct scan {
    const char *text, *path;
    size_t pos, end;
    /* Names, NUL-terminated one after the other.  Tensors hold offsets until the scan is over,
     * because the memory moves while it grows. */
    char *names;
    size_t names_len, names_cap;
    struct st_tensor *tensors;
    size_t *name_at; /* [n_tensors] */
    int64_t n, cap;
    const char *tensor; /* being read, for messages; NULL outside */
};

static char at(const struct scan *s)
{
    return s->pos < s->end ? s->text[s->pos] : '\0';
}

static enum fst_status bad(const struct scan *s, const char *what)
{
    if (s->tensor)
        return fst_error(FST_EFORMAT, "%s: tensor \"%.200s\": %s (header byte %zu)", s->path,
                         s->tensor, what, s->pos);
    return fst_error(FST_EFORMAT, "%s: header: %s at byte %zu", s->path, what, s->pos);
}

static enum fst_status no_memory(const char *path)
{
    return fst_error(FST_ENOMEM, "%s: no memory for the header", path);
}

static void skip_space(struct scan *s)
{
    while (s->pos < s->end && (s->text[s->pos] == ' ' || s->text[s->pos] == '\n' ||
                               s->text[s->pos] == '\t' || s->text[s->pos] == '\r'))
        s->pos++;
}

static enum fst_status expect(struct scan *s, char c)
{
    char what[] = "expected 'x'";
    skip_space(s);
    if (at(s) == c) {
        s->pos++;
        return FST_OK;
    }
    what[sizeof what - 3] = c;
    return bad(s, what);
}

/* Room for `more` name bytes. */
static bool names_reserve(struct scan *s, size_t more)
{
    if (s->names_cap - s->names_len >= more)
        return true;
    size_t cap = FST_MAX(s->names_cap * 2, s->names_len + more + 4096);
    char *p = mem_realloc(s->names, cap);
    if (!p)
        return false;
    s->names = p;
    s->names_cap = cap;
    return true;
}

/* Length of the UTF-8 sequence at p (n bytes left), 0 if it is none: no overlong form, no
 * surrogate, nothing above U+10FFFF. */
static int utf8_len(const uint8_t *p, size_t n)
{
    int len = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (p[0] < 0x80)
        return 1;
    if (!len || n < (size_t)len)
        return 0;
    for (int i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return len;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits behind \u; -1 if they are none. */
static int32_t hex4(struct scan *s)
{
    int32_t v = 0;
    if (s->end - s->pos < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int d = hex_digit(s->text[s->pos + (size_t)i]);
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    s->pos += 4;
    return v;
}

/* Escape after the backslash: writes 1..4 bytes to out, returns how many, 0 if it is wrong. */
static int unescape(struct scan *s, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = at(s);
    const char *p = c ? strchr(from, c) : NULL;
    s->pos++;
    if (p) {
        out[0] = to[p - from];
        return 1;
    }
    int32_t u = c == 'u' ? hex4(s) : -1;
    if (u >= 0xd800 && u < 0xdc00) {
        if (s->end - s->pos < 2 || s->text[s->pos] != '\\' || s->text[s->pos + 1] != 'u')
            return 0;
        s->pos += 2;
        int32_t low = hex4(s);
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    } else if (u < 1 || (u >= 0xdc00 && u < 0xe000)) {
        return 0; /* NUL ends our strings: no tensor is called that */
    }
    if (u < 0x80) {
        out[0] = (char)u;
        return 1;
    }
    int n = u < 0x800 ? 2 : u < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, u >>= 6)
        out[i] = (char)(0x80 | (u & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | u);
    return n;
}

/* A string, decoded and NUL-terminated at the end of names; *start is its offset there. */
static enum fst_status read_string(struct scan *s, size_t *start)
{
    FST_TRY(expect(s, '"'));
    *start = s->names_len;
    for (;;) {
        if (!names_reserve(s, 8))
            return no_memory(s->path);
        if (s->pos >= s->end)
            return bad(s, "unterminated string");
        uint8_t c = (uint8_t)s->text[s->pos];
        if (c == '"') {
            s->pos++;
            s->names[s->names_len++] = '\0';
            return FST_OK;
        }
        if (c < 0x20)
            return bad(s, "control character in a string");
        if (c == '\\') {
            s->pos++;
            int n = unescape(s, s->names + s->names_len);
            if (n == 0)
                return bad(s, "bad escape");
            s->names_len += (size_t)n;
            continue;
        }
        int n = utf8_len((const uint8_t *)s->text + s->pos, s->end - s->pos);
        if (n == 0)
            return bad(s, "not UTF-8");
        memcpy(s->names + s->names_len, s->text + s->pos, (size_t)n);
        s->names_len += (size_t)n;
        s->pos += (size_t)n;
    }
}

/* A non-negative integer below 2^63, no sign, fraction or exponent. */
static enum fst_status read_int(struct scan *s, int64_t *out)
{
    uint64_t v = 0;
    skip_space(s);
    size_t first = s->pos;
    while (at(s) >= '0' && at(s) <= '9') {
        if (__builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(at(s) - '0'), &v) || v > INT64_MAX)
            return bad(s, "integer too large");
        s->pos++;
    }
    if (s->pos == first || (s->text[first] == '0' && s->pos - first > 1) || at(s) == '.' ||
        at(s) == 'e' || at(s) == 'E')
        return bad(s, "expected a non-negative integer");
    *out = (int64_t)v;
    return FST_OK;
}

/* [a, b, ...] of at most max integers. */
static enum fst_status read_ints(struct scan *s, int64_t *v, int max, int *n)
{
    *n = 0;
    FST_TRY(expect(s, '['));
    skip_space(s);
    if (at(s) == ']') {
        s->pos++;
        return FST_OK;
    }
    for (;;) {
        if (*n == max)
            return bad(s, "too many entries in a list");
        FST_TRY(read_int(s, &v[*n]));
        ++*n;
        skip_space(s);
        if (at(s) == ']') {
            s->pos++;
            return FST_OK;
        }
        FST_TRY(expect(s, ','));
    }
}

static enum fst_status read_dtype(struct scan *s, enum st_dtype *out)
{
    size_t start;
    char what[96];
    FST_TRY(read_string(s, &start));
    const char *name = s->names + start;
    s->names_len = start; /* not kept */
    for (int i = 0; i < ST_DTYPES; i++) {
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (enum st_dtype)i;
            return FST_OK;
        }
    }
    snprintf(what, sizeof what, "unknown dtype \"%.40s\"", name);
    return bad(s, what);
}

/* After a member: ',' goes on, '}' ends. */
static enum fst_status next_member(struct scan *s, bool *more)
{
    skip_space(s);
    *more = at(s) == ',';
    if (*more || at(s) == '}') {
        s->pos++;
        return FST_OK;
    }
    return bad(s, "expected ',' or '}'");
}

/* {"dtype": ..., "shape": [...], "data_offsets": [begin, end]} in any order. */
static enum fst_status read_tensor(struct scan *s, struct st_tensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    unsigned seen = 0, key;
    bool more = true;
    int64_t range[2];
    int n;

    FST_TRY(expect(s, '{'));
    while (more) {
        size_t start;
        FST_TRY(read_string(s, &start));
        const char *name = s->names + start;
        key = !strcmp(name, "dtype")          ? DTYPE
              : !strcmp(name, "shape")        ? SHAPE
              : !strcmp(name, "data_offsets") ? OFFSETS
                                              : 0;
        s->names_len = start;
        if (key == 0)
            return bad(s, "a key other than dtype, shape, data_offsets");
        if (seen & key)
            return bad(s, "a key twice");
        seen |= key;
        FST_TRY(expect(s, ':'));
        if (key == DTYPE) {
            FST_TRY(read_dtype(s, &t->dtype));
        } else if (key == SHAPE) {
            FST_TRY(read_ints(s, t->shape, ST_DIMS_MAX, &t->n_dims));
        } else {
            FST_TRY(read_ints(s, range, 2, &n));
            if (n != 2)
                return bad(s, "data_offsets needs two entries");
            t->begin = range[0];
            t->end = range[1];
        }
        FST_TRY(next_member(s, &more));
    }
    return seen == ALL ? FST_OK : bad(s, "dtype, shape or data_offsets missing");
}

/* {"key": "text", ...}: read over. */
static enum fst_status skip_metadata(struct scan *s)
{
    bool more = true;
    size_t start, keep = s->names_len;
    FST_TRY(expect(s, '{'));
    skip_space(s);
    if (at(s) == '}') {
        s->pos++;
        return FST_OK;
    }
    while (more) {
        FST_TRY(read_string(s, &start));
        FST_TRY(expect(s, ':'));
        FST_TRY(read_string(s, &start));
        s->names_len = keep;
        FST_TRY(next_member(s, &more));
    }
    return FST_OK;
}

static bool tensors_reserve(struct scan *s)
{
    if (s->n < s->cap)
        return true;
    int64_t cap = s->cap ? s->cap * 2 : 256;
    struct st_tensor *t = mem_realloc(s->tensors, (size_t)cap * sizeof *t);
    if (!t)
        return false;
    s->tensors = t;
    size_t *at_new = mem_realloc(s->name_at, (size_t)cap * sizeof *at_new);
    if (!at_new)
        return false;
    s->name_at = at_new;
    s->cap = cap;
    return true;
}

static enum fst_status read_header(struct scan *s)
{
    bool more = true;
    FST_TRY(expect(s, '{'));
    skip_space(s);
    if (at(s) == '}') {
        s->pos++;
        more = false;
    }
    while (more) {
        size_t start;
        FST_TRY(read_string(s, &start));
        FST_TRY(expect(s, ':'));
        if (strcmp(s->names + start, "__metadata__") == 0) {
            s->names_len = start;
            FST_TRY(skip_metadata(s));
        } else {
            char shown[208];
            if (!tensors_reserve(s))
                return no_memory(s->path);
            snprintf(shown, sizeof shown, "%s", s->names + start);
            s->name_at[s->n] = start;
            s->tensors[s->n] = (struct st_tensor){0};
            s->tensor = shown;
            FST_TRY(read_tensor(s, &s->tensors[s->n]));
            s->tensor = NULL;
            s->n++;
        }
        FST_TRY(next_member(s, &more));
    }
    skip_space(s); /* writers pad with spaces */
    return s->pos == s->end ? FST_OK : bad(s, "text behind the object");
}

/* ---- checks ---------------------------------------------------------------------------------- */
static enum fst_status check_size(const struct st_tensor *t, int64_t data_bytes, const char *path)
{
    int64_t bytes = st_dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\": shape beyond 2^63 bytes", path,
                             t->name);
    if (t->begin > t->end)
        return fst_error(FST_EFORMAT,
                         "%s: tensor \"%s\": data_offsets %" PRId64 " and %" PRId64
                         " run backwards",
                         path, t->name, t->begin, t->end);
    if (t->end - t->begin != bytes)
        return fst_error(FST_EFORMAT,
                         "%s: tensor \"%s\": %" PRId64 " bytes in data_offsets, dtype and shape "
                         "need %" PRId64,
                         path, t->name, t->end - t->begin, bytes);
    if (t->end > data_bytes)
        return fst_error(FST_EFORMAT,
                         "%s: tensor \"%s\" ends at byte %" PRId64
                         " of the data, which has %" PRId64 ": truncated file?",
                         path, t->name, t->end, data_bytes);
    return FST_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = *(const struct st_tensor *const *)a;
    const struct st_tensor *y = *(const struct st_tensor *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct st_tensor *const *)a)->name,
                  (*(const struct st_tensor *const *)b)->name);
}

static enum fst_status check_cover(const struct st_tensor **order, int64_t n, int64_t data_bytes,
                                   const char *path)
{
    int64_t pos = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct st_tensor *t = order[i];
        if (t->begin < pos)
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\" overlaps tensor \"%s\"", path, t->name,
                             order[i - 1]->name);
        if (t->begin > pos)
            return fst_error(FST_EFORMAT,
                             "%s: tensor \"%s\" begins at byte %" PRId64 "; bytes from %" PRId64
                             " belong to no tensor",
                             path, t->name, t->begin, pos);
        pos = t->end;
    }
    if (pos != data_bytes)
        return fst_error(FST_EFORMAT,
                         "%s: %" PRId64 " bytes of data, the header's tensors have %" PRId64, path,
                         data_bytes, pos);
    return FST_OK;
}

static enum fst_status check_header(const struct st_header *h, int64_t data_bytes, const char *path)
{
    int64_t n = h->n_tensors;
    enum fst_status rc = FST_OK;
    bool ordered = true;
    const struct st_tensor **order = mem_alloc((size_t)FST_MAX(n, 1) * sizeof *order);
    if (!order)
        return no_memory(path);
    for (int64_t i = 0; i < n && rc == FST_OK; i++) {
        order[i] = &h->tensors[i];
        ordered = ordered && (i == 0 || by_offset(&order[i - 1], &order[i]) <= 0);
        rc = check_size(order[i], data_bytes, path);
    }
    /* Most writers list tensors by offset: then sorting has nothing to do. */
    if (rc == FST_OK && !ordered)
        qsort(order, (size_t)n, sizeof *order, by_offset);
    if (rc == FST_OK)
        rc = check_cover(order, n, data_bytes, path);
    if (rc == FST_OK)
        qsort(order, (size_t)n, sizeof *order, by_name);
    for (int64_t i = 1; i < n && rc == FST_OK; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            rc = fst_error(FST_EFORMAT, "%s: tensor \"%s\" twice", path, order[i]->name);
    mem_free(order);
    return rc;
}

enum fst_status st_header_init(struct st_header *h, const char *json, size_t len,
                               int64_t data_bytes, const char *path)
{
    struct scan s = {.text = json, .path = path, .end = len};
    *h = (struct st_header){0};
    enum fst_status rc = read_header(&s);
    *h = (struct st_header){.tensors = s.tensors, .n_tensors = s.n, .names = s.names};
    for (int64_t i = 0; i < s.n; i++)
        h->tensors[i].name = h->names + s.name_at[i];
    mem_free(s.name_at);
    if (rc == FST_OK)
        rc = check_header(h, data_bytes, path);
    if (rc < 0)
        st_header_release(h);
    return rc;
}

void st_header_release(struct st_header *h)
{
    mem_free(h->tensors);
    mem_free(h->names);
    *h = (struct st_header){0};
}

static uint64_t load_le64(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static enum fst_status open_header(struct safetensors *s)
{
    int64_t bytes = s->map.bytes;
    if (bytes < 8)
        return fst_error(FST_EFORMAT, "%s: %" PRId64 " bytes is no safetensors file", s->path,
                         bytes);
    uint64_t len = load_le64(s->map.data);
    if (len > ST_HEADER_MAX)
        return fst_error(FST_EFORMAT, "%s: header of %" PRIu64 " bytes; at most %d expected",
                         s->path, len, (int)ST_HEADER_MAX);
    if ((int64_t)len > bytes - 8)
        return fst_error(FST_EFORMAT,
                         "%s: header of %" PRIu64 " bytes in a file of %" PRId64
                         ": truncated file?",
                         s->path, len, bytes);
    s->data = s->map.data + 8 + len;
    return st_header_init(&s->header, (const char *)s->map.data + 8, (size_t)len,
                          bytes - 8 - (int64_t)len, s->path);
}

enum fst_status safetensors_init(struct safetensors *s, const char *path)
{
    *s = (struct safetensors){.path = mem_strdup(path)};
    enum fst_status rc = s->path ? FST_OK : no_memory(path);
    if (rc == FST_OK)
        rc = weights_map_init(&s->map, path);
    if (rc == FST_OK)
        rc = open_header(s);
    if (rc < 0)
        safetensors_release(s);
    return rc;
}

void safetensors_release(struct safetensors *s)
{
    st_header_release(&s->header);
    weights_map_release(&s->map);
    mem_free(s->path);
    *s = (struct safetensors){0};
}
