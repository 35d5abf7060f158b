/* check.c - are pages and slots accounted for: free, or held as often as counted? */
#include <string.h>

#include "kv/kv.h"

static enum fst_status mark(uint8_t *seen, int64_t limit, int64_t v, const char *what,
                            const char *where, int64_t slot)
{
    if (v < 1 || v > limit)
        return fst_error(FST_EINTERNAL, "kv: %s %lld (%s %lld) is outside 1..%lld", what,
                         (long long)v, where, (long long)slot, (long long)limit);
    if (seen[v]++)
        return fst_error(FST_EINTERNAL, "kv: %s %lld is there twice, again in %s %lld", what,
                         (long long)v, where, (long long)slot);
    return FST_OK;
}

static enum fst_status check_slot(const struct kv *kv, int i, int32_t *held)
{
    const struct kv_slot *s = &kv->slots[i];
    const int32_t *pages = kv->pages + (int64_t)i * kv->page_stride;
    if (s->n_pages < 0 || s->n_pages > kv->page_stride)
        return fst_error(FST_EINTERNAL, "kv: slot %d holds %lld pages, table has %d", i,
                         (long long)s->n_pages, kv->page_stride);
    if (!s->used && (s->n_pages || s->n_committed))
        return fst_error(FST_EINTERNAL, "kv: closed slot %d holds %lld pages", i,
                         (long long)s->n_pages);
    if (s->n_committed < 0 || s->n_committed > KERN_PAGE * s->n_pages)
        return fst_error(FST_EINTERNAL, "kv: slot %d committed %lld positions on %lld pages", i,
                         (long long)s->n_committed, (long long)s->n_pages);
    for (int j = 0; j < kv->page_stride; j++) {
        if (j < s->n_pages && (pages[j] < 1 || pages[j] > kv->spec.n_pages))
            return fst_error(FST_EINTERNAL, "kv: page %d (slot %d) is outside 1..%lld", pages[j], i,
                             (long long)kv->spec.n_pages);
        if (j < s->n_pages)
            held[pages[j]]++;
        else if (pages[j])
            return fst_error(FST_EINTERNAL, "kv: slot %d names page %d beyond its %lld", i,
                             pages[j], (long long)s->n_pages);
    }
    return FST_OK;
}

static enum fst_status check_page(const struct kv *kv, int64_t p, bool is_free, int32_t held)
{
    if (is_free && held)
        return fst_error(FST_EINTERNAL, "kv: page %lld is free and held", (long long)p);
    if (!is_free && !held)
        return fst_error(FST_EINTERNAL, "kv: page %lld is neither free nor held", (long long)p);
    if (held != kv->page_refs[p])
        return fst_error(FST_EINTERNAL, "kv: page %lld is held %d times, counted %d times",
                         (long long)p, held, kv->page_refs[p]);
    return FST_OK;
}

static enum fst_status check_pages(const struct kv *kv, uint8_t *seen, int32_t *held)
{
    int64_t idle = 0;
    if (kv->n_free_pages < 0 || kv->n_free_pages > kv->spec.n_pages)
        return fst_error(FST_EINTERNAL, "kv: %lld free pages of %lld", (long long)kv->n_free_pages,
                         (long long)kv->spec.n_pages);
    for (int64_t i = 0; i < kv->n_free_pages; i++)
        FST_TRY(mark(seen, kv->spec.n_pages, kv->free_pages[i], "page", "free list at", i));
    for (int i = 0; i <= kv->spec.n_slots; i++)
        FST_TRY(check_slot(kv, i, held));
    for (int64_t p = 1; p <= kv->spec.n_pages; p++) {
        idle += kv->kept[p] == KV_KEPT && held[p] == 0;
        FST_TRY(check_page(kv, p, seen[p], held[p] + (kv->kept[p] != KV_NOT_KEPT)));
    }
    if (idle != kv->n_idle_pages)
        return fst_error(FST_EINTERNAL, "kv: %lld idle pages, counted %lld", (long long)idle,
                         (long long)kv->n_idle_pages);
    return FST_OK;
}

static enum fst_status check_slots(const struct kv *kv, uint8_t *seen)
{
    if (kv->slots[0].used)
        return fst_error(FST_EINTERNAL, "kv: the null slot is open");
    if (kv->n_free_slots < 0 || kv->n_free_slots > kv->spec.n_slots)
        return fst_error(FST_EINTERNAL, "kv: %d free slots of %d", kv->n_free_slots,
                         kv->spec.n_slots);
    for (int i = 0; i < kv->n_free_slots; i++)
        FST_TRY(mark(seen, kv->spec.n_slots, kv->free_slots[i], "slot", "free list at", i));
    for (int i = 1; i <= kv->spec.n_slots; i++)
        if (kv->slots[i].used == (bool)seen[i])
            return fst_error(FST_EINTERNAL, "kv: slot %d is %s", i,
                             seen[i] ? "free and open" : "neither free nor open");
    return FST_OK;
}

enum fst_status kv_check(const struct kv *kv)
{
    int64_t n = FST_MAX(kv->spec.n_pages, kv->spec.n_slots) + 1;
    int32_t *held = mem_calloc((size_t)n, sizeof *held + 1);
    if (!held)
        return fst_error(FST_ENOMEM, "kv: %lld bytes for the check", (long long)n * 5);
    uint8_t *seen = (uint8_t *)(held + n);
    enum fst_status rc = check_pages(kv, seen, held);
    memset(seen, 0, (size_t)n);
    if (!rc)
        rc = check_slots(kv, seen);
    mem_free(held);
    return rc;
}
