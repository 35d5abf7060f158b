/* debug.c - the debug hooks: their options, the oracle's file, and what they do to a step. */
#include "engine/debug.h"

#include <math.h>
#include <strings.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "engine/engine_int.h"
#include "kernels/rows.h"

struct debug_known {
    const int32_t *prompt, *ids, *accept, *spoil; /* borrowed from debug_hooks.ids */
    size_t n_prompt, n_ids, n_accept, n_spoil;
};

/* ------------------------------------------------------------------ the drafter's file */

/* The lists of one request, in the order in which they are stored. */
static const char *const lists[] = {"prompt", "ids", "accept", "spoil"};

static enum fst_status read_list(const char *path, size_t request, const char *name, json_val *list,
                                 int64_t limit, int32_t *out)
{
    int64_t x;

    for (size_t i = 0; i < json_count(list); i++) {
        if (!json_int(json_at(list, i), &x) || x < 0 || x >= limit)
            return fst_error(FST_EFORMAT,
                             "%s: requests[%zu].%s[%zu]: expected an integer in [0, %lld)", path,
                             request, name, i, (long long)limit);
        out[i] = (int32_t)x;
    }
    return FST_OK;
}

static enum fst_status read_known(struct debug_hooks *d, const char *path, json_val *requests)
{
    size_t n = json_count(requests), total = 0;
    int32_t *at;

    for (size_t r = 0; r < n; r++)
        for (size_t k = 0; k < FST_COUNT(lists); k++) {
            json_val *list = json_get(json_at(requests, r), lists[k]);
            if (json_type_of(list) != JSON_ARRAY && (list || k < 2))
                return fst_error(FST_EFORMAT,
                                 "%s: requests[%zu].%s: expected an array of integers, got %s",
                                 path, r, lists[k], json_type_name(json_type_of(list)));
            total += json_count(list);
        }
    d->known = mem_calloc(n + 1, sizeof *d->known);
    d->ids = mem_alloc((total + 1) * sizeof *d->ids);
    if (!d->known || !d->ids)
        return fst_error(FST_ENOMEM, "%s: no memory", path);
    at = d->ids;
    for (size_t r = 0; r < n; r++) {
        struct debug_known *o = &d->known[r];
        const int32_t **to[] = {&o->prompt, &o->ids, &o->accept, &o->spoil};
        size_t *count[] = {&o->n_prompt, &o->n_ids, &o->n_accept, &o->n_spoil};
        for (size_t k = 0; k < FST_COUNT(lists); k++) {
            json_val *list = json_get(json_at(requests, r), lists[k]);
            FST_TRY(read_list(path, r, lists[k], list, k < 2 ? d->vocab : INT32_MAX, at));
            *to[k] = at;
            *count[k] = json_count(list);
            at += json_count(list);
        }
        d->n_known++;
    }
    return FST_OK;
}

static enum fst_status read_file(struct debug_hooks *d, const char *path)
{
    struct buf b = {0};
    struct json_doc *doc = NULL;
    enum fst_status rc = file_read(&b, path, (size_t)256 << 20);

    if (rc == FST_OK && (rc = json_parse(&doc, buf_str(&b), b.len)) < 0) {
        char why[512];
        snprintf(why, sizeof why, "%s", fst_error_text());
        rc = fst_error(FST_EFORMAT, "%s: %s", path, why);
    }
    if (rc == FST_OK) {
        json_val *requests = json_get(json_root(doc), "requests");
        rc = json_type_of(requests) == JSON_ARRAY
                 ? read_known(d, path, requests)
                 : fst_error(FST_EFORMAT, "%s: requests: expected an array, got %s", path,
                             json_type_name(json_type_of(requests)));
    }
    json_free(doc);
    buf_release(&b);
    return rc;
}

/* ------------------------------------------------------------------ options */

static enum fst_status read_spoil(struct debug_hooks *d, const char *text, bool on_card)
{
    static const char *const what[] = {"logits@", "kv@"};
    char *end;

    for (size_t i = 0; i < FST_COUNT(what); i++) {
        size_t n = strlen(what[i]);
        if (strncmp(text, what[i], n) != 0 || text[n] < '0' || text[n] > '9')
            continue;
        d->spoil = i ? DEBUG_SPOIL_KV : DEBUG_SPOIL_LOGITS;
        d->spoil_at = strtoll(text + n, &end, 10);
        if (*end)
            break;
        if (on_card)
            return fst_error(
                FST_EUNSUPPORTED,
                "--debug-spoil is not built for a card: its rows are out of the host's reach");
        return FST_OK;
    }
    return fst_error(FST_EINVAL, "--debug-spoil: expected logits@N or kv@N, got \"%.64s\"", text);
}

static enum fst_status read_simulation(struct debug_hooks *d, const struct fst_engine_opts *o,
                                       int gamma)
{
    static const char *const methods[] = {"match-expected", "multinomial"};
    int method;

    FST_TRY(engine_word("--simulate-acc-method", o->simulate_acc_method, methods[0], methods,
                        FST_COUNT(methods), &method));
    if (!(o->simulate_acc_len >= 1 && o->simulate_acc_len <= gamma + 1))
        return fst_error(
            FST_EINVAL,
            "--simulate-acc-len must be in [1, %d] (a block of %d drafts and the bonus), got %g",
            gamma + 1, gamma, o->simulate_acc_len);
    /* More than what is verified cannot be accepted. */
    if (o->verify_mode && strcasecmp(o->verify_mode, "auto") != 0 &&
        strcasecmp(o->verify_mode, "static") != 0 && o->simulate_acc_len > 1)
        return fst_error(FST_EINVAL, "--simulate-acc-len %g needs --verify-mode static, got %.64s",
                         o->simulate_acc_len, o->verify_mode);
    d->acc_len = o->simulate_acc_len;
    d->multinomial = method == 1;
    snprintf(d->label + strlen(d->label), sizeof d->label - strlen(d->label),
             " simulate-acc-len=%g method=%s", d->acc_len, methods[method]);
    return FST_OK;
}

static enum fst_status open_null(struct debug_hooks *d, const struct fst_engine_opts *o, int gamma,
                                 bool on_card)
{
    if (gamma)
        return fst_error(FST_EINVAL, "--debug-null-model needs --speculative-algorithm none");
    if (on_card)
        return fst_error(FST_EUNSUPPORTED, "--debug-null-model is not built for a card");
    if (!(o->debug_null_model > 0 && o->debug_null_model <= 1e6))
        return fst_error(FST_EINVAL, "--debug-null-model must be above 0 and at most 1e6, got %g",
                         o->debug_null_model);
    d->null_us = o->debug_null_model;
    snprintf(d->label + strlen(d->label), sizeof d->label - strlen(d->label), " null-model=%g",
             d->null_us);
    return FST_OK;
}

enum fst_status debug_open(struct debug_hooks *d, const struct fst_engine_opts *o, int gamma,
                           int vocab, bool on_card)
{
    const struct {
        const char *flag;
        bool given, drafts;
    } hooks[] = {{"--debug-drafter", o->debug_drafter, true},
                 {"--debug-reject-at", o->debug_reject_at != 0, true},
                 {"--simulate-acc-len", o->simulate_acc_len != 0, true},
                 {"--debug-spoil", o->debug_spoil, false},
                 {"--debug-null-model", o->debug_null_model != 0, false}};

    for (size_t i = 0; i < FST_COUNT(hooks); i++) {
        if (hooks[i].given && !o->debug_hooks)
            return fst_error(
                FST_EINVAL, "%s makes results that are not the model's: it needs --debug-hooks too",
                hooks[i].flag);
        if (hooks[i].given && hooks[i].drafts && gamma == 0)
            return fst_error(FST_EINVAL, "%s needs drafting, and --speculative-algorithm is none",
                             hooks[i].flag);
    }
    if (!o->debug_hooks)
        return FST_OK;
    d->on = true;
    d->vocab = vocab;
    rng_init(&d->rng, o->has_random_seed ? o->random_seed : 0x5eed);
    snprintf(d->label, sizeof d->label, "debug-hooks");
    if (o->simulate_acc_len != 0)
        FST_TRY(read_simulation(d, o, gamma));
    if (o->debug_reject_at < 0 || o->debug_reject_at > gamma)
        return fst_error(FST_EINVAL, "--debug-reject-at must be in [1, %d], got %d", gamma,
                         o->debug_reject_at);
    d->reject_at = o->debug_reject_at;
    if (d->reject_at)
        snprintf(d->label + strlen(d->label), sizeof d->label - strlen(d->label), " reject-at=%d",
                 d->reject_at);
    if (o->debug_spoil) {
        FST_TRY(read_spoil(d, o->debug_spoil, on_card));
        snprintf(d->label + strlen(d->label), sizeof d->label - strlen(d->label), " spoil=%s",
                 o->debug_spoil);
    }
    if (o->debug_null_model != 0)
        FST_TRY(open_null(d, o, gamma, on_card));
    if (o->debug_drafter) {
        FST_TRY(read_file(d, o->debug_drafter));
        snprintf(d->label + strlen(d->label), sizeof d->label - strlen(d->label),
                 " drafter=oracle");
    }
    return FST_OK;
}

void debug_close(struct debug_hooks *d)
{
    mem_free(d->known);
    mem_free(d->ids);
    mem_free(d->null_logits);
    *d = (struct debug_hooks){0};
}

/* ------------------------------------------------------------------ in a step */

int debug_draw_len(struct debug_hooks *d, int gamma)
{
    double most = gamma + 1, x;

    if (d->multinomial) {
        x = d->acc_len + rng_normal(&d->rng);
        return (int)lround(fmin(fmax(x, 1), most));
    }
    x = floor(d->acc_len);
    return (int)x + (rng_unit(&d->rng) < d->acc_len - x);
}

void debug_step(struct fst_engine *e)
{
    if (e->debug.acc_len > 0)
        e->debug.step_len = debug_draw_len(&e->debug, e->gamma);
}

bool debug_retracts(const struct fst_engine *e, struct fst_request *r)
{
    int64_t at = r->o.debug_retract_at;

    if (!e->debug.on || at <= 0 || r->debug.retracted || r->n_known - r->n_prompt < at)
        return false;
    return r->debug.retracted = true;
}

enum fst_status debug_forward(struct fst_engine *e, int n, float **logits)
{
    struct debug_hooks *d = &e->debug;
    if (!d->null_logits) /* once: how many may run is not known before */
        d->null_logits = mem_alloc((size_t)e->max_running * (size_t)d->vocab * sizeof(float));
    if (!d->null_logits)
        return fst_error(FST_ENOMEM, "--debug-null-model: no memory for %d rows", e->max_running);
    if (n > e->max_running)
        return fst_error(FST_EUNSUPPORTED,
                         "--debug-null-model gives no log-probabilities of prompts");
    /* Anew each time: penalties and masks change rows in place. */
    memset(d->null_logits, 0, (size_t)n * (size_t)d->vocab * sizeof *d->null_logits);
    for (int i = 0; i < n; i++)
        d->null_logits[(size_t)i * (size_t)d->vocab + (size_t)d->vocab / 2] =
            100; /* at any temperature */
    usleep((useconds_t)d->null_us);
    *logits = d->null_logits;
    return FST_OK;
}

static const struct debug_known *known_of(const struct debug_hooks *d, const struct fst_request *r)
{
    for (size_t i = 0; i < d->n_known; i++)
        if (d->known[i].n_prompt == (size_t)r->n_prompt &&
            memcmp(d->known[i].prompt, r->ids, (size_t)r->n_prompt * sizeof *r->ids) == 0)
            return &d->known[i];
    return NULL;
}

static int32_t another(const struct debug_hooks *d, int32_t id)
{
    return (id + 1) % d->vocab;
}

static bool spoiled(const struct debug_known *k, int64_t at)
{
    for (size_t i = 0; i < k->n_spoil; i++)
        if (k->spoil[i] == at)
            return true;
    return false;
}

void debug_draft(struct fst_engine *e, struct fst_request *r)
{
    const struct debug_hooks *d = &e->debug;
    int32_t *draft = r->ids + r->n_known;

    if (!r->debug.looked_up) {
        r->debug.known = known_of(d, r);
        r->debug.looked_up = true;
    }
    const struct debug_known *k = r->debug.known;
    if (k) {
        size_t round = r->debug.n_rounds++;
        for (int i = 0; i < r->n_draft; i++) {
            int64_t at = r->n_known - r->n_prompt + i;
            if ((size_t)at >= k->n_ids)
                break;
            bool wrong = (round < k->n_accept && k->accept[round] == i) || spoiled(k, at);
            draft[i] = wrong ? another(d, k->ids[at]) : k->ids[at];
        }
    }
    if (d->reject_at && d->reject_at <= r->n_draft)
        draft[d->reject_at - 1] = another(d, draft[d->reject_at - 1]);
}

void debug_logits(const struct fst_engine *e, float *logits, int64_t out_pos, int n)
{
    const struct debug_hooks *d = &e->debug;
    int64_t i = d->spoil_at - out_pos;

    if (d->spoil == DEBUG_SPOIL_LOGITS && i >= 0 && i < n)
        logits[i * d->vocab + d->vocab / 2] += 0.5f;
}

void debug_accept(const struct fst_engine *e, int32_t draft, struct sample_row *row, int i,
                  int n_draft, bool *stands)
{
    const struct debug_hooks *d = &e->debug;

    if (d->reject_at && i == d->reject_at - 1)
        *stands = false;
    if (d->acc_len <= 0 || row->id < 0)
        return;
    *stands = i < FST_MIN(d->step_len - 1, n_draft);
    if (*stands)
        row->id = draft;
}

void debug_commit(const struct fst_engine *e, const struct fst_request *r, int64_t n_before)
{
    const struct debug_hooks *d = &e->debug;
    const struct kv_layer *l = &e->kv.layer[0];
    enum { DIM_MAX = 1024 };
    float row[DIM_MAX];

    if (d->spoil != DEBUG_SPOIL_KV || d->spoil_at < n_before || d->spoil_at >= r->n_committed)
        return;
    int dim = e->kv.spec.head_dim;
    FST_ASSERT(dim <= DIM_MAX);
    kv_read_window(&e->kv, 0, r->slot, d->spoil_at, row);
    for (int i = 0; i < dim; i++) /* a negated row lies on every format's grid */
        row[i] = -row[i];
    rows_store(l, rows_window(l, r->slot, d->spoil_at), row, dim, e->kv.spec.rope_dim);
}
