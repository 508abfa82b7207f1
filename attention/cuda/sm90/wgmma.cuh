/* Warpgroup matrix products of the shapes that the decode kernels use, and their descriptors. All
 * operands in shared memory lie in the 128-byte swizzle. */
#ifndef LKVI_ATTENTION_CUDA_SM90_WGMMA_CUH
#define LKVI_ATTENTION_CUDA_SM90_WGMMA_CUH

#include <stdint.h>

namespace lkvi
{

/* Low word of an operand's descriptor: its shared address in 16-byte units and the leading offset.
 * The high word is the same for all: 128-byte rows, eight rows a swizzle atom, atoms 1024 bytes
 * apart. Kept apart because 64-bit sums cost half of the instructions between two products. */
__host__ __device__ constexpr uint32_t wgmma_descriptor(uint32_t address)
{
    return ((address & 0x3FFFF) >> 4) | (1u << 16);
}
#define LKVI_WGMMA_HIGH "0x40000040"
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* d[64 tokens, 32] (+)= a[64, 32 bytes] b[32, 32 bytes], int8, both K-major in shared memory. */
__device__ __forceinline__ void wgmma_s8_n32(int (&d)[16], uint32_t a, uint32_t b, int add)
{
    asm volatile("{\n.reg .pred p;\n.reg .b64 da,db;\nmov.b64 da,{%16," LKVI_WGMMA_HIGH
                 "};\nmov.b64 db,{%17," LKVI_WGMMA_HIGH "};\nsetp.ne.b32 p,%18,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},da,db,p;\n}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
                   "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),
                   "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "r"(a), "r"(b), "r"(add));
}
/* d[64, 16] (+)= a b, bf16, both K-major in shared memory. */
__device__ __forceinline__ void wgmma_bf16_n16(float (&d)[8], uint32_t a, uint32_t b, int add)
{
    asm volatile("{\n.reg .pred p;\n.reg .b64 da,db;\nmov.b64 da,{%8," LKVI_WGMMA_HIGH
                 "};\nmov.b64 db,{%9," LKVI_WGMMA_HIGH "};\nsetp.ne.b32 p,%10,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7},da,db,p,1,1,0,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7])
                 : "r"(a), "r"(b), "r"(add));
}
/* d[64, 16] (+)= a b, fp16, a in registers, b K-major in shared memory. */
__device__ __forceinline__ void wgmma_f16_n16(float (&d)[8], const uint32_t (&a)[4], uint32_t b,
                                              int add)
{
    asm volatile("{\n.reg .pred p;\n.reg .b64 db;\nmov.b64 db,{%12," LKVI_WGMMA_HIGH
                 "};\nsetp.ne.b32 p,%13,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},db,p,1,1,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
/* d[64, 16] += a b, fp16, a M-major and b K-major in shared memory. */
__device__ __forceinline__ void wgmma_f16_n16_mmajor(float (&d)[8], uint32_t a, uint32_t b)
{
    asm volatile("{\n.reg .b64 da,db;\nmov.b64 da,{%8," LKVI_WGMMA_HIGH
                 "};\nmov.b64 db,{%9," LKVI_WGMMA_HIGH "};\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7},da,db,1,1,1,1,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7])
                 : "r"(a), "r"(b));
}
/* d[64, 16] (+)= a b, bf16, a in registers, b K-major in shared memory. */
__device__ __forceinline__ void wgmma_bf16_n16(float (&d)[8], const uint32_t (&a)[4], uint32_t b,
                                               int add)
{
    asm volatile("{\n.reg .pred p;\n.reg .b64 db;\nmov.b64 db,{%12," LKVI_WGMMA_HIGH
                 "};\nsetp.ne.b32 p,%13,0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},db,p,1,1,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
/* d[64, 16] += a b, bf16, a M-major and b K-major in shared memory. */
__device__ __forceinline__ void wgmma_bf16_n16_mmajor(float (&d)[8], uint32_t a, uint32_t b)
{
    asm volatile("{\n.reg .b64 da,db;\nmov.b64 da,{%8," LKVI_WGMMA_HIGH
                 "};\nmov.b64 db,{%9," LKVI_WGMMA_HIGH "};\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7},da,db,1,1,1,1,0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7])
                 : "r"(a), "r"(b));
}
/* Results are read after the wait, whatever the compiler thinks of moving the reads. */
template <int n> __device__ __forceinline__ void wgmma_settle(float (&d)[n])
{
#pragma unroll
    for (int i = 0; i < n; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

} // namespace lkvi
#endif
