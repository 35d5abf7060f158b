/* disk_io.c - io_uring, threads, or neither; and the door.  The only file that knows liburing. */
#include "kv/disk_io.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <unistd.h>

enum { THREADS = 8 };

/* ------------------------------------------------------------------ the door */

static atomic_uint_least64_t n_calls, fail_at; /* fail_at: absolute count; 0 off */
static atomic_int fail_errno;
static atomic_bool fail_sticky;

void disk_io_fail_at(uint64_t n, int error, bool sticky)
{
    atomic_store(&fail_errno, error);
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_at, n ? atomic_load(&n_calls) + n : 0);
}

uint64_t disk_io_count(void)
{
    return atomic_load(&n_calls);
}

static atomic_size_t most;

void disk_io_limit(size_t bytes)
{
    atomic_store(&most, bytes);
}

/* Of what an operation has left, for one call. */
static size_t portion(const struct disk_op *op)
{
    size_t left = op->bytes - (size_t)op->done, limit = atomic_load(&most);
    return limit ? FST_MIN(left, limit) : left;
}

/* False with errno set when this call is one to fail. */
static bool door(bool writes)
{
    uint64_t n = atomic_fetch_add(&n_calls, 1) + 1, at = atomic_load(&fail_at);
    if (at == 0 || n < at || (n > at && !(writes && atomic_load(&fail_sticky))))
        return true;
    errno = atomic_load(&fail_errno);
    return false;
}

static atomic_int delay_us;

void disk_io_delay(int us)
{
    atomic_store(&delay_us, us);
}

int disk_sys_open(int dir, const char *path, int flags)
{
    if (atomic_load(&delay_us) > 0)
        usleep((useconds_t)atomic_load(&delay_us));
    return door((flags & (O_WRONLY | O_RDWR)) != 0) ? openat(dir, path, flags | O_CLOEXEC, 0600)
                                                    : -1;
}

int disk_sys_mkdir(int dir, const char *path)
{
    struct stat st;
    if (!door(true))
        return -1;
    if (mkdirat(dir, path, 0700) == 0)
        return 0;
    /* Also where nothing may be made: what is there is what was wanted. */
    int error = errno;
    if (fstatat(dir, path, &st, 0) == 0 && S_ISDIR(st.st_mode))
        return 0;
    errno = error;
    return -1;
}

int disk_sys_rename(int from_dir, const char *from, int to_dir, const char *to)
{
    return door(true) ? renameat(from_dir, from, to_dir, to) : -1;
}

int disk_sys_unlink(int dir, const char *path)
{
    return door(true) ? unlinkat(dir, path, 0) : -1;
}

int disk_sys_stat_at(int dir, const char *path, struct stat *st)
{
    return door(false) ? fstatat(dir, path, st, AT_SYMLINK_NOFOLLOW) : -1;
}

int disk_sys_allocate(int fd, uint64_t bytes)
{
    if (!door(true))
        return -1;
    return fallocate(fd, 0, 0, (off_t)bytes) == 0 || errno == EOPNOTSUPP || errno == ENOSYS ? 0
                                                                                            : -1;
}

int disk_sys_lock(int fd)
{
    return door(false) ? flock(fd, LOCK_EX | LOCK_NB) : -1;
}

int disk_sys_sync(int fd)
{
    return door(true) ? syncfs(fd) : -1;
}

int64_t disk_sys_read(int fd, void *to, size_t bytes, uint64_t offset)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t n = door(false)
                        ? pread(fd, (uint8_t *)to + have, bytes - have, (off_t)(offset + have))
                        : -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return (int64_t)have;
}

/* ------------------------------------------------------------------ operations */

struct list {
    struct disk_op *first, *last;
};

static void push(struct list *l, struct disk_op *op)
{
    op->next = NULL;
    if (l->last)
        l->last->next = op;
    else
        l->first = op;
    l->last = op;
}

static struct disk_op *pop(struct list *l)
{
    struct disk_op *op = l->first;
    if (op && !(l->first = op->next))
        l->last = NULL;
    return op;
}

struct disk_io {
    enum { RING, WORKERS, PLAIN } way;
    int depth, in_flight;      /* of the ring */
    struct list waiting, over; /* not begun; not yet given back */
    struct io_uring ring;
    int n_threads;
    pthread_t thread[THREADS];
    pthread_mutex_t lock; /* of the rest, waiting and over */
    pthread_cond_t more, less;
    int n_open; /* submitted and not given back */
    bool stop;
};

/* What a call has brought goes to the account.  True: over. */
static bool account(struct disk_op *op, int64_t got)
{
    if (got == -EINTR || got == -EAGAIN)
        return false;
    if (got < 0)
        op->done = got;
    else if (got == 0 && op->write)
        op->done = -EIO; /* a file system that takes nothing and gives no reason */
    else
        op->done += got;
    return got <= 0 || op->done >= (int64_t)op->bytes;
}

static void run(struct disk_op *op)
{
    int64_t got;
    do {
        uint8_t *at = op->at + op->done;
        size_t bytes = portion(op);
        off_t offset = (off_t)(op->offset + (uint64_t)op->done);
        got = op->write ? pwrite(op->fd, at, bytes, offset) : pread(op->fd, at, bytes, offset);
    } while (!account(op, got < 0 ? -errno : got));
}

static void *work(void *ud)
{
    struct disk_io *io = ud;
    pthread_mutex_lock(&io->lock);
    for (;;) {
        struct disk_op *op = pop(&io->waiting);
        if (op) {
            pthread_mutex_unlock(&io->lock);
            run(op);
            pthread_mutex_lock(&io->lock);
            push(&io->over, op);
            pthread_cond_signal(&io->less);
        } else if (io->stop) {
            break;
        } else {
            pthread_cond_wait(&io->more, &io->lock);
        }
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

/* Into the ring.  False: it takes nothing more, now or at all. */
static bool begin(struct disk_io *io, struct disk_op *op)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);
    int rc;
    if (!sqe)
        return false;
    uint8_t *at = op->at + op->done;
    unsigned bytes = (unsigned)portion(op);
    uint64_t offset = op->offset + (uint64_t)op->done;
    if (op->write)
        io_uring_prep_write(sqe, op->fd, at, bytes, offset);
    else
        io_uring_prep_read(sqe, op->fd, at, bytes, offset);
    io_uring_sqe_set_data(sqe, op);
    do {
        rc = io_uring_submit(&io->ring);
    } while (rc == -EINTR);
    if (rc < 0) { /* it stays in the ring: as nothing */
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, NULL);
        return false;
    }
    io->in_flight++;
    return true;
}

/* Fill the ring; what it cannot take when it is empty is done here. */
static void feed(struct disk_io *io)
{
    while (io->waiting.first && io->in_flight < io->depth) {
        struct disk_op *op = pop(&io->waiting);
        if (begin(io, op))
            continue;
        run(op);
        push(&io->over, op);
    }
}

void disk_io_submit(struct disk_io *io, struct disk_op *op)
{
    bool fine = door(op->write);
    op->done = fine ? 0 : -errno;
    if (io->way == WORKERS)
        pthread_mutex_lock(&io->lock);
    io->n_open++;
    if (!fine) {
        push(&io->over, op);
    } else if (io->way == PLAIN) {
        run(op);
        push(&io->over, op);
    } else {
        push(&io->waiting, op);
        if (io->way == WORKERS)
            pthread_cond_signal(&io->more);
        else
            feed(io);
    }
    if (io->way == WORKERS)
        pthread_mutex_unlock(&io->lock);
}

/* One completion out of the ring.  False: there is none yet. */
static bool reap(struct disk_io *io, bool wait)
{
    struct io_uring_cqe *cqe;
    int rc = wait ? io_uring_wait_cqe(&io->ring, &cqe) : io_uring_peek_cqe(&io->ring, &cqe);
    if (rc < 0)
        return wait; /* interrupted: again */
    struct disk_op *op = io_uring_cqe_get_data(cqe);
    int64_t got = cqe->res;
    io_uring_cqe_seen(&io->ring, cqe);
    if (op) {
        io->in_flight--;
        push(account(op, got) ? &io->over : &io->waiting, op);
        feed(io);
    }
    return true;
}

struct disk_op *disk_io_take(struct disk_io *io, bool wait)
{
    struct disk_op *op = NULL;
    bool more = true;
    if (io->way == WORKERS)
        pthread_mutex_lock(&io->lock);
    while (io->n_open > 0 && !(op = pop(&io->over)) && more) {
        if (io->way != WORKERS)
            more = reap(io, wait);
        else if (wait)
            pthread_cond_wait(&io->less, &io->lock);
        else
            more = false;
    }
    io->n_open -= op != NULL;
    if (io->way == WORKERS)
        pthread_mutex_unlock(&io->lock);
    return op;
}

/* ------------------------------------------------------------------ life */

static int open_ring(struct disk_io *io)
{
    int rc = door(false) ? io_uring_queue_init((unsigned)io->depth, &io->ring, 0) : -errno;
    if (rc < 0)
        return rc;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&io->ring);
    bool fine = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    if (fine)
        return 0;
    io_uring_queue_exit(&io->ring);
    return -EOPNOTSUPP;
}

enum fst_status disk_io_new(struct disk_io **out, enum disk_ring ring, int depth)
{
    struct disk_io *io = mem_calloc(1, sizeof *io);
    *out = NULL;
    if (!io)
        return fst_error(FST_ENOMEM, "disk tier: no memory for its queue");
    io->depth = depth;
    int rc = ring == DISK_RING_OFF ? -EPERM : open_ring(io);
    if (rc < 0 && ring == DISK_RING_ON) {
        mem_free(io);
        return fst_error(FST_EMACHINE, "io_uring is asked for, and the system refuses it: %s",
                         strerror(-rc));
    }
    io->way = RING;
    if (rc < 0) {
        pthread_mutex_init(&io->lock, NULL);
        pthread_cond_init(&io->more, NULL);
        pthread_cond_init(&io->less, NULL);
        while (io->n_threads < THREADS && door(false) &&
               pthread_create(&io->thread[io->n_threads], NULL, work, io) == 0)
            io->n_threads++;
        io->way = io->n_threads ? WORKERS : PLAIN;
    }
    *out = io;
    return FST_OK;
}

const char *disk_io_name(const struct disk_io *io)
{
    return io->way == RING ? "io_uring" : io->way == WORKERS ? "threads" : "plain";
}

void disk_io_free(struct disk_io *io)
{
    if (!io)
        return;
    FST_ASSERT(io->n_open == 0);
    if (io->way == RING) {
        io_uring_queue_exit(&io->ring);
    } else {
        pthread_mutex_lock(&io->lock);
        io->stop = true;
        pthread_cond_broadcast(&io->more);
        pthread_mutex_unlock(&io->lock);
        for (int i = 0; i < io->n_threads; i++)
            pthread_join(io->thread[i], NULL);
        pthread_mutex_destroy(&io->lock);
        pthread_cond_destroy(&io->more);
        pthread_cond_destroy(&io->less);
    }
    mem_free(io);
}
