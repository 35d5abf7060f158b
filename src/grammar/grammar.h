/* grammar.h - what a reply may be: from a JSON schema, a regular expression, an EBNF grammar or tool
 * declarations to the set of tokens that may come next.
 *
 *   struct grammar        compiled; does not change; counted; any thread
 *   struct grammar_vocab  the bytes of all tokens as a trie; does not change; any thread
 *   struct matcher        where one reply stands; one thread at a time
 *
 * A reply that only ever took tokens of matcher_mask() and was ended where matcher_is_accepting() is
 * a document of the grammar, always (no keyword is left out silently: see opts.lenient).
 *
 * Compiling allocates within limits (opts) and reports by status and text:
 *   FST_EINVAL        the text is wrong, or allows no document at all
 *   FST_EUNSUPPORTED  a keyword or construct that cannot be kept; the text names it and its path
 *   FST_EBUDGET       beyond a limit: size, nesting, states
 *   FST_ENOMEM
 * Sources: JSON Schema draft 2020-12 (core and validation), RFC 8259, ECMA-262 regular expressions
 * (patterns in schemas), RE2's syntax (regex), llama.cpp's GBNF and Lark (EBNF). */
#ifndef FST_GRAMMAR_GRAMMAR_H
#define FST_GRAMMAR_GRAMMAR_H

#include "base/base.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

struct grammar;

/* Blanks between the tokens of JSON. */
enum grammar_space {
    GRAMMAR_SPACE_ONE,     /* one space may follow ':' and ',' (Python's style or compact) */
    GRAMMAR_SPACE_COMPACT, /* none */
    GRAMMAR_SPACE_ANY      /* up to space_max of space, tab, line feed, return in each gap */
};

struct grammar_opts {
    enum grammar_space space;
    int space_max; /* for GRAMMAR_SPACE_ANY, 0: 64 */
    /* Keywords that cannot be kept are left out instead of refused; grammar_left_out() names them.
     * oneOf is then anyOf. */
    bool lenient;
    /* An object that names properties and says nothing of others has no others. */
    bool closed;
    int depth_max;           /* nesting of rules in a document, 0: 256; at most 1024 */
    size_t memory_max_bytes; /* of one compilation, 0: 64 MiB; the result is smaller */
};

/* NULL opts: all defaults.  Texts are copied. */
enum fst_status grammar_from_schema(struct grammar **out, json_val *schema,
                                    const struct grammar_opts *opts);
/* Any JSON object. */
enum fst_status grammar_from_json_object(struct grammar **out, const struct grammar_opts *opts);
/* The whole text matches.  RE2's syntax; no look-around, back-references or \b. */
enum fst_status grammar_from_regex(struct grammar **out, const char *re, size_t len,
                                   const struct grammar_opts *opts);
/* GBNF (a text with "::=", start rule "root") or Lark (else, start rule "start"). */
enum fst_status grammar_from_ebnf(struct grammar **out, const char *text, size_t len,
                                  const struct grammar_opts *opts);

/* Calls of tools, in the format whose exact texts the caller gives (chat/protocol.h):
 *   calls_open (invoke_open NAME invoke_go params invoke_end) joined by "\n" calls_close
 *   param: param_open KEY (param_text raw text | param_json JSON) param_close, joined by "\n"
 * `mark` is the text of the single token inside these tags ("" where the vocabulary has none): only
 * that token makes a tag, and no value holds tag_end, the text that begins a closing tag. */
struct grammar_tool_format {
    const char *calls_lead; /* what stands before calls_open, "\n\n" */
    const char *calls_open, *calls_close;
    const char *invoke_open, *invoke_go, *invoke_end;
    const char *param_open, *param_text, *param_json, *param_close;
    const char *tag_end, *mark;
};
struct grammar_tool {
    const char *name;
    json_val *parameters; /* a schema of an object, NULL: no parameters */
    bool any;             /* any parameters in the right form; the schema is not looked at */
    bool lenient;         /* of this schema, beside opts.lenient */
};
enum grammar_tools_start {
    GRAMMAR_TOOLS_LEAD,  /* the reply begins with calls_lead calls_open */
    GRAMMAR_TOOLS_BLOCK, /* calls_open was written, by the prompt or by the model */
    GRAMMAR_TOOLS_INVOKE /* also invoke_open NAME invoke_go of tool 0 */
};
struct grammar_tools_opts {
    enum grammar_tools_start start;
    bool one_call; /* parallel_tool_calls:false */
    json_val
        *answer; /* GRAMMAR_TOOLS_LEAD: a document of this schema instead of calls; NULL: none */
    bool answer_lenient;
};
/* A parameter that a schema does not name is legal only where the schema's own additionalProperties
 * says so: `closed` is set for the top of each schema. */
enum fst_status grammar_from_tools(struct grammar **out, const struct grammar_tool *tools,
                                   size_t n_tools, const struct grammar_tool_format *format,
                                   const struct grammar_tools_opts *tools_opts,
                                   const struct grammar_opts *opts);

struct grammar *grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */
/* What was left out: keywords with opts.lenient, and always formats that no standard knows:
 * "#/properties/a: uniqueItems; #/properties/b: format int32", "" for nothing. */
const char *grammar_left_out(const struct grammar *g);
size_t grammar_bytes(const struct grammar *g);    /* memory held */
uint32_t grammar_states(const struct grammar *g); /* of all rules' automata */

/* ---- vocabulary ------------------------------------------------------------------------------ */

struct grammar_vocab;
/* Built once; below a second for 129,280 tokens.  n_ids: rows of the model (ids without a name are
 * never legal).  Added tokens are never legal, but for `eos` where the grammar accepts and the token
 * whose text is `mark` (NULL or "": none) inside tags.  The tokenizer is not kept. */
enum fst_status grammar_vocab_new(struct grammar_vocab **out, const struct tokenizer *t,
                                  int32_t n_ids, int32_t eos, const char *mark);
void grammar_vocab_free(struct grammar_vocab *v); /* NULL is fine; after its matchers */

/* ---- matcher --------------------------------------------------------------------------------- */

struct matcher;
struct matcher_opts {
    int rollback_max;   /* tokens that matcher_rollback can take back, 0: 64 */
    size_t space_bytes; /* memory of the states met, shared with forks, 0: 12 MiB */
};
/* Everything is allocated here and in matcher_fork; nothing afterwards.  The matcher refers to `g`
 * and borrows `v`.  Forks share what they learned; they stay on one thread. */
enum fst_status matcher_new(struct matcher **out, struct grammar *g, const struct grammar_vocab *v,
                            const struct matcher_opts *opts);
/* A second matcher that stands where m stands (it cannot be rolled back beyond this point). */
enum fst_status matcher_fork(struct matcher **out, struct matcher *m);
/* The same in two steps, for a loop that allocates nothing: _new on any thread, _attach where m
 * lives.  _detach lets go of what is shared; then the matcher may be freed on any thread. */
enum fst_status matcher_new_detached(struct matcher **out, const struct matcher *like);
void matcher_attach(struct matcher *f, struct matcher *m);
void matcher_detach(struct matcher *f); /* fine when it is not attached */
void matcher_free(struct matcher *m);   /* NULL is fine */
/* Back to the start, as new; the states met are kept. */
void matcher_reset(struct matcher *m);

/* Takes one token.  FST_EINVAL when it is not legal here (the matcher has not moved; no text is
 * worded: callers probe drafts with this).  EOS is legal where the matcher accepts; afterwards
 * nothing is.  FST_EBUDGET: the states of one position do not fit space_bytes. */
enum fst_status matcher_advance(struct matcher *m, int32_t id);
/* Takes back the last n tokens; n <= matcher_undoable(m). */
void matcher_rollback(struct matcher *m, int n);
int matcher_undoable(const struct matcher *m);

/* The text so far is a document and EOS is legal (false once EOS was taken). */
bool matcher_is_accepting(const struct matcher *m);
/* Nothing but EOS is legal, or EOS was taken. */
bool matcher_is_over(const struct matcher *m);

/* Tokens, EOS not counted, within which the text can be made a document by tokens of the masks:
 * fewest tokens for the shortest text (in bytes) of each way to go on, where what is in front of the
 * last 4096 bytes counts a token a byte.  0 when accepting. */
uint32_t matcher_least_tokens(struct matcher *m);

/* The mask of the next token: bit id % 32 of word id / 32 for ids below n_ids, others 0;
 * matcher_mask_words() words.  `room`: tokens that may still be sampled, the next one included, EOS
 * not counted.  While room >= matcher_least_tokens(m), each legal token leaves
 * matcher_least_tokens <= room - 1: a reply that starts with enough room always ends in a document.
 * With less room the mask is that of MATCHER_NO_LIMIT. */
#define MATCHER_NO_LIMIT UINT32_MAX
enum fst_status matcher_mask(struct matcher *m, uint32_t room, uint32_t *mask);
size_t matcher_mask_words(const struct matcher *m);
/* Masks of a draft block: mask i (at masks + i * words) follows drafts 0 .. i-1, i = 0 .. n.  Returns
 * how many masks were written, at least 1: it ends behind the first draft that is not legal.  The
 * matcher has not moved.  n < rollback_max.  Negative: a status of matcher_mask. */
int matcher_mask_block(struct matcher *m, const int32_t *draft, int n, uint32_t room,
                       uint32_t *masks);
/* Bytes that must come next whatever is sampled, up to `cap`; their number. */
size_t matcher_forced(struct matcher *m, char *out, size_t cap);

/* Takes text as bytes, for tests and for replies that start with text of the prompt: how many of
 * them are legal.  Counts as one token for rollback when all are; otherwise m has not moved. */
size_t matcher_advance_text(struct matcher *m, const char *text, size_t len);

struct matcher_stats {
    uint64_t masks, masks_cached; /* asked for; found ready */
    uint64_t states;              /* made, over all time */
    uint64_t collections;         /* times the states were thinned out */
    uint64_t cut;                 /* positions with more ways than are followed (256) */
};
struct matcher_stats matcher_stats(const struct matcher *m);

#endif
