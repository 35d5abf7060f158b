/* kernels.c - fills the table: what the machine has, what the caller asked for. */
#include "kernels/kernels.h"

#include <cpuid.h>

#include "kernels/cpu/cpu.h"
#include "kernels/ref/ref.h"

/* Register sets that the operating system saves (XCR0). */
enum { OS_AVX = 0x6, OS_AVX512 = 0xe6 };

static uint64_t os_saved_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

unsigned kernels_probe(void)
{
    unsigned a, b, c, d, flags = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    bool fma = c & bit_FMA, f16c = c & bit_F16C;
    uint64_t os = os_saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    if ((os & OS_AVX) == OS_AVX && fma && f16c && (b & bit_AVX2))
        flags |= KERN_AVX2;
    unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    bool wide = (b & need) == need && (c & bit_AVX512VBMI);
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d))
        return flags;
    if ((flags & KERN_AVX2) && (os & OS_AVX512) == OS_AVX512 && wide && (a & bit_AVX512BF16))
        flags |= KERN_AVX512;
    return flags;
}

#define KERNELS_FILL(entry, args)                                                                  \
    k->entry = flags & KERN_AVX512 ? entry##_avx512                                                \
               : flags & KERN_AVX2 ? entry##_avx2                                                  \
                                   : entry##_ref;

void kernels_init(struct kernels *k, unsigned flags)
{
    *k = (struct kernels){0};
    FST_ASSERT((flags & ~kernels_probe()) == 0);
    k->flags = flags;
    k->name = flags & KERN_AVX512 ? "avx512" : flags & KERN_AVX2 ? "avx2" : "ref";
    KERNELS_MAP(KERNELS_FILL)
}

static const struct {
    const char *name;
    unsigned flags;
} kernels_name[] = {{"ref", 0}, {"avx2", KERN_AVX2}, {"avx512", KERN_AVX2 | KERN_AVX512}};

/* Flags of the set called `name` (len bytes); -1: no such set. */
static int named_set(const char *name, size_t len)
{
    for (size_t i = 0; i < FST_COUNT(kernels_name); i++)
        if (strlen(kernels_name[i].name) == len && memcmp(kernels_name[i].name, name, len) == 0)
            return (int)i;
    return -1;
}

/* "-avx512" or "-avx512,-avx2": what is left of have. */
static bool take_away(const char *list, unsigned *have)
{
    static const unsigned own[] = {0, KERN_AVX2 | KERN_AVX512, KERN_AVX512};
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        int set = *p == '-' ? named_set(p + 1, len - 1) : -1;
        if (set <= 0)
            return false;
        *have &= ~own[set];
        p += len + (p[len] == ',');
    }
    return true;
}

enum fst_status kernels_select(struct kernels *k, const char *name, enum precision precision)
{
    unsigned have = kernels_probe(), flags = have;
    if (!name)
        name = getenv("FIRESTEEL_KERNELS");
    bool automatic = !name || !*name || strcmp(name, "auto") == 0;
    if (automatic) {
        if (precision == PRECISION_REFERENCE)
            flags = 0;
    } else if (*name == '-') {
        if (!take_away(name, &flags))
            return fst_error(FST_EINVAL, "kernels: '%s', expected a list like -avx512,-avx2", name);
    } else {
        int set = named_set(name, strlen(name));
        if (set < 0)
            return fst_error(FST_EINVAL,
                             "kernels: '%s', expected auto, ref, avx2, avx512 or -avx512", name);
        flags = kernels_name[set].flags;
    }
    if (flags & ~have)
        return fst_error(FST_EMACHINE, "kernels: this machine cannot run %s", name);
    if (precision == PRECISION_REFERENCE && flags)
        return fst_error(FST_EINVAL, "kernels: precision reference runs on ref alone, not on %s",
                         name);
    kernels_init(k, flags);
    return FST_OK;
}

enum fst_status kernels_of_device(struct kernels *k, const struct device *d, const char *name,
                                  enum precision precision)
{
    bool portable = name && strcmp(name, "gpu") == 0;
    bool named = name && *name && strcmp(name, "auto") != 0 && !portable;
    if (named && strcmp(name, "sm90") != 0)
        return fst_error(FST_EINVAL, "kernels: '%s', expected auto, gpu or sm90 with --device %s",
                         name, d->name);
    if (precision == PRECISION_REFERENCE)
        return fst_error(FST_EINVAL, "precision reference runs on the CPU alone, not on %s",
                         d->name);
    *k = (struct kernels){0};
    if (!d->kernels(k, sizeof *k, portable))
        return fst_error(FST_EMACHINE, "--device %s: its module is of another build", d->name);
    if (named && strcmp(k->name, name) != 0)
        return fst_error(FST_EMACHINE, "kernels: %s needs a Hopper card, this is %s", name,
                         d->card);
    return FST_OK;
}

size_t kernels_scratch_bytes(const struct kernels *k, const struct kernel_limits *l, int n_threads)
{
    if (k->scratch)
        return k->scratch(l);
    size_t ref = ref_scratch_bytes(l, n_threads);
    return k->flags ? FST_MAX(ref, cpu_scratch_bytes(l, n_threads)) : ref;
}
