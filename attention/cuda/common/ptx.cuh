/* Thin wrappers of the PTX that the kernels use: one instruction each, named after what it does.
 * Nothing here decides anything. */
#ifndef LKVI_ATTENTION_CUDA_PTX_CUH
#define LKVI_ATTENTION_CUDA_PTX_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace lkvi
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d;
    asm("prmt.b32 %0,%1,%2,%3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}
__device__ __forceinline__ uint32_t half2_sub(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ uint32_t half2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ uint32_t bf16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.bf16x2 %0,%1,%2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ float exp2_fast(float x)
{
    float d;
    asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(d) : "f"(x));
    return d;
}
__device__ __forceinline__ uint32_t pack_half2(float low, float high)
{
    __half2 h = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&h);
}
__device__ __forceinline__ float2 unpack_half2(uint32_t x)
{
    return __half22float2(*reinterpret_cast<__half2 *>(&x));
}

/* The same value in a form that the compiler knows to be equal in all lanes: a loop it bounds may
 * then keep addresses and descriptors in uniform registers. */
__device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}

/* ---- barriers */
__device__ __forceinline__ void mbarrier_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, uint32_t phase)
{
    asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n"
                 "@p bra D;\nbra W;\nD:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
}
/* Barrier of `threads` threads that also tells whether any of them said yes. */
template <int threads> __device__ __forceinline__ bool barrier_any(bool mine)
{
    int any;
    asm volatile("{\n.reg .pred p,q;\nsetp.ne.b32 p,%1,0;\nbarrier.cta.red.or.pred q,1,%2,p;\n"
                 "selp.b32 %0,1,0,q;\n}"
                 : "=r"(any)
                 : "r"((int)mine), "n"(threads)
                 : "memory");
    return any;
}
template <int id, int threads> __device__ __forceinline__ void barrier_sync()
{
    asm volatile("bar.sync %0,%1;" ::"n"(id), "n"(threads) : "memory");
}
__device__ __forceinline__ void fence_async_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- tensor copies. Coordinates outside the tensor give zeros and still count their bytes. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                         uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0],[%1,{%2,%3,%4}],[%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
                 : "memory");
}
/* `bytes` in a row; address and size are multiples of 16. */
__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes,
                                           uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0],[%1],%2,[%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}

/* The copy engine reads the map ahead of its first copy. */
__device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Stores four 8x8 fragments transposed: lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* The same without the transposition. */
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(to),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- programmatic dependent launch */
__device__ __forceinline__ void dependents_may_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_predecessor()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

} // namespace lkvi
#endif
