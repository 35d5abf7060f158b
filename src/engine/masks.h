/* masks.h - the grammar of a request, as rules.h asks for it.
 *
 * A grammar (fst_grammar) has one matcher, the trunk, whose memory of what was met is shared by a fork for each
 * request.  Both live on the engine's thread; a fork's own memory is taken at submit and given back with the
 * request, and is joined to the trunk when the engine first asks (masks_leave lets go).  So the loop allocates
 * nothing.
 *
 * A request's grammar is shut at first where it has a gate: then nothing is masked but what the gate bars, and when
 * the room left is just what the shortest document takes, only the id that opens the gate is legal.  Where a
 * document must come, eos in front of it is drawn again without (step_draw_on). */
#ifndef FST_ENGINE_MASKS_H
#define FST_ENGINE_MASKS_H

#include "engine/rules.h"
#include "grammar/grammar.h"

struct masks {
    fst_grammar *of;   /* a reference; NULL: no grammar */
    struct matcher *m; /* owned */
    enum { MASKS_NEW, MASKS_SHUT, MASKS_ON, MASKS_LOST } phase;
    bool attached, has_gate;
    struct fst_gate gate;
    uint64_t state[FST_GATE_BYTES / 8]; /* of the gate now */
    uint32_t least;                     /* tokens of the shortest document */
    char *text;                         /* owned: (n_text) */
    size_t n_text;
    enum fst_status rc; /* why it is lost: FST_OK, or the grammar's memory was too small */
};

/* Any thread.  FST_EINVAL: made for another vocabulary. */
enum fst_status masks_init(struct masks *s, const struct fst_request_opts *o, int vocab);
void masks_release(struct masks *s); /* any thread, after masks_leave */
/* Of the engine's thread from here on. */
struct rules_mask masks_rules(struct masks *s);
void masks_leave(struct masks *s);
/* Behind the last id that was taken: the reply is a document; nothing but eos may follow. */
bool masks_accepting(const struct masks *s);
bool masks_over(const struct masks *s);
/* A document must come and has not begun: eos may not be drawn. */
static inline bool masks_must_begin(const struct masks *s)
{
    return s->phase == MASKS_SHUT && s->gate.open_id >= 0;
}

#endif
