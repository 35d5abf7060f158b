#include "server/grammars.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "chat/protocol.h"

static const struct grammar_tool_format format = PROTOCOL_TOOL_FORMAT;

struct kept_grammar {
    struct kept_grammar *prev, *next; /* last used first */
    uint64_t hash;
    enum grammar_kind kind;
    bool lenient;
    struct buf text;      /* owned */
    fst_grammar *grammar; /* owned */
    size_t bytes;
    int uses;
};

struct grammars {
    pthread_mutex_t lock;
    struct grammar_vocab *vocab;
    struct kept_grammar *first, *last;
    enum grammar_space space;
    size_t n, bytes, max_bytes;
};

/* ------------------------------------------------------------------ what is kept */

static void unlink_kept(struct grammars *g, struct kept_grammar *k)
{
    *(k->prev ? &k->prev->next : &g->first) = k->next;
    *(k->next ? &k->next->prev : &g->last) = k->prev;
    g->n--;
    g->bytes -= k->bytes;
}

static void link_first(struct grammars *g, struct kept_grammar *k)
{
    k->prev = NULL;
    k->next = g->first;
    *(k->next ? &k->next->prev : &g->last) = k;
    g->first = k;
    g->n++;
    g->bytes += k->bytes;
}

static void free_kept(struct kept_grammar *k)
{
    if (!k)
        return;
    fst_grammar_free(k->grammar);
    buf_release(&k->text);
    mem_free(k);
}

enum fst_status grammars_new(struct grammars **out, const struct grammars_opts *o)
{
    struct grammars *g = mem_calloc(1, sizeof *g);
    enum fst_status rc;

    *out = NULL;
    if (!g)
        return fst_error(FST_ENOMEM, "grammars: no memory");
    g->space = o->space;
    g->max_bytes = o->max_bytes ? o->max_bytes : (size_t)(mem_available_bytes() / 4);
    if ((rc = grammar_vocab_new(&g->vocab, o->tokenizer, o->n_ids, o->eos_id, PROTOCOL_MARK)) < 0) {
        mem_free(g);
        return rc;
    }
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return FST_OK;
}

void grammars_free(struct grammars *g)
{
    if (!g)
        return;
    while (g->first) {
        struct kept_grammar *k = g->first;
        FST_ASSERT(!k->uses);
        unlink_kept(g, k);
        free_kept(k);
    }
    grammar_vocab_free(g->vocab);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

size_t grammars_kept(struct grammars *g, size_t *bytes)
{
    pthread_mutex_lock(&g->lock);
    size_t n = g->n;
    *bytes = g->bytes;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void grammar_ask_release(struct grammars *g, struct grammar_ask *a)
{
    if (a->found) {
        pthread_mutex_lock(&g->lock);
        a->found->uses--;
        pthread_mutex_unlock(&g->lock);
    }
    buf_release(&a->text);
    *a = (struct grammar_ask){0};
}

fst_grammar *grammar_of(const struct grammar_ask *a)
{
    return a->found ? a->found->grammar : NULL;
}

static uint64_t hash_of(const struct grammar_ask *a)
{
    return hash64(buf_str((struct buf *)(uintptr_t)&a->text), a->text.len,
                  (uint64_t)a->kind * 2 + a->lenient);
}

/* The kept one becomes the last used; locked. */
static struct kept_grammar *use(struct grammars *g, const struct grammar_ask *a, uint64_t hash)
{
    for (struct kept_grammar *k = g->first; k; k = k->next)
        if (k->hash == hash && k->kind == a->kind && k->lenient == a->lenient &&
            k->text.len == a->text.len && memcmp(k->text.data, a->text.data, k->text.len) == 0) {
            unlink_kept(g, k);
            link_first(g, k);
            k->uses++;
            return k;
        }
    return NULL;
}

bool grammars_find(struct grammars *g, struct grammar_ask *a)
{
    uint64_t hash = hash_of(a);

    pthread_mutex_lock(&g->lock);
    a->found = use(g, a, hash);
    pthread_mutex_unlock(&g->lock);
    a->was_kept = a->found != NULL;
    return a->was_kept;
}

/* The least recently used of those that nobody uses go; locked. */
static bool make_room(struct grammars *g, size_t bytes)
{
    for (struct kept_grammar *k = g->last, *prev; k && g->bytes + bytes > g->max_bytes; k = prev) {
        prev = k->prev;
        if (k->uses)
            continue;
        unlink_kept(g, k);
        free_kept(k);
    }
    return g->bytes + bytes <= g->max_bytes || !g->first;
}

/* ------------------------------------------------------------------ compiling */

/* Objects that name properties have no others; a schema that then allows nothing is taken as it is. */
static enum fst_status from_schema(struct grammar **out, json_val *schema, struct grammar_opts *o)
{
    o->closed = true;
    enum fst_status rc = grammar_from_schema(out, schema, o);
    o->closed = false;
    return rc == FST_EINVAL ? grammar_from_schema(out, schema, o) : rc;
}

/* {"one":bool,"answer":schema,"lenient":bool,"tools":[{"how":"..","of":function},..]} */
bool ask_calls(struct grammar_ask *a, const struct calls_ask *c)
{
    struct buf *b = &a->text;

    a->kind = ASK_CALLS;
    buf_printf(b, "{\"one\":%s,", c->one_call ? "true" : "false");
    if (c->answer)
        buf_printf(b, "\"lenient\":%s,\"answer\":%s,", c->answer_lenient ? "true" : "false",
                   c->answer);
    buf_puts(b, "\"tools\":[");
    for (size_t i = 0; i < c->n_tools; i++) {
        const struct chat_tool *t = c->tools[i];
        const char *how = t->strict ? "strict" : c->schemas == CALLS_LENIENT ? "lenient" : "any";
        buf_printf(b, "%s{\"how\":\"%s\",\"of\":", i ? "," : "", how);
        if (t->strict || c->schemas == CALLS_LENIENT) {
            buf_append(b, t->json.data, t->json.len);
        } else { /* what nobody looks at makes no other grammar */
            buf_puts(b, "{\"name\":");
            json_put_string(b, t->name.data, t->name.len);
            buf_putc(b, '}');
        }
        buf_putc(b, '}');
    }
    buf_puts(b, "]}");
    return !b->failed;
}

/* The text of a tag, its mark as one byte. */
static void put_marked(struct buf *out, const char *tag)
{
    const char *mark = strstr(tag, PROTOCOL_MARK);

    FST_ASSERT(mark);
    buf_append(out, tag, (size_t)(mark - tag));
    buf_putc(out, (char)0xff);
    buf_puts(out, mark + strlen(PROTOCOL_MARK));
}

void calls_text(struct buf *out, bool open, const char *name, size_t len)
{
    buf_puts(out, format.calls_lead);
    if (!open) {
        buf_puts(out, "<\xff");
        return;
    }
    put_marked(out, format.calls_open);
    if (!name)
        return;
    put_marked(out, format.invoke_open);
    buf_append(out, name, len);
    buf_puts(out, format.invoke_go);
}

static enum fst_status from_calls(struct grammar **out, json_val *v, struct grammar_opts *o)
{
    json_val *list = json_get(v, "tools");
    size_t n = json_count(list), len;
    struct grammar_tool *tools = mem_calloc(n, sizeof *tools);
    struct grammar_tools_opts to = {.start = GRAMMAR_TOOLS_LEAD,
                                    .one_call = json_bool(json_get(v, "one"), false),
                                    .answer = json_get(v, "answer"),
                                    .answer_lenient = json_bool(json_get(v, "lenient"), false)};

    if (!tools)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    for (size_t i = 0; i < n; i++) {
        json_val *one = json_at(list, i), *f = json_get(one, "of");
        const char *how = json_string(json_get(one, "how"), &len);
        tools[i] = (struct grammar_tool){.name = json_string(json_get(f, "name"), &len),
                                         .parameters = json_get(f, "parameters"),
                                         .any = how && how[0] == 'a',
                                         .lenient = how && how[0] == 'l'};
    }
    o->closed = to.answer != NULL;
    enum fst_status rc = grammar_from_tools(out, tools, n, &format, &to, o);
    o->closed = false;
    if (rc == FST_EINVAL && to.answer)
        rc = grammar_from_tools(out, tools, n, &format, &to, o);
    mem_free(tools);
    return rc;
}

static enum fst_status compile(struct grammar **out, const struct grammars *g,
                               const struct grammar_ask *a)
{
    struct grammar_opts o = {.space = g->space, .lenient = a->lenient};
    struct json_doc *d = NULL;
    enum fst_status rc = FST_OK;

    *out = NULL;
    switch (a->kind) {
    case ASK_REGEX:
        return grammar_from_regex(out, a->text.data, a->text.len, &o);
    case ASK_EBNF:
        return grammar_from_ebnf(out, a->text.data, a->text.len, &o);
    case ASK_SCHEMA:
        if ((rc = json_parse(&d, a->text.data, a->text.len)) == FST_OK)
            rc = from_schema(out, json_root(d), &o);
        break;
    case ASK_CALLS:
        if ((rc = json_parse(&d, a->text.data, a->text.len)) == FST_OK)
            rc = from_calls(out, json_root(d), &o);
        break;
    case ASK_NONE:
        break;
    }
    json_free(d);
    return rc;
}

static enum fst_status make(struct grammars *g, struct grammar_ask *a, struct kept_grammar *k)
{
    struct grammar *compiled;
    enum fst_status rc = compile(&compiled, g, a);

    if (rc < 0)
        return rc;
    const char *out = grammar_left_out(compiled);
    char v[1024]; /* it holds names that the client chose */
    if (out[0])
        log_debug("grammar", "field=%s left_out=%s", a->param,
                  log_value(v, sizeof v, out, strlen(out)));
    rc = fst_grammar_new(&k->grammar, compiled, g->vocab);
    grammar_unref(compiled);
    FST_TRY(rc);
    k->hash = hash_of(a);
    k->kind = a->kind;
    k->lenient = a->lenient;
    k->bytes = fst_grammar_bytes(k->grammar) + a->text.len;
    buf_append(&k->text, a->text.data, a->text.len);
    return k->text.failed ? fst_error(FST_ENOMEM, "grammar: out of memory") : FST_OK;
}

enum fst_status grammars_make(struct grammars *g, struct grammar_ask *a)
{
    struct kept_grammar *k = mem_calloc(1, sizeof *k);
    int64_t start = clock_ns();
    enum fst_status rc;

    if (!k)
        return fst_error(FST_ENOMEM, "grammar: out of memory");
    buf_append(&a->text, "", 0); /* never NULL */
    if ((rc = make(g, a, k)) < 0) {
        free_kept(k);
        return rc;
    }
    a->seconds = clock_seconds(clock_ns() - start);
    pthread_mutex_lock(&g->lock);
    a->found = use(g, a, k->hash); /* another thread was faster */
    if (!a->found && make_room(g, k->bytes)) {
        link_first(g, k);
        k->uses++;
        a->found = k;
        k = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    free_kept(k);
    return a->found ? FST_OK
                    : fst_error(FST_EFULL, "The grammars of running requests fill the memory that "
                                           "there is for grammars.");
}
