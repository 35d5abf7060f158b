/* pool.c - worker threads around one loop body.
 *
 * One word, `open`, counts the chunks of the current loop that nobody has claimed; a thread claims
 * one by taking it down with compare-and-swap, so a thread that wakes up late finds either 0 or a
 * chunk of a loop that cannot end without it.  The job's fields are plain: they are written while
 * `open` is 0 and `left` is 0, and read only after a successful claim.  Nobody waits for a worker
 * that claimed nothing. */
#include "base/pool.h"

#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define POOL_MAX_THREADS 256
/* A decode step of a small model is a few hundred loops of 10-100 us each: a sleep between two of
 * them costs 5-10 us of wake-up, so the gap is bridged by spinning. */
#define POOL_SPIN_NS 50000

struct pool_worker {
    struct pool *pool; /* borrowed */
    pthread_t thread;
    int id;
};

struct pool {
    _Alignas(64) _Atomic int64_t open;  /* chunks not claimed */
    _Alignas(64) _Atomic int64_t left;  /* chunks not finished */
    _Alignas(64) _Atomic uint32_t wake; /* futex of the workers; counts loops */
    _Atomic int sleepers;
    _Atomic bool quit;
    _Alignas(64) _Atomic uint32_t done; /* futex of the caller; counts finished loops */
    _Atomic bool caller_sleeps;
    /* the job */
    _Alignas(64) pool_body_fn *body;
    void *ud;
    int64_t n, chunk, n_chunks;
    bool busy;
    int n_threads;                /* with the caller */
    struct pool_worker workers[]; /* n_threads - 1 */
};

static void futex_sleep(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Claim chunks until none is open. */
static void work(struct pool *p, int worker)
{
    for (;;) {
        int64_t open = atomic_load(&p->open);
        int64_t first, last;

        do {
            if (open == 0)
                return;
        } while (!atomic_compare_exchange_weak(&p->open, &open, open - 1));
        first = (p->n_chunks - open) * p->chunk;
        last = p->n - first < p->chunk ? p->n : first + p->chunk;
        p->body(p->ud, first, last, worker);
        if (atomic_fetch_sub(&p->left, 1) == 1) {
            atomic_fetch_add(&p->done, 1);
            if (atomic_load(&p->caller_sleeps))
                futex_wake(&p->done, 1);
        }
    }
}

/* True when there is something to do (or the pool ends); false after POOL_SPIN_NS without. */
static bool spin_for_work(struct pool *p)
{
    int64_t end = now_ns() + POOL_SPIN_NS;

    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(&p->open) > 0 || atomic_load(&p->quit))
                return true;
            relax();
        }
    } while (now_ns() < end);
    return false;
}

static void *worker_main(void *arg)
{
    struct pool_worker *w = arg;
    struct pool *p = w->pool;

    while (!atomic_load(&p->quit)) {
        work(p, w->id);
        if (spin_for_work(p))
            continue;
        /* pool_run stores open, then wake, then reads sleepers; here the order is the other way
         * round, so one of the two sees the other. */
        atomic_fetch_add(&p->sleepers, 1);
        uint32_t seen = atomic_load(&p->wake);
        if (atomic_load(&p->open) == 0 && !atomic_load(&p->quit))
            futex_sleep(&p->wake, seen);
        atomic_fetch_sub(&p->sleepers, 1);
    }
    return NULL;
}

int pool_cores(void)
{
    cpu_set_t set;
    long n;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 && n < POOL_MAX_THREADS ? (int)n : 1;
}

enum fst_status pool_new(struct pool **out, int n_threads)
{
    struct pool *p;
    size_t size;
    sigset_t all, before;
    int err = 0;

    *out = NULL;
    if (n_threads < 0 || n_threads > POOL_MAX_THREADS)
        return fst_error(FST_EINVAL, "threads: %d, expected 0 (one per core) to %d", n_threads,
                         POOL_MAX_THREADS);
    if (n_threads == 0)
        n_threads = FST_MIN(pool_cores(), POOL_MAX_THREADS);
    size = sizeof *p + (size_t)(n_threads - 1) * sizeof p->workers[0];
    p = mem_aligned(64, (size_t)round_up((int64_t)size, 64));
    if (!p)
        return fst_error(FST_ENOMEM, "thread pool: out of memory");
    memset(p, 0, size);
    p->n_threads = 1;
    /* Signals go to the threads that expect them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < n_threads && err == 0; i++) {
        struct pool_worker *w = &p->workers[i - 1];
        char name[16];

        w->pool = p;
        w->id = i;
        err = pthread_create(&w->thread, NULL, worker_main, w);
        if (err == 0) {
            p->n_threads++;
            snprintf(name, sizeof name, "fst-pool-%u", (unsigned)i & 0xff);
            pthread_setname_np(w->thread, name);
        }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0) {
        int started = p->n_threads;
        pool_free(p);
        return fst_error(FST_EMACHINE, "thread pool: thread %d of %d did not start: %s", started,
                         n_threads, strerror(err));
    }
    *out = p;
    return FST_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    FST_ASSERT(!p->busy);
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, INT_MAX);
    for (int i = 1; i < p->n_threads; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    mem_free(p);
}

int pool_threads(const struct pool *p)
{
    return p ? p->n_threads : 1;
}

static void wait_for_rest(struct pool *p)
{
    int64_t end = now_ns() + POOL_SPIN_NS;

    for (int i = 0; atomic_load(&p->left) > 0; i++) {
        relax();
        if (i % 64 == 63 && now_ns() >= end)
            break;
    }
    if (atomic_load(&p->left) == 0)
        return;
    atomic_store(&p->caller_sleeps, true);
    for (;;) {
        uint32_t seen = atomic_load(&p->done);
        if (atomic_load(&p->left) == 0)
            break;
        futex_sleep(&p->done, seen);
    }
    atomic_store(&p->caller_sleeps, false);
}

void pool_run(struct pool *p, int64_t n, int64_t chunk, pool_body_fn *body, void *ud)
{
    FST_ASSERT(n >= 0);
    FST_ASSERT(chunk >= 1);
    if (n == 0)
        return;
    if (!p || p->n_threads == 1 || n <= chunk) {
        for (int64_t first = 0; first < n; first += FST_MIN(chunk, n - first))
            body(ud, first, first + FST_MIN(chunk, n - first), 0);
        return;
    }
    FST_ASSERT(!p->busy); /* one caller at a time, and no loop inside a loop */
    p->busy = true;
    p->body = body;
    p->ud = ud;
    p->n = n;
    p->chunk = chunk;
    p->n_chunks = n / chunk + (n % chunk != 0);
    atomic_store(&p->left, p->n_chunks);
    atomic_store(&p->open, p->n_chunks);
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->sleepers) > 0)
        futex_wake(&p->wake, (int)FST_MIN(p->n_chunks - 1, (int64_t)p->n_threads - 1));
    work(p, 0);
    wait_for_rest(p);
    p->busy = false;
}
