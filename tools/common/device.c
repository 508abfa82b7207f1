/* In: sizes, host data, work to time. Out: device memory and microseconds. Two implementations of a
 * handful of verbs, told apart by device_is_cuda. */
#include "tools/common/device.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common/clock.h"
#include "tools/common/cuda_driver.h"

enum { CPU_FLUSH_BYTES = 64 << 20, CEILING_RUNS = 9, MAX_THREADS = 256 };
#define CUDA_CEILING_BYTES ((size_t)1 << 30)
#define CPU_CEILING_BYTES ((size_t)256 << 20)

struct device {
    int32_t ordinal;
    char label[24];
    struct cuda_driver cuda;
    void *stream, *begin, *end;
    void *flush; /* a buffer larger than the last cache */
    size_t flush_bytes;
    unsigned char flush_value;
    int num_sms;
    double read_gbps; /* 0: not measured yet */
};

static _Thread_local char last_error[256];

const char *device_error(void)
{
    return last_error;
}

static int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return -1;
}

/* 0 for CUDA_SUCCESS */
static int check(const struct device *d, int error, const char *what)
{
    const char *text = NULL;
    if (!error)
        return 0;
    d->cuda.error_text(error, &text);
    return fail("%s: %s", what, text ? text : "unknown CUDA error");
}

int device_is_cuda(const struct device *d)
{
    return d->ordinal >= 0;
}

const char *device_label(const struct device *d)
{
    return d->label;
}

void *device_stream(const struct device *d)
{
    return d->stream;
}

static int open_cuda(struct device *d)
{
    const struct cuda_driver *c = &d->cuda;
    int handle, l2_bytes;
    void *context;
    char why[200];
    if (cuda_driver_open(&d->cuda, why, sizeof why))
        return fail("%s", why);
    if (check(d, c->init(0), "the driver") ||
        check(d, c->device_get(&handle, d->ordinal), "the device") ||
        check(d, c->context_retain(&context, handle), "the context") ||
        check(d, c->context_use(context), "the context") ||
        check(d, c->stream_create(&d->stream, 0), "a stream") ||
        check(d, c->event_create(&d->begin, 0), "an event") ||
        check(d, c->event_create(&d->end, 0), "an event") ||
        check(d, c->device_attribute(&l2_bytes, CUDA_ATTRIBUTE_L2_BYTES, handle), "L2 size") ||
        check(d, c->device_attribute(&d->num_sms, CUDA_ATTRIBUTE_SM_COUNT, handle), "SM count"))
        return -1;
    snprintf(d->label, sizeof d->label, "cuda:%d", d->ordinal);
    d->flush_bytes = 4 * (size_t)l2_bytes;
    return 0;
}

struct device *device_open(int32_t ordinal)
{
    struct device *d = calloc(1, sizeof *d);
    if (!d) {
        fail("out of memory");
        return NULL;
    }
    d->ordinal = ordinal;
    d->flush_bytes = CPU_FLUSH_BYTES;
    snprintf(d->label, sizeof d->label, "cpu");
    if (ordinal >= 0 && open_cuda(d)) {
        free(d);
        return NULL;
    }
    return d;
}

void device_close(struct device *d)
{
    if (!d)
        return;
    device_free(d, d->flush);
    free(d); /* stream, events and the primary context end with the process */
}

static void *alloc_cuda(struct device *d, size_t bytes)
{
    uint64_t address = 0;
    if (check(d, d->cuda.alloc(&address, bytes), "memory") ||
        check(d, d->cuda.fill(address, 0, bytes, d->stream), "memory") ||
        check(d, d->cuda.stream_wait(d->stream), "memory"))
        return NULL;
    return (void *)(uintptr_t)address;
}

void *device_alloc(struct device *d, size_t bytes)
{
    bytes = bytes ? (bytes + 255) / 256 * 256 : 256;
    if (device_is_cuda(d))
        return alloc_cuda(d, bytes);
    void *p = aligned_alloc(256, bytes);
    if (p)
        memset(p, 0, bytes);
    else
        fail("no %zu bytes of memory", bytes);
    return p;
}

void device_free(struct device *d, void *p)
{
    if (!device_is_cuda(d))
        free(p);
    else if (p)
        d->cuda.free((uintptr_t)p);
}

int device_write(struct device *d, void *to, const void *from, size_t bytes)
{
    if (device_is_cuda(d))
        return check(d, d->cuda.write((uintptr_t)to, from, bytes), "copy to the device");
    memcpy(to, from, bytes);
    return 0;
}

int device_read(struct device *d, void *to, const void *from, size_t bytes)
{
    if (device_is_cuda(d))
        return check(d, d->cuda.stream_wait(d->stream), "the work before a copy") ||
                       check(d, d->cuda.read(to, (uintptr_t)from, bytes), "copy from the device")
                   ? -1
                   : 0;
    memcpy(to, from, bytes);
    return 0;
}

int device_flush(struct device *d)
{
    if (!d->flush)
        d->flush = device_alloc(d, d->flush_bytes);
    if (!d->flush)
        return -1;
    d->flush_value++;
    if (device_is_cuda(d))
        return check(d,
                     d->cuda.fill((uintptr_t)d->flush, d->flush_value, d->flush_bytes, d->stream),
                     "flush");
    memset(d->flush, d->flush_value, d->flush_bytes);
    return 0;
}

double device_time_us(struct device *d, void (*run)(void *arg), void *arg)
{
    float ms;
    if (!device_is_cuda(d)) {
        const uint64_t begin = clock_ns();
        run(arg);
        return (double)(clock_ns() - begin) * 1e-3;
    }
    if (check(d, d->cuda.event_record(d->begin, d->stream), "an event"))
        return NAN;
    run(arg);
    if (check(d, d->cuda.event_record(d->end, d->stream), "an event") ||
        check(d, d->cuda.event_wait(d->end), "the work") ||
        check(d, d->cuda.event_elapsed_ms(&ms, d->begin, d->end), "an event"))
        return NAN;
    return ms * 1e3;
}

/* ---- read ceiling */

struct part {
    const uint64_t *words;
    size_t num;
    uint64_t sum;
};

struct ceiling {
    struct device *d;
    void *buffer, *function;
    uint32_t threads;
    uint64_t sum; /* keeps the loads alive */
    int failed;
};

static void *read_part(void *arg)
{
    struct part *r = arg;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= r->num; i += 8)
        for (size_t j = 0; j < 8; j++)
            s[j] += r->words[i + j];
    for (size_t j = 0; j < 8; j++)
        r->sum += s[j];
    return NULL;
}

static void read_cpu(void *arg)
{
    struct ceiling *c = arg;
    struct part parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    const size_t words = CPU_CEILING_BYTES / 8 / c->threads;
    uint32_t started = 0;
    for (uint32_t i = 0; i < c->threads; i++)
        parts[i] = (struct part){(const uint64_t *)c->buffer + i * words, words, 0};
    for (uint32_t i = 1; i < c->threads && !c->failed; i++, started++)
        c->failed = pthread_create(&threads[i], NULL, read_part, &parts[i]);
    read_part(&parts[0]);
    for (uint32_t i = 1; i <= started && !c->failed; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < c->threads; i++)
        c->sum += parts[i].sum;
}

static void read_cuda(void *arg)
{
    struct ceiling *c = arg;
    uint64_t address = (uintptr_t)c->buffer, words = CUDA_CEILING_BYTES / 16, sink = address;
    void *params[] = {&address, &words, &sink};
    c->failed |= check(c->d,
                       c->d->cuda.launch(c->function, (unsigned)c->d->num_sms * 8, 1, 1, 256, 1, 1,
                                         0, c->d->stream, params, NULL),
                       "the read kernel");
}

static uint32_t thread_count(uint32_t threads)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (!threads)
        threads = online > 0 ? (uint32_t)online : 1;
    return threads < MAX_THREADS ? threads : MAX_THREADS;
}

static double measure_ceiling(struct ceiling *c)
{
    const int cuda = device_is_cuda(c->d);
    const size_t bytes = cuda ? CUDA_CEILING_BYTES : CPU_CEILING_BYTES;
    void *module;
    double best_us = INFINITY;
    if (cuda && (c->d->cuda.module_load(&module, cuda_read_kernel) ||
                 c->d->cuda.module_function(&c->function, module, "read_all")))
        return NAN;
    c->buffer = device_alloc(c->d, bytes);
    if (!c->buffer)
        return NAN;
    for (int i = 0; i < CEILING_RUNS; i++)
        best_us = fmin(best_us, device_time_us(c->d, cuda ? read_cuda : read_cpu, c));
    device_free(c->d, c->buffer);
    return c->failed ? NAN : (double)bytes / best_us * 1e-3;
}

double device_read_gbps(struct device *d, uint32_t threads)
{
    if (d->read_gbps == 0)
        d->read_gbps = measure_ceiling(&(struct ceiling){.d = d, .threads = thread_count(threads)});
    return d->read_gbps;
}
