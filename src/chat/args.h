/* args.h - the arguments of one call, from parameters to JSON text, with repairs.
 *
 * begin, then for each parameter param, text..., param_end; text between parameters goes to body;
 * end closes.  JSON appears in `out` as soon as it is certain: string values as they come, others
 * whole.  The caller takes it from there (buf_reset). */
#ifndef FST_CHAT_ARGS_H
#define FST_CHAT_ARGS_H

#include "base/json.h"
#include "chat/chat.h"

struct args {
    struct buf out;
    const struct chat_tool *tool; /* borrowed; NULL: undeclared */
    bool repair;
    bool is_open;  /* '{' is out */
    int n_members; /* in the object so far */
    int n_params;  /* parameter elements so far */
    /* current parameter */
    struct buf key, value, scratch;
    bool is_json, is_buffered, may_be_wrapper;
    unsigned types;  /* by the schema; 0: unknown */
    struct buf body; /* text between the tags, until a parameter comes */
    bool failed;     /* out of memory */
};
void args_release(struct args *a);
void args_begin(struct args *a, const struct chat_tool *tool, bool repair);
void args_param(struct args *a, const char *key, size_t len, bool is_json);
void args_text(struct args *a, const char *s, size_t len);
void args_param_end(struct args *a);
void args_body(struct args *a, const char *s, size_t len);
void args_end(struct args *a);
bool args_failed(const struct args *a);

#endif
