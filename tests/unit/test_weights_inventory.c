/* test_weights_inventory.c - counts and sizes of the published checkpoints, and real headers. */
#include <sys/wait.h>
#include <time.h>

#include "base/json.h"
#include "support/tmpdir.h"
#include "weights/inventory.h"

static void test_presets(void **state)
{
    /* V4-Flash and V4-Pro: counts and sizes of the published shards; DSpark: of their indexes. */
    static const struct {
        const char *name;
        int64_t tensors, bytes, stage[3];
        double gib;
    } cases[] = {
        {"v4-flash", 69187, 159609485896, {1575, 0, 0}, 148.648},
        {"v4-pro", 145116, 864704792696, {2343, 0, 0}, 805.319},
        {"v4-flash-dspark", 72317, 166878536440, {1568, 1565, 1572}, 155.418},
        {"v4-pro-dspark", 149782, 892727580904, {2336, 2333, 2340}, 831.417},
        /* V4.1-Flash: 96085 tensors of 510286023000 bytes, less 266 of vision (0.97 GB) */
        {"v4.1-flash", 95819, 509315486040, {801, 798, 802}, 474.337},
    };
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        struct weights_report *r;
        int64_t tensors = 0, bytes = 0;
        assert_int_equal(weights_inspect_preset(&r, cases[i].name), FST_OK);
        assert_int_equal(r->tensors, cases[i].tensors);
        assert_int_equal(r->bytes, cases[i].bytes);
        assert_true((double)r->bytes / 0x1p30 > cases[i].gib - .0005);
        assert_true((double)r->bytes / 0x1p30 < cases[i].gib + .0005);
        for (int s = 0; s < 3; s++)
            assert_int_equal(r->stage_tensors[s], cases[i].stage[s]);
        for (int k = 0; k < WEIGHTS_CLASSES; k++) {
            tensors += r->by_class[k].tensors;
            bytes += r->by_class[k].bytes;
            assert_true(strlen(weights_class_name(k)) > 0);
        }
        assert_int_equal(tensors, r->tensors);
        assert_int_equal(bytes, r->bytes);
        assert_int_equal(r->by_class[WEIGHTS_UNKNOWN].tensors, 0);
        assert_int_equal(r->n_missing + r->n_unknown + r->n_wrong, 0);
        weights_report_free(r);
    }
    struct weights_report *r;
    assert_int_equal(weights_inspect_preset(&r, "v4-tiny"), FST_ENOTFOUND);
    assert_null(r);
    weights_report_free(NULL);
}

/* What the fullest of several cards holds: the published accounts of two and more. */
static void test_cards(void **state)
{
    static const struct {
        const char *name;
        enum weights_share share;
        int n_cards;
        double gb, tolerance;
    } cases[] = {
        {"v4-flash-dspark", WEIGHTS_SHARE_TENSORS, 2, 84, 0.5},
        /* estimates: all but Engram 73.7 GiB on four cards and 38.3 on eight, Engram 47.2 and 23.6 */
        {"v4.1-flash", WEIGHTS_SHARE_TENSORS, 4, 120.9 * 1.073741824, 2},
        {"v4.1-flash", WEIGHTS_SHARE_TENSORS, 8, 61.9 * 1.073741824, 2}};
    struct weights_report *r;
    (void)state;
    for (size_t i = 0; i < FST_COUNT(cases); i++) {
        assert_int_equal(weights_inspect_preset(&r, cases[i].name), FST_OK);
        double gb = 1e-9 * (double)weights_card_bytes(r, cases[i].share, cases[i].n_cards);
        if (gb < cases[i].gb - cases[i].tolerance || gb > cases[i].gb + cases[i].tolerance)
            fail_msg("%s on %d cards: %.3f GB, expected %.3f", cases[i].name, cases[i].n_cards, gb,
                     cases[i].gb);
        for (int s = 0; s < 2; s++)
            assert_int_equal(weights_card_bytes(r, (enum weights_share)s, 1), r->bytes);
        weights_report_free(r);
    }
    /* Whole experts: of 256, three cards have 86 at most, and 300 cards one. */
    assert_int_equal(weights_inspect_preset(&r, "v4-flash"), FST_OK);
    int64_t one = (r->expert_bytes + r->stage_expert_bytes) / 256, rest = r->bytes - 256 * one;
    assert_int_equal(weights_card_bytes(r, WEIGHTS_SHARE_EXPERTS, 3), rest + 86 * one);
    assert_int_equal(weights_card_bytes(r, WEIGHTS_SHARE_EXPERTS, 300), rest + one);
    weights_report_free(r);
}

/* No name twice, in any kind of draft. */
static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void test_names_unique(void **state)
{
    static const char *const presets[] = {"v4-flash", "v4-pro-dspark", "v4.1-flash"};
    (void)state;
    for (size_t i = 0; i < FST_COUNT(presets); i++) {
        struct model_config c;
        struct inventory inv;
        assert_int_equal(config_preset(&c, presets[i]), FST_OK);
        assert_int_equal(inventory_init(&inv, &c, i ? INVENTORY_DSPARK : INVENTORY_MTP), FST_OK);
        const char **names = malloc((size_t)inv.n * sizeof *names);
        assert_non_null(names);
        for (int64_t k = 0; k < inv.n; k++)
            names[k] = inv.items[k].name;
        qsort(names, (size_t)inv.n, sizeof *names, by_text);
        for (int64_t k = 1; k < inv.n; k++)
            assert_string_not_equal(names[k - 1], names[k]);
        free(names);
        inventory_release(&inv);
    }
}

/* ---- data of others -------------------------------------------------------------------------- */
static const char *data_dir(void)
{
    const char *d = getenv("FST_TEST_DATA");
    return d && *d ? d : NULL;
}

static void test_pro_config(void **state)
{
    struct model_config c, preset;
    char path[1024];
    size_t len;
    (void)state;
    if (!data_dir())
        skip();
    snprintf(path, sizeof path, "%s/configs", data_dir());
    char *text = tmpdir_read(path, "v4-pro.config.json", &len);
    assert_int_equal(config_parse(&c, text, len, "v4-pro.config.json"), FST_OK);
    free(text);
    assert_int_equal(config_preset(&preset, "v4-pro"), FST_OK);
    preset.has_mtp = false; /* the loader says so, not the config */
    assert_memory_equal(&c, &preset, sizeof c);
}

static void run_or_fail(const char *command)
{
    int rc = system(command);
    if (rc != 0)
        fail_msg("%s: status %d", command, rc);
}

/* Of this process: another one on the same cores must not fail the test. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A shard of true size without its data: length, header padded to 8 as writers do, a hole. */
static int64_t sparse_shard(const char *from, const char *to, struct buf *index, const char *name)
{
    size_t len;
    char *text = tmpdir_read(from, name, &len);
    struct json_doc *doc;
    struct buf head = {0};
    char path[1024];
    int64_t end = 0;
    assert_int_equal(json_parse(&doc, text, len), FST_OK);
    json_val *root = json_root(doc);
    char shard[256];
    snprintf(shard, sizeof shard, "%.*s", (int)(strlen(name) - strlen(".json")), name);
    for (size_t i = 0; i < json_count(root); i++) {
        const char *key;
        size_t key_len;
        int64_t last;
        json_val *v = json_member(root, i, &key, &key_len);
        if (!json_int(json_at(json_get(v, "data_offsets"), 1), &last))
            continue; /* __metadata__ */
        end = FST_MAX(end, last);
        buf_printf(index, "%s\"%s\":\"%s\"", index->data[index->len - 1] == '{' ? "" : ",", key,
                   shard);
    }
    int64_t n = (int64_t)json_count(root);
    json_free(doc);
    buf_append(&head, text, len);
    while (head.len % 8 != 0)
        buf_putc(&head, ' ');
    free(text);
    uint64_t head_len = head.len;
    snprintf(path, sizeof path, "%s/%s", to, shard);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(&head_len, 8, 1, f);
    fwrite(head.data, 1, head.len, f);
    fclose(f);
    assert_int_equal(truncate(path, (off_t)(8 + head.len) + end), 0);
    buf_release(&head);
    return n;
}

/* The 48 headers of a published Flash-0731 checkpoint with its DSpark drafter, experts pruned to
 * 160: 45,821 tensors, 100.4 GiB, opened as sparse files. */
static void test_real_headers(void **state)
{
    char dir[64], from[128], command[1400];
    struct buf index = {0};
    (void)state;
    if (!data_dir())
        skip();
    tmpdir_make(dir, sizeof dir);
    snprintf(command, sizeof command, "tar -xJf '%s/headers/flash-0731-e160.tar.xz' -C '%s'",
             data_dir(), dir);
    run_or_fail(command);
    snprintf(from, sizeof from, "%s/flash-0731-e160", dir);
    buf_puts(&index, "{\"weight_map\":{");
    int64_t n = 0;
    for (int i = 1; i <= 48; i++) {
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00048.safetensors.json", i);
        n += sparse_shard(from, dir, &index, name);
    }
    buf_puts(&index, "}}");
    tmpdir_write(dir, "model.safetensors.index.json", index.data, index.len);
    buf_release(&index);
    size_t len;
    char *config = tmpdir_read(from, "config.json", &len);
    tmpdir_write(dir, "config.json", config, len);
    free(config);
    tmpdir_remove(from);
    assert_int_equal(n, 45821);

    struct weights_report *r;
    double t0 = cpu_seconds();
    if (weights_inspect(&r, dir) < 0)
        fail_msg("%s", fst_error_text());
    double t1 = cpu_seconds();
    assert_int_equal(r->tensors, 45821);
    assert_int_equal(r->bytes, 107803320952);
    assert_int_equal(r->n_missing + r->n_unknown + r->n_wrong, 0);
    assert_int_equal(r->stage_tensors[0], 29 + 6 * 160 + 3);
    assert_int_equal(r->stage_tensors[1], 29 + 6 * 160);
    assert_int_equal(r->stage_tensors[2], 29 + 6 * 160 + 7);
    weights_report_free(r);

    struct weights *w;
    double t2 = cpu_seconds();
    if (weights_open(&w, dir, NULL) < 0)
        fail_msg("%s", fst_error_text());
    double t3 = cpu_seconds();
    printf("100.4 GiB in 48 shards: inspect %.3f s, open %.3f s of CPU\n", t1 - t0, t3 - t2);
    assert_int_equal(w->n_tensors, 45821);
    assert_int_equal(w->n_stages, 3);
    assert_int_equal(w->config.n_experts, 160);
    assert_int_equal(w->layer[20].ffn.experts[159].w2.fmt, WEIGHT_FP4);
    assert_int_equal(w->layer[20].ffn.experts[159].w2.n_in, 2048);
    assert_int_equal(w->dspark.main_proj.n_in, 12288);
    assert_int_equal(w->dspark.confidence.n_in, 4352);
    assert_true(t3 - t2 < test_size(2, 2, 60)); /* measured 0.4-0.8 s */
    weights_free(w);
    tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),      cmocka_unit_test(test_cards),
        cmocka_unit_test(test_names_unique), cmocka_unit_test(test_pro_config),
        cmocka_unit_test(test_real_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
