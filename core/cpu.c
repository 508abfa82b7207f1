/* In: the processor. Out: the best instruction set that it and the operating system support, and
 * its name. The one idea: a feature counts only if XCR0 says that the system saves its registers.
 * Bit numbers are those of the CPUID tables of the architecture manual. */
#include "core/cpu.h"

#include <stdio.h>
#include <string.h>
#include "core/context.h"

#if defined(__x86_64__)
#include <cpuid.h>

struct leaf {
    unsigned a, b, c, d;
};

static struct leaf cpuid(unsigned number, unsigned sub)
{
    struct leaf l = {0, 0, 0, 0};
    if (!__get_cpuid_count(number, sub, &l.a, &l.b, &l.c, &l.d))
        memset(&l, 0, sizeof l);
    return l;
}

static int has(unsigned word, unsigned mask)
{
    return (word & mask) == mask;
}

static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

uint32_t lkvi_cpu_isa(void)
{
    enum { XMM_YMM = 0x06, ZMM = 0xe6 };
    const unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const unsigned avx2 = 1u << 5, bmi2 = 1u << 8;
    const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31; /* leaf 7 ebx */
    const unsigned vbmi = 1u << 1, vnni = 1u << 11;                           /* leaf 7 ecx */
    const unsigned bf16 = 1u << 5;                                            /* leaf 7.1 eax */
    struct leaf one = cpuid(1, 0), seven = cpuid(7, 0);
    if (!has(one.c, fma | osxsave | avx | f16c) || !has(seven.b, avx2 | bmi2) ||
        !has(saved_registers(), XMM_YMM))
        return LKV_ISA_SCALAR;
    if (!has(seven.b, f | dq | bw | vl) || !has(seven.c, vbmi | vnni) ||
        !has(cpuid(7, 1).a, bf16) || !has(saved_registers(), ZMM))
        return LKV_ISA_AVX2;
    return LKV_ISA_AVX512;
}

void lkvi_cpu_name(char *out, size_t bytes)
{
    char name[49] = {0};
    for (unsigned i = 0; i < 3; i++) {
        struct leaf l = cpuid(0x80000002u + i, 0);
        memcpy(name + 16 * i, &l, sizeof l);
    }
    const char *start = name + strspn(name, " ");
    snprintf(out, bytes, "%s", *start ? start : "x86-64");
}

#else

uint32_t lkvi_cpu_isa(void)
{
    return LKV_ISA_SCALAR;
}

void lkvi_cpu_name(char *out, size_t bytes)
{
#if defined(__aarch64__)
    snprintf(out, bytes, "aarch64");
#else
    snprintf(out, bytes, "scalar processor");
#endif
}

#endif
