/* gpu.c - the module libfiresteel_cuda.so or libfiresteel_hip.so: memory, queues and the kernel table
 * of one card.
 *
 * Host code over the CUDA runtime (linked statically), or with FST_HIP over HIP's, whose functions
 * have the same meaning under other names.  One card: the first that the driver shows
 * (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES choose).  Errors are worded here and stored by the
 * program's own fst_error. */
#ifdef FST_HIP
#include <hip/hip_runtime_api.h>
#define DEVICE_NAME "hip"
#define GPU(name)   hip##name
#define SUCCESS     hipSuccess
typedef hipError_t gpu_error;
typedef hipStream_t gpu_stream;
typedef hipEvent_t gpu_event;
typedef hipGraph_t gpu_graph;
typedef hipGraphExec_t gpu_graph_exec;
typedef hipDeviceProp_t gpu_properties;
#define alloc_host(p, bytes) hipHostMalloc(p, bytes, hipHostMallocPortable | hipHostMallocMapped)
#define free_host(p)         hipHostFree(p)
#define EARLY(prop)          false
#define instantiate(exec, g) hipGraphInstantiate(exec, g, NULL, NULL, 0)
#else
#include <cuda_runtime_api.h>
#define DEVICE_NAME          "cuda"
#define GPU(name)            cuda##name
#define SUCCESS              cudaSuccess
typedef cudaError_t gpu_error;
typedef cudaStream_t gpu_stream;
typedef cudaEvent_t gpu_event;
typedef cudaGraph_t gpu_graph;
typedef cudaGraphExec_t gpu_graph_exec;
typedef struct cudaDeviceProp gpu_properties;
#define alloc_host(p, bytes) cudaHostAlloc(p, bytes, cudaHostAllocPortable | cudaHostAllocMapped)
#define free_host(p)         cudaFreeHost(p)
#define EARLY(prop)          ((prop).major >= 9)
#define instantiate(exec, g) cudaGraphInstantiate(exec, g, 0)
#endif
#include <string.h>

#include "device/device.h"

bool kernels_fill_gpu(void *table, size_t bytes);  /* kernels/gpu/table.cu */
bool kernels_fill_sm90(void *table, size_t bytes); /* kernels/sm90/table.cu */
/* kernels/gpu/fill.cu */
enum fst_status memory_fill_gpu(void *queue, void *p, size_t bytes, const struct device_fill *f);

static struct device_host host;

/* The two functions of base that kernels and this file call; the program's own do the work. */
enum fst_status fst_error(enum fst_status rc, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    rc = host.verror(rc, fmt, ap);
    va_end(ap);
    return rc;
}

_Noreturn void base_assert_failed(const char *file, int line, const char *text)
{
    host.assert_failed(file, line, text);
    __builtin_trap();
}

static enum fst_status failed(enum fst_status rc, const char *what, gpu_error e)
{
    return fst_error(rc, DEVICE_NAME ": %s: %s (%s)", what, GPU(GetErrorString)(e),
                     GPU(GetErrorName)(e));
}

static void *card_alloc(size_t bytes)
{
    void *p = NULL;
    if (GPU(Malloc)(&p, bytes) != SUCCESS) {
        (void)GPU(GetLastError)(); /* out of memory is not sticky: the caller says what for */
        return NULL;
    }
    /* Waited for: queues do not wait for it, and may be filling this memory at once. */
    if (GPU(Memset)(p, 0, bytes) != SUCCESS || GPU(StreamSynchronize)(NULL) != SUCCESS) {
        (void)GPU(Free)(p);
        return NULL;
    }
    return p;
}

static void card_free(void *p)
{
    (void)GPU(Free)(p);
}

static void *card_alloc_shared(size_t bytes)
{
    void *p = NULL;
    if (alloc_host(&p, bytes) != SUCCESS) {
        (void)GPU(GetLastError)();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void card_free_shared(void *p)
{
    (void)free_host(p);
}

static enum fst_status card_copy(void *to, const void *from, size_t bytes)
{
    gpu_error e = GPU(Memcpy)(to, from, bytes, GPU(MemcpyDefault));
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "copy", e);
}

static enum fst_status card_copy_queued(void *queue, void *to, const void *from, size_t bytes)
{
    gpu_error e = GPU(MemcpyAsync)(to, from, bytes, GPU(MemcpyDefault), queue);
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "copy", e);
}

static enum fst_status card_queue_new(void **queue)
{
    gpu_stream s;
    gpu_error e = GPU(StreamCreateWithFlags)(&s, GPU(StreamNonBlocking));
    if (e != SUCCESS)
        return failed(FST_EINTERNAL, "queue", e);
    *queue = s;
    return FST_OK;
}

static void card_queue_free(void *queue)
{
    (void)GPU(StreamDestroy)(queue);
}

static enum fst_status card_sync(void *queue)
{
    gpu_error e = GPU(StreamSynchronize)(queue);
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "a kernel failed", e);
}

/* The event is given back when what waits for it has run. */
static enum fst_status card_after(void *queue, void *other)
{
    gpu_event event;
    gpu_error e = GPU(EventCreateWithFlags)(&event, GPU(EventDisableTiming));
    if (e != SUCCESS)
        return failed(FST_EINTERNAL, "event", e);
    e = GPU(EventRecord)(event, other);
    if (e == SUCCESS)
        e = GPU(StreamWaitEvent)(queue, event, 0);
    (void)GPU(EventDestroy)(event);
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "order of queues", e);
}

static bool card_kernels(void *table, size_t bytes, bool portable)
{
#ifdef FST_SM90
    gpu_properties prop;
    if (!portable && GPU(GetDeviceProperties)(&prop, 0) == SUCCESS && prop.major == 9 &&
        prop.minor == 0)
        return kernels_fill_sm90(table, bytes);
#else
    (void)portable;
#endif
    return kernels_fill_gpu(table, bytes);
}

static gpu_event marks[DEVICE_MARKS]; /* made when first used */

static enum fst_status card_mark(void *queue, int i)
{
    gpu_error e = marks[i] ? SUCCESS : GPU(EventCreate)(&marks[i]);
    if (e == SUCCESS)
        e = GPU(EventRecord)(marks[i], queue);
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "mark", e);
}

static enum fst_status card_between(int from, int to, double *us)
{
    float ms = 0;
    gpu_error e = GPU(EventElapsedTime)(&ms, marks[from], marks[to]);
    *us = (double)ms * 1e3;
    return e == SUCCESS ? FST_OK : failed(FST_EINTERNAL, "time between marks", e);
}

/* ---------------------------------------------------------------- recordings */

/* What goes wrong here leaves the card as it was: the caller launches one by one. */
static enum fst_status not_recorded(const char *what, gpu_error e)
{
    (void)GPU(GetLastError)();
    return failed(FST_EUNSUPPORTED, what, e);
}

static enum fst_status card_capture_begin(void *queue)
{
    gpu_error e = GPU(StreamBeginCapture)(queue, GPU(StreamCaptureModeThreadLocal));
    return e == SUCCESS ? FST_OK : not_recorded("begin of a graph", e);
}

static enum fst_status card_capture_end(void *queue, void **graph)
{
    gpu_graph g = NULL;
    gpu_graph_exec exec = NULL;
    gpu_error e = GPU(StreamEndCapture)(queue, &g);
    if (e != SUCCESS || !g)
        return not_recorded("end of a graph", e);
    e = instantiate(&exec, g);
    (void)GPU(GraphDestroy)(g);
    if (e != SUCCESS)
        return not_recorded("graph", e);
    *graph = exec;
    return FST_OK;
}

static enum fst_status card_graph_launch(void *queue, void *graph)
{
    gpu_error e = GPU(GraphLaunch)(graph, queue);
    return e == SUCCESS ? FST_OK : not_recorded("launch of a graph", e);
}

static void card_graph_free(void *graph)
{
    (void)GPU(GraphExecDestroy)(graph);
}

static enum fst_status card_open(struct device *d, const struct device_host *h)
{
    gpu_properties prop;
    int version = 0;
    size_t free_bytes = 0, total = 0;
    host = *h;
    gpu_error e = GPU(SetDevice)(0);
    if (e != SUCCESS)
        return failed(FST_EMACHINE, "no card", e);
    if ((e = GPU(GetDeviceProperties)(&prop, 0)) != SUCCESS ||
        (e = GPU(DriverGetVersion)(&version)) != SUCCESS ||
        (e = GPU(MemGetInfo)(&free_bytes, &total)) != SUCCESS)
        return failed(FST_EMACHINE, "card", e);
    *d = (struct device){.name = DEVICE_NAME,
                         .multiprocessors = prop.multiProcessorCount,
                         .total_bytes = total,
                         .free_bytes = free_bytes,
                         .early = EARLY(prop),
                         .alloc = card_alloc,
                         .free = card_free,
                         .alloc_shared = card_alloc_shared,
                         .free_shared = card_free_shared,
                         .copy = card_copy,
                         .copy_queued = card_copy_queued,
                         .queue_new = card_queue_new,
                         .queue_free = card_queue_free,
                         .sync = card_sync,
                         .after = card_after,
                         .fill = memory_fill_gpu,
                         .mark = card_mark,
                         .between = card_between,
                         .capture_begin = card_capture_begin,
                         .capture_end = card_capture_end,
                         .graph_launch = card_graph_launch,
                         .graph_free = card_graph_free,
                         .kernels = card_kernels};
    snprintf(d->card, sizeof d->card, "%s", prop.name);
    snprintf(d->driver, sizeof d->driver, "%d.%d", version / 1000, version % 1000 / 10);
    return FST_OK;
}

__attribute__((visibility("default"))) extern const struct device_module fst_device_module;
const struct device_module fst_device_module = {.version = DEVICE_MODULE_VERSION,
                                                .build = FST_VERSION,
                                                .device_bytes = sizeof(struct device),
                                                .open = card_open};
