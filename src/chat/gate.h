/* gate.h - where in a reply its grammar begins, id by id, as the parser of parse.c will see it.
 *
 * A grammar speaks of content or of a block of calls; the text in front is free.  It begins
 *   behind </think>, where the grammar is of the content (thoughts, then an answer or calls)
 *   at the opening tag of a block, where it is of calls alone, or where a block ends the thoughts
 * The tag is known by its single mark token behind a '<' at the start of a line, outside code fences:
 * the rest of the tag is then the grammar's.  Other spellings that the parser takes are foul: a reply
 * in which they are barred (gate_bar) has none.
 *
 * A state is plain data: copy it to look ahead.  The rules do not change; any thread. */
#ifndef FST_CHAT_GATE_H
#define FST_CHAT_GATE_H

#include "chat/chat.h"
#include "chat/fence.h"

struct gate_rules; /* of a vocabulary */
/* Borrows t. */
enum fst_status gate_rules_new(struct gate_rules **out, const struct tokenizer *t);
void gate_rules_free(struct gate_rules *g); /* NULL is fine */

enum { GATE_HELD_MAX = 64 };
struct gate {
    bool in_thoughts, of_content, tools_on;
    bool line_start;
    uint8_t n_held; /* a '<' and what may make it a tag */
    bool held_line; /* it begins a line outside fences */
    char held[GATE_HELD_MAX];
    struct fence fence;
};
/* of_content: the grammar begins with the content; else only with a block of calls. */
void gate_init(struct gate *g, const struct chat_prompt *p, bool of_content);

enum gate_event {
    GATE_SHUT,
    GATE_OPEN,  /* the grammar begins behind this id */
    GATE_BLOCK, /* the same, and "<" and the mark of its first tag are written */
    GATE_FOUL   /* content or a block has begun with text of this id that no grammar saw */
};
/* Not to be called again after another event than GATE_SHUT. */
enum gate_event gate_feed(const struct gate_rules *rules, struct gate *g, int32_t id);
/* Clears the bits of ids that would be foul next; false when there is none.  mask NULL: only that. */
bool gate_bar(const struct gate_rules *rules, const struct gate *g, uint32_t *mask);

#endif
