/* inspect.c - what a checkpoint is made of, from its headers or from a preset alone. */
#include <inttypes.h>

#include "weights/checkpoint.h"

static const char *const class_names[WEIGHTS_CLASSES] = {[WEIGHTS_EMBED] = "embed",
                                                         [WEIGHTS_ATTENTION] = "attention",
                                                         [WEIGHTS_COMPRESSOR] = "compressor",
                                                         [WEIGHTS_INDEXER] = "indexer",
                                                         [WEIGHTS_HC] = "hyper_connections",
                                                         [WEIGHTS_ROUTER] = "router",
                                                         [WEIGHTS_EXPERTS] = "experts",
                                                         [WEIGHTS_SHARED] = "shared_experts",
                                                         [WEIGHTS_NORM] = "norms",
                                                         [WEIGHTS_ENGRAM] = "engram",
                                                         [WEIGHTS_DRAFT] = "draft",
                                                         [WEIGHTS_UNKNOWN] = "unknown"};

const char *weights_class_name(enum weights_class c)
{
    FST_ASSERT(c < WEIGHTS_CLASSES);
    return class_names[c];
}

static void count(struct weights_report *r, enum weights_class class, int64_t bytes)
{
    r->tensors++;
    r->bytes += bytes;
    r->by_class[class].tensors++;
    r->by_class[class].bytes += bytes;
}

static void count_item(struct weights_report *r, const struct inventory_item *item, int64_t bytes)
{
    count(r, inventory_class(item), bytes);
    if (item->stage)
        r->stage_tensors[item->layer]++;
    if (item->expert >= 0)
        *(item->stage ? &r->stage_expert_bytes : &r->expert_bytes) += bytes;
    if (inventory_form(item) == FORM_ROWS)
        r->engram_bytes += bytes;
    if (inventory_is_cut(item))
        r->cut_bytes += bytes;
}

/* Of n things of so many bytes together, what the fullest card has. */
static int64_t part(int64_t bytes, int n, int n_cards)
{
    return n ? bytes / n * div_up(n, n_cards) : 0;
}

int64_t weights_card_bytes(const struct weights_report *r, enum weights_share share, int n_cards)
{
    const struct model_config *c = &r->config;
    int stage_experts = c->n_stage_experts ? c->n_stage_experts : c->n_experts;
    FST_ASSERT(n_cards >= 1);
    if (share == WEIGHTS_SHARE_TENSORS)
        return r->bytes - r->cut_bytes + div_up(r->cut_bytes, n_cards);
    return r->bytes - r->expert_bytes - r->stage_expert_bytes - r->engram_bytes +
           part(r->expert_bytes, c->n_experts, n_cards) +
           part(r->stage_expert_bytes, stage_experts, n_cards) + div_up(r->engram_bytes, n_cards);
}

static enum fst_status no_memory(void)
{
    return fst_error(FST_ENOMEM, "no memory for the report");
}

/* Room for n texts, all NULL at first. */
static bool texts_new(char ***texts, int64_t n)
{
    *texts = mem_calloc((size_t)FST_MAX(n, 1), sizeof **texts);
    return *texts != NULL;
}

static enum fst_status report_faults(struct weights_report *r, const struct checkpoint *c)
{
    char text[512];
    if (!texts_new(&r->missing, c->n_missing) || !texts_new(&r->unknown, c->n_unknown) ||
        !texts_new(&r->wrong, c->n_wrong))
        return no_memory();
    r->n_missing = c->n_missing;
    r->n_unknown = c->n_unknown;
    r->n_wrong = c->n_wrong;
    for (int64_t i = 0; i < c->n_missing; i++) {
        r->missing[i] = mem_strdup(c->inventory.items[c->missing[i]].name);
        if (!r->missing[i])
            return no_memory();
    }
    for (int64_t i = 0; i < c->n_unknown; i++) {
        r->unknown[i] = mem_strdup(c->shards.tensors[c->unknown[i]].t->name);
        if (!r->unknown[i])
            return no_memory();
    }
    for (int64_t i = 0; i < c->n_wrong; i++) {
        checkpoint_describe_wrong(c, c->wrong[i], text, sizeof text);
        r->wrong[i] = mem_strdup(text);
        if (!r->wrong[i])
            return no_memory();
    }
    return FST_OK;
}

static void report_found(struct weights_report *r, const struct checkpoint *c)
{
    for (int64_t i = 0; i < c->inventory.n; i++)
        if (c->found[i])
            count_item(r, &c->inventory.items[i], c->found[i]->t->end - c->found[i]->t->begin);
    for (int64_t i = 0; i < c->n_unknown; i++) {
        const struct st_tensor *t = c->shards.tensors[c->unknown[i]].t;
        count(r, WEIGHTS_UNKNOWN, t->end - t->begin);
    }
}

enum fst_status weights_inspect(struct weights_report **out, const char *dir)
{
    struct checkpoint c;
    struct weights_report *r = NULL;
    *out = NULL;
    FST_TRY(checkpoint_init(&c, dir));
    enum fst_status rc = (r = mem_calloc(1, sizeof *r)) ? FST_OK : no_memory();
    if (rc == FST_OK) {
        r->config = c.config;
        report_found(r, &c);
        rc = report_faults(r, &c);
    }
    checkpoint_release(&c);
    if (rc == FST_OK)
        *out = r;
    else
        weights_report_free(r);
    return rc;
}

enum fst_status weights_inspect_preset(struct weights_report **out, const char *preset)
{
    struct inventory inv;
    struct model_config c;
    *out = NULL;
    FST_TRY(config_preset(&c, preset));
    FST_TRY(inventory_init(&inv, &c, c.has_dspark ? INVENTORY_DSPARK : INVENTORY_MTP));
    struct weights_report *r = mem_calloc(1, sizeof *r);
    if (r) {
        r->config = c;
        for (int64_t i = 0; i < inv.n; i++)
            count_item(r, &inv.items[i], inventory_bytes(&inv, &inv.items[i]));
    }
    inventory_release(&inv);
    *out = r;
    return r ? FST_OK : no_memory();
}

static void texts_free(char **texts, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mem_free(texts[i]);
    mem_free(texts);
}

void weights_report_free(struct weights_report *r)
{
    if (!r)
        return;
    texts_free(r->missing, r->n_missing);
    texts_free(r->unknown, r->n_unknown);
    texts_free(r->wrong, r->n_wrong);
    mem_free(r);
}
