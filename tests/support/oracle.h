/* oracle.h - files for --debug-drafter, and walks through all that a round of drafts can do.
 *
 * A round that starts with n positions committed and accepts k drafts leaves n+k+1.  So rounds are edges of
 * a graph whose nodes are (n mod 128, what the last rounds accepted); every node has as many edges in as
 * out, and a circuit that takes every edge once is the shortest run that tries them all. */
#ifndef TESTS_SUPPORT_ORACLE_H
#define TESTS_SUPPORT_ORACLE_H

#include "base/base.h"
#include "support/tmpdir.h"

enum { ORACLE_MOD = 128, ORACLE_CHOICES_MAX = 6 };
/* 0 .. so many less one drafts are accepted in a round. */
static int oracle_choices = ORACLE_CHOICES_MAX;

/* All edges of the graph with so many rounds remembered (0..2), from the node of position `start` and
 * nothing accepted before.  Returns the accepted drafts of each round: owned (free), *n of them. */
static inline uint8_t *oracle_circuit(int remembered, int start, int *n)
{
    int past = 1, n_nodes, n_edges, top = 0, out;
    for (int i = 0; i < remembered; i++)
        past *= oracle_choices;
    n_nodes = ORACLE_MOD * past;
    n_edges = n_nodes * oracle_choices;
    uint8_t *next = calloc((size_t)n_nodes, 1), *path = malloc((size_t)n_edges + 1);
    int *stack = malloc(((size_t)n_edges + 1) * sizeof *stack);
    uint8_t *by = malloc((size_t)n_edges + 1);
    assert_true(next && path && stack && by);
    stack[top] = start % ORACLE_MOD * past;
    by[top++] = 0;
    out = n_edges;
    while (top > 0) { /* Hierholzer: a dead end is the end of what is left of the circuit */
        int node = stack[top - 1];
        if (next[node] < oracle_choices) {
            int k = next[node]++, pos = (node / past + k + 1) % ORACLE_MOD;
            stack[top] = pos * past + (past > 1 ? (node % past * oracle_choices + k) % past : 0);
            by[top++] = (uint8_t)k;
        } else if (--top > 0) {
            path[--out] = by[top];
        }
    }
    assert_int_equal(out, 0);
    free(next);
    free(stack);
    free(by);
    *n = n_edges;
    return path;
}

/* The shortest circular list of choices in which each of their triples stands: 6^3 are 216 rounds. */
static inline int oracle_triples(uint8_t *out, int size)
{
    uint8_t a[4] = {0};
    int n = 0;
    /* de Bruijn sequence: the Lyndon words of lengths 1 and 3 in order (Fredricksen and Maiorana) */
    for (;;) {
        int len = 3;
        while (len > 0 && a[len - 1] == oracle_choices - 1)
            len--;
        if (n == 0) {
            assert_true(size >= oracle_choices * oracle_choices * oracle_choices);
            out[n++] = 0;
        }
        if (len == 0)
            return n;
        a[len - 1]++;
        for (int i = len; i < 3; i++)
            a[i] = a[i - len];
        if (3 % len == 0)
            for (int i = 0; i < len; i++)
                out[n++] = a[i];
    }
}

static inline void oracle_put_ids(struct buf *b, const char *name, const int32_t *id, size_t n)
{
    buf_printf(b, "\"%s\":[", name);
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", id[i]);
    buf_puts(b, "]");
}

/* One request more in the file's text, which begins empty. */
static inline void oracle_add(struct buf *b, const int32_t *prompt, size_t n_prompt,
                              const int32_t *ids, size_t n_ids, const uint8_t *accept, int n)
{
    buf_puts(b, b->len ? ",\n{" : "{\"requests\":[{");
    oracle_put_ids(b, "prompt", prompt, n_prompt);
    buf_puts(b, ",");
    oracle_put_ids(b, "ids", ids, n_ids);
    buf_puts(b, ",\"accept\":[");
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", accept[i]);
    buf_puts(b, "]}");
}

static inline void oracle_write(struct buf *b, const char *dir, const char *name)
{
    buf_puts(b, "]}\n");
    assert_false(b->failed);
    tmpdir_write(dir, name, b->data, b->len);
}

#endif
