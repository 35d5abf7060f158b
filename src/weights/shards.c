/* shards.c - index, files, one list of tensors. */
#include "weights/shards.h"

#include <inttypes.h>

#include "base/json.h"

enum { INDEX_BYTES_MAX = 256 << 20, SHARDS_MAX = 4096 };

/* ---- names ----------------------------------------------------------------------------------- */
void shards_canonical(char *out, const char *stored)
{
    static const struct {
        const char *from, *to;
    } parts[] = {{"self_attn", "attn"},
                 {"mlp", "ffn"},
                 {"weight_scale_inv", "scale"},
                 {"e_score_correction_bias", "bias"}};
    if (strncmp(stored, "model.", 6) == 0)
        stored += 6;
    while (*stored) {
        size_t len = strcspn(stored, "."), out_len = len;
        const char *to = stored;
        for (size_t i = 0; i < FST_COUNT(parts); i++) {
            if (strlen(parts[i].from) == len && memcmp(stored, parts[i].from, len) == 0) {
                to = parts[i].to;
                out_len = strlen(to);
            }
        }
        memcpy(out, to, out_len);
        out += out_len;
        stored += len;
        if (*stored == '.')
            *out++ = *stored++;
    }
    *out = '\0';
}

/* ---- the index ------------------------------------------------------------------------------- */
struct index_entry {
    const char *name, *file; /* borrowed from the document */
    int shard;
};

struct index {
    char *path; /* owned */
    char *text; /* owned */
    struct json_doc *doc;
    struct index_entry *entries; /* owned; by name once sorted */
    size_t n;
    const char **files; /* owned; different files, in order of first appearance */
    int n_files;
};

static void index_release(struct index *x)
{
    mem_free(x->files);
    mem_free(x->entries);
    json_free(x->doc);
    mem_free(x->text);
    mem_free(x->path);
    *x = (struct index){0};
}

/* A file of this folder: no way out of it. */
static bool plain_name(const char *file, size_t len)
{
    return len > 0 && strlen(file) == len && !strchr(file, '/') && file[0] != '.' && len < 256;
}

static int entry_by_file(const void *a, const void *b)
{
    return strcmp((*(const struct index_entry *const *)a)->file,
                  (*(const struct index_entry *const *)b)->file);
}

static int entry_by_name(const void *a, const void *b)
{
    return strcmp(((const struct index_entry *)a)->name, ((const struct index_entry *)b)->name);
}

/* Number the files in order of their names. */
static enum fst_status index_files(struct index *x)
{
    struct index_entry **order = mem_alloc(FST_MAX(x->n, (size_t)1) * sizeof *order);
    enum fst_status rc = FST_OK;
    x->files = mem_alloc(SHARDS_MAX * sizeof *x->files);
    if (!order || !x->files) {
        rc = fst_error(FST_ENOMEM, "%s: no memory for %zu entries", x->path, x->n);
        goto out;
    }
    for (size_t i = 0; i < x->n; i++)
        order[i] = &x->entries[i];
    qsort(order, x->n, sizeof *order, entry_by_file);
    for (size_t i = 0; i < x->n; i++) {
        if (i == 0 || strcmp(order[i]->file, order[i - 1]->file) != 0) {
            if (x->n_files == SHARDS_MAX) {
                rc = fst_error(FST_EFORMAT, "%s: more than %d files", x->path, (int)SHARDS_MAX);
                goto out;
            }
            x->files[x->n_files++] = order[i]->file;
        }
        order[i]->shard = x->n_files - 1;
    }
out:
    mem_free(order);
    return rc;
}

static enum fst_status index_entries(struct index *x)
{
    json_val *map = json_get(json_root(x->doc), "weight_map");
    if (json_type_of(map) != JSON_OBJECT)
        return fst_error(FST_EFORMAT, "%s: key \"weight_map\" is %s; expected an object", x->path,
                         map ? json_type_name(json_type_of(map)) : "missing");
    x->n = json_count(map);
    x->entries = mem_alloc(FST_MAX(x->n, (size_t)1) * sizeof *x->entries);
    if (!x->entries)
        return fst_error(FST_ENOMEM, "%s: no memory for %zu entries", x->path, x->n);
    for (size_t i = 0; i < x->n; i++) {
        const char *name, *file;
        size_t name_len, file_len = 0;
        json_val *v = json_member(map, i, &name, &name_len);
        file = json_string(v, &file_len);
        if (strlen(name) != name_len)
            return fst_error(FST_EFORMAT, "%s: a tensor name holds a NUL byte", x->path);
        if (!file || !plain_name(file, file_len))
            return fst_error(FST_EFORMAT,
                             "%s: tensor \"%s\": expected the name of a file of this folder",
                             x->path, name);
        x->entries[i] = (struct index_entry){.name = name, .file = file};
    }
    return index_files(x);
}

/* FST_ENOTFOUND: there is no index. */
static enum fst_status index_init(struct index *x, const char *dir)
{
    size_t len;
    *x = (struct index){.path = weights_path_join(dir, "model.safetensors.index.json")};
    if (!x->path)
        return FST_ENOMEM;
    FST_TRY(weights_file_read(&x->text, &len, x->path, INDEX_BYTES_MAX));
    enum fst_status rc = json_parse(&x->doc, x->text, len);
    if (rc < 0) {
        char why[256];
        snprintf(why, sizeof why, "%s", fst_error_text());
        return fst_error(rc, "%s: %s", x->path, why);
    }
    return index_entries(x);
}

/* ---- tensors --------------------------------------------------------------------------------- */
static int by_stored_name(const void *a, const void *b)
{
    return strcmp(((const struct shard_tensor *)a)->t->name,
                  ((const struct shard_tensor *)b)->t->name);
}

static int by_canonical_name(const void *a, const void *b)
{
    return strcmp(((const struct shard_tensor *)a)->name, ((const struct shard_tensor *)b)->name);
}

/* All tensors of all shards, sorted by stored name. */
static enum fst_status list_tensors(struct shards *s, const char *dir)
{
    size_t names = 0;
    for (int i = 0; i < s->n_shards; i++) {
        const struct st_header *h = &s->shard[i].header;
        s->n += h->n_tensors;
        for (int64_t j = 0; j < h->n_tensors; j++)
            names += strlen(h->tensors[j].name) + 1;
    }
    s->tensors = mem_alloc((size_t)FST_MAX(s->n, 1) * sizeof *s->tensors);
    s->names = mem_alloc(names);
    if (!s->tensors || !s->names)
        return fst_error(FST_ENOMEM, "%s: no memory for %" PRId64 " tensors", dir, s->n);
    char *p = s->names;
    int64_t k = 0;
    for (int i = 0; i < s->n_shards; i++) {
        const struct st_header *h = &s->shard[i].header;
        for (int64_t j = 0; j < h->n_tensors; j++) {
            const struct st_tensor *t = &h->tensors[j];
            shards_canonical(p, t->name);
            s->tensors[k++] = (struct shard_tensor){.name = p, .t = t, .shard = i};
            s->bytes += t->end - t->begin;
            p += strlen(p) + 1;
        }
    }
    FST_ASSERT(k == s->n && p <= s->names + names);
    qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_stored_name);
    return FST_OK;
}

/* No name in two files, neither as stored nor after making it canonical. */
static enum fst_status check_duplicates(const struct shards *s)
{
    for (int64_t i = 1; i < s->n; i++) {
        const struct shard_tensor *a = &s->tensors[i - 1], *b = &s->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\" is also in %s as \"%s\"",
                             s->shard[b->shard].path, b->t->name, s->shard[a->shard].path,
                             a->t->name);
    }
    return FST_OK;
}

/* Both lists sorted by stored name: walk them together. */
static enum fst_status check_index(const struct shards *s, const struct index *x)
{
    size_t i = 0;
    for (int64_t k = 0; k < s->n || i < x->n;) {
        int d = k == s->n ? 1 : i == x->n ? -1 : strcmp(s->tensors[k].t->name, x->entries[i].name);
        if (d > 0)
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\" is not in %s", x->path,
                             x->entries[i].name, x->entries[i].file);
        const char *path = s->shard[s->tensors[k].shard].path;
        if (d < 0)
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\" is not in %s", path,
                             s->tensors[k].t->name, x->path);
        if (s->tensors[k].shard != x->entries[i].shard)
            return fst_error(FST_EFORMAT, "%s: tensor \"%s\" should be in %s, it is in %s", x->path,
                             x->entries[i].name, x->entries[i].file, path);
        k++;
        i++;
        /* A name twice in the shards: check_duplicates said so before. */
    }
    return FST_OK;
}

static enum fst_status open_shards(struct shards *s, const char *dir, const char *const *files,
                                   int n, const char *index_path)
{
    s->shard = mem_calloc((size_t)FST_MAX(n, 1), sizeof *s->shard);
    if (!s->shard)
        return fst_error(FST_ENOMEM, "%s: no memory for %d files", dir, n);
    for (int i = 0; i < n; i++) {
        char *path = weights_path_join(dir, files[i]);
        if (!path)
            return FST_ENOMEM;
        enum fst_status rc = safetensors_init(&s->shard[i], path);
        if (rc == FST_ENOTFOUND && index_path)
            rc = fst_error(FST_EFORMAT, "%s: file %s is missing", index_path, path);
        mem_free(path);
        FST_TRY(rc);
        s->n_shards = i + 1;
    }
    return FST_OK;
}

enum fst_status shards_init(struct shards *s, const char *dir)
{
    struct index x;
    static const char *const single[] = {"model.safetensors"};
    *s = (struct shards){0};

    enum fst_status rc = index_init(&x, dir);
    bool indexed = rc != FST_ENOTFOUND;
    if (rc == FST_OK)
        rc = open_shards(s, dir, x.files, x.n_files, x.path);
    else if (!indexed)
        rc = open_shards(s, dir, single, 1, NULL);
    if (rc == FST_ENOTFOUND)
        rc = fst_error(FST_ENOTFOUND,
                       "%s: neither model.safetensors.index.json nor model.safetensors is there",
                       dir);
    if (rc == FST_OK)
        rc = list_tensors(s, dir);
    if (rc == FST_OK) {
        /* Equal stored names first (they stand side by side in this order) ... */
        rc = check_duplicates(s);
    }
    if (rc == FST_OK && indexed) {
        qsort(x.entries, x.n, sizeof *x.entries, entry_by_name);
        rc = check_index(s, &x);
    }
    if (rc == FST_OK) {
        /* ... then different spellings of one name. */
        qsort(s->tensors, (size_t)s->n, sizeof *s->tensors, by_canonical_name);
        rc = check_duplicates(s);
    }
    index_release(&x);
    if (rc < 0)
        shards_release(s);
    return rc;
}

void shards_release(struct shards *s)
{
    for (int i = 0; i < s->n_shards; i++)
        safetensors_release(&s->shard[i]);
    mem_free(s->shard);
    mem_free(s->tensors);
    mem_free(s->names);
    *s = (struct shards){0};
}

const struct shard_tensor *shards_find(const struct shards *s, const char *name)
{
    int64_t low = 0, high = s->n;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        int d = strcmp(s->tensors[mid].name, name);
        if (d == 0)
            return &s->tensors[mid];
        if (d < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}
