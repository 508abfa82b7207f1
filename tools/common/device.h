/* The seam to a device's memory and clock: plain memory and the monotonic clock on the CPU; on CUDA
 * the driver API, found with dlopen when asked for, so that building needs no CUDA. Calls that can
 * fail return NULL or -1, and device_error() says why. */
#ifndef TOOLS_COMMON_DEVICE_H
#define TOOLS_COMMON_DEVICE_H

#include <stddef.h>
#include <stdint.h>

struct device;
/* LKV_DEVICE_CPU or a CUDA ordinal; uses the primary context, as the library does. */
struct device *device_open(int32_t ordinal);
const char *device_error(void); /* the calling thread's last failure */
void device_close(struct device *d);
int device_is_cuda(const struct device *d);
const char *device_label(const struct device *d); /* "cpu", "cuda:0" */
void *device_stream(const struct device *d);      /* CUstream; NULL on the CPU */

void *device_alloc(struct device *d, size_t bytes); /* 256-byte aligned, zeroed */
void device_free(struct device *d, void *p);
/* Done on return, and ordered with device_stream. */
int device_write(struct device *d, void *to, const void *from, size_t bytes);
int device_read(struct device *d, void *to, const void *from, size_t bytes);

/* Evicts what the last run left in the caches. */
int device_flush(struct device *d);
/* Microseconds of run(arg), which enqueues on device_stream: events on CUDA, the clock on the CPU.
 * NaN on failure. */
double device_time_us(struct device *d, void (*run)(void *arg), void *arg);
/* GB/s that a plain read of memory reaches here (threads: of the CPU, 0 is one a core), measured
 * once; NaN if it cannot be. */
double device_read_gbps(struct device *d, uint32_t threads);

#endif
