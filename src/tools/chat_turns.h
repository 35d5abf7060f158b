/* chat_turns.h - a conversation as the terminal chat keeps it: what was said, called and answered. */
#ifndef FST_TOOLS_CHAT_TURNS_H
#define FST_TOOLS_CHAT_TURNS_H

#include "chat/parse.h"

struct turn_call {
    char *id, *name; /* owned */
    struct buf args; /* JSON */
};

struct turn {
    enum chat_role role; /* CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL */
    struct buf text, reasoning;
    struct turn_call *calls; /* owned; of the assistant */
    size_t n_calls;
    char *call_id; /* owned; of a tool's result */
};

/* Zero is a valid start. */
struct turns {
    struct turn *turn; /* owned */
    size_t n, cap;
};

/* False without memory.  call_id: of a result, else NULL. */
bool turns_add(struct turns *t, enum chat_role role, const char *text, const char *call_id);
/* Forget all but the first `to`. */
void turns_drop(struct turns *t, size_t to);
void turns_release(struct turns *t);
/* A reply's event into the last turn.  False without memory. */
bool turns_event(struct turns *t, const struct chat_event *e);
/* The call of the last reply that has no result yet; NULL: none. */
const struct turn_call *turns_pending(const struct turns *t);

/* All of it as messages of r. */
void turns_put(const struct turns *t, struct chat_request *r);
/* {"messages":[..]} in OpenAI's form, which `render` and `generate` read; system "" or NULL: none. */
void turns_json(const struct turns *t, const char *system, json_val *tools, bool thinking,
                struct buf *out);

#endif
