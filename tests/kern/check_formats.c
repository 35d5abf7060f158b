/* check_formats.c - every code of every stored form has its exact value. */
#include "checkkern.h"

static float e4m3(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return code & 0x80 ? -v : v;
}

static float e2m1(int code)
{
    static const float value[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -value[code & 7] : value[code & 7];
}

/* Row o of a weight holds code o in every column, column 5 of x alone is 1: y[o] is the code's value
 * times its scale, bit by bit, through fp32 outputs (compressor and head do not round). */
static void all_codes(struct ck *c, enum weight_format fmt, int n_in, int column, int n_rows)
{
    struct mat m = {.fmt = fmt, .n_out = 256, .n_in = n_in},
               wkv = ck_mat(c, WEIGHT_FP8, 128, n_in, 1);
    int64_t row = fmt == WEIGHT_FP8 ? n_in : n_in / 2;
    int odd = c->k.flags & KERN_GPU ? 0 : 3; /* a card's loader aligns */
    uint8_t *p = (uint8_t *)ck_alloc(c, (size_t)(256 * row) + 3) + odd;
    int64_t n_scales = fmt == WEIGHT_FP8 ? 2 * (n_in / 128) : 256 * (n_in / 32);
    uint8_t *s = ck_alloc(c, (size_t)n_scales);
    for (int o = 0; o < 256; o++)
        memset(p + o * row, fmt == WEIGHT_FP8 ? (o & 0x7f) == 0x7f ? 0 : o : (o & 15) * 17,
               (size_t)row);
    for (int64_t i = 0; i < n_scales; i++)
        s[i] = (uint8_t)(120 + i % 9);
    m.data = p;
    m.scale = s;
    float *x = ck_alloc(c, (size_t)(n_rows * n_in) * 4), *norm = ck_alloc(c, 512);
    for (int t = 0; t < n_rows; t++)
        x[t * n_in + column] = 1;
    struct attn_in_args a = {.x = x,
                             .wkv = &wkv,
                             .kv_norm = norm,
                             .cmp_wkv = &m,
                             .cmp_wgate = &m,
                             .n_rows = n_rows,
                             .norm_eps = 1e-6f};
    a.kv = ck_alloc(c, (size_t)n_rows * 512);
    a.cmp = ck_alloc(c, (size_t)n_rows * 2048);
    FST_ASSERT(c->k.attn_in(&a, &c->s) == FST_OK);
    bool all = true;
    for (int t = 0; t < n_rows && all; t++)
        for (int o = 0; o < 512 && all; o++) {
            int code = o % 256;
            int64_t at = fmt == WEIGHT_FP8 ? code / 128 * (n_in / 128) + column / 128
                                           : code * (n_in / 32) + column / 32;
            float v = fmt == WEIGHT_FP8 ? e4m3((code & 0x7f) == 0x7f ? 0 : code) : e2m1(code & 15);
            float want = v * ldexpf(1, s[at] - 127), got = a.cmp[t * 512 + o];
            all = got == want;
            if (all)
                continue;
            ck_verdict(c, false, "attn_in", "%s code %02x at column %d of %d, %d rows: %a, not %a",
                       fmt == WEIGHT_FP8 ? "E4M3" : "E2M1", code, column, n_in, n_rows, (double)got,
                       (double)want);
        }
    if (all)
        ck_verdict(c, true, "attn_in", " ");
    ck_free_all(c);
}

void check_formats(struct ck *c)
{
    static const int columns[] = {0, 1, 5, 31, 34, 63, 66, 127, 128, 200, 255};
    if (c->bench || c->sweep || !ck_wanted(c, "attn_in"))
        return;
    ck_scratch(c, &ck_kindling, 16, 1);
    for (size_t i = 0; i < FST_COUNT(columns); i++)
        for (int n = 1; n <= 7; n += 3) {
            all_codes(c, WEIGHT_FP8, 256, columns[i], n);
            all_codes(c, WEIGHT_FP4, 256, columns[i], n);
        }
}
