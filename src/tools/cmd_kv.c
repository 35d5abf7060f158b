/* cmd_kv.c - `kv list|verify|prune`: the folder of the disk tier, without an engine.  Names kv by exception:
 * files are its business. */
#include <inttypes.h>

#include "base/clock.h"
#include "kv/disk.h"
#include "tools/tool.h"

static const struct option_def defs[] = {
    {.name = "dir",
     .alias = "kv-disk-dir",
     .type = OPTION_TEXT,
     .arg = "DIR",
     .help = "folder of the disk tier"},
    {.name = "numerics",
     .type = OPTION_TEXT,
     .arg = "TEXT",
     .help = "as `list` prints it: objects of these numerics are ours"},
    {.name = "weights",
     .type = OPTION_TEXT,
     .arg = "TEXT",
     .help = "as `list` prints it: objects of these weights are ours"},
};
static const struct option_def prune_defs[] = {
    {.name = "budget",
     .type = OPTION_SIZE,
     .min = 0,
     .max = 1e18,
     .help = "bytes that may stay; what was used longest ago goes first, and no page before those "
             "that go on from it"},
    {.name = "max-age-hours",
     .type = OPTION_FLOAT,
     .min = 0,
     .max = 1e6,
     .arg = "H",
     .help = "what has not been used for longer goes, unless something younger goes on from it"},
    {.name = "others",
     .type = OPTION_FLAG,
     .help = "all that is not ours goes; needs --numerics or --weights"},
    {.name = "bad", .type = OPTION_FLAG, .help = "all that `verify` would name goes"},
    {.name = "dry-run", .type = OPTION_FLAG, .help = "say what would go; nothing does"},
};

enum { REALMS = 64 }; /* that the text output tells apart */

struct kv_tool {
    const char *dir, *numerics, *weights;
    bool json, list; /* list: every object is printed */
    struct buf out;
    int64_t now_ns;
    uint64_t n, bytes, n_bad, n_shown;
    struct {
        char *numerics, *weights; /* owned */
        uint64_t n, bytes;
    } realm[REALMS];
    int n_realms;
};

/* 1: ours, 0: not, -1: nobody has said what is. */
static int is_ours(const struct kv_tool *t, const struct disk_object *o)
{
    if ((!t->numerics && !t->weights) || o->why)
        return -1;
    return (!t->numerics || !strcmp(t->numerics, o->numerics)) &&
           (!t->weights || !strcmp(t->weights, o->weights));
}

static void put_text(struct buf *b, const char *key, const char *value)
{
    buf_printf(b, ",\"%s\":", key);
    json_put_string(b, value, strlen(value));
}

static void put_json(struct kv_tool *t, const struct disk_object *o)
{
    char created[CLOCK_ISO_SIZE];
    int ours = is_ours(t, o);
    struct buf *b = &t->out;
    clock_iso(created, o->created_ns);
    buf_printf(b, "%s{\"kind\":\"%s\",\"key\":\"%016" PRIx64 "%016" PRIx64 "\"",
               t->n_shown ? "," : "", o->kind == STORE_PAGE ? "page" : "snapshot", o->key.word[0],
               o->key.word[1]);
    buf_printf(b, ",\"tokens\":%" PRId64 ",\"own_tokens\":%d,\"bytes\":%" PRIu64, o->n, o->n_ids,
               o->bytes);
    buf_printf(b, ",\"created\":\"%s\",\"age_s\":%" PRId64 ",\"hits\":%u,\"ours\":%s", created,
               (t->now_ns - o->used_ns) / 1000000000, o->hits,
               ours < 0 ? "null"
               : ours   ? "true"
                        : "false");
    put_text(b, "numerics", o->numerics);
    put_text(b, "weights", o->weights);
    put_text(b, "file", o->path);
    if (o->why)
        put_text(b, "why", o->why);
    buf_putc(b, '}');
}

/* The number of its numerics and weights, from 1; 0: none, or too many to tell apart. */
static int realm_of(struct kv_tool *t, const struct disk_object *o)
{
    int i = 0;
    if (o->why)
        return 0;
    while (i < t->n_realms && (strcmp(t->realm[i].numerics, o->numerics) != 0 ||
                               strcmp(t->realm[i].weights, o->weights) != 0))
        i++;
    if (i == REALMS)
        return 0;
    if (i == t->n_realms) {
        t->realm[i].numerics = mem_strdup(o->numerics);
        t->realm[i].weights = mem_strdup(o->weights);
        t->n_realms++;
        if (!t->realm[i].numerics || !t->realm[i].weights) {
            mem_free(t->realm[i].numerics);
            mem_free(t->realm[i].weights);
            t->n_realms--;
            return 0;
        }
    }
    t->realm[i].n++;
    t->realm[i].bytes += o->bytes;
    return i + 1;
}

static void print_object(struct kv_tool *t, const struct disk_object *o)
{
    int realm = realm_of(t, o), ours = is_ours(t, o);
    if (t->n_shown == 0)
        printf("%-9s %9s %5s %11s %9s %7s %4s %-5s %s\n", "kind", "tokens", "own", "bytes",
               "unused_h", "hits", "ids", "ours", "file");
    printf("%-9s %9" PRId64 " %5d %11" PRIu64 " %9.2f %7u %4d %-5s %s\n",
           o->kind == STORE_PAGE ? "page" : "snapshot", o->n, o->n_ids, o->bytes,
           (double)(t->now_ns - o->used_ns) / 3.6e12, o->hits, realm,
           ours < 0 ? "?"
           : ours   ? "yes"
                    : "no",
           o->path);
}

/* One of the objects; the bad ones are always named. */
static bool on_object(void *ud, const struct disk_object *o)
{
    struct kv_tool *t = ud;
    bool shown = t->list || o->why;
    if (shown && t->json)
        put_json(t, o);
    else if (t->list)
        print_object(t, o);
    if (o->why && !t->json)
        printf("bad: %s: %s\n", o->path, o->why);
    t->n_shown += shown;
    t->n++;
    t->bytes += o->bytes;
    t->n_bad += o->why != NULL;
    return !t->out.failed && !tool_interrupted(false);
}

static enum fst_status prune(struct kv_tool *t, const struct options *o)
{
    struct disk_prune p = {.budget_bytes = options_int(o, "budget", -1),
                           .max_age_s = -1,
                           .others = options_flag(o, "others"),
                           .numerics = t->numerics,
                           .weights = t->weights,
                           .bad = options_flag(o, "bad"),
                           .dry = options_flag(o, "dry-run")};
    if (options_is_given(o, "max-age-hours"))
        p.max_age_s = (int64_t)(options_float(o, "max-age-hours", 0) * 3600);
    if (p.budget_bytes < 0 && p.max_age_s < 0 && !p.others && !p.bad)
        return fst_error(FST_EINVAL, "kv prune: give --budget, --max-age-hours, --others or --bad");
    if (p.others && !p.numerics && !p.weights)
        return fst_error(FST_EINVAL,
                         "--others needs --numerics or --weights, which say what is ours");
    t->list = true;
    return disk_prune(t->dir, &p, on_object, t);
}

static enum fst_status run(struct kv_tool *t, const char *what, const struct options *o)
{
    if (!strcmp(what, "prune"))
        return prune(t, o);
    static const char *const only[] = {"budget", "max-age-hours", "others", "bad", "dry-run"};
    for (size_t i = 0; i < FST_COUNT(only); i++)
        if (options_is_given(o, only[i]))
            return fst_error(FST_EINVAL, "--%s goes with kv prune", only[i]);
    t->list = !strcmp(what, "list");
    return t->list ? disk_list(t->dir, on_object, t) : disk_verify(t->dir, on_object, t);
}

static int print_end(struct kv_tool *t, const char *what, bool dry)
{
    if (t->json) {
        buf_printf(&t->out, "],\"n\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"n_bad\":%" PRIu64, t->n,
                   t->bytes, t->n_bad);
        if (!strcmp(what, "prune"))
            buf_printf(&t->out, ",\"dry_run\":%s", dry ? "true" : "false");
        buf_putc(&t->out, '}');
        return tool_print_json(&t->out);
    }
    for (int i = 0; i < t->n_realms; i++)
        printf("ids %d: numerics %s, weights %s: %" PRIu64 " objects, %" PRIu64 " bytes\n", i + 1,
               t->realm[i].numerics, t->realm[i].weights, t->realm[i].n, t->realm[i].bytes);
    printf("%s: %" PRIu64 " objects, %" PRIu64 " bytes, %" PRIu64 " bad%s\n", t->dir, t->n,
           t->bytes, t->n_bad,
           strcmp(what, "prune") ? ""
           : dry                 ? "; would go"
                                 : "; gone");
    return 0;
}

int cmd_kv(int argc, char **argv)
{
    const struct option_group groups[] = {OPTION_GROUP("Disk tier", defs),
                                          OPTION_GROUP("Prune", prune_defs), tool_json_group};
    int status;
    struct options *o = tool_parse_words("firesteel kv", "list|verify|prune --dir DIR [options]",
                                         groups, 3, argc, argv, &status);
    if (!o)
        return status;
    const char *const *args;
    size_t n = options_args(o, &args);
    const char *what = n ? args[0] : "";
    struct kv_tool t = {.dir = options_text(o, "dir"),
                        .numerics = options_text(o, "numerics"),
                        .weights = options_text(o, "weights"),
                        .json = options_flag(o, "json"),
                        .now_ns = clock_wall_ns()};
    enum fst_status rc = FST_OK;
    if (strcmp(what, "list") != 0 && strcmp(what, "verify") != 0 && strcmp(what, "prune") != 0)
        rc = fst_error(FST_EINVAL, "kv: expected `list`, `verify` or `prune`, got \"%s\"", what);
    else if (n > 1)
        rc = fst_error(FST_EINVAL, "kv: unexpected word \"%s\"", args[1]);
    else if (!t.dir)
        rc = fst_error(FST_EINVAL, "kv: --dir is missing: the folder of the disk tier");
    buf_puts(&t.out, strcmp(what, "verify") ? "{\"objects\":[" : "{\"bad\":[");
    tool_catch_interrupt();
    if (rc == FST_OK)
        rc = run(&t, what, o);
    if (rc == FST_OK && tool_interrupted(false))
        rc = fst_error(FST_ECANCELED, "kv %s: interrupted", what);
    if (rc < 0)
        status = tool_fail(rc);
    else
        status = print_end(&t, what, options_flag(o, "dry-run"));
    if (status == 0 && !strcmp(what, "verify") && t.n_bad)
        status = 1;
    for (int i = 0; i < t.n_realms; i++) {
        mem_free(t.realm[i].numerics);
        mem_free(t.realm[i].weights);
    }
    buf_release(&t.out);
    options_free(o);
    return status;
}
