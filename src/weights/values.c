/* values.c - are all stored values numbers, and which checkpoint is it?
 *
 * The first is looked at only on request: on a real checkpoint it reads 149 GiB. */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "weights/safetensors.h"
#include "weights/weights.h"

/* First element of n that is no number, or -1.  One loop per dtype finds whether there is one in a
 * block of 4096, without a branch in it; only then is it looked for. */
enum { BLOCK = 4096 };

static int64_t bad_e8m0(const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t end = FST_MIN(n, i + BLOCK);
        uint8_t any = 0; /* as wide as the data: 32 or more compared at once */
        for (int64_t j = i; j < end; j++)
            any |= p[j] == 0xff;
        for (int64_t j = i; any && j < end; j++)
            if (p[j] == 0xff)
                return j;
    }
    return -1;
}

static int64_t bad_e4m3(const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t end = FST_MIN(n, i + BLOCK);
        uint8_t any = 0;
        for (int64_t j = i; j < end; j++)
            any |= (p[j] & 0x7f) == 0x7f;
        for (int64_t j = i; any && j < end; j++)
            if ((p[j] & 0x7f) == 0x7f)
                return j;
    }
    return -1;
}

/* An exponent of all ones means NaN or infinite. */
static bool bf16_bad(const uint8_t *p, int64_t i)
{
    uint16_t u;
    memcpy(&u, p + 2 * i, sizeof u);
    return (u & 0x7f80) == 0x7f80;
}

static int64_t bad_bf16(const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t end = FST_MIN(n, i + BLOCK);
        uint16_t any = 0;
        for (int64_t j = i; j < end; j++)
            any |= bf16_bad(p, j);
        for (int64_t j = i; any && j < end; j++)
            if (bf16_bad(p, j))
                return j;
    }
    return -1;
}

static bool f32_bad(const uint8_t *p, int64_t i)
{
    uint32_t u;
    memcpy(&u, p + 4 * i, sizeof u);
    return (u & 0x7f800000) == 0x7f800000;
}

static int64_t bad_f32(const uint8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t end = FST_MIN(n, i + BLOCK);
        uint32_t any = 0;
        for (int64_t j = i; j < end; j++)
            any |= f32_bad(p, j);
        for (int64_t j = i; any && j < end; j++)
            if (f32_bad(p, j))
                return j;
    }
    return -1;
}

static int64_t first_bad(const struct weights_tensor *t)
{
    const uint8_t *p = t->data;
    if (strcmp(t->dtype, st_dtype_name(ST_F8_E8M0)) == 0)
        return bad_e8m0(p, t->bytes);
    if (strcmp(t->dtype, st_dtype_name(ST_F8_E4M3)) == 0)
        return bad_e4m3(p, t->bytes);
    if (strcmp(t->dtype, st_dtype_name(ST_BF16)) == 0)
        return bad_bf16(p, t->bytes / 2);
    if (strcmp(t->dtype, st_dtype_name(ST_F32)) == 0)
        return bad_f32(p, t->bytes / 4);
    return -1; /* FP4 codes are all numbers; expert ids were checked when they were narrowed */
}

enum fst_status weights_check_values(const struct weights *w)
{
    struct weights_tensor t;
    for (int64_t i = 0; i < weights_n_tensors(w); i++) {
        weights_tensor_at(w, i, &t);
        int64_t at = first_bad(&t);
        if (at < 0)
            continue;
        int64_t cols = t.n_dims > 1 ? t.shape[t.n_dims - 1] : t.bytes;
        return fst_error(FST_EFORMAT,
                         "%s: tensor \"%s\": element %" PRId64 " (row %" PRId64 ", column %" PRId64
                         ") is not a finite %s number",
                         t.file, t.name, at, at / cols, at % cols, t.dtype);
    }
    return FST_OK;
}

/* Size and time of a file, so that one which was changed in place where no sample lies is another one.  A copy
 * without its times is too: what was kept for it is computed again. */
static uint64_t digest_file(const char *path, uint64_t h)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return h;
    int64_t v[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    return hash64(v, sizeof v, h);
}

uint64_t weights_digest(const struct weights *w)
{
    enum { PIECE = 256 }; /* of its beginning, its middle and its end */
    struct weights_tensor t;
    const char *file = "";
    uint64_t h = 0;
    for (int64_t i = 0; i < weights_n_tensors(w); i++) {
        weights_tensor_at(w, i, &t);
        size_t n = (size_t)FST_MIN(t.bytes, PIECE);
        const uint8_t *at = t.data;
        if (strcmp(t.file, file) != 0)
            h = digest_file(file = t.file, h);
        h = hash64(t.name, strlen(t.name), h);
        h = hash64(t.dtype, strlen(t.dtype), h);
        h = hash64(t.shape, (size_t)t.n_dims * sizeof *t.shape, h);
        h = hash64(at, n, h);
        h = hash64(at + (t.bytes - (int64_t)n) / 2, n, h);
        h = hash64(at + t.bytes - (int64_t)n, n, h);
    }
    return h;
}
