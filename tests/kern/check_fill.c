/* Fills: every kind on the set under test against the host's bytes, and that those are what they say. */
#include <string.h>

#include "checkkern.h"

#ifdef CK_EMULATE
enum fst_status memory_fill_emulate32(void *queue, void *p, size_t bytes,
                                      const struct device_fill *f);
enum fst_status memory_fill_emulate64(void *queue, void *p, size_t bytes,
                                      const struct device_fill *f);
#endif

enum { BYTES = 96 * 8448 };

static const struct device_fill kinds[] = {{.kind = FILL_F32, .mean = 1, .spread = 0.1f},
                                           {.kind = FILL_BF16, .spread = 1.7f},
                                           {.kind = FILL_E4M3},
                                           {.kind = FILL_E2M1},
                                           {.kind = FILL_E8M0, .code = 114, .n_codes = 3},
                                           {.kind = FILL_IDS, .k = 6, .n = 256},
                                           {.kind = FILL_ROW_FP8, .code = 120, .n_codes = 2},
                                           {.kind = FILL_KEY_FP4, .code = 125, .n_codes = 2},
                                           {.kind = FILL_KEY_FP8, .mean = 0.01f, .spread = 0.002f}};

static bool fill(struct ck *c, uint8_t *p, const struct device_fill *f)
{
    if (c->device)
        return stream_fill(&c->s, p, BYTES, f) == FST_OK && stream_sync(&c->s) == FST_OK;
#ifdef CK_EMULATE
    if (c->emulated)
        return (strcmp(c->k.name, "wave64") ? memory_fill_emulate32
                                            : memory_fill_emulate64)(NULL, p, BYTES, f) == FST_OK;
#endif
    return stream_fill(&c->s, p, BYTES, f) == FST_OK;
}

static bool is_e4m3(uint8_t code)
{
    return (code & 0x7f) != 0x7f;
}

/* Byte i of a fill is what its kind allows there. */
static bool is_valid(const struct device_fill *f, const uint8_t *p, int64_t i)
{
    bool code = p[i] >= f->code && p[i] < f->code + f->n_codes;
    switch (f->kind) {
    case FILL_E4M3:
        return is_e4m3(p[i]);
    case FILL_E8M0:
        return code;
    case FILL_ROW_FP8:
        return i % 512 < 448 ? is_e4m3(p[i]) : i % 512 < 462 ? code && p[i] == p[i ^ 1] : p[i] == 0;
    case FILL_KEY_FP4:
        return i % 4352 < 4096 || code;
    case FILL_KEY_FP8:
        return i % 8448 >= 8192 || is_e4m3(p[i]);
    default:
        return true;
    }
}

static bool are_ids(const struct device_fill *f, const int32_t *id, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= f->n)
            return false;
        for (int64_t j = i - i % f->k; j < i; j++)
            if (id[j] == id[i])
                return false;
    }
    return true;
}

static bool are_floats(const struct device_fill *f, const float *x, int64_t n)
{
    float low = 1e30f, high = -1e30f;
    for (int64_t i = 0; i < n; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    return low >= f->mean - f->spread && high <= f->mean + f->spread && high > low;
}

void check_fill(struct ck *c)
{
    if (!ck_wanted(c, "fill") || c->bench)
        return;
    struct stream host = {0};
    uint8_t *got = ck_alloc(c, BYTES), *want = ck_alloc(c, BYTES);
    for (size_t i = 0; i < FST_COUNT(kinds); i++) {
        struct device_fill f = kinds[i];
        f.seed = c->seed;
        FST_ASSERT(stream_fill(&host, want, BYTES, &f) == FST_OK);
        bool ok = fill(c, got, &f);
        ck_verdict(c, ok && memcmp(got, want, BYTES) == 0, "fill", "kind %d differs from the host",
                   (int)f.kind);
        ok = true;
        for (int64_t k = 0; k < BYTES && ok; k++)
            ok = is_valid(&f, want, k);
        if (f.kind == FILL_IDS)
            ok = ok && are_ids(&f, (int32_t *)(void *)want, BYTES / 4);
        if (f.kind == FILL_F32)
            ok = ok && are_floats(&f, (float *)(void *)want, BYTES / 4);
        ck_verdict(c, ok, "fill", "kind %d holds what it must not", (int)f.kind);
    }
    ck_free_all(c);
}
