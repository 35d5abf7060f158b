/* fields.h - every request field of the generating endpoints, and what becomes of it.
 * docs/api.md holds the same table; tests/api compares the two through `firesteel help fields`. */
#ifndef FST_SERVER_FIELDS_H
#define FST_SERVER_FIELDS_H

#include "server/app.h"

enum field_state {
    FIELD_WORKS,
    FIELD_INERT,  /* accepted, changes nothing, by design */
    FIELD_REFUSED /* 400 unless it holds one of its neutral values */
};
enum {
    ON_CHAT = 1,
    ON_COMPLETIONS = 2,
    ON_GENERATE = 4, /* top level of /generate */
    ON_SAMPLING = 8, /* sampling_params of /generate */
    ON_MESSAGES = 16,
    ON_RESPONSES = 32
};

struct field {
    const char *name;
    unsigned on;
    enum field_state state;
    const char *neutral; /* refused ones: JSON values that are let pass, separated by '|' */
    const char *note;
};
extern const struct field field_table[];
extern const size_t field_count;

/* Refuse what is not built.  prefix: "" or "sampling_params.".  Any thread. */
bool fields_check(json_val *object, unsigned on, const char *prefix, struct api_error *e);
/* The table in Markdown. */
void fields_markdown(struct buf *out);

/* Typed reading of members; null counts as absent and leaves *out alone.  All return false after
 * recording an error that names prefix + name, what was received and what is allowed. */
struct field_reader {
    json_val *object;
    const char *prefix;
    struct api_error *e;
};
bool field_int(const struct field_reader *r, const char *name, int64_t lo, int64_t hi,
               int64_t *out);
/* A seed: -2^63 .. 2^64-1, negative ones as two's complement. */
bool field_seed(const struct field_reader *r, const char *name, uint64_t *out);
bool field_real(const struct field_reader *r, const char *name, double lo, bool lo_open, double hi,
                double *out);
bool field_bool(const struct field_reader *r, const char *name, bool *out);
bool field_str(const struct field_reader *r, const char *name, const char **out, size_t *len);
bool field_type_error(const struct field_reader *r, const char *name, const char *expected);

#endif
