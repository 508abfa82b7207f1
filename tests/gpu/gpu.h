/* What the GPU tests stand on: the operation table of liblatentkv_cuda.so (from the folder in
 * LKV_CUDA_DIR, else the working folder), the CPU's table to compare with, device memory, and
 * checks that say where they failed. Plain programs: exit 1 on a failure, 77 without a device. */
#ifndef LKVT_GPU_GPU_H
#define LKVT_GPU_GPU_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include "attention/params.h"
#include "core/backend.h"
#include "core/context.h"

struct gpu {
    const struct lkvi_backend *cuda, *cpu;
    void *state;      /* of the CUDA table */
    lkv_context *ctx; /* CPU: the state of the CPU table */
};

extern int failures; /* checks that failed so far */

void gpu_open(struct gpu *g); /* exits 77 with the sentence where there is no device */
int gpu_close(struct gpu *g, const char *name); /* prints the verdict; the exit status */

void must(lkv_status status, const char *what);
void must_cuda(cudaError_t error, const char *what);
/* Fresh device memory, holding `from` (bytes) or 0xFF where from is NULL. */
void *to_device(const void *from, uint64_t bytes);
void from_device(void *to, const void *from, uint64_t bytes);
/* Counts a failure and prints it (printf rules) when ok is 0. Returns ok. */
int check(int ok, const char *format, ...) __attribute__((format(printf, 2, 3)));

uint32_t dtype_size(uint32_t dtype);
/* fp32 rows to a dtype and back, by the codec's own row operations. */
void narrow(const float *from, uint64_t n, uint32_t dtype, void *to);
void widen(const void *from, uint64_t n, uint32_t dtype, float *to);
const char *format_name(uint32_t format);
struct lkvi_record layout(uint32_t format, uint32_t flags, uint32_t latent, uint32_t rope);

#endif
