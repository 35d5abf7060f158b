#include "client/dataset.h"

#include "base/file.h"
#include "base/json.h"
#include "client/data.h"

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory for the prompts");
}

void dataset_release(struct dataset *d)
{
    for (size_t i = 0; d->row && i < d->n; i++) {
        mem_free(d->row[i].text);
        tokenizer_ids_release(&d->row[i].ids);
    }
    mem_free(d->row);
    *d = (struct dataset){0};
}

/* Text from ids; they stay. */
static enum fst_status decode(struct dataset_row *row, const struct tokenizer *t)
{
    struct buf b = {0};
    if (tokenizer_decode(t, row->ids.id, row->ids.n, false, &b) < 0) {
        buf_release(&b);
        return no_memory();
    }
    row->text_len = b.len;
    row->text = buf_detach(&b);
    return row->text ? FST_OK : no_memory();
}

static enum fst_status encode(struct tokenizer_ids *out, const struct tokenizer *t,
                              const char *text, size_t len)
{
    return tokenizer_encode_text(t, text, len, false, out);
}

int32_t dataset_ordinary_ids(const struct tokenizer *t)
{
    int32_t id = 0, n = tokenizer_vocab_size(t);
    while (id < n && tokenizer_is_special(t, id))
        id++;
    while (id < n && !tokenizer_is_special(t, id))
        id++;
    return id;
}

/* ------------------------------------------------------------------ random */

static int64_t *draw_lengths(struct mt19937 *m, int64_t full, double ratio, size_t n)
{
    int64_t *len = mem_calloc(n + 1, sizeof *len);
    int64_t low = FST_MAX((int64_t)((double)full * ratio), (int64_t)1);
    for (size_t i = 0; len && full > 0 && i < n; i++)
        len[i] = numpy_randint(m, low, full + 1);
    return len;
}

/* The first want ids of text repeated, from `at` of it. */
static enum fst_status repeat(struct tokenizer_ids *out, const struct tokenizer_ids *text,
                              size_t at, size_t want)
{
    for (size_t i = 0; out->n < want; i++)
        FST_TRY(tokenizer_ids_push(out, text->id[(at + i) % text->n]));
    return FST_OK;
}

static enum fst_status prose_ids(struct tokenizer_ids *out, const struct tokenizer *t)
{
    size_t len;
    const char *text = client_prose(&len);
    return encode(out, t, text, len);
}

enum fst_status dataset_prose(struct tokenizer_ids *out, const struct tokenizer *t, size_t n)
{
    struct tokenizer_ids text = {0};
    enum fst_status rc = prose_ids(&text, t);
    if (rc == FST_OK)
        rc = repeat(out, &text, 0, n);
    tokenizer_ids_release(&text);
    return rc;
}

enum fst_status dataset_decode_prompt(struct tokenizer_ids *out, const struct tokenizer *t,
                                      size_t n)
{
    struct mt19937 m;
    int64_t limit = FST_MIN(dataset_ordinary_ids(t), 128000);
    numpy_seed(&m, 42);
    for (size_t i = 0; i < n; i++)
        FST_TRY(tokenizer_ids_push(out, (int32_t)numpy_randint(&m, 0, limit)));
    return FST_OK;
}

static enum fst_status from_prose(struct dataset *d, const struct dataset_opts *o,
                                  const int64_t *in)
{
    struct tokenizer_ids text = {0};
    enum fst_status rc = prose_ids(&text, o->tok);
    for (size_t i = 0; rc == FST_OK && i < d->n; i++) {
        char number[24];
        struct tokenizer_ids *ids = &d->row[i].ids;
        int len = snprintf(number, sizeof number, "%zu. ", i + 1);
        size_t want = (size_t)in[i], at = python_below(o->python, (uint32_t)text.n);
        rc = encode(ids, o->tok, number, (size_t)len);
        ids->n = FST_MIN(ids->n, want);
        if (rc == FST_OK)
            rc = repeat(ids, &text, at, want);
    }
    tokenizer_ids_release(&text);
    return rc;
}

static enum fst_status count_up(struct dataset *d, const struct dataset_opts *o, const int64_t *in)
{
    int64_t vocab = dataset_ordinary_ids(o->tok);
    int64_t *offset = mem_calloc(d->n + 1, sizeof *offset);
    enum fst_status rc = offset ? FST_OK : no_memory();
    for (size_t i = 0; offset && i < d->n; i++)
        offset[i] = numpy_randint(o->numpy, 0, vocab);
    for (size_t i = 0; rc == FST_OK && i < d->n; i++)
        for (int64_t j = 0; rc == FST_OK && j < in[i]; j++)
            rc =
                tokenizer_ids_push(&d->row[i].ids, (int32_t)((offset[i] + (int64_t)i + j) % vocab));
    mem_free(offset);
    return rc;
}

/* ------------------------------------------------------------------ files */

struct talk {
    const char *ask, *answer; /* borrowed */
    size_t ask_len, answer_len;
    int64_t output_len; /* of {"prompt", "output_len"}; -1: the answer's */
};
struct talks {
    struct buf file;
    struct json_doc **doc; /* owned: (n_docs) */
    size_t n_docs;
    struct talk *talk; /* owned: (n) */
    size_t n, cap;
};

static void talks_release(struct talks *t)
{
    for (size_t i = 0; i < t->n_docs; i++)
        json_free(t->doc[i]);
    mem_free(t->doc);
    mem_free(t->talk);
    buf_release(&t->file);
}

static const char *turn_text(json_val *turn, size_t *len)
{
    json_val *v = json_get(turn, "value");
    return json_string(v ? v : json_get(turn, "content"), len);
}

/* Conversations of fewer than two turns are left out, as bench_serving does. */
static enum fst_status add_talk(struct talks *t, json_val *item, const char *path)
{
    struct talk k = {.output_len = -1};
    json_val *turns = json_get(item, "conversations");
    turns = turns ? turns : json_get(item, "conversation");
    json_val *prompt = json_get(item, "prompt");
    if (prompt) {
        k.ask = json_string(prompt, &k.ask_len);
        k.answer = "";
        if (!json_int(json_get(item, "output_len"), &k.output_len) || k.output_len < 1)
            return fst_error(FST_EFORMAT, "%s: item %zu: output_len: expected a positive integer",
                             path, t->n);
    } else {
        if (json_count(turns) < 2 && json_type_of(turns) == JSON_ARRAY)
            return FST_OK;
        k.ask = turn_text(json_at(turns, 0), &k.ask_len);
        k.answer = turn_text(json_at(turns, 1), &k.answer_len);
    }
    if (!k.ask || !k.answer)
        return fst_error(FST_EFORMAT,
                         "%s: item %zu: expected \"conversations\": [{\"value\": text}, ...] or "
                         "\"prompt\" and \"output_len\"",
                         path, t->n);
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 1024;
        struct talk *more = mem_realloc(t->talk, cap * sizeof *more);
        if (!more)
            return no_memory();
        t->talk = more;
        t->cap = cap;
    }
    t->talk[t->n++] = k;
    return FST_OK;
}

static enum fst_status parse_piece(struct talks *t, const char *text, size_t len, const char *path)
{
    struct json_doc **more = mem_realloc(t->doc, (t->n_docs + 1) * sizeof *more);
    char why[400];
    if (!more)
        return no_memory();
    t->doc = more;
    enum fst_status rc = json_parse(&t->doc[t->n_docs], text, len);
    if (rc < 0) {
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(rc, "%s: item %zu: %s", path, t->n, why);
    }
    json_val *root = json_root(t->doc[t->n_docs++]);
    if (json_type_of(root) != JSON_ARRAY)
        return add_talk(t, root, path);
    for (size_t i = 0; i < json_count(root); i++)
        FST_TRY(add_talk(t, json_at(root, i), path));
    return FST_OK;
}

/* One JSON array, or one object a line. */
static enum fst_status read_talks(struct talks *t, const char *path)
{
    FST_TRY(file_read(&t->file, path, (size_t)2 << 30));
    const char *p = buf_str(&t->file), *end = p + t->file.len;
    if (p[strspn(p, " \r\n\t")] == '[')
        return parse_piece(t, p, t->file.len, path);
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = nl ? (size_t)(nl - p) : (size_t)(end - p);
        if (len > strspn(p, " \r\t"))
            FST_TRY(parse_piece(t, p, len, path));
        p += len + 1;
    }
    return t->n ? FST_OK : fst_error(FST_EFORMAT, "%s: no conversations", path);
}

/* Cut or repeat asks to the drawn lengths. */
static enum fst_status fit_talks(struct dataset *d, const struct dataset_opts *o,
                                 const struct talks *t, const uint32_t *order, const int64_t *in)
{
    size_t n = 0;
    for (size_t k = 0; k < t->n && n < d->n; k++) {
        const struct talk *a = &t->talk[order[k]];
        struct tokenizer_ids ids = {0};
        enum fst_status rc = encode(&ids, o->tok, a->ask, a->ask_len);
        if (rc == FST_OK && ids.n) {
            rc = repeat(&d->row[n].ids, &ids, 0, (size_t)in[n]);
            n++;
        }
        tokenizer_ids_release(&ids);
        FST_TRY(rc);
    }
    d->n = n;
    return FST_OK;
}

static enum fst_status ask_talks(struct dataset *d, const struct dataset_opts *o,
                                 const struct talks *t, const uint32_t *order)
{
    size_t n = 0;
    for (size_t k = 0; k < t->n && n < d->n; k++) {
        const struct talk *a = &t->talk[order[k]];
        struct dataset_row *row = &d->row[n];
        struct tokenizer_ids answer = {0};
        tokenizer_ids_release(&row->ids);
        enum fst_status rc = encode(&row->ids, o->tok, a->ask, a->ask_len);
        if (rc == FST_OK)
            rc = encode(&answer, o->tok, a->answer, a->answer_len);
        if (rc < 0) {
            tokenizer_ids_release(&answer);
            return rc;
        }
        int64_t asked = (int64_t)row->ids.n;
        int64_t out = a->output_len >= 0       ? a->output_len
                      : o->sharegpt_output_len ? o->sharegpt_output_len
                                               : (int64_t)answer.n;
        bool fits = asked >= 2 && (a->output_len >= 0 || answer.n >= 2) &&
                    (!o->sharegpt_context_len || asked + out <= o->sharegpt_context_len);
        tokenizer_ids_release(&answer);
        if (!fits)
            continue;
        row->prompt_len = asked;
        row->output_len = out;
        row->text = mem_alloc(a->ask_len + 1);
        if (!row->text)
            return no_memory();
        memcpy(row->text, a->ask, a->ask_len);
        row->text[a->ask_len] = 0;
        row->text_len = a->ask_len;
        n++;
    }
    for (size_t i = n; i < d->n; i++)
        tokenizer_ids_release(&d->row[i].ids);
    d->n = n;
    return FST_OK;
}

static enum fst_status from_file(struct dataset *d, const struct dataset_opts *o, const int64_t *in)
{
    struct talks t = {0};
    uint32_t *order = NULL;
    enum fst_status rc = read_talks(&t, o->path);
    if (rc == FST_OK && !(order = mem_calloc(t.n + 1, sizeof *order)))
        rc = no_memory();
    if (rc == FST_OK) {
        for (size_t i = 0; i < t.n; i++)
            order[i] = (uint32_t)i;
        if (o->kind != DATASET_CUSTOM)
            python_shuffle(o->python, order, t.n);
        rc = in ? fit_talks(d, o, &t, order, in) : ask_talks(d, o, &t, order);
        if (rc == FST_OK && !d->n)
            rc = fst_error(FST_EFORMAT, "%s: no conversation can be used", o->path);
    }
    mem_free(order);
    talks_release(&t);
    return rc;
}

static enum fst_status make_random(struct dataset *d, const struct dataset_opts *o)
{
    int64_t *in = draw_lengths(o->numpy, o->input_len, o->range_ratio, d->n);
    int64_t *out = draw_lengths(o->numpy, o->output_len, o->range_ratio, d->n);
    enum fst_status rc = in && out ? FST_OK : no_memory();
    if (rc == FST_OK)
        rc = o->kind == DATASET_RANDOM_IDS ? count_up(d, o, in)
             : o->path                     ? from_file(d, o, in)
                                           : from_prose(d, o, in);
    for (size_t i = 0; rc == FST_OK && i < d->n; i++) {
        d->row[i].prompt_len = in[i];
        d->row[i].output_len = out[i];
        rc = decode(&d->row[i], o->tok);
    }
    mem_free(in);
    mem_free(out);
    return rc;
}

/* ------------------------------------------------------------------ shared prefixes */

/* random.choices over the ordinary vocabulary, as text. */
static enum fst_status add_choices(struct buf *out, const struct dataset_opts *o, int64_t n)
{
    struct tokenizer_ids ids = {0};
    double vocab = dataset_ordinary_ids(o->tok);
    enum fst_status rc = FST_OK;
    for (int64_t i = 0; rc == FST_OK && i < n; i++)
        rc = tokenizer_ids_push(&ids, (int32_t)(mt19937_unit(o->python) * vocab));
    if (rc == FST_OK)
        rc = tokenizer_decode(o->tok, ids.id, ids.n, false, out);
    tokenizer_ids_release(&ids);
    return rc;
}

static enum fst_status make_shared(struct dataset *d, const struct dataset_opts *o)
{
    struct buf *prefix = mem_calloc((size_t)o->n_groups + 1, sizeof *prefix);
    uint32_t *order = mem_calloc(d->n + 1, sizeof *order);
    struct dataset_row *row = mem_calloc(d->n + 1, sizeof *row);
    enum fst_status rc = prefix && order && row ? FST_OK : no_memory();

    for (int64_t g = 0; rc == FST_OK && g < o->n_groups; g++)
        rc = add_choices(&prefix[g], o, o->prefix_len);
    for (size_t i = 0; rc == FST_OK && i < d->n; i++) {
        const struct buf *p = &prefix[i / (size_t)o->per_group];
        struct buf text = {0};
        buf_append(&text, buf_str(p), p->len);
        buf_puts(&text, "\n\n");
        rc = add_choices(&text, o, o->question_len);
        if (rc == FST_OK)
            rc = encode(&row[i].ids, o->tok, buf_str(&text), text.len);
        row[i].text_len = text.len;
        row[i].text = buf_detach(&text); /* NULL releases it */
        row[i].prompt_len = (int64_t)row[i].ids.n;
        row[i].output_len = o->shared_output_len;
        if (rc == FST_OK && !row[i].text)
            rc = no_memory();
        order[i] = (uint32_t)i;
    }
    if (rc == FST_OK)
        python_shuffle(o->python, order, d->n);
    for (size_t i = 0; row && order && i < d->n; i++)
        d->row[i] = row[rc == FST_OK ? order[i] : i];
    for (int64_t g = 0; prefix && g < o->n_groups; g++)
        buf_release(&prefix[g]);
    mem_free(prefix);
    mem_free(order);
    mem_free(row);
    return rc;
}

enum fst_status dataset_make(struct dataset *d, const struct dataset_opts *o)
{
    bool shared = o->kind == DATASET_SHARED_PREFIX;
    *d = (struct dataset){.n = shared ? (size_t)(o->n_groups * o->per_group) : o->n};
    if ((o->kind == DATASET_SHAREGPT || o->kind == DATASET_CUSTOM) && !o->path)
        return fst_error(FST_EINVAL, "--dataset-name %s needs --dataset-path FILE",
                         o->kind == DATASET_CUSTOM ? "custom" : "sharegpt");
    d->row = mem_calloc(d->n + 1, sizeof *d->row);
    size_t n = d->n;
    enum fst_status rc = !d->row  ? no_memory()
                         : shared ? make_shared(d, o)
                         : o->kind == DATASET_RANDOM || o->kind == DATASET_RANDOM_IDS
                             ? make_random(d, o)
                             : from_file(d, o, NULL);
    if (rc < 0) {
        d->n = n;
        dataset_release(d);
    }
    return rc;
}
