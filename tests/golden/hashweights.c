/* hashweights.c - write checkpoints of hashed weights in the published format. */
#include "golden/hashweights.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- numbers --------------------------------------------------------------------------------- */
uint64_t hashweights_fnv1a64(const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 0x100000001b3;
    return h;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

static uint64_t stream_start(const char *name, uint64_t seed)
{
    char salted[256];
    if (seed == 0)
        return hashweights_fnv1a64(name, strlen(name));
    int n = snprintf(salted, sizeof salted, "%" PRIu64 "/%s", seed, name);
    return hashweights_fnv1a64(salted, (size_t)n);
}

/* 24 bits: exact in float. */
static float unit(uint64_t start, int64_t i)
{
    uint64_t z = mix(start + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15);
    return (float)((double)(z >> 40) / 8388608.0 - 1);
}

void hashweights_stream(float *u, int64_t n, const char *name, uint64_t seed)
{
    uint64_t start = stream_start(name, seed);
    for (int64_t i = 0; i < n; i++)
        u[i] = unit(start, i);
}

void hashweights_tokens(int32_t *ids, int n, int vocab, uint64_t seed)
{
    uint64_t start = stream_start("tokens", seed);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(((double)unit(start, i) + 1) / 2 * vocab);
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float bf16_round(float x)
{
    uint32_t u = bits_of(x);
    u = (u + ((u >> 16) & 1) + 0x7fff) & 0xffff0000;
    memcpy(&x, &u, sizeof x);
    return x;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The stream's values as this tensor's weights. */
static void shape_values(float *w, int64_t n, const char *name, bool vector, int64_t n_in)
{
    float add = 0, mul;
    if (ends_with(name, "norm.weight")) {
        add = 1;
        mul = 0.17f;
    } else if (ends_with(name, "_scale")) {
        add = 0.75f;
        mul = 0.25f;
    } else if (ends_with(name, ".bias")) {
        mul = 0.85f;
    } else if (vector || ends_with(name, "ape") || ends_with(name, "embed.weight") ||
               ends_with(name, "markov_w1.weight")) {
        mul = 1.7f;
    } else {
        mul = (float)(2.6 * pow((double)n_in, -0.5)); /* std 1.5 / sqrt(in) */
    }
    for (int64_t i = 0; i < n; i++)
        w[i] = bf16_round(add + mul * w[i]);
}

/* Row t: the k experts with the largest of E hashed numbers, ties to the lower. */
static void fill_ids(int64_t *ids, const struct model_config *c, const char *name, uint64_t seed)
{
    uint64_t start = stream_start(name, seed);
    int k = c->n_experts_per_token, n = c->n_experts;
    float u[CONFIG_EXPERTS_MAX];
    for (int64_t t = 0; t < c->vocab_size; t++) {
        for (int e = 0; e < n; e++)
            u[e] = unit(start, t * n + e);
        for (int j = 0; j < k; j++) {
            int best = 0;
            for (int e = 1; e < n; e++)
                if (u[e] > u[best])
                    best = e;
            ids[t * k + j] = best;
            u[best] = -2;
        }
    }
}

/* ---- quantisation ---------------------------------------------------------------------------- */
/* ceil(log2(amax / top)) for a power-of-two scale; E8M0 byte is this + 127. */
static int scale_exponent(float amax, double top)
{
    int e;
    double m;
    if (amax <= 0)
        return -127;
    m = frexp((double)amax / top, &e);
    e = m > 0.5 ? e : e - 1;
    return FST_MAX(e, -127);
}

/* Nearest of the codes 0..n-1 with ascending values, ties to the even code, saturating. */
static int nearest(double a, const double *value, int n)
{
    int lo = 0, hi = n - 1;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (value[mid] <= a)
            lo = mid;
        else
            hi = mid;
    }
    double down = a - value[lo], up = value[hi] - a;
    if (up <= 0)
        return hi;
    return up < down || (up <= down && hi % 2 == 0) ? hi : lo;
}

static uint8_t to_e4m3(double x)
{
    static double value[127];
    if (value[126] < 448) {
        for (int i = 0; i < 127; i++)
            value[i] = i < 8 ? i * 0x1p-9 : ldexp(1 + (i & 7) / 8.0, (i >> 3) - 7);
    }
    return (uint8_t)(nearest(fabs(x), value, 127) | (signbit(x) ? 0x80 : 0));
}

static uint8_t to_e2m1(double x)
{
    static const double value[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    return (uint8_t)(nearest(fabs(x), value, 8) | (signbit(x) ? 8 : 0));
}

static void quantise_fp8(uint8_t *q, uint8_t *scale, const float *w, int64_t rows, int64_t cols)
{
    int64_t sc = div_up(cols, 128);
    for (int64_t r0 = 0; r0 < rows; r0 += 128) {
        for (int64_t c0 = 0; c0 < cols; c0 += 128) {
            int64_t r1 = FST_MIN(rows, r0 + 128), c1 = FST_MIN(cols, c0 + 128);
            float amax = 0;
            for (int64_t r = r0; r < r1; r++)
                for (int64_t c = c0; c < c1; c++)
                    amax = fmaxf(amax, fabsf(w[r * cols + c]));
            int e = scale_exponent(amax, 448);
            scale[r0 / 128 * sc + c0 / 128] = (uint8_t)(e + 127);
            for (int64_t r = r0; r < r1; r++)
                for (int64_t c = c0; c < c1; c++)
                    q[r * cols + c] = to_e4m3(ldexp((double)w[r * cols + c], -e));
        }
    }
}

static void quantise_fp4(uint8_t *q, uint8_t *scale, const float *w, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows * cols; i += 32) {
        float amax = 0;
        for (int j = 0; j < 32; j++)
            amax = fmaxf(amax, fabsf(w[i + j]));
        int e = scale_exponent(amax, 6);
        scale[i / 32] = (uint8_t)(e + 127);
        for (int j = 0; j < 32; j += 2)
            q[(i + j) / 2] = (uint8_t)(to_e2m1(ldexp((double)w[i + j], -e)) |
                                       to_e2m1(ldexp((double)w[i + j + 1], -e)) << 4);
    }
}

/* ---- files ----------------------------------------------------------------------------------- */
struct out_tensor {
    const struct inventory_item *item;
    enum st_dtype dtype;
    int n_dims;
    int64_t shape[2], bytes;
};

/* The dtype of a weight (not of its scale) in this format. */
static enum st_dtype dtype_in(const struct inventory_item *item, enum hashweights_format format)
{
    enum st_dtype t = inventory_published(item);
    if (inventory_form(item) == FORM_IDS)
        return t;
    if (format == HASHWEIGHTS_F32)
        return ST_F32;
    if (format == HASHWEIGHTS_BF16)
        return inventory_form(item) == FORM_FLOAT ? ST_F32 : ST_BF16;
    return format == HASHWEIGHTS_FP8 && t == ST_I8 ? ST_F8_E4M3 : t;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct out_tensor *)a)->item->name,
                  ((const struct out_tensor *)b)->item->name);
}

/* As common writers lay data out: wide elements first, so that all are aligned. */
static int by_width(const void *a, const void *b)
{
    int wa = st_dtype_bytes(((const struct out_tensor *)a)->dtype);
    int wb = st_dtype_bytes(((const struct out_tensor *)b)->dtype);
    return wa != wb ? wb - wa : by_name(a, b);
}

static enum fst_status io_error(const char *path)
{
    return fst_error(FST_EIO, "%s: %s", path, strerror(errno));
}

static enum fst_status write_bytes(FILE *f, const void *p, size_t n, const char *path)
{
    return n == 0 || fwrite(p, 1, n, f) == n ? FST_OK : io_error(path);
}

static enum fst_status write_tensor(FILE *f, const struct hashweights_spec *spec,
                                    const struct inventory *inv, const struct out_tensor *t,
                                    const char *path)
{
    const struct inventory_item *item = t->item;
    const struct inventory_item *weight = item->scale ? item - 1 : item;
    int64_t rows, cols;
    inventory_dims(inv, item, &rows, &cols);
    bool vector = cols == 0;
    int64_t n = rows * (vector ? 1 : cols);
    enum st_dtype dtype = dtype_in(weight, spec->format);
    float *w = mem_alloc((size_t)n * sizeof *w);
    uint8_t *raw = mem_alloc((size_t)n * 8), *scale = mem_alloc((size_t)n);
    enum fst_status rc = FST_ENOMEM;
    if (w && raw && scale) {
        if (dtype == ST_I64) {
            fill_ids((int64_t *)(void *)raw, &spec->config, weight->name, spec->seed);
        } else {
            hashweights_stream(w, n, weight->name, spec->seed);
            shape_values(w, n, weight->name, vector, vector ? rows : cols);
        }
        if (dtype == ST_F32)
            memcpy(raw, w, (size_t)n * 4);
        if (dtype == ST_BF16) {
            for (int64_t i = 0; i < n; i++) {
                uint16_t half = (uint16_t)(bits_of(w[i]) >> 16);
                memcpy(raw + 2 * i, &half, 2);
            }
        }
        if (dtype == ST_F8_E4M3)
            quantise_fp8(raw, scale, w, rows, cols);
        if (dtype == ST_I8)
            quantise_fp4(raw, scale, w, rows, cols);
        rc = write_bytes(f, item->scale ? scale : raw, (size_t)t->bytes, path);
    }
    mem_free(w);
    mem_free(raw);
    mem_free(scale);
    return rc;
}

static enum fst_status write_shard(const struct hashweights_spec *spec, const struct inventory *inv,
                                   struct out_tensor *t, int64_t n, const char *path)
{
    struct buf head = {0};
    int64_t at = 0;
    if (!spec->unaligned)
        qsort(t, (size_t)n, sizeof *t, by_width);
    buf_puts(&head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < n; i++) {
        buf_printf(&head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRId64, t[i].item->name,
                   st_dtype_name(t[i].dtype), t[i].shape[0]);
        if (t[i].n_dims == 2)
            buf_printf(&head, ",%" PRId64, t[i].shape[1]);
        buf_printf(&head, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", at, at + t[i].bytes);
        at += t[i].bytes;
    }
    buf_putc(&head, '}');
    while (head.len % 8 != (spec->unaligned ? 1 : 0) && !head.failed)
        buf_putc(&head, ' ');
    FILE *f = fopen(path, "wb");
    uint64_t len = head.len;
    enum fst_status rc = head.failed ? FST_ENOMEM : f ? FST_OK : io_error(path);
    if (rc == FST_OK)
        rc = write_bytes(f, &len, 8, path); /* tests run on little-endian machines */
    if (rc == FST_OK)
        rc = write_bytes(f, head.data, head.len, path);
    for (int64_t i = 0; i < n && rc == FST_OK; i++)
        rc = write_tensor(f, spec, inv, &t[i], path);
    if (f && fclose(f) != 0 && rc == FST_OK)
        rc = io_error(path);
    buf_release(&head);
    return rc;
}

static void put_list(struct buf *b, const char *key, const int *v, int n, int zeros)
{
    buf_printf(b, "\"%s\":[", key);
    for (int i = 0; i < n + zeros; i++)
        buf_printf(b, "%s%d", i ? "," : "", i < n ? v[i] : 0);
    buf_puts(b, "],");
}

static void put_config(struct buf *b, const struct hashweights_spec *spec)
{
    const struct model_config *c = &spec->config;
    bool dspark = spec->draft == INVENTORY_DSPARK;
    buf_puts(b, "{\"architectures\":[\"DeepseekV4ForCausalLM\"],\"model_type\":\"deepseek_v4\",");
    buf_printf(b,
               "\"vocab_size\":%d,\"hidden_size\":%d,\"num_hidden_layers\":%d,"
               "\"num_attention_heads\":%d,\"num_key_value_heads\":1,\"head_dim\":%d,"
               "\"qk_rope_head_dim\":%d,\"q_lora_rank\":%d,\"o_lora_rank\":%d,\"o_groups\":%d,"
               "\"sliding_window\":%d,",
               c->vocab_size, c->hidden_size, c->n_layers, c->n_heads, c->head_dim, c->rope_dim,
               c->q_lora_rank, c->o_lora_rank, c->o_groups, c->window);
    put_list(b, "compress_ratios", c->compress_ratio, c->n_layers, dspark ? c->n_stages : 1);
    buf_printf(b,
               "\"compress_rope_theta\":%.17g,\"rope_theta\":%.17g,\"rope_scaling\":{\"type\":"
               "\"yarn\",\"factor\":%.17g,\"original_max_position_embeddings\":%d,\"beta_fast\":"
               "%.17g,\"beta_slow\":%.17g},\"max_position_embeddings\":%" PRId64 ",",
               c->compress_rope_theta, c->rope_theta, c->yarn_factor, c->yarn_original_positions,
               c->yarn_beta_fast, c->yarn_beta_slow, c->max_positions);
    buf_printf(b,
               "\"index_n_heads\":%d,\"index_head_dim\":%d,\"index_topk\":%d,\"num_hash_layers\":"
               "%d,\"n_routed_experts\":%d,\"n_shared_experts\":1,\"num_experts_per_tok\":%d,"
               "\"moe_intermediate_size\":%d,\"scoring_func\":\"sqrtsoftplus\",\"topk_method\":"
               "\"noaux_tc\",\"norm_topk_prob\":true,\"routed_scaling_factor\":%.9g,"
               "\"swiglu_limit\":%.9g,",
               c->index_heads, c->index_dim, c->index_topk, c->n_hash_layers, c->n_experts,
               c->n_experts_per_token, c->moe_dim, (double)c->routed_scale,
               (double)c->swiglu_limit);
    buf_printf(b,
               "\"hc_mult\":4,\"hc_sinkhorn_iters\":%d,\"hc_eps\":%.9g,\"rms_norm_eps\":%.9g,"
               "\"num_nextn_predict_layers\":1,\"bos_token_id\":%d,\"eos_token_id\":%d,"
               "\"tie_word_embeddings\":false,",
               c->hc_iters, (double)c->hc_eps, (double)c->norm_eps, c->bos_id, c->eos_id);
    if (dspark) {
        buf_printf(b,
                   "\"dspark_block_size\":%d,\"dspark_markov_rank\":%d,\"dspark_noise_token_id\":"
                   "%d,",
                   c->gamma, c->markov_rank, c->noise_id);
        put_list(b, "dspark_target_layer_ids", c->target_layer, c->n_stages, 0);
    }
    buf_puts(b, "\"torch_dtype\":\"bfloat16\"");
    if (spec->format == HASHWEIGHTS_FP8 || spec->format == HASHWEIGHTS_FP4)
        buf_puts(b, ",\"quantization_config\":{\"activation_scheme\":\"dynamic\",\"fmt\":\"e4m3\","
                    "\"quant_method\":\"fp8\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,"
                    "128]}");
    buf_puts(b, "}\n");
}

static enum fst_status write_buf(const char *dir, const char *name, struct buf *b)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = b->failed ? NULL : fopen(path, "wb");
    enum fst_status rc = f ? write_bytes(f, b->data, b->len, path) : io_error(path);
    if (f && fclose(f) != 0 && rc == FST_OK)
        rc = io_error(path);
    buf_release(b);
    return rc;
}

static enum fst_status write_shards(const char *dir, const struct hashweights_spec *spec,
                                    const struct inventory *inv, struct out_tensor *t, int64_t n)
{
    char path[1024], name[64];
    struct buf index = {0};
    int64_t total = 0;
    int shards = spec->n_shards;
    for (int64_t i = 0; i < n; i++)
        total += t[i].bytes;
    buf_printf(&index, "{\"metadata\":{\"total_size\":%" PRId64 "},\"weight_map\":{", total);
    for (int s = 0; s < shards; s++) {
        int64_t first = n * s / shards, end = n * (s + 1) / shards;
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, shards);
        for (int64_t i = first; i < end; i++)
            buf_printf(&index, "%s\"%s\":\"%s\"", i ? "," : "", t[i].item->name, name);
        snprintf(path, sizeof path, "%s/%s", dir, shards == 1 ? "model.safetensors" : name);
        enum fst_status rc = write_shard(spec, inv, t + first, end - first, path);
        if (rc < 0) {
            buf_release(&index);
            return rc;
        }
    }
    buf_puts(&index, "}}");
    if (shards > 1)
        return write_buf(dir, "model.safetensors.index.json", &index);
    buf_release(&index);
    return FST_OK;
}

enum fst_status hashweights_write(const char *dir, const struct hashweights_spec *spec)
{
    struct inventory inv;
    struct buf config = {0};
    int64_t n = 0;
    if (mkdir(dir, 0777) < 0 && errno != EEXIST)
        return io_error(dir);
    put_config(&config, spec);
    FST_TRY(write_buf(dir, "config.json", &config));
    FST_TRY(inventory_init(&inv, &spec->config, spec->draft));
    struct out_tensor *t = mem_calloc((size_t)inv.n, sizeof *t);
    for (int64_t i = 0; t && i < inv.n; i++) {
        const struct inventory_item *item = &inv.items[i];
        enum st_dtype weight = dtype_in(item->scale ? item - 1 : item, spec->format);
        struct out_tensor *o = &t[n];
        o->item = item;
        o->n_dims = inventory_shape(&inv, item, weight, &o->dtype, o->shape);
        if (o->n_dims == 0)
            continue; /* an unquantised linear has no scale */
        o->bytes = o->shape[0] * (o->n_dims == 2 ? o->shape[1] : 1) * st_dtype_bytes(o->dtype);
        n++;
    }
    enum fst_status rc = FST_ENOMEM;
    if (t) {
        qsort(t, (size_t)n, sizeof *t, by_name);
        rc = write_shards(dir, spec, &inv, t, n);
    }
    mem_free(t);
    inventory_release(&inv);
    return rc;
}

void hashweights_remove(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[1024];
    while (d && (e = readdir(d))) {
        if (ends_with(e->d_name, ".safetensors") || ends_with(e->d_name, ".json")) {
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            unlink(path);
        }
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* ---- the tiny models ------------------------------------------------------------------------- */
struct hashweights_spec hashweights_t1(void)
{
    static const int ratio[] = {0, 128, 4, 128, 4, 0, 4, 128};
    struct hashweights_spec s = {
        .config = {.model_type = "deepseek_v4",
                   .vocab_size = 512,
                   .hidden_size = 256,
                   .n_layers = 8,
                   .n_heads = 4,
                   .head_dim = 128,
                   .rope_dim = 64,
                   .q_lora_rank = 128,
                   .o_lora_rank = 128,
                   .o_groups = 2,
                   .window = 16,
                   .rope_theta = 10000,
                   .compress_rope_theta = 160000,
                   .yarn_factor = 16,
                   .yarn_beta_fast = 32,
                   .yarn_beta_slow = 1,
                   .yarn_original_positions = 65536,
                   .max_positions = 65536,
                   .index_heads = 16,
                   .index_dim = 128,
                   .index_topk = 8,
                   .n_hash_layers = 3,
                   .n_experts = 8,
                   .n_experts_per_token = 2,
                   .moe_dim = 128,
                   .routed_scale = 1.5f,
                   .swiglu_limit = 1,
                   .hc_iters = 20,
                   .hc_eps = 1e-6f,
                   .norm_eps = 1e-6f,
                   .bos_id = 0,
                   .eos_id = 1,
                   .block_out = 128,
                   .block_in = 128,
                   .has_mtp = true},
        .draft = INVENTORY_MTP,
        .format = HASHWEIGHTS_F32,
        .n_shards = 1,
    };
    memcpy(s.config.compress_ratio, ratio, sizeof ratio);
    return s;
}

struct hashweights_spec hashweights_t2(void)
{
    static const int ratio[] = {0, 0, 4, 128, 4, 128, 4, 128};
    struct hashweights_spec s = hashweights_t1();
    s.config.head_dim = 512;
    s.config.n_heads = 16;
    s.config.window = 128;
    s.config.index_heads = 64;
    s.config.index_topk = 16;
    memcpy(s.config.compress_ratio, ratio, sizeof ratio);
    return s;
}

struct hashweights_spec hashweights_dspark(void)
{
    struct hashweights_spec s = hashweights_t1();
    s.draft = INVENTORY_DSPARK;
    s.config.has_mtp = false;
    s.config.has_dspark = true;
    s.config.confidence_head = true;
    s.config.n_stages = 3;
    s.config.gamma = 5;
    s.config.markov_rank = 64;
    s.config.noise_id = 511;
    for (int i = 0; i < 3; i++)
        s.config.target_layer[i] = 5 + i;
    return s;
}
