/* cuda.c - the module libfiresteel_cuda.so: memory, queues and the kernel table of one card.
 *
 * Host code over the CUDA runtime (linked statically).  One card: the first that the driver shows
 * (CUDA_VISIBLE_DEVICES chooses).  Errors are worded here and stored by the program's own
 * fst_error. */
#include <cuda_runtime_api.h>
#include <string.h>

#include "device/device.h"

bool kernels_fill_gpu(void *table, size_t bytes); /* kernels/gpu/table.cu */

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

static enum fst_status failed(enum fst_status rc, const char *what, cudaError_t e)
{
    return fst_error(rc, "cuda: %s: %s (%s)", what, cudaGetErrorString(e), cudaGetErrorName(e));
}

static void *cuda_alloc(size_t bytes)
{
    void *p = NULL;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* out of memory is not sticky: the caller says what for */
        return NULL;
    }
    if (cudaMemset(p, 0, bytes) != cudaSuccess) {
        (void)cudaFree(p);
        return NULL;
    }
    return p;
}

static void cuda_free(void *p)
{
    (void)cudaFree(p);
}

static void *cuda_alloc_shared(size_t bytes)
{
    void *p = NULL;
    if (cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

static void cuda_free_shared(void *p)
{
    (void)cudaFreeHost(p);
}

static enum fst_status cuda_copy(void *to, const void *from, size_t bytes)
{
    cudaError_t e = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
    return e == cudaSuccess ? FST_OK : failed(FST_EINTERNAL, "copy", e);
}

static enum fst_status cuda_copy_queued(void *queue, void *to, const void *from, size_t bytes)
{
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue);
    return e == cudaSuccess ? FST_OK : failed(FST_EINTERNAL, "copy", e);
}

static enum fst_status cuda_queue_new(void **queue)
{
    cudaStream_t s;
    cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        return failed(FST_EINTERNAL, "queue", e);
    *queue = s;
    return FST_OK;
}

static void cuda_queue_free(void *queue)
{
    (void)cudaStreamDestroy(queue);
}

static enum fst_status cuda_sync(void *queue)
{
    cudaError_t e = cudaStreamSynchronize(queue);
    return e == cudaSuccess ? FST_OK : failed(FST_EINTERNAL, "a kernel failed", e);
}

static enum fst_status cuda_open(struct device *d, const struct device_host *h)
{
    struct cudaDeviceProp prop;
    int version = 0;
    size_t free_bytes = 0, total = 0;
    host = *h;
    cudaError_t e = cudaSetDevice(0);
    if (e != cudaSuccess)
        return failed(FST_EMACHINE, "no card", e);
    if ((e = cudaGetDeviceProperties(&prop, 0)) != cudaSuccess ||
        (e = cudaDriverGetVersion(&version)) != cudaSuccess ||
        (e = cudaMemGetInfo(&free_bytes, &total)) != cudaSuccess)
        return failed(FST_EMACHINE, "card", e);
    *d = (struct device){.name = "cuda",
                         .multiprocessors = prop.multiProcessorCount,
                         .total_bytes = total,
                         .free_bytes = free_bytes,
                         .alloc = cuda_alloc,
                         .free = cuda_free,
                         .alloc_shared = cuda_alloc_shared,
                         .free_shared = cuda_free_shared,
                         .copy = cuda_copy,
                         .copy_queued = cuda_copy_queued,
                         .queue_new = cuda_queue_new,
                         .queue_free = cuda_queue_free,
                         .sync = cuda_sync,
                         .kernels = kernels_fill_gpu};
    snprintf(d->card, sizeof d->card, "%s", prop.name);
    snprintf(d->driver, sizeof d->driver, "%d.%d", version / 1000, version % 1000 / 10);
    return FST_OK;
}

__attribute__((visibility("default"))) extern const struct device_module fst_device_module;
const struct device_module fst_device_module = {.version = DEVICE_MODULE_VERSION,
                                                .build = FST_VERSION,
                                                .device_bytes = sizeof(struct device),
                                                .open = cuda_open};
