/* json.h - JSON in (strict, with positions) and out.
 *
 * Wraps jansson (the only file that includes it is json.c).  Input rules: UTF-8, optional BOM,
 * duplicate keys: the last wins at the first one's place, lone surrogates and bad UTF-8 are errors,
 * nesting at most 256 (checked before parsing, without recursion), integers beyond 64 bits and the spelling of every
 * number are kept (json_number_text).  Errors are FST_EFORMAT with "Invalid JSON at byte N: ...".
 * A json value is borrowed from its document; the document owns everything. */
#ifndef FST_JSON_H
#define FST_JSON_H

#include "base/base.h"

/* jansson exports functions of these names: ours are linked under another. */
#define json_string fst_json_string
#define json_real   fst_json_real

enum json_type {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json_doc;                        /* owns a parsed text */
typedef const struct json_val json_val; /* borrowed from a document; NULL stands for "absent" */

enum fst_status json_parse(struct json_doc **out, const char *text, size_t len);
void json_free(struct json_doc *doc); /* NULL is fine */
json_val *json_root(const struct json_doc *doc);

enum json_type json_type_of(json_val *v);     /* absent counts as JSON_NULL */
const char *json_type_name(enum json_type t); /* "null", "boolean", "number", ... */
static inline bool json_is_null(json_val *v)
{
    return json_type_of(v) == JSON_NULL;
}
bool json_bool(json_val *v, bool fallback);
/* Integer value: true and *out only for a number without fraction or exponent that fits int64
 * (1.0 counts as an integer, 1.5 and 1e99 do not). */
bool json_int(json_val *v, int64_t *out);
bool json_real(json_val *v, double *out);
const char *json_number_text(json_val *v, size_t *len); /* as spelled; NULL if not a number */
const char *json_string(json_val *v, size_t *len); /* bytes, may hold NUL; NULL if not a string */
size_t json_count(json_val *v);                    /* elements or members; 0 otherwise */
json_val *json_at(json_val *array, size_t i);
json_val *json_get(json_val *object, const char *key); /* NULL if absent or not an object */
/* i-th member in order of first appearance. */
json_val *json_member(json_val *object, size_t i, const char **key, size_t *key_len);
/* Whether two values mean the same: the order of members, white space, escapes and the spelling of
 * numbers do not count (1, 1.0 and 10e-1 are one number; integers are compared to the last digit,
 * however long; beside a fraction or an exponent the nearest double counts, which is what a client
 * that read and wrote the number has kept). */
bool json_same(json_val *a, json_val *b);

/* Output.  json_put_string writes quotes and escapes \" \\ \b \f \n \r \t, other controls below
 * 0x20 as \u00xx; with JSON_ESCAPE_LINES also U+0085, U+2028 and U+2029 (they break some SSE
 * readers).  Invalid UTF-8 becomes U+FFFD.
 * json_put writes a value; JSON_PYTHON is Python's json.dumps(ensure_ascii=False) style (", " and
 * ": ", floats by repr rules), JSON_COMPACT has no spaces; numbers keep their spelling in COMPACT. */
enum json_style { JSON_COMPACT, JSON_PYTHON };
void json_put(struct buf *b, json_val *v, enum json_style style);
void json_put_string(struct buf *b, const char *s, size_t len);
void json_put_string_safe(struct buf *b, const char *s,
                          size_t len);         /* also escapes U+0085/2028/2029 */
void json_put_double(struct buf *b, double x); /* shortest that reads back; NaN and Inf as null */

#endif
