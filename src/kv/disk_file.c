/* disk_file.c - heads, checksums, zstd.  The only file that knows zstd. */
#include "kv/disk_file.h"

#include <zstd.h>

#include "base/hash.h"

_Static_assert(sizeof(struct disk_head) == DISK_HEAD_FIXED, "the layout of a file is no accident");
_Static_assert(DISK_HEAD_FIXED % 8 == 0, "ids and checksums are aligned behind it");

static const char magic[8] = {'F', 'S', 'T', 'K', 'V', 'O', 'B', 'J'};
enum { ENDIAN = 0x01020304 };

/* ------------------------------------------------------------------ names */

uint64_t disk_name_hash(const struct store_name *name)
{
    uint64_t fixed[8] = {name->parent.word[0], name->parent.word[1],
                         name->salt[0],        name->salt[1],
                         name->salt[2],        name->salt[3],
                         (uint64_t)name->n,    (uint64_t)name->kind << 32 | (uint32_t)name->n_ids};
    uint64_t h = hash64(fixed, sizeof fixed, 0);
    return name->n_ids ? hash64(name->ids, (size_t)name->n_ids * sizeof *name->ids, h) : h;
}

void disk_head_name(const struct disk_head *h, struct store_name *out)
{
    *out = (struct store_name){.key = {{h->key[0], h->key[1]}},
                               .parent = {{h->parent[0], h->parent[1]}},
                               .ids = (const int32_t *)(const void *)(h + 1),
                               .n_ids = h->n_ids,
                               .kind = (enum store_kind)h->kind,
                               .n = h->n};
    memcpy(out->salt, h->salt, sizeof out->salt);
}

void disk_realm_name(char out[17], const char *numerics, const char *weights)
{
    uint64_t h = hash64(numerics, strlen(numerics), DISK_VERSION);
    h = hash64(weights, strlen(weights), h);
    snprintf(out, 17, "%016llx", (unsigned long long)h);
}

void disk_path(char out[DISK_PATH], const char *realm, const struct store_key *key,
               enum store_kind kind)
{
    snprintf(out, DISK_PATH, "objects/%.16s/%02x/%016llx%016llx.%s", realm,
             (unsigned)(key->word[0] >> 56), (unsigned long long)key->word[0],
             (unsigned long long)key->word[1], kind == STORE_PAGE ? "page" : "snapshot");
}

static bool parse_hex(const char *s, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < 16; i++) {
        const char *digits = "0123456789abcdef", *d = s[i] ? strchr(digits, s[i]) : NULL;
        if (!d)
            return false;
        *out = *out << 4 | (uint64_t)(d - digits);
    }
    return true;
}

bool disk_path_parse(const char *name, struct store_key *key, enum store_kind *kind)
{
    if (strlen(name) < 33 || !parse_hex(name, &key->word[0]) ||
        !parse_hex(name + 16, &key->word[1]))
        return false;
    *kind = strcmp(name + 32, ".page") == 0 ? STORE_PAGE : STORE_SNAPSHOT;
    return *kind == STORE_PAGE || strcmp(name + 32, ".snapshot") == 0;
}

/* ------------------------------------------------------------------ zstd */

struct disk_zip {
    ZSTD_CCtx *in;
    ZSTD_DCtx *out;
};

struct disk_zip *disk_zip_new(void)
{
    struct disk_zip *z = mem_calloc(1, sizeof *z);
    if (!z)
        return NULL;
    z->in = ZSTD_createCCtx();
    z->out = ZSTD_createDCtx();
    if (!z->in || !z->out ||
        ZSTD_isError(ZSTD_CCtx_setParameter(z->in, ZSTD_c_compressionLevel, 1))) {
        disk_zip_free(z);
        return NULL;
    }
    return z;
}

void disk_zip_free(struct disk_zip *z)
{
    if (!z)
        return;
    ZSTD_freeCCtx(z->in);
    ZSTD_freeDCtx(z->out);
    mem_free(z);
}

/* The runs as one frame of at most `room` bytes; 0: it is not smaller. */
static uint64_t compress(struct disk_zip *z, uint8_t *to, uint64_t room,
                         const struct store_run *runs, int32_t n_runs)
{
    ZSTD_outBuffer out = {.dst = to, .size = room};
    ZSTD_CCtx_reset(z->in, ZSTD_reset_session_only);
    for (int32_t i = 0; i < n_runs; i++) {
        ZSTD_inBuffer in = {.src = runs[i].at, .size = runs[i].bytes};
        ZSTD_EndDirective end = i + 1 < n_runs ? ZSTD_e_continue : ZSTD_e_end;
        for (;;) {
            size_t left = ZSTD_compressStream2(z->in, &out, &in, end);
            if (ZSTD_isError(left))
                return 0;
            if (end == ZSTD_e_end ? left == 0 : in.pos == in.size)
                break;
            if (out.pos == out.size)
                return 0;
        }
    }
    return out.pos;
}

static bool decompress(struct disk_zip *z, const uint8_t *from, uint64_t bytes,
                       const struct store_run *runs, int32_t n_runs)
{
    ZSTD_inBuffer in = {.src = from, .size = bytes};
    ZSTD_DCtx_reset(z->out, ZSTD_reset_session_only);
    size_t left = 1;
    for (int32_t i = 0; i < n_runs; i++) {
        ZSTD_outBuffer out = {.dst = runs[i].at, .size = runs[i].bytes};
        while (out.pos < out.size) {
            size_t had_in = in.pos, had_out = out.pos;
            left = ZSTD_decompressStream(z->out, &out, &in);
            if (ZSTD_isError(left) || (in.pos == had_in && out.pos == had_out))
                return false;
        }
    }
    if (left != 0) { /* the end of the frame may be still to be read */
        uint8_t none;
        ZSTD_outBuffer out = {.dst = &none, .size = 0};
        left = ZSTD_decompressStream(z->out, &out, &in);
    }
    return left == 0 && in.pos == in.size;
}

/* ------------------------------------------------------------------ files */

static uint64_t *blocks_of(struct disk_head *h)
{
    return (uint64_t *)(void *)((uint8_t *)h + DISK_HEAD_FIXED) + h->n_ids / 2 + h->n_ids % 2;
}

static uint64_t block_hash(const uint8_t *at, const struct disk_head *h, uint32_t i)
{
    uint64_t from = (uint64_t)i * DISK_BLOCK;
    uint64_t all = (uint64_t)round_up((int64_t)h->stored_bytes, DISK_ALIGN);
    return hash64(at + h->head_bytes + from, FST_MIN(all - from, (uint64_t)DISK_BLOCK), i);
}

/* The head's checksum, whose own place counts as 0. */
static uint64_t head_hash(const uint8_t *at, uint32_t bytes)
{
    struct disk_head fixed;
    uint64_t behind = hash64(at + DISK_HEAD_FIXED, bytes - DISK_HEAD_FIXED, 0);
    memcpy(&fixed, at, sizeof fixed);
    fixed.check = 0;
    return hash64(&fixed, sizeof fixed, behind);
}

uint64_t disk_file_make(uint8_t *at, const struct store_put *p, uint64_t payload,
                        const char *numerics, const char *weights, int64_t created_ns,
                        struct disk_zip *zip)
{
    struct disk_head *h = (struct disk_head *)(void *)at;
    const struct store_name *name = &p->name;
    /* Where the payload will be depends on its size by way of the blocks: it is compressed to where the
     * plain one would lie, and moved up if that is too far. */
    uint32_t head_bytes = disk_head_bytes(name->n_ids, payload);
    uint64_t stored = zip ? compress(zip, at + head_bytes, payload, p->runs, p->n_runs) : 0;
    bool smaller =
        stored > 0 && disk_file_bytes(name->n_ids, stored) < disk_file_bytes(name->n_ids, payload);
    if (smaller) {
        uint32_t less = disk_head_bytes(name->n_ids, stored);
        memmove(at + less, at + head_bytes, stored);
        head_bytes = less;
    } else {
        uint8_t *to = at + head_bytes;
        for (int32_t i = 0; i < p->n_runs; i++) {
            memcpy(to, p->runs[i].at, p->runs[i].bytes);
            to += p->runs[i].bytes;
        }
        stored = payload;
    }
    uint64_t bytes = disk_file_bytes(name->n_ids, stored);
    memset(at, 0, head_bytes);
    memset(at + head_bytes + stored, 0, bytes - head_bytes - stored);
    *h = (struct disk_head){.version = DISK_VERSION,
                            .endian = ENDIAN,
                            .head_bytes = head_bytes,
                            .block_bytes = DISK_BLOCK,
                            .payload_bytes = payload,
                            .stored_bytes = stored,
                            .kind = name->kind,
                            .zstd = smaller,
                            .n = name->n,
                            .created_ns = created_ns,
                            .n_ids = name->n_ids,
                            .n_blocks = (uint32_t)div_up((int64_t)stored, DISK_BLOCK),
                            .key = {name->key.word[0], name->key.word[1]},
                            .parent = {name->parent.word[0], name->parent.word[1]}};
    memcpy(h->magic, magic, sizeof magic);
    memcpy(h->salt, name->salt, sizeof h->salt);
    memcpy(h->numerics, numerics, strlen(numerics));
    memcpy(h->weights, weights, strlen(weights));
    if (name->n_ids)
        memcpy(at + DISK_HEAD_FIXED, name->ids, (size_t)name->n_ids * sizeof *name->ids);
    for (uint32_t i = 0; i < h->n_blocks; i++)
        blocks_of(h)[i] = block_hash(at, h, i);
    h->check = head_hash(at, head_bytes);
    return bytes;
}

const char *disk_head_check(const uint8_t *at, uint64_t have, uint64_t file_bytes)
{
    const struct disk_head *h = (const struct disk_head *)(const void *)at;
    if (have < DISK_ALIGN || file_bytes < DISK_ALIGN)
        return "too short for a head";
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return "no object of this tier";
    if (h->endian != ENDIAN)
        return "written by a machine of other byte order";
    if (h->version != DISK_VERSION)
        return "another version of the format";
    if (h->head_bytes < DISK_ALIGN || h->head_bytes % DISK_ALIGN || h->head_bytes > have)
        return "head of a wrong size";
    if (h->check != head_hash(at, h->head_bytes))
        return "the head's checksum is wrong";
    /* What follows was written so: it is no damage, but nothing that can be used either. */
    if (h->n_ids < 0 || h->n_ids > DISK_IDS_MAX ||
        (h->kind != STORE_PAGE && h->kind != STORE_SNAPSHOT) ||
        h->payload_bytes > DISK_PAYLOAD_MAX || h->stored_bytes > h->payload_bytes || h->zstd > 1 ||
        (!h->zstd && h->stored_bytes != h->payload_bytes) || h->block_bytes != DISK_BLOCK ||
        h->n_blocks != (uint32_t)div_up((int64_t)h->stored_bytes, DISK_BLOCK) ||
        h->head_bytes != disk_head_bytes(h->n_ids, h->stored_bytes) || h->numerics[DISK_TEXT_MAX] ||
        h->weights[DISK_TEXT_MAX])
        return "the head contradicts itself";
    if (file_bytes != disk_file_bytes(h->n_ids, h->stored_bytes))
        return file_bytes < disk_file_bytes(h->n_ids, h->stored_bytes) ? "the file is cut off"
                                                                       : "the file is too long";
    return NULL;
}

const char *disk_file_check(const uint8_t *at, uint64_t file_bytes)
{
    const char *why = disk_head_check(at, file_bytes, file_bytes);
    if (why)
        return why;
    const struct disk_head *h = (const struct disk_head *)(const void *)at;
    const uint64_t *block = blocks_of((struct disk_head *)(uintptr_t)at);
    for (uint32_t i = 0; i < h->n_blocks; i++)
        if (block[i] != block_hash(at, h, i))
            return "a checksum of the payload is wrong";
    return NULL;
}

bool disk_file_take(const uint8_t *at, const struct store_run *runs, int32_t n_runs,
                    struct disk_zip *zip)
{
    const struct disk_head *h = (const struct disk_head *)(const void *)at;
    const uint8_t *from = at + h->head_bytes;
    if (h->zstd)
        return zip && decompress(zip, from, h->stored_bytes, runs, n_runs);
    for (int32_t i = 0; i < n_runs; i++) {
        memcpy(runs[i].at, from, runs[i].bytes);
        from += runs[i].bytes;
    }
    return true;
}
