/* emulate.cc - blocks of GPU threads as fibers (src/kernels/gpu/emulate.h).
 *
 * Each thread of a block has a stack of its own; the scheduler resumes one that may run until it
 * waits.  A fiber waits for its wave (an exchange of values) or for its block (a barrier); the wait
 * ends when all that are meant have come.  A thread that returned while others wait, or lanes of one
 * wave at different places, stop the program: on a card that hangs or gives garbage.  So does a block
 * where every thread waits at a barrier of some of its waves. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern "C" {
#include "base/base.h"
}
#ifndef GPU_WAVE
#define GPU_WAVE 32
#endif
#include "kernels/gpu/emulate.h"

struct emulate_dim emulate_thread, emulate_block, emulate_block_dim, emulate_grid_dim;
int64_t emulate_waits;

enum { THREADS_MAX = 1024, STACK = 64 << 10, SHARED_MAX = 228 << 10, PARTS_MAX = 16 };
enum state { RUNS, WAITS_WAVE, WAITS_PART, WAITS_BLOCK, DONE };

struct fiber {
    void *sp;
    enum state state;
    int part; /* the barrier it waits at */
};
/* A barrier of some waves: who has come. */
struct part {
    int n;
    bool has[THREADS_MAX];
};

static struct fiber fibers[THREADS_MAX];
static struct part parts[PARTS_MAX];
static uint8_t *stacks, *shared_bytes;
static void *scheduler_sp;
static int n_threads, wave_width, current;
static uint32_t lane_value[2][THREADS_MAX];
static int lane_turn[THREADS_MAX]; /* which of the two an exchange of this thread uses next */
static void (*run_body)(void *ud);
static void *run_ud;

/* emulate_switch(&from, to): save the callee's registers on this stack, go on on the other. */
extern "C" void emulate_switch(void **from, void *to);
extern "C" void emulate_entry(void);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl emulate_switch\n"
        ".type emulate_switch, @function\n"
        "emulate_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size emulate_switch, .-emulate_switch\n");
#else
#error "the emulation of GPU kernels switches stacks on x86-64 alone"
#endif

static void to_scheduler(enum state why)
{
    struct fiber *f = &fibers[current];
    f->state = why;
    emulate_switch(&f->sp, scheduler_sp);
}

extern "C" void emulate_entry(void)
{
    run_body(run_ud);
    to_scheduler(DONE);
    abort(); /* nobody resumes a thread that is done */
}

static void start(int i)
{
    void **top = (void **)(void *)(stacks + (size_t)(i + 1) * STACK);
    *--top = NULL; /* a return address for emulate_entry: 16-byte alignment as after a call */
    *--top = (void *)emulate_entry;
    for (int r = 0; r < 6; r++)
        *--top = NULL;
    fibers[i].sp = top;
    fibers[i].state = RUNS;
    lane_turn[i] = 0;
}

static void resume(int i)
{
    current = i;
    emulate_thread.x = (unsigned)i;
    emulate_switch(&scheduler_sp, fibers[i].sp);
}

static void fail(const char *what)
{
    fprintf(stderr, "emulation: block %u of %u, %d threads: %s\n", emulate_block.x,
            emulate_grid_dim.x, n_threads, what);
    abort();
}

/* Threads of a wave or block in that state. */
static int count(int first, int last, enum state state)
{
    int n = 0;
    for (int i = first; i < last; i++)
        n += fibers[i].state == state;
    return n;
}
static void release(int first, int last)
{
    for (int i = first; i < last; i++)
        fibers[i].state = RUNS;
}

/* Let a wave run until all its lanes wait for others or are done. */
static void run_wave(int first, int last)
{
    for (;;) {
        for (int i = first; i < last; i++)
            if (fibers[i].state == RUNS)
                resume(i);
        if (count(first, last, RUNS)) /* a later lane let it go on */
            continue;
        int at_wave = count(first, last, WAITS_WAVE);
        if (at_wave && at_wave < last - first)
            fail("some lanes of a wave exchange values, others do not");
        if (!at_wave)
            return;
        release(first, last);
    }
}

static void run_block(void)
{
    memset(parts, 0, sizeof parts);
    for (int i = 0; i < n_threads; i++)
        start(i);
    for (;;) {
        for (int i = 0; i < n_threads; i += wave_width)
            run_wave(i, FST_MIN(i + wave_width, n_threads));
        if (count(0, n_threads, RUNS))
            continue;
        int done = count(0, n_threads, DONE), waits = count(0, n_threads, WAITS_BLOCK);
        if (done == n_threads)
            return;
        if (waits < n_threads && waits + done == n_threads)
            fail("some threads wait for the block, others have returned");
        if (waits < n_threads)
            fail("all that is left waits at barriers of some waves");
        release(0, n_threads);
    }
}

void emulate_run(void (*body)(void *ud), void *ud, int64_t grid, int threads, int wave,
                 size_t shared)
{
    FST_ASSERT(threads > 0);
    FST_ASSERT(threads <= THREADS_MAX);
    FST_ASSERT(threads % wave == 0);
    FST_ASSERT(shared <= SHARED_MAX);
    if (!stacks) {
        void *p = mmap(NULL, (size_t)THREADS_MAX * STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        FST_ASSERT(p != MAP_FAILED);
        stacks = (uint8_t *)p;
        shared_bytes = (uint8_t *)mem_aligned(64, SHARED_MAX);
        FST_ASSERT(shared_bytes);
    }
    run_body = body;
    run_ud = ud;
    n_threads = threads;
    wave_width = wave;
    emulate_grid_dim.x = (unsigned)grid;
    emulate_block_dim.x = (unsigned)threads;
    for (int64_t b = 0; b < grid; b++) {
        emulate_block.x = (unsigned)b;
        memset(shared_bytes, 0xff, shared); /* NaN in every format */
        run_block();
    }
}

void emulate_block_barrier(void)
{
    to_scheduler(WAITS_BLOCK);
}

void emulate_part_barrier(int part, int threads, bool wait)
{
    FST_ASSERT(part > 0); /* 0 is the block's */
    FST_ASSERT(part < PARTS_MAX);
    struct part *b = &parts[part];
    if (b->has[current])
        fail("a thread comes to a barrier twice before the others");
    b->has[current] = true;
    if (++b->n < threads) {
        fibers[current].part = part;
        if (wait)
            to_scheduler(WAITS_PART);
        return;
    }
    memset(b, 0, sizeof *b);
    for (int i = 0; i < n_threads; i++)
        if (fibers[i].state == WAITS_PART && fibers[i].part == part)
            fibers[i].state = RUNS;
}

/* Two sets of values, used in turn: a lane can be one exchange ahead of another, never two. */
uint32_t emulate_exchange(uint32_t v, int from)
{
    int me = current, first = me / wave_width * wave_width;
    int set = lane_turn[me];
    lane_turn[me] ^= 1;
    lane_value[set][me] = v;
    to_scheduler(WAITS_WAVE);
    FST_ASSERT(from >= 0);
    FST_ASSERT(from < wave_width);
    return lane_value[set][first + from];
}

void *emulate_shared(void)
{
    return shared_bytes;
}
