/* sizing.h - how many bytes and how many tokens: the formulas of KV memory, in whole numbers.
 *
 * Knows no models and no kernels: the caller gives layer classes and records.  A record is what one
 * row costs; its data and scale parts lie apart in a page, so a format is four numbers and nothing
 * here asks for its name.  Two rules:
 *  tight      what kv_init allocates: the rings of every draft stage, states without a sentinel, one
 *             null page, no surcharge on tokens;
 *  published  one draft layer is budgeted, tokens pay (T+1)/T as soon as there is a draft, state rows
 *             have a spare ring and a sentinel, the null page is not counted. */
#ifndef FST_KV_SIZING_H
#define FST_KV_SIZING_H

#include "base/base.h"

enum { SIZING_PAGE = 256, SIZING_CLASSES_MAX = 4 };

enum sizing_rule { SIZING_TIGHT, SIZING_PUBLISHED };

/* Bytes of one row; a page of rows is padded to a multiple of align. */
struct sizing_record {
    int data, scale, align;
};

/* Layers that own compressed rows of one ratio; layers that read another's are not counted. */
struct sizing_class {
    int ratio, n_layers;
    bool indexed;    /* has an index key for every row */
    int state_bytes; /* of one position's compressor inputs; 0: keeps none */
    int state_ring;  /* positions kept for each slot */
    int overlap;     /* positions before a group that it pools too, by half of their inputs */
};

struct sizing_spec {
    enum sizing_rule rule;
    int n_target, n_draft; /* layers with a window: target's, and the draft's stages */
    int n_classes;
    struct sizing_class class[SIZING_CLASSES_MAX];
    struct sizing_record window, draft, compressed, index;
    int window_page;      /* rows of a page of window rows; 0: rows follow each other */
    int ring;             /* window rows of a slot */
    int carry_bytes;      /* of what a slot carries beside each of them; counts as state */
    int64_t n_slots;      /* the null slot included */
    int page_table_bytes; /* what the host keeps for each page; pays no surcharge */
};

/* FST_EINVAL names the wrong field.  Everything below wants a spec that has passed. */
enum fst_status sizing_check(const struct sizing_spec *s);

int64_t sizing_record_page(const struct sizing_record *r, int64_t n_rows);
/* Smallest ring in which a step of block rows, lag steps ahead, overwrites nothing it still needs. */
int sizing_window_ring(int window, int block, int lag);
/* Most rows of a verify step that a state ring serves when pooling spans so many positions. */
int sizing_state_block_max(int ring, int span);

int64_t sizing_window_bytes(const struct sizing_spec *s); /* rings of all slots */
int64_t sizing_state_bytes(const struct sizing_spec *s);  /* states of all slots */
int64_t sizing_compressed_bytes(const struct sizing_spec *s, int64_t n_pages);
int64_t sizing_index_bytes(const struct sizing_spec *s, int64_t n_pages);
/* What is there before the first token: rings, states and, where the rule counts it, the null page. */
int64_t sizing_fixed_bytes(const struct sizing_spec *s);
double sizing_token_bytes(const struct sizing_spec *s);
/* Tokens in whole pages for a budget of bytes; 0 when the fixed part does not fit. */
int64_t sizing_full_tokens(const struct sizing_spec *s, int64_t budget_bytes);

/* Bytes of what a request needs beside its full pages to go on at a position. */
struct sizing_snapshot {
    int64_t window,
        state;    /* rows of the last `window` positions; inputs of groups that are not full */
    int64_t page; /* entries of the page that is not full */
    int64_t total;
};
/* At position n, window or later.  Where a page ends, of overlapping inputs the half that is read. */
struct sizing_snapshot sizing_snapshot_at(const struct sizing_spec *s, int window, int64_t n);
/* The mean and the worst over all n that end no page; each field of worst is one n's, that of the largest
 * total. */
void sizing_snapshot_elsewhere(const struct sizing_spec *s, int window,
                               struct sizing_snapshot *mean, struct sizing_snapshot *worst);

#endif
