/* checkpoint.c - match what is there with what the configuration calls for. */
#include "weights/checkpoint.h"

#include <inttypes.h>

/* The drafter: dspark_* keys announce DSpark (and then it has to be whole); otherwise the tensors
 * say.  num_nextn_predict_layers is stale in published files and not read. */
static enum fst_status choose_draft(struct checkpoint *c, enum inventory_draft *draft)
{
    bool any = false;
    for (int64_t i = 0; i < c->shards.n && !any; i++)
        any = strncmp(c->shards.tensors[i].name, "mtp.", 4) == 0;
    c->config.has_mtp = false;
    if (c->config.has_dspark) {
        *draft = INVENTORY_DSPARK;
    } else if (shards_find(&c->shards, "mtp.0.main_proj.weight")) {
        return fst_error(FST_EFORMAT,
                         "%s/config.json: key \"dspark_target_layer_ids\" is missing, but the "
                         "checkpoint holds a DSpark drafter (tensor \"mtp.0.main_proj.weight\")",
                         c->dir);
    } else {
        *draft = any ? INVENTORY_MTP : INVENTORY_NO_DRAFT;
        c->config.has_mtp = any;
    }
    return FST_OK;
}

static int item_by_name(const void *a, const void *b)
{
    return strcmp((*(const struct inventory_item *const *)a)->name,
                  (*(const struct inventory_item *const *)b)->name);
}

/* Fill found[] and unknown[]: both lists by name, side by side. */
static enum fst_status match_names(struct checkpoint *c)
{
    const struct inventory *inv = &c->inventory;
    const struct inventory_item **order = mem_alloc((size_t)inv->n * sizeof *order);
    if (!order)
        return fst_error(FST_ENOMEM, "%s: no memory for %" PRId64 " tensors", c->dir, inv->n);
    for (int64_t i = 0; i < inv->n; i++)
        order[i] = &inv->items[i];
    qsort(order, (size_t)inv->n, sizeof *order, item_by_name);
    int64_t i = 0;
    for (int64_t k = 0; k < c->shards.n;) {
        int d = i == inv->n ? 1 : strcmp(order[i]->name, c->shards.tensors[k].name);
        if (d == 0)
            c->found[order[i++] - inv->items] = &c->shards.tensors[k++];
        else if (d < 0)
            i++;
        else
            c->unknown[c->n_unknown++] = k++;
    }
    mem_free(order);
    return FST_OK;
}

enum st_dtype checkpoint_dtype(const struct checkpoint *c, int64_t item)
{
    const struct inventory_item *it = &c->inventory.items[item];
    const struct shard_tensor *t = c->found[it->scale ? item - 1 : item];
    return t ? t->t->dtype : inventory_published(it);
}

static bool same_shape(const struct st_tensor *t, int n_dims, const int64_t *shape)
{
    return t->n_dims == n_dims && t->shape[0] == shape[0] &&
           (n_dims == 1 || t->shape[1] == shape[1]);
}

static void match_item(struct checkpoint *c, int64_t i, bool quantised)
{
    const struct inventory_item *item = &c->inventory.items[i];
    const struct shard_tensor *t = c->found[i];
    enum st_dtype dtype = checkpoint_dtype(c, i), stored;
    int64_t shape[2];
    int n_dims = inventory_shape(&c->inventory, item, dtype, &stored, shape);
    if (item->scale && !c->found[i - 1] && !t && !quantised)
        return; /* the missing weight would not have had one */
    if (!t) {
        if (!item->scale || n_dims > 0)
            c->missing[c->n_missing++] = i;
    } else if (n_dims == 0 || t->t->dtype != stored || !same_shape(t->t, n_dims, shape)) {
        c->wrong[c->n_wrong++] = i;
    }
}

static enum fst_status match(struct checkpoint *c)
{
    size_t n = (size_t)c->inventory.n;
    bool quantised = false;
    c->found = mem_calloc(n, sizeof *c->found);
    c->missing = mem_alloc(n * sizeof *c->missing);
    c->wrong = mem_alloc(n * sizeof *c->wrong);
    c->unknown = mem_alloc((size_t)FST_MAX(c->shards.n, 1) * sizeof *c->unknown);
    if (!c->found || !c->missing || !c->wrong || !c->unknown)
        return fst_error(FST_ENOMEM, "%s: no memory for %zu tensors", c->dir, n);
    FST_TRY(match_names(c));
    for (size_t i = 0; i < n; i++)
        quantised = quantised || (c->inventory.items[i].scale && c->found[i]);
    for (size_t i = 0; i < n; i++)
        match_item(c, (int64_t)i, quantised);
    return FST_OK;
}

enum fst_status checkpoint_init(struct checkpoint *c, const char *dir)
{
    enum inventory_draft draft = INVENTORY_NO_DRAFT;
    *c = (struct checkpoint){.dir = mem_strdup(dir)};
    enum fst_status rc = c->dir ? FST_OK : fst_error(FST_ENOMEM, "%s: no memory", dir);
    if (rc == FST_OK)
        rc = config_read(&c->config, dir);
    if (rc == FST_OK)
        rc = shards_init(&c->shards, dir);
    if (rc == FST_OK)
        rc = choose_draft(c, &draft);
    if (rc == FST_OK)
        rc = inventory_init(&c->inventory, &c->config, draft);
    if (rc == FST_OK)
        rc = match(c);
    if (rc < 0)
        checkpoint_release(c);
    return rc;
}

void checkpoint_release(struct checkpoint *c)
{
    mem_free(c->found);
    mem_free(c->missing);
    mem_free(c->unknown);
    mem_free(c->wrong);
    inventory_release(&c->inventory);
    shards_release(&c->shards);
    mem_free(c->dir);
    *c = (struct checkpoint){0};
}

static void put_shape(char *text, size_t size, int n, const int64_t *shape)
{
    size_t len = 0;
    for (int i = 0; i < n && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n == 0)
        snprintf(text, size, "%s", "");
}

void checkpoint_describe_wrong(const struct checkpoint *c, int64_t i, char *text, size_t size)
{
    const struct inventory_item *item = &c->inventory.items[i];
    const struct st_tensor *t = c->found[i]->t;
    enum st_dtype dtype = checkpoint_dtype(c, i), stored;
    int64_t shape[2];
    char have[96], want[96];
    int n = inventory_shape(&c->inventory, item, dtype, &stored, shape);
    put_shape(have, sizeof have, t->n_dims, t->shape);
    if (n == 0 && item->scale) {
        snprintf(text, size, "tensor \"%s\": a scale beside a weight of dtype %s", t->name,
                 st_dtype_name(dtype));
        return;
    }
    if (n == 0)
        n = inventory_shape(&c->inventory, item, inventory_published(item), &stored, shape);
    put_shape(want, sizeof want, n, shape);
    snprintf(text, size, "tensor \"%s\": %s [%s]; expected %s [%s]%s", t->name,
             st_dtype_name(t->dtype), have, st_dtype_name(stored), want,
             n == 0 ? " (rows in whole blocks of 32)" : "");
}

enum fst_status checkpoint_verdict(const struct checkpoint *c)
{
    char text[512], more[96] = "";
    int64_t n = c->n_wrong + c->n_missing + c->n_unknown;
    if (n == 0)
        return FST_OK;
    if (n > 1)
        snprintf(more, sizeof more,
                 " (%" PRId64 " wrong, %" PRId64 " missing, %" PRId64 " unknown)", c->n_wrong,
                 c->n_missing, c->n_unknown);
    if (c->n_wrong > 0) {
        int64_t i = c->wrong[0];
        checkpoint_describe_wrong(c, i, text, sizeof text);
        return fst_error(FST_EFORMAT, "%s: %s%s", c->shards.shard[c->found[i]->shard].path, text,
                         more);
    }
    if (c->n_missing > 0)
        return fst_error(FST_EFORMAT, "%s: tensor \"%s\" is missing%s", c->dir,
                         c->inventory.items[c->missing[0]].name, more);
    const struct shard_tensor *t = &c->shards.tensors[c->unknown[0]];
    return fst_error(FST_EFORMAT, "%s: tensor \"%s\" is unknown to this configuration%s",
                     c->shards.shard[t->shard].path, t->t->name, more);
}
