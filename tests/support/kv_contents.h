/* kv_contents.h - KV memory whose rows follow from a prompt's ids, as a step would write them.
 *
 * Every word is a hash of all ids up to its position (and of the salt), so that a byte of another prefix is
 * seen wherever it comes from.  Prompts are made of pages of a few letters, so that they share beginnings. */
#ifndef TESTS_SUPPORT_KV_CONTENTS_H
#define TESTS_SUPPORT_KV_CONTENTS_H

#include "kernels/rows.h"
#include "kv/kv.h"
#include "support/cm.h"

enum { CONTEXT = 256 * 6 + 40, LETTERS = 4, WINDOW = 8, HEAD = 4, INDEX = 2, CARRY = 3 };

static inline struct kv_spec contents_spec(int n_slots, int n_pages)
{
    return (struct kv_spec){.n_layers = 3,
                            .ratio = {4, 128, 0},
                            .head_dim = HEAD,
                            .rope_dim = 2,
                            .index_dim = INDEX,
                            .window = WINDOW,
                            .carry_floats = CARRY,
                            .block = 3,
                            .format = ROW_F32,
                            .index_format = INDEX_F32,
                            .n_slots = n_slots,
                            .n_pages = n_pages,
                            .context_length = CONTEXT};
}

static inline uint64_t mix(uint64_t a, uint64_t b)
{
    struct test_rng r = {a ^ b * 0x9FB21C651E98DF25u};
    return test_next(&r);
}

/* n words that follow from h, at p: written, or compared. */
static inline void words(float *p, int n, uint64_t h, uint64_t what, bool write)
{
    for (int i = 0; i < n; i++) {
        uint32_t x = (uint32_t)mix(h, what * 64 + (uint64_t)i), have;
        if (write)
            memcpy(p + i, &x, sizeof x);
        memcpy(&have, p + i, sizeof have);
        assert_int_equal(have, x);
    }
}

static inline float *window_row(const struct kv_layer *l, int slot, int64_t pos)
{
    return (float *)(void *)l->nope + rows_window(l, slot, pos) * HEAD;
}

static inline float *entry_row(const struct kv_layer *l, const int32_t *pages, int64_t e)
{
    return (float *)(void *)l->nope + rows_entry(l, pages, e) * HEAD;
}

static inline float *key_row(const struct kv_layer *l, const int32_t *pages, int64_t e)
{
    return (float *)(void *)l->index_keys + ((int64_t)pages[e / 64] * 64 + e % 64) * INDEX;
}

/* What the slot carries of a position. */
static inline float *carry_row(const struct kv *kv, int slot, int64_t pos)
{
    return kv->carry + (slot * kv->ring + pos % kv->ring) * CARRY;
}

/* What a step does at a position. */
static inline void compute(struct kv *kv, int slot, int pos, uint64_t h)
{
    const int32_t *pages = kv->pages + slot * kv->page_stride;
    assert_int_equal(kv->kept[pages[pos / 256]], KV_NOT_KEPT); /* what is shared is not written */
    words(carry_row(kv, slot, pos), CARRY, h, 63, true);
    for (int i = 0; i < kv->spec.n_layers; i++) {
        const struct kv_layer *l = &kv->layer[i];
        uint64_t what = (uint64_t)i * 8;
        words(window_row(l, slot, pos), HEAD, h, what, true);
        if (!l->ratio)
            continue;
        int width = (l->ratio == 4 ? 4 : 2) * HEAD, at = slot * l->state_ring + pos % l->state_ring;
        words(l->state + at * width, width, h, what + 1, true);
        if (l->ratio == 4)
            words(l->index_state + at * 4 * INDEX, 4 * INDEX, h, what + 2, true);
        if ((pos + 1) % l->ratio)
            continue;
        words(entry_row(l, pages, pos / l->ratio), HEAD, h, what + 3, true);
        if (l->ratio == 4)
            words(key_row(l, pages, pos / 4), INDEX, h, what + 4, true);
    }
}

/* Inputs of a group that is over are read by half: the overlap's channels of kv and score. */
static inline void compare_inputs(float *row, int width, uint64_t h, uint64_t what, bool half)
{
    float copy[2 * 4 * HEAD];
    words(copy, 2 * width, h, what, true);
    for (int i = 0; i < 2; i++)
        assert_memory_equal(row + i * width, copy + i * width,
                            (size_t)width * sizeof *row / (half ? 2 : 1));
}

/* All that a step at position n of a slot could read; h: of all ids up to a position. */
static inline void compare_rows(const struct kv *kv, int slot, int n, const uint64_t *h_of)
{
    const int32_t *pages = kv->pages + slot * kv->page_stride;
    if (n)
        words(carry_row(kv, slot, n - 1), CARRY, h_of[n - 1], 63, false);
    for (int i = 0; i < kv->spec.n_layers; i++) {
        const struct kv_layer *l = &kv->layer[i];
        uint64_t what = (uint64_t)i * 8;
        for (int pos = FST_MAX(0, n - WINDOW); pos < n; pos++)
            words(window_row(l, slot, pos), HEAD, h_of[pos], what, false);
        if (!l->ratio)
            continue;
        int group = n / l->ratio * l->ratio;
        for (int pos = FST_MAX(0, l->ratio == 4 ? group - 4 : group); pos < n; pos++) {
            int width = (l->ratio == 4 ? 2 : 1) * HEAD;
            int at = slot * l->state_ring + pos % l->state_ring;
            compare_inputs(l->state + at * 2 * width, width, h_of[pos], what + 1, pos < group);
            if (l->ratio == 4)
                compare_inputs(l->index_state + at * 4 * INDEX, 2 * INDEX, h_of[pos], what + 2,
                               pos < group);
        }
        for (int e = 0; e < n / l->ratio; e++) {
            uint64_t h = h_of[(e + 1) * l->ratio - 1];
            words(entry_row(l, pages, e), HEAD, h, what + 3, false);
            if (l->ratio == 4)
                words(key_row(l, pages, e), INDEX, h, what + 4, false);
        }
    }
}

/* Pages of a few letters, which differ in one token: nowhere, in the first, in the last, in between. */
static inline int32_t token(int letter, int i)
{
    static const int at[LETTERS] = {-1, 0, 255, 127};
    return i % 3 + (at[letter] == i ? 7 : 0);
}

static inline int some_length(struct test_rng *r)
{
    static const int residue[] = {0, 0, 1, 4, 127, 128, 255};
    int tail = test_below(r, 3) ? residue[test_below(r, FST_COUNT(residue))] : test_below(r, 256);
    return FST_MIN(256 * test_below(r, 6) + tail, CONTEXT - 30);
}

#endif
