/* sizing.c - the formulas; fractions stay fractions until the one floor of sizing_full_tokens. */
#include "kv/sizing.h"

/* A budget stays below 2^55 and n_target below 2^8, so that their product has 63 bits. */
enum { LAYERS_MAX = 255 };
#define BUDGET_MAX ((int64_t)1 << 55)

static enum fst_status wrong(const char *field, int64_t value, const char *expected)
{
    return fst_error(FST_EINVAL, "sizing: %s is %lld, expected %s", field, (long long)value,
                     expected);
}

static enum fst_status check_record(const char *field, const struct sizing_record *r)
{
    if (r->data < 1 || r->data > 1 << 16 || r->scale < 0 || r->scale > 1 << 16)
        return wrong(field, r->data < 1 || r->data > 1 << 16 ? r->data : r->scale,
                     "1 to 65536 bytes of data, 0 to 65536 of scales");
    if (r->align < 1 || r->align > 1 << 16)
        return wrong(field, r->align, "an alignment of 1 to 65536");
    return FST_OK;
}

static enum fst_status check_class(const struct sizing_class *c)
{
    if (c->ratio < 1 || c->ratio > SIZING_PAGE || SIZING_PAGE % c->ratio)
        return wrong("class.ratio", c->ratio, "a divisor of 256");
    if (c->n_layers < 0 || c->n_layers > LAYERS_MAX)
        return wrong("class.n_layers", c->n_layers, "0 to 255");
    if (c->state_bytes < 0 || c->state_bytes > 1 << 20)
        return wrong("class.state_bytes", c->state_bytes, "0 to 1048576");
    if (c->state_ring < 0 || c->state_ring > 1 << 16)
        return wrong("class.state_ring", c->state_ring, "0 to 65536");
    if (c->overlap < 0 || c->overlap > SIZING_PAGE)
        return wrong("class.overlap", c->overlap, "0 to 256");
    return FST_OK;
}

enum fst_status sizing_check(const struct sizing_spec *s)
{
    if (s->rule != SIZING_TIGHT && s->rule != SIZING_PUBLISHED)
        return wrong("rule", s->rule, "tight or published");
    if (s->n_target < 1 || s->n_target > LAYERS_MAX)
        return wrong("n_target", s->n_target, "1 to 255");
    if (s->n_draft < 0 || s->n_draft > LAYERS_MAX)
        return wrong("n_draft", s->n_draft, "0 to 255");
    if (s->n_classes < 0 || s->n_classes > SIZING_CLASSES_MAX)
        return wrong("n_classes", s->n_classes, "0 to 4");
    if (s->window_page < 0 || s->window_page > 1 << 16)
        return wrong("window_page", s->window_page, "0 to 65536");
    if (s->ring < 1 || s->ring > 1 << 21)
        return wrong("ring", s->ring, "1 to 2097152");
    if (s->carry_bytes < 0 || s->carry_bytes > 1 << 20)
        return wrong("carry_bytes", s->carry_bytes, "0 to 1048576");
    if (s->n_slots < 1 || s->n_slots > (1 << 20) + 1)
        return wrong("n_slots", s->n_slots, "1 to 1048577");
    if (s->page_table_bytes < 0 || s->page_table_bytes > 1 << 16)
        return wrong("page_table_bytes", s->page_table_bytes, "0 to 65536");
    FST_TRY(check_record("window", &s->window));
    if (s->n_draft)
        FST_TRY(check_record("draft", &s->draft));
    for (int i = 0; i < s->n_classes; i++) {
        FST_TRY(check_class(&s->class[i]));
        FST_TRY(check_record("compressed", &s->compressed));
        if (s->class[i].indexed)
            FST_TRY(check_record("index", &s->index));
    }
    return FST_OK;
}

int64_t sizing_record_page(const struct sizing_record *r, int64_t n_rows)
{
    return round_up(n_rows * ((int64_t)r->data + r->scale), r->align);
}

int sizing_window_ring(int window, int block, int lag)
{
    return window + block * (1 + lag) - 1;
}

int sizing_state_block_max(int ring, int span)
{
    return ring - span + 2;
}

int64_t sizing_window_bytes(const struct sizing_spec *s)
{
    int drafts = s->rule == SIZING_PUBLISHED ? s->n_draft > 0 : s->n_draft;
    int64_t rows = s->n_slots * s->ring;
    if (s->window_page)
        return (s->n_target + drafts) * div_up(rows, s->window_page) *
               sizing_record_page(&s->window, s->window_page);
    int64_t draft = s->n_draft ? sizing_record_page(&s->draft, 1) : 0;
    return rows * (s->n_target * ((int64_t)s->window.data + s->window.scale) + drafts * draft);
}

int64_t sizing_state_bytes(const struct sizing_spec *s)
{
    int64_t sum = s->n_slots * s->ring * s->carry_bytes;
    for (int i = 0; i < s->n_classes; i++) {
        const struct sizing_class *c = &s->class[i];
        int64_t rows = s->n_slots * c->state_ring;
        if (s->rule == SIZING_PUBLISHED && c->state_ring)
            rows = round_up(rows + c->state_ring + 1, c->ratio);
        sum += rows * c->state_bytes * c->n_layers;
    }
    return sum;
}

static int64_t null_pages(const struct sizing_spec *s)
{
    return s->rule == SIZING_TIGHT;
}

int64_t sizing_compressed_bytes(const struct sizing_spec *s, int64_t n_pages)
{
    int64_t page = 0;
    for (int i = 0; i < s->n_classes; i++)
        page += s->class[i].n_layers *
                sizing_record_page(&s->compressed, SIZING_PAGE / s->class[i].ratio);
    return (n_pages + null_pages(s)) * page;
}

int64_t sizing_index_bytes(const struct sizing_spec *s, int64_t n_pages)
{
    int64_t page = 0;
    for (int i = 0; i < s->n_classes; i++)
        if (s->class[i].indexed)
            page += s->class[i].n_layers *
                    sizing_record_page(&s->index, SIZING_PAGE / s->class[i].ratio);
    return (n_pages + null_pages(s)) * page;
}

static int64_t page_bytes(const struct sizing_spec *s)
{
    return sizing_compressed_bytes(s, 1 - null_pages(s)) + sizing_index_bytes(s, 1 - null_pages(s));
}

/* A page's bytes with the surcharge are page_bytes * *over / *under. */
static void surcharge(const struct sizing_spec *s, int64_t *over, int64_t *under)
{
    bool pays = s->rule == SIZING_PUBLISHED && s->n_draft > 0;
    *over = pays ? s->n_target + 1 : 1;
    *under = pays ? s->n_target : 1;
}

int64_t sizing_fixed_bytes(const struct sizing_spec *s)
{
    return sizing_window_bytes(s) + sizing_state_bytes(s) + null_pages(s) * page_bytes(s);
}

double sizing_token_bytes(const struct sizing_spec *s)
{
    int64_t over, under;
    surcharge(s, &over, &under);
    return (double)(page_bytes(s) * over) / (double)(under * SIZING_PAGE);
}

int64_t sizing_full_tokens(const struct sizing_spec *s, int64_t budget_bytes)
{
    int64_t over, under, room = budget_bytes - sizing_fixed_bytes(s), page = page_bytes(s);
    FST_ASSERT(budget_bytes < BUDGET_MAX);
    surcharge(s, &over, &under);
    page = page * over + s->page_table_bytes * under;
    return room < 0 || !page ? 0 : room * under / page * SIZING_PAGE;
}

static int64_t row_bytes(const struct sizing_record *r)
{
    return (int64_t)r->data + r->scale;
}

struct sizing_snapshot sizing_snapshot_at(const struct sizing_spec *s, int window, int64_t n)
{
    struct sizing_snapshot x = {0};
    FST_ASSERT(n >= window);
    x.window = window * (s->n_target * row_bytes(&s->window) +
                         (s->n_draft ? s->n_draft * row_bytes(&s->draft) : 0));
    x.state = s->carry_bytes; /* of position n-1 */
    for (int i = 0; i < s->n_classes; i++) {
        const struct sizing_class *c = &s->class[i];
        int64_t entry = row_bytes(&s->compressed) + (c->indexed ? row_bytes(&s->index) : 0);
        int64_t inputs = n % SIZING_PAGE ? (n % c->ratio + c->overlap) * c->state_bytes
                                         : (int64_t)c->overlap * c->state_bytes / 2;
        x.state += c->n_layers * inputs;
        x.page += c->n_layers * (n % SIZING_PAGE / c->ratio) * entry;
    }
    x.total = x.window + x.state + x.page;
    return x;
}

void sizing_snapshot_elsewhere(const struct sizing_spec *s, int window,
                               struct sizing_snapshot *mean, struct sizing_snapshot *worst)
{
    const int64_t first = round_up(window, SIZING_PAGE);
    *mean = *worst = (struct sizing_snapshot){0};
    for (int i = 1; i < SIZING_PAGE; i++) {
        struct sizing_snapshot x = sizing_snapshot_at(s, window, first + i);
        mean->window += x.window;
        mean->state += x.state;
        mean->page += x.page;
        if (x.total > worst->total)
            *worst = x;
    }
    mean->window /= SIZING_PAGE - 1;
    mean->state /= SIZING_PAGE - 1;
    mean->page /= SIZING_PAGE - 1;
    mean->total = mean->window + mean->state + mean->page;
}
