/* fuzz_weights_config.c - any config.json: refused in one line that names the file, or numbers that
 * the inventory can be made of. */
#include "weights/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    struct inventory inv;
    float rope[WEIGHTS_ROPE_PAIRS];
    enum fst_status rc = config_parse(&c, (const char *)data, size, "fuzz/config.json");
    if (rc < 0) {
        FST_ASSERT(strstr(fst_error_text(), "fuzz/config.json"));
        return 0;
    }
    weights_rope_table(rope, &c, false);
    weights_rope_table(rope, &c, true);
    if ((int64_t)c.n_layers * c.n_experts > 2000)
        return 0; /* right, but slow */
    FST_ASSERT(inventory_init(&inv, &c, c.has_dspark ? INVENTORY_DSPARK : INVENTORY_MTP) == FST_OK);
    for (int64_t i = 0; i < inv.n; i++) {
        enum st_dtype stored;
        int64_t shape[2];
        if (inventory_shape(&inv, &inv.items[i], ST_F32, &stored, shape) > 0)
            FST_ASSERT(shape[0] > 0 && shape[1] >= 0);
    }
    inventory_release(&inv);
    return 0;
}
