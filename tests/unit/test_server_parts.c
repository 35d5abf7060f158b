/* Small parts of the server: paths and queries, peers, keys, histograms, neutral values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/options.h"
#include "server/app.h"
#include "server/fields.h"
#include "server/peer.h"

static void decodes_paths(void **state)
{
    static const struct {
        const char *in, *out; /* out NULL: refused */
    } t[] = {{"/a", "/a"},
             {"/%41%2f", "/A/"},
             {"/a%20b%C3%A9", "/a b\xc3\xa9"},
             {"", ""},
             {"/%", NULL},
             {"/%4", NULL},
             {"/%4g", NULL},
             {"/%00", NULL},
             {"/%g4", NULL},
             {"/%25%32%35", "/%25"},
             {"/+", "/+"}};
    char out[64];
    (void)state;
    for (size_t i = 0; i < FST_COUNT(t); i++) {
        bool ok = http_decode_path(out, t[i].in, strlen(t[i].in));
        assert_int_equal(ok, t[i].out != NULL);
        if (ok)
            assert_string_equal(out, t[i].out);
    }
}

static void reads_queries(void **state)
{
    struct exch x = {.query = "a=1&bb=x%20y&flag&c=&a=2"};
    char v[8];
    (void)state;
    assert_true(exch_query(&x, "a", v, sizeof v));
    assert_string_equal(v, "1");
    assert_true(exch_query(&x, "bb", v, sizeof v));
    assert_string_equal(v, "x y");
    assert_true(exch_query(&x, "flag", v, sizeof v));
    assert_string_equal(v, "");
    assert_true(exch_query(&x, "c", v, sizeof v));
    assert_string_equal(v, "");
    assert_false(exch_query(&x, "b", v, sizeof v));
    x.query = "long=0123456789&bad=%zz&nul=1%00"; /* there, and nothing that anybody would take */
    for (int i = 0; i < 3; i++) {
        assert_true(exch_query(&x, (const char *const[]){"long", "bad", "nul"}[i], v, sizeof v));
        assert_string_equal(v, "");
    }
}

static void knows_peers(void **state)
{
    /* Server port 0x7530 = 30000.  Clients: 0xA001 closed (inode 0), 0xA002 open, 0xA003 of another
     * namespace (only our end is listed), 0xA004 not listed at all. */
    static const char text[] =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  "
        "timeout "
        "inode\n"
        "   0: 0100007F:7530 0100007F:A001 08 00000000:00000000 00:00000000 00000000     0        "
        "0 "
        "501 1 0000 20 4 30 10 -1\n"
        "   1: 0100007F:A001 0100007F:7530 05 00000000:00000000 03:00001764 00000000     0        "
        "0 0 "
        "3 0000\n"
        "   2: 0100007F:7530 0100007F:A002 08 00000000:00000000 00:00000000 00000000     0        "
        "0 "
        "502 1 0000\n"
        "   3: 0100007F:A002 0100007F:7530 05 00000000:00000000 00:00000000 00000000     0        "
        "0 "
        "77 1 0000\n"
        "   4: 0100007F:7530 0100007F:A003 08 00000000:00000000 00:00000000 00000000     0        "
        "0 "
        "503 1 0000\n"
        "nonsense\n"
        "   5: 0000000000000000FFFF00000100007F:7530 0000000000000000FFFF00000100007F:A005 01 "
        "00000000:00000000 00:00000000 00000000     0        0 9 1 0000";
    struct peer_table t = {.known = true};
    (void)state;
    peer_table_parse(&t, text, sizeof text - 1);
    assert_int_equal(t.n, 6);
    assert_int_equal(peer_lookup(&t, 0xA001, 30000), PEER_GONE);
    assert_int_equal(peer_lookup(&t, 0xA002, 30000), PEER_READS);
    assert_int_equal(peer_lookup(&t, 0xA003, 30000), PEER_GONE);
    assert_int_equal(peer_lookup(&t, 0xA004, 30000), PEER_UNKNOWN);
    t.known = false;
    assert_int_equal(peer_lookup(&t, 0xA001, 30000), PEER_UNKNOWN);
    peer_table_release(&t);
}

static void compares_keys(void **state)
{
    (void)state;
    assert_true(auth_equal("secret", "secret"));
    assert_false(auth_equal("secret2", "secret"));
    assert_false(auth_equal("secre", "secret"));
    assert_false(auth_equal("", "secret"));
    assert_false(auth_equal("secretsecret", "secret"));
    assert_true(auth_equal("", ""));
}

static void counts_in_buckets(void **state)
{
    static const double bounds[] = {1, 2, 4};
    struct histogram h = {.bounds = bounds, .n = 3};
    (void)state;
    histogram_observe(&h, 1, 1); /* a bound belongs to its own bucket */
    histogram_observe(&h, 1.5, 2);
    histogram_observe(&h, 5, 1);
    assert_int_equal(h.count[0], 1);
    assert_int_equal(h.count[1], 2);
    assert_int_equal(h.count[2], 0);
    assert_int_equal(h.count[3], 1);
    assert_true(h.sum == 9.0);
}

static void check(const char *json, unsigned on, const char *param)
{
    struct json_doc *doc;
    struct api_error e = {0};
    assert_int_equal(json_parse(&doc, json, strlen(json)), FST_OK);
    bool ok = fields_check(json_root(doc), on, "", &e);
    assert_int_equal(ok, param == NULL);
    if (param) {
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, param);
    }
    json_free(doc);
}

static void lets_neutral_values_pass(void **state)
{
    (void)state;
    check("{}", ON_CHAT, NULL);
    check("{\"stop_regex\":\"\",\"lora_path\":[],\"return_hidden_states\":false}", ON_CHAT, NULL);
    check("{\"stop_regex\":[],\"structural_tag\":null}", ON_CHAT, NULL);
    check("{\"stop_regex\":\"a\"}", ON_SAMPLING, "stop_regex");
    check("{\"return_hidden_states\":true}", ON_CHAT, "return_hidden_states");
    check("{\"suffix\":\"x\"}", ON_COMPLETIONS, "suffix");
    check("{\"n\":1.0}", ON_MESSAGES, NULL); /* a number, however it is spelled */
    check("{\"n\":2}", ON_MESSAGES, "n");
    check("{\"structural_tag\":\"\"}", ON_CHAT, "structural_tag");
    check("{\"image_data\":\"x\"}", ON_CHAT, NULL); /* no field of chat: ignored */
    check("{\"image_data\":\"x\"}", ON_GENERATE, "image_data");
    check("{\"modalities\":[\"text\"]}", ON_CHAT, NULL);
    check("{\"modalities\":[\"audio\"]}", ON_CHAT, "modalities");
}

static void reads_typed_fields(void **state)
{
    static const char json[] = "{\"i\":5,\"f\":5.0,\"h\":2.5,\"s\":\"5\",\"n\":null,\"big\":"
                               "99999999999999999999,\"b\":true}";
    struct json_doc *doc;
    int64_t i = 7;
    double x = 0;
    bool b = false;
    (void)state;
    assert_int_equal(json_parse(&doc, json, sizeof json - 1), FST_OK);
    struct api_error e = {0};
    struct field_reader r = {json_root(doc), "p.", &e};
    assert_true(field_int(&r, "n", 0, 9, &i) && i == 7);
    assert_true(field_int(&r, "absent", 0, 9, &i) && i == 7);
    assert_true(field_int(&r, "i", 0, 9, &i) && i == 5);
    assert_true(field_int(&r, "f", 0, 9, &i) && i == 5);
    assert_true(field_real(&r, "h", 0, false, 9, &x) && x == 2.5);
    assert_true(field_bool(&r, "b", &b) && b);
    static const char *const bad[] = {"h", "s", "big", "b"};
    for (size_t k = 0; k < FST_COUNT(bad); k++) {
        e = (struct api_error){0};
        assert_false(field_int(&r, bad[k], 0, 9, &i));
        assert_int_equal(e.status, 400);
        assert_memory_equal(e.param, "p.", 2);
        assert_string_equal(e.param + 2, bad[k]);
    }
    e = (struct api_error){0};
    assert_false(field_int(&r, "i", 6, 9, &i));
    assert_string_equal(e.message, "p.i must be in [6, 9], got 5");
    assert_false(field_real(&r, "i", 5, true, 9, &x));
    json_free(doc);
}

static void quotes_what_came(void **state)
{
    char out[96];
    (void)state;
    assert_string_equal(api_quote(out, "short", 5), "short");
    char text[70];
    memset(text, 'a', sizeof text);
    memcpy(text + 63, "\xc3\xa9", 2); /* a character across the cut is left out */
    api_quote(out, text, sizeof text);
    assert_int_equal(strlen(out), 63 + 3);
    assert_string_equal(out + 63, "...");
}

/* The flags' defaults are those of the struct, and each switch does what it says. */
static void reads_prompt_flags(void **state)
{
    static const char *const lines[] = {
        "x",
        "x --tool-memory-max-ids=5 --tool-memory-max-bytes 1MiB --tool-memory-dir /d "
        "--move-date-lines",
        "x --disable-exact-dsml-tool-replay --keep-billing-header",
    };
    struct server_opts want[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        server_opts_default(&want[i]);
    assert_int_equal(want[0].call_memory_ids, 100000);
    assert_int_equal(want[0].call_memory_bytes, 256 << 20);
    assert_true(want[0].chat.drop_billing_line);
    want[1].call_memory_ids = 5;
    want[1].call_memory_bytes = 1 << 20;
    want[1].call_memory_dir = "/d";
    want[1].chat.move_date_lines = true;
    want[2].call_memory_ids = 0;
    want[2].chat.drop_billing_line = false;
    for (int i = 0; i < 3; i++) {
        char text[256], *argv[16], *at = text, *word;
        struct server_opts got;
        struct options *o;
        int argc = 0;
        snprintf(text, sizeof text, "%s", lines[i]);
        while ((word = strsep(&at, " ")))
            argv[argc++] = word;
        assert_int_equal(options_new(&o, "x", "", &server_prompt_group, 1), FST_OK);
        assert_int_equal(options_parse(o, argc, argv), FST_OK);
        server_opts_default(&got);
        server_prompt_opts(&got, o);
        assert_int_equal(got.call_memory_ids, want[i].call_memory_ids);
        assert_int_equal(got.call_memory_bytes, want[i].call_memory_bytes);
        assert_int_equal(!got.call_memory_dir, !want[i].call_memory_dir);
        if (got.call_memory_dir)
            assert_string_equal(got.call_memory_dir, want[i].call_memory_dir);
        assert_int_equal(got.chat.drop_billing_line, want[i].chat.drop_billing_line);
        assert_int_equal(got.chat.move_date_lines, want[i].chat.move_date_lines);
        options_free(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_paths),      cmocka_unit_test(reads_queries),
        cmocka_unit_test(knows_peers),        cmocka_unit_test(compares_keys),
        cmocka_unit_test(counts_in_buckets),  cmocka_unit_test(lets_neutral_values_pass),
        cmocka_unit_test(reads_typed_fields), cmocka_unit_test(quotes_what_came),
        cmocka_unit_test(reads_prompt_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
