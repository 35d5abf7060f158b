/* pool.h - a fixed set of worker threads that run one loop body together.
 *
 * The caller's thread is worker 0; n - 1 threads are started at pool_new.  pool_run hands out the
 * index range in chunks from one atomic counter, so that a stolen core does not set the pace, and
 * returns when all of it is done (spin for ~50 us, then sleep on a futex).  A body must not depend
 * on which worker runs an index: results never depend on the number of threads.  One caller at a
 * time (the engine thread). */
#ifndef FST_POOL_H
#define FST_POOL_H

#include "base/base.h"

struct pool;

/* body(ud, first, last, worker): do indices first..last-1; worker is 0..n-1, for scratch memory. */
typedef void pool_body_fn(void *ud, int64_t first, int64_t last, int worker);

/* Cores that this process may run on. */
int pool_cores(void);
/* n_threads: 1..256; 0 means one per such core. */
enum fst_status pool_new(struct pool **out, int n_threads);
void pool_free(struct pool *p);         /* NULL is fine */
int pool_threads(const struct pool *p); /* 1 for NULL */
/* Run body over 0..n-1 in chunks of `chunk` indices (>= 1).  p NULL: run here. */
void pool_run(struct pool *p, int64_t n, int64_t chunk, pool_body_fn *body, void *ud);

#endif
