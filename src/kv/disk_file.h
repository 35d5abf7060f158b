/* disk_file.h - what an object's file looks like, byte by byte, and whether one is whole.
 *
 *     0     struct disk_head, 512 bytes
 *     512   ids, int32 each; then a checksum (XXH3-64) for each block of the stored payload, zeros included
 *     head_bytes (a multiple of 4096)   the payload, as it is or as one zstd frame; zeros to a multiple
 *                                       of 4096, so that O_DIRECT can read it
 *
 * Numbers are little endian.  A checksum over the head, ids and block checksums included, binds all of
 * it together: no part of one file is believed in another. */
#ifndef FST_KV_DISK_FILE_H
#define FST_KV_DISK_FILE_H

#include "kv/disk.h"

enum {
    DISK_ALIGN = 4096,
    DISK_BLOCK = 256 << 10,
    DISK_VERSION = 1,
    DISK_PATH = 96,     /* of an object below the folder */
    DISK_IDS_MAX = 256, /* own ids of an object */
    DISK_HEAD_FIXED = 512,
    DISK_HEAD_ROOM = 40960 /* of the largest head */
};
#define DISK_PAYLOAD_MAX ((uint64_t)1 << 30)

struct disk_head {
    char magic[8];
    uint32_t version, endian;
    uint64_t check; /* over head_bytes with this as 0 */
    uint32_t head_bytes, block_bytes;
    uint64_t payload_bytes, stored_bytes; /* as given; as in the file */
    uint32_t kind, zstd;                  /* zstd 0: stored as it is */
    int64_t n, created_ns;
    int32_t n_ids;
    uint32_t n_blocks;
    uint64_t key[2], parent[2], salt[4];
    char numerics[DISK_TEXT_MAX + 1], weights[DISK_TEXT_MAX + 1]; /* NUL-terminated */
    uint8_t unused[112];
};

static inline uint32_t disk_head_bytes(int32_t n_ids, uint64_t stored)
{
    return (uint32_t)round_up(DISK_HEAD_FIXED + 8 * div_up(n_ids, 2) +
                                  8 * div_up((int64_t)stored, DISK_BLOCK),
                              DISK_ALIGN);
}
static inline uint64_t disk_file_bytes(int32_t n_ids, uint64_t stored)
{
    return disk_head_bytes(n_ids, stored) + (uint64_t)round_up((int64_t)stored, DISK_ALIGN);
}

_Static_assert(DISK_HEAD_ROOM >=
                       DISK_HEAD_FIXED + 4 * DISK_IDS_MAX + 8 * (DISK_PAYLOAD_MAX / DISK_BLOCK) &&
                   DISK_HEAD_ROOM % DISK_ALIGN == 0,
               "room for the head of the largest object");

/* What an object is beside its key, in 64 bits. */
uint64_t disk_name_hash(const struct store_name *name);
/* A head's own name; ids are borrowed from the file's bytes. */
void disk_head_name(const struct disk_head *h, struct store_name *out);

/* The folder of what was written under these and this version: 16 digits. */
void disk_realm_name(char out[17], const char *numerics, const char *weights);
/* "objects/0123456789abcdef/8f/8f....page" */
void disk_path(char out[DISK_PATH], const char *realm, const struct store_key *key,
               enum store_kind kind);
bool disk_path_parse(const char *name, struct store_key *key, enum store_kind *kind); /* the end */

/* The image of a file in at (room for disk_file_bytes of the plain payload, aligned).  zstd: smaller if that
 * works.  Returns its size. */
struct disk_zip; /* what zstd keeps between calls; NULL: none */
uint64_t disk_file_make(uint8_t *at, const struct store_put *p, uint64_t payload,
                        const char *numerics, const char *weights, int64_t created_ns,
                        struct disk_zip *zip);

/* NULL when the head is one of this version with room in `have` bytes and whole, or what is wrong.
 * file_bytes: the size of the file. */
const char *disk_head_check(const uint8_t *at, uint64_t have, uint64_t file_bytes);
/* The same of a whole file, payload included.  It is not decompressed: that is disk_file_take's. */
const char *disk_file_check(const uint8_t *at, uint64_t file_bytes);
/* The payload of a file that checked out, to the runs, whose sum is payload_bytes.  False: it does not
 * decompress. */
bool disk_file_take(const uint8_t *at, const struct store_run *runs, int32_t n_runs,
                    struct disk_zip *zip);

struct disk_zip *disk_zip_new(void); /* NULL: no memory */
void disk_zip_free(struct disk_zip *z);

#endif
