/* fuzz_weights_safetensors.c - any header: refused in one line, or every tensor within the data,
 * side by side, of the size its dtype and shape say.
 *
 * Input: 8 bytes little-endian, the length of the data part; then the header. */
#include "weights/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int by_begin(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_header h;
    int64_t data_bytes = 0, at = 0;
    if (size < 8)
        return 0;
    memcpy(&data_bytes, data, 8);
    data_bytes &= INT64_MAX;
    /* A copy of exactly this size, so that reading one byte too far is seen. */
    char *text = mem_alloc(size - 8);
    memcpy(text, data + 8, size - 8);
    enum fst_status rc = st_header_init(&h, text, size - 8, data_bytes, "fuzz.safetensors");
    mem_free(text);
    if (rc < 0) {
        FST_ASSERT(rc == FST_EFORMAT);
        FST_ASSERT(strstr(fst_error_text(), "fuzz.safetensors"));
        FST_ASSERT(h.tensors == NULL);
        return 0;
    }
    for (int64_t i = 0; i < h.n_tensors; i++) {
        size_t len = strlen(h.tensors[i].name);
        char *canonical = mem_alloc(len + 1);
        shards_canonical(canonical, h.tensors[i].name);
        FST_ASSERT(strlen(canonical) <= len);
        mem_free(canonical);
        int64_t bytes = st_dtype_bytes(h.tensors[i].dtype);
        for (int d = 0; d < h.tensors[i].n_dims; d++)
            bytes *= h.tensors[i].shape[d];
        FST_ASSERT(h.tensors[i].end - h.tensors[i].begin == bytes);
    }
    if (h.n_tensors > 0)
        qsort(h.tensors, (size_t)h.n_tensors, sizeof *h.tensors, by_begin);
    for (int64_t i = 0; i < h.n_tensors; i++) {
        FST_ASSERT(h.tensors[i].begin == at);
        at = h.tensors[i].end;
    }
    FST_ASSERT(at == data_bytes);
    st_header_release(&h);
    return 0;
}
