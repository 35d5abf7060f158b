/* tiny_checkpoint.h - the smallest checkpoint with a layer of every kind, and changes to it. */
#ifndef TESTS_SUPPORT_TINY_CHECKPOINT_H
#define TESTS_SUPPORT_TINY_CHECKPOINT_H

#include "golden/hashweights.h"
#include "support/tmpdir.h"
#include "weights/shards.h"

/* Layers 0 (hash, ratio 0), 1 (hash, 4), 2 (128), 3 (4): 0.6 MB in FP4. */
static inline struct hashweights_spec tiny_spec(enum inventory_draft draft,
                                                enum hashweights_format format)
{
    struct hashweights_spec s = draft == INVENTORY_DSPARK ? hashweights_dspark() : hashweights_t1();
    static const int ratio[] = {0, 4, 128, 4};
    s.draft = draft;
    s.format = format;
    s.config.has_mtp = draft == INVENTORY_MTP;
    s.config.vocab_size = 64;
    s.config.hidden_size = 128;
    s.config.n_layers = 4;
    s.config.n_heads = 2;
    s.config.q_lora_rank = 32;
    s.config.o_lora_rank = 32;
    s.config.index_heads = 2;
    s.config.n_hash_layers = 2;
    s.config.n_experts = 4;
    s.config.moe_dim = 64;
    memset(s.config.compress_ratio, 0, sizeof s.config.compress_ratio);
    memcpy(s.config.compress_ratio, ratio, sizeof ratio);
    if (draft == INVENTORY_DSPARK) {
        s.config.n_stages = 2;
        s.config.markov_rank = 16;
        s.config.noise_id = 63;
        memset(s.config.target_layer, 0, sizeof s.config.target_layer);
        s.config.target_layer[0] = 2;
        s.config.target_layer[1] = 3;
    }
    return s;
}

/* One tensor on its way from an old file to a new one. */
struct tiny_tensor {
    char name[160];
    char dtype[16];
    int n_dims;
    int64_t shape[4];
    uint8_t *data; /* owned (malloc) */
    int64_t bytes;
    bool drop;
};

/* Rewrite dir/file tensor by tensor; change() may alter what it is given. */
static inline void tiny_rewrite(const char *dir, const char *file,
                                void (*change)(struct tiny_tensor *t, void *ud), void *ud)
{
    char path[1200];
    struct safetensors s;
    struct buf head = {0}, data = {0};
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (safetensors_init(&s, path) < 0)
        fail_msg("%s", fst_error_text());
    buf_putc(&head, '{');
    for (int64_t i = 0; i < s.header.n_tensors; i++) {
        const struct st_tensor *o = &s.header.tensors[i];
        struct tiny_tensor t = {.n_dims = o->n_dims, .bytes = o->end - o->begin};
        snprintf(t.name, sizeof t.name, "%s", o->name);
        snprintf(t.dtype, sizeof t.dtype, "%s", st_dtype_name(o->dtype));
        memcpy(t.shape, o->shape, sizeof t.shape);
        t.data = malloc((size_t)t.bytes + 1);
        if (!t.data)
            fail_msg("no memory");
        memcpy(t.data, s.data + o->begin, (size_t)t.bytes);
        change(&t, ud);
        if (!t.drop) {
            buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", head.len > 1 ? "," : "",
                       t.name, t.dtype);
            for (int d = 0; d < t.n_dims; d++)
                buf_printf(&head, "%s%lld", d ? "," : "", (long long)t.shape[d]);
            buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", data.len,
                       data.len + (size_t)t.bytes);
            buf_append(&data, t.data, (size_t)t.bytes);
        }
        free(t.data);
    }
    buf_putc(&head, '}');
    safetensors_release(&s);
    struct buf all = {0};
    uint64_t len = head.len;
    buf_append(&all, &len, 8);
    buf_append(&all, head.data, head.len);
    buf_append(&all, buf_str(&data), data.len);
    tmpdir_write(dir, file, all.data, all.len);
    buf_release(&all);
    buf_release(&head);
    buf_release(&data);
}

#endif
