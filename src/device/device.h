/* device.h - where memory is and kernels run: the host, or a card behind a module.
 *
 * On the CPU a launch runs to its end before the launcher returns, on the threads of the stream's
 * pool.  On a card a launcher only enqueues on the stream's queue, and the host sees results after
 * stream_sync.  Memory that kernels read and write comes from here, once, from one plan at start;
 * nothing is allocated while steps run.
 *
 * Three kinds of memory: the device's own (device_alloc), which the host does not touch unless the
 * device is the host; shared (device_alloc_shared), host memory that kernels can address too, slowly
 * on a card: for the small arrays that a step begins and ends with; and everything else, which
 * kernels must not see.
 *
 * A card may record what is enqueued and run it again as one launch (stream_capture_begin): a step of
 * a thousand small kernels costs the host one call, and the card no time between them.
 *
 * A card's code lives in a module, libfiresteel_<name>.so beside the program (or in
 * FIRESTEEL_MODULES), loaded by device_open, so that the program itself needs no GPU library. */
#ifndef FST_DEVICE_H
#define FST_DEVICE_H

#include "base/base.h"
#include "base/pool.h"
#include "device/fill.h"

/* How exact the arithmetic is (model-level switch, the same for all kernels of a run). */
enum precision {
    PRECISION_NATIVE,   /* the published numerics: bf16 activations, FP8 activation and KV grids,
                           FP4 indexer (DeepSeek-V4 reference inference, kernel.py) */
    PRECISION_REFERENCE /* fp32 everywhere, nothing quantised but the weights; ref kernels only */
};

/* The last marks are those of steps: where the launches of every second one end, and where those of a step
 * begin. */
enum {
    DEVICE_MARKS = 4096,
    DEVICE_MARK_END = DEVICE_MARKS - 3,
    DEVICE_MARK_BEGIN = DEVICE_MARKS - 1
};

/* A device as opened.  Read-only after device_open; the functions are its module's and are called
 * through the wrappers below.  NULL stands for the host. */
struct device {
    const char *name; /* "cpu", "cuda" */
    char card[256];   /* "NVIDIA H200", "" on the host */
    char driver[32];  /* driver's CUDA version, "" on the host */
    int multiprocessors;
    uint64_t total_bytes, free_bytes; /* device memory at open; 0 on the host */
    uint64_t digest; /* of the module's file: other kernels may round otherwise; 0 on the host */
    bool early;      /* kernels may start before the one in front has ended (kernels/gpu/gpu.h) */
    void *(*alloc)(size_t bytes);
    void (*free)(void *p);
    void *(*alloc_shared)(size_t bytes);
    void (*free_shared)(void *p);
    enum fst_status (*copy)(void *to, const void *from, size_t bytes);
    enum fst_status (*copy_queued)(void *queue, void *to, const void *from, size_t bytes);
    enum fst_status (*queue_new)(void **queue);
    void (*queue_free)(void *queue);
    enum fst_status (*sync)(void *queue);
    enum fst_status (*after)(void *queue, void *other); /* stream_after */
    /* Fill a struct kernels (kernels.h) of so many bytes with what is best on this card, or with what
     * runs on every card; false: of another size than here. */
    bool (*kernels)(void *table, size_t bytes, bool portable);
    enum fst_status (*fill)(void *queue, void *p, size_t bytes, const struct device_fill *f);
    /* Let the device note the time when the queue comes to this point, as mark 0 .. DEVICE_MARKS-1;
     * then, after a sync, the time between two.  Both NULL: the device has no clock of its own. */
    enum fst_status (*mark)(void *queue, int i);
    enum fst_status (*between)(int from, int to, double *us);
    /* Recording, or NULL: none.  capture_end gives NULL when the recording is of no use; its text says
     * why. */
    enum fst_status (*capture_begin)(void *queue);
    enum fst_status (*capture_end)(void *queue, void **graph);
    enum fst_status (*graph_launch)(void *queue, void *graph);
    void (*graph_free)(void *graph);
};

struct stream {
    const struct device *device; /* borrowed; NULL: the host */
    struct pool *pool;           /* borrowed; NULL: the caller's thread alone */
    enum precision precision;
    uint8_t *scratch; /* device memory, 64-byte aligned; contents do not survive a launch */
    size_t scratch_bytes;
    void *queue; /* of a device that has queues: CUDA's or HIP's stream */
    bool early;  /* of the device, unless FIRESTEEL_EARLY_LAUNCH=0 is in the environment */
};

/* "cpu" gives NULL; "cuda", "hip" load their module.  FST_EMACHINE says what is missing: module, driver
 * or card.  A device stays open until the program ends. */
enum fst_status device_open(const struct device **out, const char *name);

/* Zero-filled, 64-byte aligned (on the host 2 MiB aligned and advised as huge pages from 2 MiB up).
 * NULL: no memory.  Freed on the same device with the same size. */
void *device_alloc(const struct device *d, size_t bytes);
void device_free(const struct device *d, void *p, size_t bytes);
/* Zero-filled host memory that the device's kernels can address, 64-byte aligned. */
void *device_alloc_shared(const struct device *d, size_t bytes);
void device_free_shared(const struct device *d, void *p, size_t bytes);

/* Between host and device memory in any direction; complete on return. */
enum fst_status device_copy(const struct device *d, void *to, const void *from, size_t bytes);

/* Take ownership of nothing: device and pool are borrowed, scratch is allocated.  FST_ENOMEM. */
enum fst_status stream_init(struct stream *s, const struct device *d, struct pool *pool,
                            enum precision precision, size_t scratch_bytes);
void stream_release(struct stream *s);

/* Copy between device and shared memory, in the order of the launches. */
enum fst_status stream_copy(struct stream *s, void *to, const void *from, size_t bytes);

/* Random contents (fill.h) for device memory; p and bytes are multiples of 16.  The same bytes on every
 * device. */
enum fst_status stream_fill(struct stream *s, void *p, size_t bytes, const struct device_fill *f);

/* Wait until everything enqueued is done.  FST_EINTERNAL with the device's text when something
 * failed: the device is not usable any more. */
enum fst_status stream_sync(struct stream *s);

/* What is enqueued on s from now on runs behind what is enqueued on the other by now: for a stream of another
 * thread.  Called by the other's thread, between recordings. */
enum fst_status stream_after(struct stream *s, struct stream *other);

/* Mark i of the device at this point of the queue; nothing where the device has no clock. */
enum fst_status stream_mark(struct stream *s, int i);
/* Time from one mark to another, both behind a stream_sync; 0 where there is no clock. */
enum fst_status stream_between(struct stream *s, int from, int to, double *us);

/* ---------------------------------------------------------------- recorded launches */

/* What stream_copy and launchers enqueue between begin and end is recorded and not run; the recording
 * runs as often as it is launched, in the same order, with the values and addresses that the launchers
 * were given: what may differ from run to run must lie in memory that kernels read.  In between there
 * is no stream_sync, no allocation, no device_copy and no launch that the process has not done before
 * (a card loads code at the first one).  One thread. */
static inline bool stream_can_capture(const struct stream *s)
{
    return s->device && s->device->capture_begin;
}
enum fst_status stream_capture_begin(struct stream *s);
/* Ends the recording, whatever happened since its begin.  An error: nothing was run, nothing is left of
 * it, the stream works as before; *graph is NULL. */
enum fst_status stream_capture_end(struct stream *s, void **graph);
enum fst_status stream_graph_launch(struct stream *s, void *graph);
/* Nothing of it may be running. */
void stream_graph_free(struct stream *s, void *graph);

/* ---------------------------------------------------------------- a module's side */

enum { DEVICE_MODULE_VERSION = 3 };

/* What the program gives to a module, which links nothing of it. */
struct device_host {
    enum fst_status (*verror)(enum fst_status rc, const char *fmt, va_list ap);
    void (*assert_failed)(const char *file, int line, const char *text);
};

/* The one symbol of a module, `fst_device_module`. */
struct device_module {
    int version;         /* DEVICE_MODULE_VERSION */
    const char *build;   /* FST_VERSION: tables and argument structs are private to a build */
    size_t device_bytes; /* sizeof (struct device) */
    enum fst_status (*open)(struct device *d, const struct device_host *host);
};

#endif
