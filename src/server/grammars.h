/* grammars.h - what replies may be: from request fields to compiled grammars, which are kept by their text.
 *
 * A request asks (grammar_ask) while its body is read; grammars_find takes what is kept, grammars_make compiles on
 * a helper thread and keeps it.  What is kept and not in use goes, the least recently used first, when all of it
 * is larger than the bound; what is in use is never dropped, so a request may be told to come back.
 * Any thread. */
#ifndef FST_SERVER_GRAMMARS_H
#define FST_SERVER_GRAMMARS_H

#include "base/base.h"
#include "chat/chat.h"
#include "firesteel/engine.h"
#include "grammar/grammar.h"

enum grammar_kind {
    ASK_NONE,
    ASK_SCHEMA,
    ASK_REGEX,
    ASK_EBNF,
    ASK_CALLS /* calls of tools, or an answer of a schema */
};

struct grammars;
struct kept_grammar;
struct grammar_ask {
    enum grammar_kind kind;
    bool lenient; /* ASK_SCHEMA: keywords that cannot be kept are left out */
    bool
        of_block; /* ASK_CALLS: of calls that the model begins by itself; the text before is free */
    bool optional;   /* where it cannot be compiled there is none */
    struct buf text; /* owned: a schema, an expression, a grammar; of ASK_CALLS see ask_calls */
    char param[160]; /* field that asked */
    struct kept_grammar *found; /* owned: a use of it */
    bool was_kept, failed;      /* found as it was; could not be compiled */
    double seconds;             /* that compiling took */
};
void grammar_ask_release(struct grammars *g, struct grammar_ask *a); /* zero is fine */
/* The grammar of an ask that was found; borrowed from it. */
fst_grammar *grammar_of(const struct grammar_ask *a);

/* Calls of these tools for ASK_CALLS. */
enum calls_schemas {
    CALLS_ANY,     /* names and tags are kept; of strict tools the parameters' schema too */
    CALLS_LENIENT, /* schemas of all; of tools that are not strict what can be kept of them */
};
struct calls_ask {
    const struct chat_tool *const *tools;
    size_t n_tools;
    enum calls_schemas schemas;
    bool one_call;
    const char *answer; /* schema of an answer that may stand instead; NULL: calls must come */
    bool answer_lenient;
};
/* Into a->text.  False: out of memory. */
bool ask_calls(struct grammar_ask *a, const struct calls_ask *c);
/* What of ASK_CALLS' document is written behind "<" and the mark of its first tag, up to where the prompt ends: a
 * block's opening tag, and with a name a call's; name NULL: none; open false: "<" and the mark alone. */
void calls_text(struct buf *out, bool open, const char *name, size_t len);

struct grammars_opts {
    const struct tokenizer *tokenizer; /* looked at in grammars_new only */
    int32_t n_ids, eos_id;
    enum grammar_space space;
    size_t max_bytes; /* of all grammars, 0: a quarter of the memory that is left */
};
enum fst_status grammars_new(struct grammars **out, const struct grammars_opts *o);
void grammars_free(
    struct grammars *g); /* NULL is fine; no ask has a use any more, the engine is closed */
bool grammars_find(struct grammars *g, struct grammar_ask *a);
/* FST_EINVAL, FST_EUNSUPPORTED, FST_EBUDGET: the text says what is wrong with it; FST_EFULL: too many are in use. */
enum fst_status grammars_make(struct grammars *g, struct grammar_ask *a);
/* How many are kept, and their bytes. */
size_t grammars_kept(struct grammars *g, size_t *bytes);

#endif
