/* tree_int.h - what tree.c and tree_bytes.c share: lists by use, nodes, snapshots. */
#ifndef FST_KV_TREE_INT_H
#define FST_KV_TREE_INT_H

#include "kv/tree.h"

enum { TREE_TAIL_MAX = KERN_PAGE - 1 };

static inline void tree_list_remove(struct tree_link *l, int32_t i)
{
    FST_ASSERT(i > 0);
    l[l[i].older].newer = l[i].newer;
    l[l[i].newer].older = l[i].older;
    l[i] = (struct tree_link){i, i};
}

/* Behind `older`: the head to be the next to go, l[0].older to be the last. */
static inline void tree_list_put(struct tree_link *l, int32_t i, int32_t older)
{
    FST_ASSERT(i > 0);
    l[i] = (struct tree_link){l[older].newer, older};
    l[l[i].newer].older = i;
    l[older].newer = i;
}

static inline void tree_tell_page(const struct tree *t, int32_t node, enum tree_event what)
{
    if (t->watch.page)
        t->watch.page(t->watch.ud, node, what);
}

static inline void tree_tell_snapshot(const struct tree *t, int32_t i, enum tree_event what)
{
    if (t->watch.snapshot)
        t->watch.snapshot(t->watch.ud, i, what);
}

static inline const int32_t *tree_ids(const struct tree *t, int32_t node)
{
    return t->ids + (int64_t)node * KERN_PAGE;
}

static inline const int32_t *tree_tail(const struct tree *t, int32_t snapshot)
{
    return t->tails + (int64_t)snapshot * TREE_TAIL_MAX;
}

/* tree.c */
uint64_t tree_hash_salt(const struct tree *t, const struct tree_salt *salt);
uint64_t tree_hash_page(const struct tree *t, uint64_t before, const int32_t *ids);
/* The node of this page behind parent, whose hash is before; 0: none. */
int32_t tree_child(const struct tree *t, int32_t parent, uint64_t before,
                   const struct tree_salt *salt, const int32_t *ids);
/* Most recently used, with all nodes before it. */
void tree_touch(struct tree *t, int32_t node);
/* A node that has lost a snapshot or a child may be the next to go. */
void tree_settle(struct tree *t, int32_t node);
void tree_lock_nodes(struct tree *t, int32_t node);
void tree_unlock_nodes(struct tree *t, int32_t node);

/* tree_bytes.c */
int32_t tree_find_snapshot(const struct tree *t, int32_t node, const struct tree_salt *salt,
                           const int32_t *tail, int64_t n_tail);
/* Longest of a node's snapshots whose tail begins `tail` of n_tail ids; 0: none. */
int32_t tree_longest(const struct tree *t, int32_t node, const struct tree_salt *salt,
                     const int32_t *tail, int64_t n_tail);
/* Not locked. */
void tree_remove_snapshot(struct tree *t, int32_t snapshot);
void tree_lock_snapshot(struct tree *t, int32_t snapshot);
void tree_unlock_snapshot(struct tree *t, int32_t snapshot);

#endif
