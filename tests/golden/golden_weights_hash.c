/* golden_weights_hash.c - checkpoints written here are byte for byte those of
 * tools/golden/make_checkpoint.py, whose CRC-32s are stored. */
#include "golden/golden.h"
#include "golden/hashweights.h"
#include "support/tmpdir.h"
#include "weights/weights.h"

static uint32_t crc32(const void *data, size_t len)
{
    static uint32_t table[256];
    const uint8_t *p = data;
    uint32_t c = 0xffffffff;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t x = i;
        for (int k = 0; k < 8; k++)
            x = x & 1 ? x >> 1 ^ 0xedb88320 : x >> 1;
        table[i] = x;
    }
    for (size_t i = 0; i < len; i++)
        c = table[(c ^ p[i]) & 255] ^ c >> 8;
    return ~c;
}

static void test_files(void **state)
{
    static const struct {
        struct hashweights_spec (*preset)(void);
        enum inventory_draft draft;
        enum hashweights_format format;
        int n_shards;
        uint64_t seed;
        bool unaligned;
    } cases[] = {
        {hashweights_t1, INVENTORY_MTP, HASHWEIGHTS_F32, 1, 0, false},
        {hashweights_t1, INVENTORY_MTP, HASHWEIGHTS_BF16, 2, 0, true},
        {hashweights_t1, INVENTORY_MTP, HASHWEIGHTS_FP8, 3, 0, false},
        {hashweights_t1, INVENTORY_MTP, HASHWEIGHTS_FP4, 4, 0, true},
        {hashweights_t1, INVENTORY_NO_DRAFT, HASHWEIGHTS_FP4, 1, 5, false},
        {hashweights_dspark, INVENTORY_DSPARK, HASHWEIGHTS_FP4, 3, 7, false},
        {hashweights_t2, INVENTORY_MTP, HASHWEIGHTS_F32, 1, 0, false},
    };
    struct golden g;
    char dir[64], name[64];
    int k = 0;
    (void)state;
    if (golden_init(&g, "tests/golden/data/files.gold") < 0)
        fail_msg("%s", fst_error_text());
    const struct golden_array *sums = golden_get(&g, "crc32");
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct hashweights_spec s = cases[i].preset();
        s.draft = cases[i].draft;
        s.format = cases[i].format;
        s.n_shards = cases[i].n_shards;
        s.seed = cases[i].seed;
        s.unaligned = cases[i].unaligned;
        tmpdir_make(dir, sizeof dir);
        if (hashweights_write(dir, &s) < 0)
            fail_msg("%s", fst_error_text());
        for (int n = 1; n <= s.n_shards; n++) {
            size_t len;
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", n, s.n_shards);
            char *data = tmpdir_read(dir, s.n_shards == 1 ? "model.safetensors" : name, &len);
            assert_true(k < sums->n);
            if (crc32(data, len) != (uint32_t)sums->i[k++])
                fail_msg("case %d, file %d: other bytes than make_checkpoint.py writes", (int)i, n);
            free(data);
        }
        struct weights *w;
        if (weights_open(&w, dir, NULL) < 0 || weights_check_values(w) < 0)
            fail_msg("case %d: %s", (int)i, fst_error_text());
        struct model_config c = s.config; /* what config.json says is what was asked for */
        c.has_mtp = s.draft == INVENTORY_MTP;
        assert_memory_equal(&w->config, &c, sizeof c);
        weights_free(w);
        tmpdir_remove(dir);
    }
    int32_t ids[1000];
    hashweights_tokens(ids, 1000, 512, 9);
    assert_int_equal(crc32(ids, sizeof ids), (uint32_t)sums->i[k++]);
    assert_int_equal(k, sums->n);
    golden_release(&g);
}

/* The token ids of the stored goldens are those of the hash; their argmax hash is the published. */
static void test_tokens(void **state)
{
    static const char *const files[] = {"t1", "t1s3", "t2", "dspark"};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(files); i++) {
        struct golden g;
        char path[64];
        int32_t ids[512];
        snprintf(path, sizeof path, "tests/golden/data/%s.gold", files[i]);
        if (golden_init(&g, path) < 0)
            fail_msg("%s", fst_error_text());
        const struct golden_array *t = golden_get(&g, "tokens"), *a = golden_get(&g, "argmax");
        const struct golden_array *h = golden_get(&g, "argmax_fnv1a64");
        assert_true(t->n <= 512);
        hashweights_tokens(ids, (int)t->n, 512, (uint64_t)golden_get(&g, "seed")->i[0]);
        assert_memory_equal(ids, t->i, (size_t)t->n * sizeof *ids);
        uint64_t hash = hashweights_fnv1a64(a->i, (size_t)a->n * 4);
        assert_true(hash == ((uint64_t)(uint32_t)h->i[1] << 32 | (uint32_t)h->i[0]));
        if (i == 0)
            assert_true(hash == 0xc463fa06603f59f2);
        golden_release(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
