/* disk_set.c - a hash table whose entries also lie in a list by use and know their parents. */
#include "kv/disk_set.h"

#include "base/hash.h"

enum { FIRST = 1024, REALMS_MAX = 1000 };

/* Keys are hashes of somebody's choice of words: they are mixed once more. */
static int32_t bucket_of(const struct disk_set *s, int realm, const struct store_key *key,
                         enum store_kind kind)
{
    uint64_t h = hash64(key, sizeof *key, (uint64_t)realm * 2 + (kind == STORE_PAGE));
    return (int32_t)(h & (uint64_t)(s->n_buckets - 1));
}

static int32_t *bucket_at(const struct disk_set *s, const struct disk_entry *e)
{
    return &s->bucket[bucket_of(s, e->realm, &e->key, (enum store_kind)e->kind)];
}

/* ------------------------------------------------------------------ life */

enum fst_status disk_set_init(struct disk_set *s)
{
    *s = (struct disk_set){.cap = 1, .n_buckets = FIRST};
    s->entry = mem_calloc(1, sizeof *s->entry); /* the head of the list */
    s->bucket = mem_calloc(FIRST, sizeof *s->bucket);
    if (s->entry && s->bucket)
        return FST_OK;
    disk_set_release(s);
    return fst_error(FST_ENOMEM, "disk tier: no memory for its table");
}

void disk_set_release(struct disk_set *s)
{
    mem_free(s->entry);
    mem_free(s->bucket);
    mem_free(s->realm);
    *s = (struct disk_set){0};
}

int disk_set_realm(struct disk_set *s, const char *name)
{
    for (int i = 0; i < s->n_realms; i++)
        if (strcmp(s->realm[i].name, name) == 0)
            return i;
    if (s->n_realms == REALMS_MAX || strlen(name) != 16)
        return -1;
    struct disk_realm *more = mem_realloc(s->realm, (size_t)(s->n_realms + 1) * sizeof *s->realm);
    if (!more)
        return -1;
    s->realm = more;
    more[s->n_realms] = (struct disk_realm){0};
    memcpy(more[s->n_realms].name, name, 17);
    return s->n_realms++;
}

/* Two free entries at least: an object may bring a stand-in for its parent. */
static bool reserve(struct disk_set *s)
{
    if (s->free && s->entry[s->free].chain)
        return true;
    if (s->cap > INT32_MAX / 2)
        return false;
    int32_t cap = FST_MAX(2 * s->cap, FIRST);
    struct disk_entry *more = mem_realloc(s->entry, (size_t)cap * sizeof *more);
    if (!more)
        return false;
    s->entry = more;
    for (int32_t i = cap - 1; i >= s->cap; i--) {
        more[i] = (struct disk_entry){.chain = s->free};
        s->free = i;
    }
    s->cap = cap;
    /* Full buckets are slow, no more than that, so this may fail. */
    int32_t *bucket = mem_calloc((size_t)cap, sizeof *bucket);
    if (bucket) {
        mem_free(s->bucket);
        s->bucket = bucket;
        s->n_buckets = cap;
        for (int32_t i = 1; i < cap; i++) {
            if (more[i].state == DISK_FREE)
                continue;
            int32_t *b = bucket_at(s, &more[i]);
            more[i].chain = *b;
            *b = i;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ entries */

int32_t disk_set_find(const struct disk_set *s, int realm, const struct store_key *key,
                      enum store_kind kind)
{
    int32_t i = s->bucket[bucket_of(s, realm, key, kind)];
    while (i &&
           !(s->entry[i].realm == realm && s->entry[i].kind == kind &&
             s->entry[i].key.word[0] == key->word[0] && s->entry[i].key.word[1] == key->word[1]))
        i = s->entry[i].chain;
    return i;
}

static int32_t take_free(struct disk_set *s, const struct disk_entry *e)
{
    int32_t i = s->free, *b = bucket_at(s, e);
    s->free = s->entry[i].chain;
    s->entry[i] = *e;
    s->entry[i].chain = *b;
    *b = i;
    return i;
}

static void give_free(struct disk_set *s, int32_t i)
{
    int32_t *link = bucket_at(s, &s->entry[i]);
    while (*link != i)
        link = &s->entry[*link].chain;
    *link = s->entry[i].chain;
    s->entry[i] = (struct disk_entry){.chain = s->free};
    s->free = i;
}

static void unlist(struct disk_set *s, int32_t i)
{
    struct disk_entry *e = &s->entry[i];
    s->entry[e->newer].older = e->older;
    s->entry[e->older].newer = e->newer;
    e->newer = e->older = 0;
}

static void list_newest(struct disk_set *s, int32_t i)
{
    struct disk_entry *e = &s->entry[i];
    e->older = s->entry[0].older;
    e->newer = 0;
    s->entry[e->older].newer = i;
    s->entry[0].older = i;
}

static bool is_zero(const struct store_key *key)
{
    return !key->word[0] && !key->word[1];
}

/* One that claims to be its own parent has none. */
static bool has_parent(const struct disk_entry *e)
{
    return !is_zero(&e->parent) &&
           !(e->kind == STORE_PAGE && memcmp(&e->key, &e->parent, sizeof e->key) == 0);
}

/* The index may say anything. */
static int tail_of(const struct disk_entry *e)
{
    return (int)((uint32_t)e->n_ids % DISK_TAILS);
}

static void hang_tail(struct disk_set *s, int32_t i)
{
    struct disk_entry *e = &s->entry[i];
    e->tail_next = e->tail_prev = 0;
    if (!e->parent_idx) {
        s->root_tails[tail_of(e)]++;
        return;
    }
    int32_t *first = &s->entry[e->parent_idx].tails;
    e->tail_next = *first;
    if (*first)
        s->entry[*first].tail_prev = i;
    *first = i;
}

static void drop_tail(struct disk_set *s, int32_t i)
{
    const struct disk_entry *e = &s->entry[i];
    if (!e->parent_idx) {
        s->root_tails[tail_of(e)]--;
        return;
    }
    *(e->tail_prev ? &s->entry[e->tail_prev].tail_next : &s->entry[e->parent_idx].tails) =
        e->tail_next;
    if (e->tail_next)
        s->entry[e->tail_next].tail_prev = e->tail_prev;
}

void disk_set_tails(const struct disk_set *s, int realm, const struct store_key *parent,
                    uint64_t bits[4])
{
    if (is_zero(parent)) {
        for (int n = 0; n < DISK_TAILS; n++)
            bits[n / 64] |= (uint64_t)(s->root_tails[n] > 0) << n % 64;
        return;
    }
    for (int32_t i = s->entry[disk_set_find(s, realm, parent, STORE_PAGE)].tails; i;
         i = s->entry[i].tail_next)
        bits[tail_of(&s->entry[i]) / 64] |= (uint64_t)1 << tail_of(&s->entry[i]) % 64;
}

static void leave_parent(struct disk_set *s, struct disk_entry *e)
{
    int32_t p = e->parent_idx;
    e->parent_idx = 0;
    if (p && --s->entry[p].n_children == 0 && s->entry[p].state == DISK_ABSENT)
        give_free(s, p);
}

int32_t disk_set_add(struct disk_set *s, const struct disk_entry *e)
{
    if (!reserve(s))
        return 0;
    int32_t i = disk_set_find(s, e->realm, &e->key, (enum store_kind)e->kind);
    struct disk_entry *to;
    if (i) {
        int32_t n_children = s->entry[i].n_children, chain = s->entry[i].chain;
        int32_t tails = s->entry[i].tails;
        FST_ASSERT(s->entry[i].state == DISK_ABSENT);
        s->entry[i] = *e;
        s->entry[i].n_children = n_children;
        s->entry[i].chain = chain;
        s->entry[i].tails = tails;
    } else {
        i = take_free(s, e);
        s->entry[i].n_children = 0;
        s->entry[i].tails = 0;
    }
    to = &s->entry[i];
    to->parent_idx = 0;
    if (has_parent(e)) {
        int32_t p = disk_set_find(s, e->realm, &e->parent, STORE_PAGE);
        if (!p)
            p = take_free(s, &(struct disk_entry){.key = e->parent,
                                                  .realm = e->realm,
                                                  .kind = STORE_PAGE,
                                                  .state = DISK_ABSENT});
        to->parent_idx = p;
        s->entry[p].n_children++;
    }
    if (e->kind == STORE_SNAPSHOT)
        hang_tail(s, i);
    list_newest(s, i);
    s->n_objects++;
    s->bytes += e->bytes;
    return i;
}

void disk_set_remove(struct disk_set *s, int32_t i)
{
    struct disk_entry *e = &s->entry[i];
    FST_ASSERT(e->state > DISK_ABSENT);
    s->n_objects--;
    s->bytes -= e->bytes;
    unlist(s, i);
    if (e->kind == STORE_SNAPSHOT)
        drop_tail(s, i);
    leave_parent(s, e);
    if (e->n_children == 0) {
        give_free(s, i);
    } else { /* its children are found by it when it comes back */
        e->state = DISK_ABSENT;
        e->bytes = 0;
        e->parent = (struct store_key){0};
    }
}

void disk_set_resize(struct disk_set *s, int32_t i, uint64_t bytes)
{
    s->bytes += bytes - s->entry[i].bytes;
    s->entry[i].bytes = bytes;
}

void disk_set_use(struct disk_set *s, int32_t i, int64_t now_ns)
{
    /* Parents behind their children: then the first of the list is a leaf.  A key that is its own
     * ancestor would go round; the time it was given ends that. */
    for (; i && s->entry[i].used_ns != now_ns && s->entry[i].state != DISK_ABSENT;
         i = s->entry[i].parent_idx) {
        unlist(s, i);
        list_newest(s, i);
        s->entry[i].used_ns = now_ns;
        s->entry[i].dirty = true;
    }
}

int32_t disk_set_victim(const struct disk_set *s, int64_t before_ns)
{
    /* What has children is passed over: that happens when they came before it. */
    for (int32_t i = s->entry[0].newer; i; i = s->entry[i].newer) {
        if (s->entry[i].used_ns >= before_ns)
            return 0;
        if (s->entry[i].n_children == 0 && s->entry[i].state == DISK_STORED)
            return i;
    }
    return 0;
}

/* ------------------------------------------------------------------ order */

struct place {
    int64_t used_ns, n;
    int32_t at;
    bool page;
};

/* The end of the longest first, so that children are met before their parents. */
static int by_length(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return (int)x->page - (int)y->page;
}

static int by_use(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->used_ns != y->used_ns)
        return x->used_ns < y->used_ns ? -1 : 1;
    int first = by_length(a, b);
    return first ? first : (x->at > y->at) - (x->at < y->at);
}

enum fst_status disk_set_sort(struct disk_set *s)
{
    struct place *all = mem_alloc((size_t)s->n_objects * sizeof *all);
    size_t n = 0;
    if (!all)
        return fst_error(FST_ENOMEM, "disk tier: no memory to sort its objects");
    for (int32_t i = s->entry[0].newer; i; i = s->entry[i].newer)
        all[n++] =
            (struct place){s->entry[i].used_ns, s->entry[i].n, i, s->entry[i].kind == STORE_PAGE};
    qsort(all, n, sizeof *all, by_length);
    for (size_t k = 0; k < n; k++) { /* who has been used late has a parent that was */
        struct disk_entry *e = &s->entry[all[k].at], *p = &s->entry[e->parent_idx];
        if (e->parent_idx && p->used_ns < e->used_ns)
            p->used_ns = e->used_ns;
    }
    for (size_t k = 0; k < n; k++)
        all[k].used_ns = s->entry[all[k].at].used_ns;
    qsort(all, n, sizeof *all, by_use);
    for (size_t k = 0; k < n; k++) {
        unlist(s, all[k].at);
        list_newest(s, all[k].at);
    }
    mem_free(all);
    return FST_OK;
}

/* ------------------------------------------------------------------ check */

enum fst_status disk_set_check(const struct disk_set *s)
{
    uint64_t n_objects = 0, bytes = 0, n_listed = 0;
    int32_t *children = mem_calloc((size_t)s->cap, sizeof *children);
    enum fst_status rc = FST_OK;
    if (!children)
        return fst_error(FST_ENOMEM, "disk tier: no memory to check its table");
    for (int32_t i = 1; i < s->cap && rc == FST_OK; i++) {
        const struct disk_entry *e = &s->entry[i];
        if (e->state == DISK_FREE)
            continue;
        if (disk_set_find(s, e->realm, &e->key, (enum store_kind)e->kind) != i)
            rc = fst_error(FST_EINTERNAL, "disk set: entry %d is not found by its key", i);
        children[e->parent_idx]++;
        if (e->state == DISK_ABSENT) {
            if (e->parent_idx || e->bytes)
                rc = fst_error(FST_EINTERNAL, "disk set: stand-in %d has something", i);
            continue;
        }
        n_objects++;
        bytes += e->bytes;
        if (e->kind == STORE_SNAPSHOT) {
            uint64_t bits[4] = {0};
            disk_set_tails(s, e->realm, &e->parent, bits);
            if (!(bits[tail_of(e) / 64] >> tail_of(e) % 64 & 1))
                rc = fst_error(FST_EINTERNAL, "disk set: snapshot %d is not among its parent's", i);
        }
        if (has_parent(e) && disk_set_find(s, e->realm, &e->parent, STORE_PAGE) != e->parent_idx)
            rc = fst_error(FST_EINTERNAL, "disk set: entry %d has lost its parent", i);
    }
    for (int32_t i = 1; i < s->cap && rc == FST_OK; i++)
        if (s->entry[i].state != DISK_FREE &&
            (s->entry[i].n_children != children[i] ||
             (s->entry[i].state == DISK_ABSENT && children[i] == 0)))
            rc = fst_error(FST_EINTERNAL, "disk set: entry %d has %d children, counted %d", i,
                           s->entry[i].n_children, children[i]);
    for (int32_t i = s->entry[0].newer; i && n_listed <= n_objects; i = s->entry[i].newer) {
        n_listed++;
        if (s->entry[s->entry[i].older].newer != i)
            rc = fst_error(FST_EINTERNAL, "disk set: the order of use is torn at %d", i);
    }
    if (rc == FST_OK && (n_listed != n_objects || n_objects != s->n_objects || bytes != s->bytes))
        rc = fst_error(FST_EINTERNAL,
                       "disk set: %llu objects of %llu bytes, %llu listed; counted %llu of %llu",
                       (unsigned long long)s->n_objects, (unsigned long long)s->bytes,
                       (unsigned long long)n_listed, (unsigned long long)n_objects,
                       (unsigned long long)bytes);
    mem_free(children);
    return rc;
}
