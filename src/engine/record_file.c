/* record_file.c - the recorder's rings as a file: JSON, one object a line.
 *
 *   {"record":2, ...}     what the engine was opened with, why the record was written
 *   {"request":N, ...}    ids and sampling of each request that the steps name; what the audit compared
 *   {"step":N, "spans":[...]}
 *   {"end":steps}         so that a torn file is told
 *
 * Bits of floats are written as unsigned integers, hashes as hexadecimal text. */
#include <dirent.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/engine_int.h"

enum { PIECE_BYTES = 1 << 20, NAMES_MAX = 16384 };

#define NAME_PREFIX "record-"
#define NAME_SUFFIX ".jsonl"

/* The text of a file on its way: written whenever a megabyte has gathered. */
struct out {
    struct file_log file;
    const char *path;
    struct buf b;
    enum fst_status rc; /* of the first failure */
};

static void flush(struct out *o, size_t least)
{
    if (o->rc == FST_OK && o->b.failed)
        o->rc = fst_error(FST_ENOMEM, "%s: no memory", o->path);
    if (o->b.len < least || o->b.len == 0)
        return;
    if (o->rc == FST_OK)
        o->rc = file_log_append(&o->file, o->path, o->b.data, o->b.len);
    buf_reset(&o->b);
}

static void put_text(struct buf *b, const char *key, const char *text)
{
    buf_printf(b, ",\"%s\":", key);
    if (text)
        json_put_string(b, text, strlen(text));
    else
        buf_puts(b, "null");
}

static void put_ids(struct out *o, const char *key, const int32_t *id, int64_t n)
{
    buf_printf(&o->b, ",\"%s\":[", key);
    for (int64_t i = 0; i < n; i++) {
        buf_printf(&o->b, "%s%d", i ? "," : "", id[i]);
        flush(o, PIECE_BYTES);
    }
    buf_putc(&o->b, ']');
}

static unsigned bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static void put_head(fst_engine *e, struct out *o, const struct recorder_why *why)
{
    const struct fst_engine_info *in = &e->info;
    struct buf *b = &o->b;
    char iso[CLOCK_ISO_SIZE];

    clock_iso(iso, clock_wall_ns());
    buf_printf(b, "{\"record\":%d,\"redacted\":false,\"time\":\"%s\"", RECORDER_VERSION, iso);
    put_text(b, "firesteel", FST_VERSION);
    put_text(b, "reason", why->reason);
    put_text(b, "detail", why->detail);
    put_text(b, "model", in->model_dir);
    put_text(b, "model_type", in->model_type);
    buf_printf(b, ",\"weights\":\"%016llx\"", (unsigned long long)weights_digest(e->weights));
    put_text(b, "device", in->device);
    put_text(b, "kernels", in->kernels);
    put_text(b, "precision", in->precision);
    put_text(b, "kv_layout", in->kv_layout);
    put_text(b, "index_keys", in->index_keys);
    put_text(b, "speculative_algorithm", in->gamma ? in->spec_algorithm : "none");
    put_text(b, "speculative_accept", in->spec_accept);
    put_text(b, "verify_mode", in->verify_mode);
    put_text(b, "debug_hooks", in->debug_hooks);
    buf_printf(b,
               ",\"gamma\":%d,\"threads\":%d,\"chunked_prefill_size\":%d,"
               "\"max_running_requests\":%d,\"context_length\":%lld,\"max_total_tokens\":%lld,"
               "\"vocab_size\":%d",
               in->gamma, in->threads, in->chunked_prefill_size, in->max_running_requests,
               (long long)in->context_length, (long long)in->max_total_tokens, in->vocab_size);
    put_ids(o, "masked_ids", e->masked_ids, e->n_masked_ids);
    buf_puts(b, "}\n");
}

static void put_request(struct out *o, const fst_request *r, bool audited)
{
    const struct sample_params *s = &r->sampling;
    struct buf *b = &o->b;

    buf_printf(b,
               "{\"request\":%llu,\"n_prompt\":%lld,\"temperature\":%u,\"top_p\":%u,\"min_p\":%u,"
               "\"top_k\":%d,\"seed\":\"%llu\",\"choice\":%u,\"min_new_tokens\":%lld,"
               "\"presence_penalty\":%u,\"frequency_penalty\":%u,\"repetition_penalty\":%u,"
               "\"logit_bias\":[",
               (unsigned long long)r->number, (long long)r->n_prompt, bits_of(s->temperature),
               bits_of(s->top_p), bits_of(s->min_p), s->top_k, (unsigned long long)s->seed,
               s->choice, (long long)r->o.min_new_tokens, bits_of(r->o.sampling.presence_penalty),
               bits_of(r->o.sampling.frequency_penalty), bits_of(r->o.sampling.repetition_penalty));
    for (size_t i = 0; i < r->rules.n_bias; i++)
        buf_printf(b, "%s[%d,%u]", i ? "," : "", r->rules.bias[i].id,
                   bits_of(r->rules.bias[i].bias));
    buf_putc(b, ']');
    put_ids(o, "end_ids", r->end_ids, r->n_end_ids);
    put_ids(o, "ids", r->ids, r->n_known);
    if (audited) {
        buf_puts(b, ",\"audited\":[");
        for (int64_t i = 0; i < r->n_audit && i < r->n_known - r->n_prompt; i++) {
            buf_printf(b, "%s[%u,\"%016llx\",%d]", i ? "," : "", bits_of(r->audit[i].logprob),
                       (unsigned long long)r->audit[i].hash, r->audit[i].forced || r->masks.of);
            flush(o, PIECE_BYTES);
        }
        buf_putc(b, ']');
    }
    buf_puts(b, "}\n");
    flush(o, PIECE_BYTES);
}

static void put_span(struct out *o, const struct recorder *k, const struct recorder_span *s)
{
    static const char *const kinds[] = {"prefill", "decode", "verify"};
    const struct recorder_held *h = &k->held[s->held];
    const struct fst_request *r = h->r;
    struct buf *b = &o->b;
    int n_known = s->n_rows - s->n_logits;

    buf_printf(b, "{\"request\":%llu,\"slot\":%d,\"kind\":\"%s\",\"pos\":%lld,\"rows\":%d",
               (unsigned long long)h->number, s->slot, kinds[s->kind], (long long)s->pos,
               s->n_rows);
    buf_printf(b, ",\"commit\":%d,\"emit\":%d,\"finish\":%d,\"ids\":[", s->n_commit, s->n_emit,
               s->finish);
    for (int i = 0; i < s->n_rows && (r || n_known == 0); i++) {
        int32_t id = i < n_known ? r->ids[s->pos + i]
                                 : k->row[(s->row + (uint64_t)(i - n_known)) % k->max_rows].id;
        buf_printf(b, "%s%d", i ? "," : "", id);
    }
    buf_puts(b, "],\"drawn\":["); /* id, log-probability, hash of the row, 1: was forced */
    for (int i = 0; i < s->n_logits; i++) {
        const struct recorder_row *x = &k->row[(s->row + (uint64_t)i) % k->max_rows];
        buf_printf(b, "%s[%d,%u,\"%016llx\",%d]", i ? "," : "", x->draw, bits_of(x->logprob),
                   (unsigned long long)x->hash, x->forced);
    }
    buf_puts(b, "]}");
    flush(o, PIECE_BYTES);
}

static void put_steps(struct out *o, const struct recorder *k)
{
    for (uint64_t n = k->first_step; n < k->n_steps; n++) {
        const struct recorder_step *s = &k->step[n % RECORDER_STEPS];
        buf_printf(&o->b, "{\"step\":%llu,\"wall_ns\":%lld,\"block\":%d,\"spans\":[",
                   (unsigned long long)s->number, (long long)s->wall_ns, s->block);
        for (int i = 0; i < s->n_spans; i++) {
            if (i)
                buf_putc(&o->b, ',');
            put_span(o, k, &k->span[(s->span + (uint64_t)i) % k->max_spans]);
        }
        buf_puts(&o->b, "]}\n");
    }
}

static void put_all(fst_engine *e, struct out *o, const struct recorder_why *why)
{
    const struct recorder *k = &e->recorder;
    bool seen = false;

    put_head(e, o, why);
    for (int i = 0; i < RECORDER_HELD; i++)
        if (k->held[i].r) {
            put_request(o, k->held[i].r, k->held[i].r == why->audited);
            seen |= k->held[i].r == why->audited;
        }
    if (why->audited && !seen)
        put_request(o, why->audited, true);
    put_steps(o, k);
    buf_printf(&o->b, "{\"end\":%llu}\n", (unsigned long long)(k->n_steps - k->first_step));
    flush(o, 1);
}

/* ------------------------------------------------------------------ the folder */

static bool is_record(const char *name)
{
    size_t n = strlen(name), suffix = sizeof NAME_SUFFIX - 1;
    return strncmp(name, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0 && n > suffix &&
           strcmp(name + n - suffix, NAME_SUFFIX) == 0;
}

/* The name that sorts first (they begin with the time), and how many there are. */
static int oldest(const char *dir, char out[256])
{
    DIR *d = opendir(dir);
    const struct dirent *at;
    int n = 0;

    out[0] = 0;
    while (d && n < NAMES_MAX && (at = readdir(d)))
        if (is_record(at->d_name)) {
            if (!n++ || strcmp(at->d_name, out) < 0)
                snprintf(out, 256, "%s", at->d_name);
        }
    if (d)
        closedir(d);
    return n;
}

static void remove_oldest(const struct recorder *k, int leave)
{
    char name[256], path[4096];

    while (oldest(k->dir, name) > leave) {
        if (file_join(path, sizeof path, k->dir, name) < 0)
            return;
        file_remove(path);
        if (file_exists(path)) /* somebody else's: what cannot go stays */
            return;
        log_info("record removed", "file=%s why=crash_dump_files", name);
    }
}

/* The time without what file names should not hold. */
static void make_name(const struct recorder *k, char out[128])
{
    char iso[CLOCK_ISO_SIZE], time[CLOCK_ISO_SIZE];
    size_t n = 0;

    clock_iso(iso, clock_wall_ns());
    for (const char *c = iso; *c; c++)
        if (*c != '-' && *c != ':')
            time[n++] = *c;
    time[n] = 0;
    snprintf(out, 128, NAME_PREFIX "%s-%d-%llu" NAME_SUFFIX, time, (int)getpid(),
             (unsigned long long)k->n_files);
}

enum fst_status recorder_write(fst_engine *e, const struct recorder_why *why, char *path,
                               size_t size)
{
    struct recorder *k = &e->recorder;
    char name[128], part[4200];
    struct out o = {.path = part};

    path[0] = 0;
    if (!k->on || !k->dir)
        return FST_OK;
    make_name(k, name);
    FST_TRY(file_join(path, size, k->dir, name));
    snprintf(part, sizeof part, "%s.part", path);
    o.rc = file_log_open(&o.file, part);
    if (o.rc == FST_OK) {
        put_all(e, &o, why);
        if (o.rc == FST_OK)
            o.rc = file_log_rename(&o.file, part, path);
        if (o.rc < 0)
            file_remove(part);
    }
    file_log_release(&o.file);
    buf_release(&o.b);
    if (o.rc < 0) {
        path[0] = 0;
        return o.rc;
    }
    k->n_files++;
    e->stats.records++;
    remove_oldest(k, k->max_files);
    log_warn("record written", "file=%s steps=%llu reason=%s", path,
             (unsigned long long)(k->n_steps - k->first_step), why->reason);
    return FST_OK;
}
