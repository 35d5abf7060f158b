/* kv.c - KV memory: allocation, slots, pages, reading rows back. */
#include <string.h>

#include "kernels/rows.h"
#include "kv/kv.h"
#include "kv/layout.h"

static void *take_from(struct kv *kv, int64_t bytes, bool shared, bool *failed)
{
    const struct device *d = kv->spec.device;
    if (!bytes || *failed)
        return NULL;
    FST_ASSERT(kv->n_blocks < (int)FST_COUNT(kv->blocks));
    void *p = shared ? device_alloc_shared(d, (size_t)bytes) : device_alloc(d, (size_t)bytes);
    if (!p) {
        *failed = true;
        return NULL;
    }
    kv->blocks[kv->n_blocks++] = (struct kv_block){p, (size_t)bytes, shared};
    return p;
}

/* Device memory, NULL for 0 bytes; *failed is set when memory is out. */
static void *take(struct kv *kv, int64_t bytes, bool *failed)
{
    return take_from(kv, bytes, false, failed);
}

/* For tables that the host keeps: kernels read pages, nothing else of them. */
static void *take_shared(struct kv *kv, int64_t bytes, bool *failed)
{
    return take_from(kv, bytes, true, failed);
}

static void take_layer(struct kv *kv, int i, bool *failed)
{
    struct kv_layer *l = &kv->layer[i];
    struct kv_layer_sizes z;
    kv_layer_sizes(&kv->spec, i, &z);
    kv->ring = z.ring;
    *l = (struct kv_layer){.format = kv->spec.format,
                           .n_rows = z.rows,
                           .ring = z.ring,
                           .compressed_base = z.window_rows,
                           .ratio = kv->spec.ratio[i],
                           .state_ring = z.state_ring,
                           .index_format = kv->spec.index_format};
    l->nope = take(kv, z.nope, failed);
    l->rope = take(kv, z.rope, failed);
    l->state = take(kv, z.state, failed);
    l->index_keys = take(kv, z.index, failed);
    l->index_state = take(kv, z.index_state, failed);
}

enum fst_status kv_init(struct kv *kv, const struct kv_spec *spec)
{
    struct kv_plan plan;
    bool failed = false;
    *kv = (struct kv){.spec = *spec};
    FST_TRY(kv_plan(spec, &plan));
    for (int i = 0; i < spec->n_layers; i++)
        take_layer(kv, i, &failed);
    int64_t slots = (int64_t)spec->n_slots + 1;
    kv->carry = take(kv, slots * kv->ring * spec->carry_floats * (int64_t)sizeof(float), &failed);
    kv->page_stride = (int)div_up(spec->context_length, KERN_PAGE);
    kv->pages = take_shared(kv, 4 * slots * kv->page_stride, &failed);
    if (spec->device) {
        kv->far_pages = take(kv, 4 * slots * kv->page_stride, &failed);
        kv->sent_pages = take_shared(kv, 4 * slots * kv->page_stride, &failed);
    }
    kv->slots = take_shared(kv, slots * (int64_t)sizeof *kv->slots, &failed);
    kv->free_pages = take_shared(kv, 4 * spec->n_pages, &failed);
    kv->page_refs = take_shared(kv, 4 * (spec->n_pages + 1), &failed);
    kv->kept = take_shared(kv, spec->n_pages + 1, &failed);
    kv->free_slots = take_shared(kv, 4 * slots, &failed);
    if (failed) {
        kv_release(kv);
        return fst_error(FST_ENOMEM, "kv: %lld bytes for %d slots and %lld pages",
                         (long long)plan.total_bytes, spec->n_slots, (long long)spec->n_pages);
    }
    /* Stacks with the lowest number on top; number 0 is the null one. */
    for (int64_t i = spec->n_pages; i > 0; i--)
        kv->free_pages[kv->n_free_pages++] = (int32_t)i;
    for (int i = spec->n_slots; i > 0; i--)
        kv->free_slots[kv->n_free_slots++] = i;
    return FST_OK;
}

void kv_release(struct kv *kv)
{
    for (int i = kv->n_blocks; i > 0; i--)
        (kv->blocks[i - 1].shared ? device_free_shared : device_free)(
            kv->spec.device, kv->blocks[i - 1].p, kv->blocks[i - 1].bytes);
    *kv = (struct kv){0};
}

static struct kv_slot *open_slot(const struct kv *kv, int slot)
{
    FST_ASSERT(slot > 0);
    FST_ASSERT(slot <= kv->spec.n_slots);
    FST_ASSERT(kv->slots[slot].used);
    return &kv->slots[slot];
}

static int32_t *table(const struct kv *kv, int slot)
{
    return kv->pages + (int64_t)slot * kv->page_stride;
}

enum fst_status kv_send_pages(struct kv *kv, struct stream *s, int slot)
{
    int64_t at = (int64_t)slot * kv->page_stride;
    size_t bytes = (size_t)kv->slots[slot].n_pages * sizeof *kv->pages;
    if (!kv->far_pages || memcmp(kv->sent_pages + at, kv->pages + at, bytes) == 0)
        return FST_OK;
    memcpy(kv->sent_pages + at, kv->pages + at, bytes);
    return stream_copy(s, kv->far_pages + at, kv->sent_pages + at, bytes);
}

const int32_t *kv_pages_for_kernels(const struct kv *kv)
{
    return kv->far_pages ? kv->far_pages : kv->pages;
}

enum fst_status kv_slot_open(struct kv *kv, int *slot)
{
    if (kv->n_free_slots == 0)
        return fst_error(FST_EBUDGET, "kv: all %d request slots are taken", kv->spec.n_slots);
    *slot = kv->free_slots[--kv->n_free_slots];
    struct kv_slot *s = &kv->slots[*slot];
    FST_ASSERT(!s->used);
    FST_ASSERT(s->n_pages == 0);
    s->used = true;
    s->generation++;
    s->n_committed = s->n_restored = 0;
    return FST_OK;
}

/* Of the counter n_idle_pages: taken off before a page changes, put back on behind. */
static int idle(const struct kv *kv, int32_t page)
{
    FST_ASSERT(page > 0);
    FST_ASSERT(page <= kv->spec.n_pages);
    return kv->kept[page] == KV_KEPT && kv->page_refs[page] == 1;
}

static void hold(struct kv *kv, int32_t page)
{
    kv->n_idle_pages -= idle(kv, page);
    kv->page_refs[page]++;
}

static void let_go(struct kv *kv, int32_t page)
{
    kv->n_idle_pages -= idle(kv, page);
    FST_ASSERT(kv->page_refs[page] > (kv->kept[page] != KV_NOT_KEPT));
    if (--kv->page_refs[page] == 0)
        kv->free_pages[kv->n_free_pages++] = page;
    FST_ASSERT(kv->n_free_pages <= kv->spec.n_pages);
    kv->n_idle_pages += idle(kv, page);
}

void kv_keep(struct kv *kv, int32_t page)
{
    hold(kv, page);
    FST_ASSERT(kv->kept[page] == KV_NOT_KEPT);
    FST_ASSERT(kv->page_refs[page] > 1);
    kv->kept[page] = KV_KEPT;
}

void kv_unkeep(struct kv *kv, int32_t page)
{
    FST_ASSERT(kv->kept[page] == KV_KEPT);
    kv->n_idle_pages -= idle(kv, page);
    kv->kept[page] = KV_NOT_KEPT;
    let_go(kv, page);
}

void kv_pin(struct kv *kv, int32_t page, bool pinned)
{
    FST_ASSERT(kv->kept[page] == (pinned ? KV_KEPT : KV_PINNED));
    kv->n_idle_pages -= idle(kv, page);
    kv->kept[page] = pinned ? KV_PINNED : KV_KEPT;
    kv->n_idle_pages += idle(kv, page);
}

void kv_slot_reset(struct kv *kv, int slot)
{
    struct kv_slot *s = open_slot(kv, slot);
    int32_t *pages = table(kv, slot);
    for (; s->n_pages > 0; s->n_pages--) {
        let_go(kv, pages[s->n_pages - 1]);
        pages[s->n_pages - 1] = 0;
    }
    s->n_committed = s->n_restored = 0;
}

void kv_share(struct kv *kv, int slot, const int32_t *pages, int64_t n_pages)
{
    struct kv_slot *s = open_slot(kv, slot);
    FST_ASSERT(s->n_pages == 0);
    FST_ASSERT(n_pages <= kv->page_stride);
    for (; s->n_pages < n_pages; s->n_pages++) {
        FST_ASSERT(kv->kept[pages[s->n_pages]] != KV_NOT_KEPT);
        hold(kv, pages[s->n_pages]);
        table(kv, slot)[s->n_pages] = pages[s->n_pages];
    }
}

void kv_swap(struct kv *kv, int slot, int64_t i, int32_t page)
{
    FST_ASSERT(i < open_slot(kv, slot)->n_pages);
    FST_ASSERT(kv->kept[page] != KV_NOT_KEPT);
    int32_t *at = table(kv, slot) + i;
    hold(kv, page);
    let_go(kv, *at);
    *at = page;
}

void kv_slot_close(struct kv *kv, int slot)
{
    kv_slot_reset(kv, slot);
    kv->slots[slot].used = false;
    kv->free_slots[kv->n_free_slots++] = slot;
}

enum fst_status kv_room(const struct kv *kv, int64_t n_pages)
{
    int64_t have = kv->n_free_pages + kv->n_idle_pages;
    if (n_pages <= have)
        return FST_OK;
    return fst_error(FST_EBUDGET, "kv: %lld pages asked for, %lld of %lld are free",
                     (long long)n_pages, (long long)have, (long long)kv->spec.n_pages);
}

enum fst_status kv_reserve(struct kv *kv, int slot, int64_t n_positions)
{
    struct kv_slot *s = open_slot(kv, slot);
    if (n_positions > kv->spec.context_length)
        return fst_error(FST_EINVAL, "kv: %lld positions asked for, context_length is %lld",
                         (long long)n_positions, (long long)kv->spec.context_length);
    int64_t more = div_up(n_positions, KERN_PAGE) - s->n_pages;
    FST_TRY(kv_room(kv, more));
    if (more > kv->n_free_pages)
        kv->reclaim(kv->reclaim_ud, more);
    FST_ASSERT(more <= kv->n_free_pages);
    for (; more > 0; more--) {
        int32_t page = kv->free_pages[--kv->n_free_pages];
        hold(kv, page);
        table(kv, slot)[s->n_pages++] = page;
    }
    return FST_OK;
}

void kv_commit(struct kv *kv, int slot, int64_t n)
{
    struct kv_slot *s = open_slot(kv, slot);
    FST_ASSERT(n >= s->n_committed);
    FST_ASSERT(n <= KERN_PAGE * s->n_pages);
    s->n_committed = n;
}

static void read_row(const struct kv *kv, int layer, int64_t row, float *out)
{
    rows_load(&kv->layer[layer], row, out, kv->spec.head_dim, kv->spec.rope_dim);
}

static void check_layer(const struct kv *kv, int layer)
{
    FST_ASSERT(!kv->spec.device);
    FST_ASSERT(layer >= 0);
    FST_ASSERT(layer < kv->spec.n_layers);
}

void kv_read_window(const struct kv *kv, int layer, int slot, int64_t pos, float *out)
{
    check_layer(kv, layer);
    open_slot(kv, slot);
    read_row(kv, layer, rows_window(&kv->layer[layer], slot, pos), out);
}

void kv_read_entry(const struct kv *kv, int layer, int slot, int64_t entry, float *out)
{
    check_layer(kv, layer);
    FST_ASSERT(entry * kv->spec.ratio[layer] < KERN_PAGE * open_slot(kv, slot)->n_pages);
    read_row(kv, layer, rows_entry(&kv->layer[layer], table(kv, slot), entry), out);
}

void kv_read_index(const struct kv *kv, int layer, int slot, int64_t entry, float *out)
{
    check_layer(kv, layer);
    FST_ASSERT(entry * 4 < KERN_PAGE * open_slot(kv, slot)->n_pages);
    rows_index_load(&kv->layer[layer], table(kv, slot), entry, out, kv->spec.index_dim);
}
