/* space.h - the places that documents of one grammar lead through, each made once; for the files of
 * this folder only.
 *
 * A place is a set of ways: (state, open calls).  Sets and chains of open calls are found by hash, so
 * that equal ones have one number, and what follows a place is remembered by class of bytes: a
 * deterministic automaton that grows while documents are written.  Memory is taken once.  When it is
 * full, places that no matcher stands on are dropped (space_collect) and made again when needed. */
#ifndef FST_GRAMMAR_SPACE_H
#define FST_GRAMMAR_SPACE_H

#include "grammar/vocab.h"

enum {
    PLACE_UNKNOWN = 0,
    PLACE_DEAD = 1, /* no way goes on; also where a matcher stands after EOS */
    PLACE_FIRST = 2,
    SPACE_LOOK_MAX = 8192, /* (state, calls) looked at for one place */
    SPACE_TEXT_MAX = 4096  /* bytes that are cut into tokens: half a millisecond */
};

struct way {
    uint32_t state, open;
};
struct open_call { /* number 0: none */
    uint32_t call, count, parent;
    uint32_t least; /* bytes from the end of the called text to the end of the document */
    uint32_t depth;
    uint32_t next; /* of the same hash */
};
struct place {
    uint32_t way_at, n_ways;
    uint32_t least;  /* bytes to the end of the document, 0 when accepting */
    uint32_t tokens; /* fewest of them, GRAMMAR_NONE: not known yet */
    uint32_t peak;   /* highest `least` behind any legal token; GRAMMAR_NONE: not known yet */
    uint32_t next;   /* of the same hash */
    int32_t mask;    /* slot of its mask, or -1 */
    bool accept;
    bool has_kinds;   /* the next four are known; kinds are vocab_kind's, a bit each */
    uint32_t to;      /* the place where most characters lead */
    uint64_t all_to;  /* kinds all of whose characters lead there */
    uint64_t some_to; /* ... some, and none elsewhere */
    uint64_t none_to; /* kinds none of whose characters is legal */
};
struct space_pool {
    struct place *place;
    struct way *way;
    struct open_call *open;
    uint32_t n_places, n_ways, n_opens;
};
struct mask_slot {
    uint32_t place; /* PLACE_UNKNOWN: free */
    uint32_t *bits;
};
struct space {
    uint32_t refs;
    struct grammar *g;
    const struct grammar_vocab *v;
    struct matcher *matchers;     /* all that stand in it */
    struct space_pool now, other; /* the other one is filled by space_collect */
    uint32_t place_cap, way_cap, open_cap;
    uint32_t *row;                               /* (place_cap, n_classes) places that follow */
    uint32_t *place_slot, *open_slot, slot_mask; /* first of each hash */
    uint32_t *moved_place, *moved_open;
    uint32_t start;
    /* a place in the making */
    struct way *look;
    uint32_t n_look, *seen, *seen_round, round;
    struct way *kept;
    uint32_t n_kept;
    bool kept_accept, is_full;
    /* masks */
    struct mask_slot *mask;
    int n_masks, next_mask;
    /* shortest texts */
    uint8_t *text;
    uint32_t *cost;
    uint32_t *frame_call, *frame_count;
    struct matcher_stats stats;
};

struct matcher {
    struct space *space;
    struct matcher *prev, *next;
    uint32_t *place; /* ring of the last places */
    int cap, at, n;  /* n: places that can be gone back to */
};

enum fst_status space_new(struct space **out, struct grammar *g, const struct grammar_vocab *v,
                          size_t bytes);
void space_unref(struct space *s);
/* The place behind one byte; PLACE_UNKNOWN when memory is full: collect and ask again. */
uint32_t space_step(struct space *s, uint32_t place, uint8_t byte);
/* Fills in the kinds of a place; false when memory is full. */
bool space_kinds(struct space *s, uint32_t place);
/* Keeps the places of all matchers and path[0..n), whose numbers change; false when that does not
 * make enough room. */
bool space_collect(struct space *s, uint32_t *path, uint32_t n);
/* masks.c: the mask of a place without EOS.  room: tokens left behind the next one.  *peak (with no
 * limit): the highest `least` behind any of them. */
enum fst_status space_mask(struct space *s, uint32_t place, uint32_t room, uint32_t *mask,
                           uint32_t *peak);
/* Fewest tokens of the shortest texts from here to the end (see matcher_least_tokens). */
uint32_t space_tokens(struct space *s, uint32_t place);

#endif
