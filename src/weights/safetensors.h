/* safetensors.h - one safetensors file: 8-byte little-endian header length N, N bytes of JSON
 * (name -> dtype, shape, data_offsets relative to byte 8 + N), then the data.
 *
 * The header is hostile input.  It is scanned once without a tree (a 12 MB header of 96,085
 * tensors takes about 40 ms), with these rules: UTF-8; one object; every tensor has exactly the
 * three keys; no name twice; dtype x shape == bytes; the byte ranges, in order of offset, cover the
 * data part without hole, overlap or rest.  Errors are FST_EFORMAT, one line naming file and
 * tensor. */
#ifndef FST_WEIGHTS_SAFETENSORS_H
#define FST_WEIGHTS_SAFETENSORS_H

#include "weights/io.h"

enum {
    ST_DIMS_MAX = 4,
    ST_HEADER_MAX = 100 * 1000 * 1000 /* bytes; the limit of the format's reference reader */
};

/* name in headers, bits of one element */
#define ST_DTYPE_MAP(X)                                                                            \
    X(BOOL, 8)                                                                                     \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(I16, 16)                                                                                     \
    X(U16, 16)                                                                                     \
    X(F16, 16)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(I32, 32)                                                                                     \
    X(U32, 32)                                                                                     \
    X(F32, 32)                                                                                     \
    X(I64, 64)                                                                                     \
    X(U64, 64)                                                                                     \
    X(F64, 64)

enum st_dtype {
#define ST_ENUM(name, bits) ST_##name,
    ST_DTYPE_MAP(ST_ENUM)
#undef ST_ENUM
        ST_DTYPES
};
const char *st_dtype_name(enum st_dtype t);
int st_dtype_bytes(enum st_dtype t);

struct st_tensor {
    const char *name; /* borrowed from the header; NUL-terminated UTF-8, no NUL inside */
    enum st_dtype dtype;
    int n_dims;
    int64_t shape[ST_DIMS_MAX];
    int64_t begin, end; /* bytes within the data part */
};

struct st_header {
    struct st_tensor *tensors; /* owned; in order of the header */
    int64_t n_tensors;
    char *names; /* owned */
};

/* Scan a header's JSON; `path` is for messages, data_bytes the length of the data part. */
enum fst_status st_header_init(struct st_header *h, const char *json, size_t len,
                               int64_t data_bytes, const char *path);
void st_header_release(struct st_header *h);

struct safetensors {
    char *path; /* owned */
    struct weights_map map;
    const uint8_t *data; /* borrowed from the map: byte 8 + N */
    struct st_header header;
};

enum fst_status safetensors_init(struct safetensors *s, const char *path);
void safetensors_release(struct safetensors *s);

#endif
