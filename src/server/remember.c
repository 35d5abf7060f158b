/* remember.c - replies with calls go into the call memory, for prompts that send them back.
 *
 * Same for all dialects: what is kept is the ids and what was parsed from them, under the call ids that
 * the client was given.  A reply that cannot be kept is answered all the same. */
#include "base/log.h"
#include "server/fields.h"
#include "server/gen.h"

bool remember_tenant(const struct server *s, const char *key, json_val *body, struct hash128 *out,
                     struct api_error *e)
{
    const char *salt = NULL;
    struct field_reader r = {body, "", e};
    if (!field_str(&r, "cache_salt", &salt, NULL))
        return false;
    if (s->memory)
        *out = chat_memory_tenant(s->memory, key, salt ? salt : "");
    return true;
}

/* ------------------------------------------------------------------ the disk */

static void save(void *ud)
{
    chat_memory_save(((struct server *)ud)->memory);
}

static void start_saving(struct server *s);

static void saved(void *ud)
{
    struct server *s = ud;
    s->saving = false;
    if (s->unsaved)
        start_saving(s);
}

/* One helper at a time; what is left when the server ends is written by chat_memory_free. */
static void start_saving(struct server *s)
{
    s->unsaved = s->saving;
    if (!s->saving && s->o.call_memory_dir && s->state == SERVER_READY)
        s->saving = loop_work(s->loop, save, saved, s) == FST_OK;
}

/* ------------------------------------------------------------------ a reply */

static enum fst_status remember(const struct gen_choice *c, struct chat_call *calls)
{
    const struct gen *g = c->g;
    const struct fst_request_view *v = &c->view;
    int32_t eos = tokenizer_specials(g->s->tok)->eos;
    size_t n = (size_t)c->n_tokens;
    struct tokenizer_ids ids = {0};
    enum fst_status rc = FST_OK;
    if (n && c->matched_id >= 0 && c->matched_id != eos)
        n--; /* a stop id is the client's, not the model's end */
    for (size_t i = 0; rc == FST_OK && i < n; i++)
        rc = tokenizer_ids_push(&ids, v->ids[i]);
    if (rc == FST_OK && (!n || ids.id[n - 1] != eos))
        rc = chat_turn_close(g->s->tok, &ids);
    struct chat_turn t = {.tenant = g->tenant,
                          .start = g->prompt.start,
                          .ids = ids.id,
                          .n_ids = ids.n,
                          .content = {buf_str(&c->content), c->content.len},
                          .reasoning = {buf_str(&c->reasoning), c->reasoning.len},
                          .calls = calls,
                          .n_calls = c->n_calls};
    size_t thought = (size_t)c->n_reasoning;
    if (rc == FST_OK && t.start == CHAT_START_REASONING && thought && thought <= n &&
        ids.id[thought - 1] == tokenizer_specials(g->s->tok)->end_think)
        t.n_thought = thought;
    for (size_t i = 0; i < c->n_calls; i++)
        calls[i] = (struct chat_call){{c->calls[i].id, strlen(c->calls[i].id)},
                                      {c->calls[i].name, strlen(c->calls[i].name)},
                                      {buf_str(&c->calls[i].args), c->calls[i].args.len}};
    if (rc == FST_OK)
        rc = chat_memory_add(g->s->memory, &t);
    tokenizer_ids_release(&ids);
    return rc;
}

/* Whether the reply is a turn of its own that can be sent back: begun behind a plain header, ended by
 * the model or for it, every call given out whole. */
static bool is_whole(const struct gen_choice *c)
{
    const struct gen *g = c->g;
    const struct chat_request *r = &g->chat;
    if (!g->has_chat || !r->n_messages || strcmp(c->finish_reason, "tool_calls") != 0 ||
        r->continue_final || !r->generation_prompt || r->task != CHAT_TASK_NONE ||
        r->messages[r->n_messages - 1].task != CHAT_TASK_NONE)
        return false;
    for (size_t i = 0; i < c->n_calls; i++)
        if (!c->calls[i].complete || c->calls[i].cancelled || c->calls[i].args.failed)
            return false;
    return c->n_calls > 0;
}

void remember_choice(const struct gen_choice *c)
{
    struct server *s = c->g->s;
    if (!s->memory || c->g->err.status || c->g->kind != CHAT_STREAM_CHAT || !is_whole(c))
        return;
    struct chat_call *calls = mem_calloc(c->n_calls, sizeof *calls);
    enum fst_status rc =
        calls ? remember(c, calls) : fst_error(FST_ENOMEM, "out of memory for the calls");
    mem_free(calls);
    char why[256];
    if (rc < 0)
        log_debug("reply not remembered", "id=%s why=%s", c->g->id,
                  log_value(why, sizeof why, fst_error_text(), strlen(fst_error_text())));
    else
        start_saving(s);
}
