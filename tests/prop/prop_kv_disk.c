/* The disk tier against a flat list: random puts, gets, damage, restarts, lost indexes, two models on one
 * folder, and processes that are killed while they write.
 *
 * The model knows no links or hash tables: children are searched for, use is a time and a place in order,
 * and what has to go is looked for among all.  It predicts every put, get and eviction; after a kill it takes
 * over what is there, which must be whole. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "support/disk.h"

enum {
    PAGES = 28,
    SNAPSHOTS = 22,
    TWINS = 2,
    OBJECTS = PAGES + SNAPSHOTS + TWINS,
    MODELS = 2,
    BATCH = 10
};
#define SECOND ((int64_t)1000000000)

static const char *const numerics[MODELS] = {"rows-fp8/1", "rows-bf16/1"};

struct file {             /* of an object, of one model */
    bool live, bad, gone; /* bad: damaged, which nobody has noticed yet; gone: removed likewise */
    bool alone;           /* so badly that its parent is not known */
    uint64_t bytes;
    int64_t used, place, created;
};

struct seen {
    int kept, refused, evicted, found, missed, bad, gone, reopened, anew, others, killed, hurt,
        left, twins, shrunk, spent;
};

struct world {
    char dir[64];
    struct disk_opts o;
    struct test_rng r;
    struct disk_obj obj[OBJECTS];
    int parent[OBJECTS];       /* -1: none */
    uint64_t size[OBJECTS][2]; /* of the file, plain and zstd */
    struct file file[MODELS][OBJECTS];
    struct store *s;
    int m; /* whose numerics */
    int64_t last, place;
    uint64_t n_evicted, n_bad; /* since it was opened */
    int64_t minute[3000];      /* of each write */
    uint64_t written[3000];
    int n_writes;
    struct seen seen;
};

static int64_t fake_ns;
static int seed; /* of this day, for messages */
static int64_t fake_clock(void)
{
    return fake_ns;
}

static int64_t now(struct world *w)
{
    return w->last = FST_MAX(fake_ns, w->last + 1);
}

/* ------------------------------------------------------------------ the model */

static bool same_key(const struct world *w, int a, int b)
{
    return memcmp(&w->obj[a].name.key, &w->obj[b].name.key, sizeof(struct store_key)) == 0 &&
           w->obj[a].name.kind == w->obj[b].name.kind;
}

/* Whose file lies under the key of i; -1: nobody's. */
static int holder(const struct world *w, int m, int i)
{
    for (int k = 0; k < OBJECTS; k++)
        if (w->file[m][k].live && same_key(w, i, k))
            return k;
    return -1;
}

static bool is_leaf(const struct world *w, int m, int i)
{
    for (int k = 0; k < OBJECTS; k++)
        if (w->file[m][k].live && !w->file[m][k].alone && w->parent[k] >= 0 &&
            w->obj[i].name.kind == STORE_PAGE &&
            memcmp(&w->obj[k].name.parent, &w->obj[i].name.key, sizeof(struct store_key)) == 0)
            return false;
    return true;
}

static void use(struct world *w, int i, int64_t at)
{
    while (i >= 0) {
        int h = holder(w, w->m, i);
        if (h < 0 || w->file[w->m][h].used == at)
            return;
        w->file[w->m][h].used = at;
        w->file[w->m][h].place = ++w->place;
        i = w->file[w->m][h].alone ? -1 : w->parent[h];
    }
}

static uint64_t bytes_there(const struct world *w)
{
    uint64_t bytes = 0;
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++)
            bytes += w->file[m][i].live ? w->file[m][i].bytes : 0;
    return bytes;
}

/* The leaf used longest ago, before `before`; NULL: none. */
static struct file *victim(struct world *w, int64_t before)
{
    struct file *x = NULL;
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++) {
            struct file *f = &w->file[m][i];
            if (f->live && f->used < before && (!x || f->place < x->place) && is_leaf(w, m, i))
                x = f;
        }
    return x;
}

static bool room_for(struct world *w, uint64_t bytes, int64_t before)
{
    struct file saved[MODELS][OBJECTS];
    int n = 0;
    memcpy(saved, w->file, sizeof saved);
    while (bytes_there(w) + bytes > (uint64_t)w->o.budget_bytes) {
        struct file *x = victim(w, before);
        if (!x) { /* then nothing has gone */
            memcpy(w->file, saved, sizeof saved);
            return false;
        }
        *x = (struct file){0};
        n++;
    }
    w->n_evicted += (uint64_t)n;
    w->seen.evicted += n;
    return true;
}

static bool spend(struct world *w, int64_t at, uint64_t bytes)
{
    uint64_t sum = 0;
    int64_t minute = at / (60 * SECOND);
    for (int i = 0; i < w->n_writes; i++)
        if (w->minute[i] > minute - 60)
            sum += w->written[i];
    return w->o.write_bytes_hour == 0 || sum + bytes <= (uint64_t)w->o.write_bytes_hour;
}

static void wrote(struct world *w, int64_t at, uint64_t bytes)
{
    assert_true(w->n_writes < (int)FST_COUNT(w->minute));
    w->minute[w->n_writes] = at / (60 * SECOND);
    w->written[w->n_writes++] = bytes;
}

/* ------------------------------------------------------------------ put and get */

/* Objects of one call: a chain from its beginning, or any; some twice. */
static int some(struct world *w, int *which)
{
    int n = 1 + test_below(&w->r, BATCH);
    if (test_below(&w->r, 3) == 0) {
        for (int i = 0; i < n; i++)
            which[i] = test_below(&w->r, OBJECTS);
        return n;
    }
    int chain[OBJECTS], len = 0;
    for (int i = test_below(&w->r, OBJECTS); i >= 0; i = w->parent[i])
        chain[len++] = i;
    n = FST_MIN(len, BATCH);
    for (int i = 0; i < n; i++)
        which[i] = chain[len - 1 - i];
    return n;
}

static void gather(struct world *w, const int *which, int n, struct disk_obj *out)
{
    for (int i = 0; i < n; i++)
        out[i] = w->obj[which[i]];
}

static void put(struct world *w)
{
    int which[BATCH];
    bool kept[BATCH], expected[BATCH] = {0};
    struct disk_obj o[BATCH];
    int n = some(w, which);
    gather(w, which, n, o);
    disk_put(w->s, o, n, kept);
    int64_t at = now(w), before = at - w->o.residence_s * SECOND;
    for (int i = 0; i < n; i++) {
        int x = which[i], h = holder(w, w->m, x);
        uint64_t bytes = w->size[x][w->o.zstd];
        if (h == x)
            use(w, x, at);
        w->seen.twins += h >= 0 && h != x;
        if (h >= 0)
            continue;
        use(w, w->parent[x], at);
        if (w->size[x][0] > (uint64_t)w->o.budget_bytes)
            continue;
        if (!spend(w, at, bytes)) {
            w->seen.spent++;
            continue;
        }
        if (!room_for(w, bytes, before)) {
            w->seen.refused++;
            continue;
        }
        w->file[w->m][x] = (struct file){
            .live = true, .bytes = bytes, .used = at, .place = ++w->place, .created = at};
        wrote(w, at, bytes);
    }
    at = now(w);
    for (int i = n; i-- > 0;) {
        expected[i] = w->file[w->m][which[i]].live;
        if (expected[i])
            use(w, which[i], at);
        w->seen.kept += expected[i];
    }
    for (int i = 0; i < n; i++)
        if (kept[i] != expected[i])
            fail_msg("seed %d: put of object %d: kept %d, expected %d", seed, which[i], kept[i],
                     expected[i]);
}

static void get(struct world *w)
{
    int which[BATCH];
    bool found[BATCH], expected[BATCH] = {0};
    struct disk_obj o[BATCH];
    int n = some(w, which);
    gather(w, which, n, o);
    disk_get(w->s, o, n, found);
    for (int i = 0; i < n; i++) {
        int h = holder(w, w->m, which[i]);
        if (h < 0)
            continue;
        struct file *f = &w->file[w->m][h];
        expected[i] = h == which[i] && !f->bad && !f->gone;
        w->n_bad += f->bad && !f->gone;
        w->seen.bad += f->bad && !f->gone;
        w->seen.gone += f->gone;
        if (f->bad || f->gone)
            *f = (struct file){0};
    }
    int64_t at = now(w);
    for (int i = n; i-- > 0;)
        if (expected[i])
            use(w, which[i], at);
    for (int i = 0; i < n; i++) {
        if (found[i] != expected[i])
            fail_msg("seed %d: get of object %d: found %d, expected %d", seed, which[i], found[i],
                     expected[i]);
        w->seen.found += found[i];
        w->seen.missed += !found[i];
    }
}

/* A file is damaged beneath the server. */
static void hurt(struct world *w)
{
    int i = test_below(&w->r, OBJECTS), h = holder(w, w->m, i), fd;
    char path[300];
    uint8_t c;
    if (h < 0 || w->file[w->m][h].bad || w->file[w->m][h].gone)
        return;
    struct file *f = &w->file[w->m][h];
    disk_file_of(path, sizeof path, w->dir, &w->o, &w->obj[h]);
    off_t at = (off_t)(test_next(&w->r) % f->bytes);
    switch (test_below(&w->r, 3)) {
    case 0:
        assert_int_equal(unlink(path), 0);
        f->gone = true;
        break;
    case 1:
        assert_int_equal(truncate(path, at), 0);
        f->bad = true;
        break;
    default:
        fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c = (uint8_t)(c + 1 + test_below(&w->r, 255));
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
        close(fd);
        f->bad = true;
    }
    w->seen.hurt++;
}

/* ------------------------------------------------------------------ restarts */

/* The store's entry of an object, or NULL. */
static const struct disk_entry *entry_of(struct world *w, int m, int i)
{
    struct disk *d = (struct disk *)(void *)w->s;
    char name[17];
    disk_realm_name(name, numerics[m], w->o.weights);
    for (int r = 0; r < d->set.n_realms; r++)
        if (strcmp(d->set.realm[r].name, name) == 0) {
            int32_t at = disk_set_find(&d->set, r, &w->obj[i].name.key, w->obj[i].name.kind);
            const struct disk_entry *e = at ? &d->set.entry[at] : NULL;
            if (!e || e->state != DISK_STORED)
                return NULL;
            /* Of a damaged file of the other model it may know no more than that it is there. */
            return e->name_hash == disk_name_hash(&w->obj[i].name) ||
                           (e->name_hash == 0 && w->file[m][i].bad)
                       ? e
                       : NULL;
        }
    return NULL;
}

/* The order of use is the store's from now on; what is there, too, where the model cannot know. */
static void take_over(struct world *w, bool after_kill)
{
    struct disk *d = (struct disk *)(void *)w->s;
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++) {
            struct file *f = &w->file[m][i], before = *f;
            const struct disk_entry *e = entry_of(w, m, i);
            if (!after_kill && !f->bad && (f->live && !f->gone) != (e != NULL))
                fail_msg("seed %d: object %d of model %d is %s after a restart", seed, i, m,
                         e ? "there again" : "lost");
            *f = (struct file){0};
            if (!e)
                continue;
            *f = (struct file){.live = true,
                               .bad = before.live && before.bad,
                               .alone = e->name_hash == 0,
                               .bytes = e->bytes,
                               .used = e->used_ns,
                               .created = e->created_ns};
            for (int32_t at = 0; (at = disk_set_next(&d->set, at)) != 0;) {
                f->place++;
                if (&d->set.entry[at] == e)
                    break;
            }
        }
    w->place = (int64_t)d->set.n_objects;
    w->n_evicted = d->store.stats.n_evicted;
    w->n_bad = d->store.stats.n_bad;
    w->n_writes = 0;
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++)
            if (w->file[m][i].live)
                wrote(w, w->file[m][i].created, w->file[m][i].bytes);
}

static void open_store(struct world *w)
{
    w->o.numerics = numerics[w->m];
    w->o.zstd = test_below(&w->r, 3) == 0;
    w->o.ring = test_below(&w->r, 2) ? DISK_RING_AUTO : DISK_RING_OFF;
    disk_ok(disk_open(&w->s, &w->o));
    w->last = 0;
    now(w);
}

static void spoil_index(struct world *w)
{
    char path[100];
    snprintf(path, sizeof path, "%s/index", w->dir);
    if (test_below(&w->r, 2))
        unlink(path);
    else
        assert_int_equal(truncate(path, test_below(&w->r, 9000)), 0);
    w->seen.anew++;
}

static void reopen(struct world *w)
{
    struct file before[MODELS][OBJECTS];
    w->s->ops->close(w->s);
    if (test_below(&w->r, 4) == 0)
        spoil_index(w);
    if (test_below(&w->r, 3) == 0) {
        w->m = !w->m;
        w->seen.others++;
    }
    open_store(w);
    take_over(w, false);
    w->seen.reopened++;
    if (test_below(&w->r, 6))
        return;
    /* Again, with less room: it shrinks by the same rules. */
    int64_t budget = w->o.budget_bytes;
    memcpy(before, w->file, sizeof before);
    w->s->ops->close(w->s);
    w->o.budget_bytes = (int64_t)bytes_there(w) / (1 + test_below(&w->r, 4));
    open_store(w);
    assert_true(w->s->stats.bytes <= (uint64_t)w->o.budget_bytes);
    take_over(w, true);
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++)
            for (int n = 0; n < MODELS; n++)
                for (int k = 0; before[m][i].live && !w->file[m][i].live && k < OBJECTS; k++)
                    if (w->file[n][k].live) {
                        assert_true(before[m][i].used <= w->file[n][k].used || !is_leaf(w, n, k));
                        assert_false(m == n && w->parent[k] == i && !w->file[n][k].alone);
                        w->seen.shrunk++;
                    }
    w->o.budget_bytes = budget;
    w->s->ops->close(w->s);
    open_store(w);
    take_over(w, false);
}

/* Two objects of one key, of which the index has one and the folder the other after a kill: not looked at,
 * since keys are 128 bits of hash. */
static int alone_under_its_key(const struct world *w, int *which, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        int same = 0;
        for (int k = 0; k < OBJECTS; k++)
            same += same_key(w, which[i], k);
        if (same == 1)
            which[kept++] = which[i];
    }
    return kept;
}

/* A server that is killed at work, in the middle of whatever it does. */
static void kill_one(struct world *w)
{
    int pipes[2];
    char path[100], c;
    w->s->ops->close(w->s);
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct disk_obj o[BATCH];
        int which[BATCH];
        if (disk_open(&w->s, &w->o) < 0)
            _exit(1);
        if (write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;) {
            int n = alone_under_its_key(w, which, some(w, which));
            gather(w, which, n, o);
            disk_put(w->s, o, n, NULL);
            if (test_below(&w->r, 3) == 0)
                disk_get(w->s, o, n, NULL);
            if (test_below(&w->r, 5) == 0)
                w->s->ops->flush(w->s);
        }
    }
    assert_int_equal(read(pipes[0], &c, 1), 1); /* it is at work */
    close(pipes[0]);
    close(pipes[1]);
    usleep((unsigned)test_below(&w->r, 20000));
    kill(pid, SIGKILL);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    snprintf(path, sizeof path, "%s/new", w->dir);
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d)))
        w->seen.left += e->d_name[0] != '.';
    closedir(d);
    if (test_below(&w->r, 4) == 0)
        spoil_index(w);
    open_store(w);
    take_over(w, true);
    w->seen.killed++;
    /* All that is there is whole, but for what was damaged before. */
    for (int i = 0; i < OBJECTS; i++) {
        struct file *f = &w->file[w->m][i];
        bool there = disk_get(w->s, &w->obj[i], 1, NULL), was_bad = f->bad;
        if (f->live && !there) {
            if (!was_bad)
                fail_msg("seed %d: object %d does not check out after a kill\n%s", seed, i,
                         disk_log.text);
            *f = (struct file){0};
        } else if (there) {
            f->bad = false; /* removed and written anew */
        }
        int64_t at = now(w);
        if (there)
            use(w, i, at);
    }
    w->n_bad = w->s->stats.n_bad;
}

/* ------------------------------------------------------------------ days */

static void compare(struct world *w)
{
    uint64_t n = 0, bytes = bytes_there(w);
    bool intact = true;
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < OBJECTS; i++) {
            n += w->file[m][i].live;
            intact &= !w->file[m][i].bad && !w->file[m][i].gone;
        }
    for (int i = 0; i < OBJECTS; i++)
        if (disk_has(w->s, &w->obj[i]) != (holder(w, w->m, i) >= 0))
            fail_msg("seed %d: object %d: has says %d\n%s", seed, i, disk_has(w->s, &w->obj[i]),
                     disk_log.text);
    assert_int_equal(w->s->stats.n_objects, n);
    assert_int_equal(w->s->stats.bytes, bytes);
    assert_int_equal(w->s->stats.n_evicted, w->n_evicted);
    assert_int_equal(w->s->stats.n_bad, w->n_bad);
    assert_true(bytes <= (uint64_t)w->o.budget_bytes);
    if (intact)
        assert_int_equal(disk_bytes_in(w->dir), bytes);
    disk_set_ok(w->s);
}

static void step(struct world *w)
{
    int what = test_below(&w->r, 100);
    fake_ns += test_below(&w->r, 4) ? test_below(&w->r, 1000000)
                                    : (int64_t)test_below(&w->r, 900) * SECOND;
    if (what < 42)
        put(w);
    else if (what < 74)
        get(w);
    else if (what < 88)
        hurt(w);
    else if (what < 91)
        w->s->ops->flush(w->s);
    else if (what < 98)
        reopen(w);
    else
        kill_one(w);
}

static void make_objects(struct world *w)
{
    static const size_t sizes[] = {0, 100, 2000, 4096, 9000, 30000};
    struct disk_zip *zip = disk_zip_new();
    assert_non_null(zip);
    for (int i = 0; i < OBJECTS; i++) {
        size_t bytes = test_below(&w->r, 12) ? sizes[test_below(&w->r, FST_COUNT(sizes))] : 1100000;
        int p = test_below(&w->r, 5) && i ? test_below(&w->r, FST_MIN(i, PAGES)) : -1;
        if (i >= PAGES + SNAPSHOTS) /* of other ids under the key of a page */
            p = -1;
        w->parent[i] = p;
        disk_obj_make(&w->obj[i], p < 0 ? NULL : &w->obj[p],
                      i < PAGES || i >= PAGES + SNAPSHOTS ? STORE_PAGE : STORE_SNAPSHOT,
                      i < PAGES || i >= PAGES + SNAPSHOTS ? 256 : test_below(&w->r, 256), 5 * i,
                      (uint64_t)i % 3 == 0, bytes);
        if (i >= PAGES + SNAPSHOTS)
            w->obj[i].name.key = w->obj[test_below(&w->r, PAGES)].name.key;
        w->size[i][0] = disk_size_of(&w->obj[i]);
        uint8_t *image = mem_aligned(DISK_ALIGN, w->size[i][0]), *data = malloc(bytes + 1);
        assert_true(image && data);
        disk_fill(&w->obj[i], data);
        struct store_run run = {data, bytes};
        struct store_put put_one = {.name = w->obj[i].name, .runs = &run, .n_runs = 1};
        w->size[i][1] = disk_file_make(image, &put_one, bytes, "n", "w", 0, zip);
        free(data);
        mem_free(image);
    }
    disk_zip_free(zip);
}

static void day(struct world *w, int n_steps)
{
    struct seen seen = w->seen;
    *w = (struct world){.r = {(uint64_t)seed}, .seen = seen};
    tmpdir_make(w->dir, sizeof w->dir);
    fake_ns = (int64_t)1700000000 * SECOND;
    disk_opts_default(&w->o);
    w->o.dir = w->dir;
    w->o.weights = "w";
    w->o.now_ns = fake_clock;
    w->o.residence_s = test_below(&w->r, 3) ? 0 : 100;
    make_objects(w);
    uint64_t all = 0;
    for (int i = 0; i < OBJECTS; i++)
        all += w->size[i][0];
    w->o.budget_bytes = (int64_t)all / (1 + test_below(&w->r, 5));
    w->o.write_bytes_hour = test_below(&w->r, 3) ? 0 : (int64_t)all / 2;
    disk_log_start();
    open_store(w);
    for (int i = 0; i < n_steps; i++) {
        disk_log_start(); /* of one step, for messages */
        step(w);
        compare(w);
    }
    w->s->ops->close(w->s);
    disk_rm(w->dir);
}

static void test_random_days(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    int days = test_size(16, 200, 3);
    (void)state;
    assert_non_null(w);
    for (int i = 0; i < days; i++) {
        seed = i + 1;
        day(w, 250);
    }
    log_set_sink(NULL, NULL);
    const struct seen *s = &w->seen;
    print_message(
        "%d kept, %d refused for room and %d for the hour, %d twins, %d evicted; %d found, "
        "%d missed; %d hurt: %d told bad, %d gone; %d restarts, %d indexes spoiled, %d times the "
        "other "
        "model, %d pairs compared when it shrank; %d killed, %d files left by them\n",
        s->kept, s->refused, s->spent, s->twins, s->evicted, s->found, s->missed, s->hurt, s->bad,
        s->gone, s->reopened, s->anew, s->others, s->shrunk, s->killed, s->left);
    int least = days >= 10 ? days : 0; /* all of it happens */
    assert_true(s->kept > 20 * least && s->found > 20 * least && s->missed > least);
    assert_true(s->refused > least / 2 && s->evicted > 5 * least && s->twins > 0);
    assert_true(s->bad > least && s->gone > least / 2 && s->reopened > 3 * least);
    assert_true(s->anew > least / 2 && s->others > least / 2 && s->killed > least);
    assert_true(least == 0 || (s->left > 0 && s->shrunk > 0 && s->spent > 0));
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_days)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
