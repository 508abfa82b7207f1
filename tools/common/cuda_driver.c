/* In: libcuda.so.1 of the running machine. Out: its entry points, and one PTX kernel for the read
 * ceiling. */
#include "tools/common/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>

int cuda_driver_open(struct cuda_driver *cuda, char *why, size_t why_bytes)
{
    static const char *const names[] = {"cuInit",
                                        "cuDeviceGet",
                                        "cuDeviceGetAttribute",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuGetErrorString",
                                        "cuMemAlloc_v2",
                                        "cuMemFree_v2",
                                        "cuMemcpyHtoD_v2",
                                        "cuMemcpyDtoH_v2",
                                        "cuMemsetD8Async",
                                        "cuStreamCreate",
                                        "cuStreamSynchronize",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuEventSynchronize",
                                        "cuEventElapsedTime",
                                        "cuModuleLoadData",
                                        "cuModuleGetFunction",
                                        "cuLaunchKernel"};
    _Static_assert(sizeof *cuda == sizeof names, "one name for each field, in order");
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, why_bytes, "no CUDA driver: %s", dlerror());
        return -1;
    }
    void **fields = (void **)cuda; /* all fields are function pointers */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fields[i] = dlsym(library, names[i]);
        if (!fields[i]) {
            snprintf(why, why_bytes, "libcuda.so.1 has no %s: the driver is too old", names[i]);
            return -1;
        }
    }
    return 0;
}

const char cuda_read_kernel[] =
    ".version 7.0\n"
    ".target sm_70\n"
    ".address_size 64\n"
    ".visible .entry read_all(.param .u64 p, .param .u64 n, .param .u64 sink)\n"
    "{\n"
    "  .reg .pred %end, %any;\n"
    "  .reg .b32 %t, %c, %d, %sum, %a<4>, %b<4>, %e<4>, %f<4>;\n"
    "  .reg .b64 %base, %n, %sink, %i, %step, %at, %stepb, %i3, %step3;\n"
    "  ld.param.u64 %base, [p];\n"
    "  ld.param.u64 %n, [n];\n"
    "  ld.param.u64 %sink, [sink];\n"
    "  mov.u32 %t, %tid.x;\n"
    "  mov.u32 %c, %ctaid.x;\n"
    "  mov.u32 %d, %ntid.x;\n"
    "  mad.lo.u32 %t, %c, %d, %t;\n"
    "  cvt.u64.u32 %i, %t;\n"
    "  mov.u32 %c, %nctaid.x;\n"
    "  mul.lo.u32 %c, %c, %d;\n"
    "  cvt.u64.u32 %step, %c;\n"
    "  shl.b64 %stepb, %step, 4;\n"
    "  mul.lo.u64 %step3, %step, 3;\n"
    "  mov.u32 %sum, 0;\n"
    "LOOP:\n"
    "  add.u64 %i3, %i, %step3;\n"
    "  setp.ge.u64 %end, %i3, %n;\n"
    "  @%end bra DONE;\n"
    "  shl.b64 %at, %i, 4;\n"
    "  add.u64 %at, %base, %at;\n"
    "  ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%at];\n"
    "  add.u64 %at, %at, %stepb;\n"
    "  ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%at];\n"
    "  add.u64 %at, %at, %stepb;\n"
    "  ld.global.v4.u32 {%e0, %e1, %e2, %e3}, [%at];\n"
    "  add.u64 %at, %at, %stepb;\n"
    "  ld.global.v4.u32 {%f0, %f1, %f2, %f3}, [%at];\n"
    "  add.u32 %sum, %sum, %a0;\n"
    "  add.u32 %sum, %sum, %a1;\n"
    "  add.u32 %sum, %sum, %a2;\n"
    "  add.u32 %sum, %sum, %a3;\n"
    "  add.u32 %sum, %sum, %b0;\n"
    "  add.u32 %sum, %sum, %b1;\n"
    "  add.u32 %sum, %sum, %b2;\n"
    "  add.u32 %sum, %sum, %b3;\n"
    "  add.u32 %sum, %sum, %e0;\n"
    "  add.u32 %sum, %sum, %e1;\n"
    "  add.u32 %sum, %sum, %e2;\n"
    "  add.u32 %sum, %sum, %e3;\n"
    "  add.u32 %sum, %sum, %f0;\n"
    "  add.u32 %sum, %sum, %f1;\n"
    "  add.u32 %sum, %sum, %f2;\n"
    "  add.u32 %sum, %sum, %f3;\n"
    "  add.u64 %i, %i3, %step;\n"
    "  bra LOOP;\n"
    "DONE:\n"
    "  setp.eq.u32 %any, %sum, 1;\n" /* the buffer is zero: never true, but the loads must stay */
    "  @%any st.global.u32 [%sink], %sum;\n"
    "  ret;\n"
    "}\n";
