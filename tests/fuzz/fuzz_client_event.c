/* fuzz_client_event.c - events of any shape: what the JSON reader takes, the scan takes too, and finds the same in it;
 * lines come out alike however they are cut. */
#include "base/json.h"
#include "client/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_val *path(json_val *v, const char *a, const char *b)
{
    return json_get(json_get(v, a), b);
}

/* A string as the scan keeps it means what the reader read. */
static void same_text(struct event_str s, json_val *v)
{
    struct buf b = {0};
    size_t n;
    const char *want = json_string(v, &n);
    if (!want) /* another type: looked at, not taken */
        return;
    FST_ASSERT(s.at);
    FST_ASSERT(event_unescape(&b, s.at, s.len));
    FST_ASSERT(b.len == n && (!n || !memcmp(buf_str(&b), want, n)));
    buf_release(&b);
}

static void check_scan(const char *text, size_t n)
{
    struct event e;
    struct json_doc *doc = NULL;
    bool ok = event_scan(&e, text, n);
    if (json_parse(&doc, text, n) < 0)
        return;
    json_val *root = json_root(doc);
    bool bom = n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3);
    FST_ASSERT(ok == (json_type_of(root) == JSON_OBJECT && !bom));
    /* Escaped keys, and keys that come twice, are nobody's and not compared. */
    json_val *choice = json_at(json_get(root, "choices"), 0);
    if (ok && !memchr(text, '\\', n) && json_count(root) == 1 && json_count(choice) == 1) {
        json_val *delta = json_get(choice, "delta");
        if (json_count(delta) == 1 && !json_get(root, "text"))
            same_text(e.text, json_get(delta, "content"));
    }
    if (ok && json_count(root) == 1 && !memchr(text, '\\', n) &&
        json_count(json_get(root, "meta_info")) == 1) {
        int64_t want;
        json_val *v = path(root, "meta_info", "completion_tokens");
        size_t len;
        const char *spelled = json_number_text(v, &len);
        if (spelled && len < 18 && strspn(spelled, "0123456789") == len && json_int(v, &want))
            FST_ASSERT(e.completion_tokens == want);
    }
    json_free(doc);
}

static bool collect(void *ud, const char *data, size_t len)
{
    struct buf *b = ud;
    buf_append(b, data, len);
    buf_putc(b, '\n');
    return true;
}

static void check_lines(const char *text, size_t n, size_t step)
{
    struct event_lines one = {0}, many = {0};
    struct buf a = {0}, b = {0};
    FST_ASSERT(event_lines_feed(&one, text, n, collect, &a) == FST_OK);
    for (size_t at = 0; at < n; at += step)
        FST_ASSERT(event_lines_feed(&many, text + at, FST_MIN(step, n - at), collect, &b) ==
                   FST_OK);
    event_lines_end(&one, collect, &a);
    event_lines_end(&many, collect, &b);
    FST_ASSERT(a.len == b.len && !memcmp(buf_str(&a), buf_str(&b), a.len));
    event_lines_release(&one);
    event_lines_release(&many);
    buf_release(&a);
    buf_release(&b);
}

static void check_answer(enum answer_api api, const char *text, size_t n, size_t step)
{
    struct answer r;
    FST_ASSERT(answer_init(&r, api, n % 5 != 0, 1, 2) == FST_OK);
    r.start_ns = 1;
    answer_head(&r, n % 7 ? 200 : 500, 2);
    int64_t t = 2;
    for (size_t at = 0; at < n; at += step)
        answer_bytes(&r, text + at, FST_MIN(step, n - at), ++t);
    answer_end(&r, NULL, ++t);
    FST_ASSERT(answer_ok(&r) || r.error);
    FST_ASSERT(!answer_ok(&r) || (r.last_ns >= r.first_ns && r.last_ns > r.start_ns));
    answer_release(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    if (size < 2)
        return 0;
    size_t step = 1 + data[0] % 32;
    check_scan(text, size - 1);
    check_lines(text, size - 1, step);
    check_answer(data[0] % 3, text, size - 1, step);
    return 0;
}
