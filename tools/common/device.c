/* In: sizes, host data, work to time. Out: device memory and microseconds. Two implementations of a
 * handful of verbs, told apart by device_is_cuda. */
#include "tools/common/device.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "latentkv/latentkv.h"
#include "tools/common/clock.h"
#include "tools/common/cuda_driver.h"
#include "tools/common/out.h"

enum { CPU_FLUSH_BYTES = 64 << 20, CEILING_RUNS = 9, MAX_THREADS = 256 };
#define CUDA_CEILING_BYTES ((size_t)1 << 30)
#define CPU_CEILING_BYTES ((size_t)256 << 20)

struct device {
    int32_t ordinal;
    uint32_t threads;
    char label[24];
    struct cuda_driver cuda;
    void *stream, *begin, *end;
    void *flush; /* a buffer larger than the last cache */
    size_t flush_bytes;
    int num_sms;
    double read_gbps;
};

static void must(const struct device *d, int error, const char *what)
{
    const char *text = NULL;
    if (!error)
        return;
    d->cuda.error_text(error, &text);
    out_die("%s: %s: %s", d->label, what, text ? text : "unknown error");
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

static void open_cuda(struct device *d)
{
    int handle, l2_bytes;
    void *context;
    snprintf(d->label, sizeof d->label, "cuda:%d", d->ordinal);
    cuda_driver_open(&d->cuda);
    must(d, d->cuda.init(0), "the driver");
    must(d, d->cuda.device_get(&handle, d->ordinal), "the device");
    must(d, d->cuda.context_retain(&context, handle), "the context");
    must(d, d->cuda.context_use(context), "the context");
    must(d, d->cuda.stream_create(&d->stream, 0), "a stream");
    must(d, d->cuda.event_create(&d->begin, 0), "an event");
    must(d, d->cuda.event_create(&d->end, 0), "an event");
    must(d, d->cuda.device_attribute(&l2_bytes, CUDA_ATTRIBUTE_L2_BYTES, handle), "L2 size");
    must(d, d->cuda.device_attribute(&d->num_sms, CUDA_ATTRIBUTE_SM_COUNT, handle), "SM count");
    d->flush_bytes = 4 * (size_t)l2_bytes;
}

struct device *device_open(int32_t ordinal, uint32_t threads)
{
    struct device *d = out_alloc(1, sizeof *d);
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    d->ordinal = ordinal;
    d->threads = threads ? threads : online > 0 ? (uint32_t)online : 1;
    d->threads = d->threads < MAX_THREADS ? d->threads : MAX_THREADS;
    d->flush_bytes = CPU_FLUSH_BYTES;
    snprintf(d->label, sizeof d->label, "cpu");
    if (ordinal >= 0)
        open_cuda(d);
    d->flush = device_alloc(d, d->flush_bytes);
    return d;
}

void device_close(struct device *d)
{
    device_free(d, d->flush);
    free(d); /* stream, events and the primary context end with the process */
}

void *device_alloc(struct device *d, size_t bytes)
{
    void *p = NULL;
    uint64_t address = 0;
    bytes = (bytes + 255) / 256 * 256 + (bytes ? 0 : 256);
    if (device_is_cuda(d)) {
        must(d, d->cuda.alloc(&address, bytes), "memory");
        must(d, d->cuda.fill(address, 0, bytes, d->stream), "memory");
        must(d, d->cuda.stream_wait(d->stream), "memory");
        return (void *)(uintptr_t)address;
    }
    p = aligned_alloc(256, bytes);
    if (!p)
        out_die("out of memory: %zu bytes", bytes);
    memset(p, 0, bytes);
    return p;
}

void device_free(struct device *d, void *p)
{
    if (!device_is_cuda(d))
        free(p);
    else if (p)
        must(d, d->cuda.free((uintptr_t)p), "free");
}

void device_write(struct device *d, void *to, const void *from, size_t bytes)
{
    if (device_is_cuda(d))
        must(d, d->cuda.write((uintptr_t)to, from, bytes), "copy to the device");
    else
        memcpy(to, from, bytes);
}

void device_read(struct device *d, void *to, const void *from, size_t bytes)
{
    if (device_is_cuda(d))
        must(d, d->cuda.read(to, (uintptr_t)from, bytes), "copy from the device");
    else
        memcpy(to, from, bytes);
}

void *device_upload(struct device *d, const void *from, size_t bytes)
{
    void *p = device_alloc(d, bytes);
    device_write(d, p, from, bytes);
    return p;
}

void device_flush(struct device *d)
{
    static unsigned char value;
    value++;
    if (device_is_cuda(d))
        must(d, d->cuda.fill((uintptr_t)d->flush, value, d->flush_bytes, d->stream), "flush");
    else
        memset(d->flush, value, d->flush_bytes);
}

double device_time_us(struct device *d, void (*run)(void *arg), void *arg)
{
    float ms;
    if (!device_is_cuda(d)) {
        const uint64_t begin = clock_ns();
        run(arg);
        return (double)(clock_ns() - begin) * 1e-3;
    }
    must(d, d->cuda.event_record(d->begin, d->stream), "an event");
    run(arg);
    must(d, d->cuda.event_record(d->end, d->stream), "an event");
    must(d, d->cuda.event_wait(d->end), "the work");
    must(d, d->cuda.event_elapsed_ms(&ms, d->begin, d->end), "an event");
    return ms * 1e3;
}

/* ---- read ceiling */

struct cpu_read {
    const uint64_t *words;
    size_t num;
    uint64_t sum;
};

static void *read_part(void *arg)
{
    struct cpu_read *r = arg;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= r->num; i += 8)
        for (size_t j = 0; j < 8; j++)
            s[j] += r->words[i + j];
    for (size_t j = 0; j < 8; j++)
        r->sum += s[j];
    return NULL;
}

struct ceiling {
    struct device *d;
    void *buffer;
    void *function;
    uint64_t sink;
};

static void read_cpu(void *arg)
{
    struct ceiling *c = arg;
    struct cpu_read parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    const uint32_t n = c->d->threads;
    const size_t words = CPU_CEILING_BYTES / 8 / n;
    for (uint32_t i = 0; i < n; i++) {
        parts[i] = (struct cpu_read){(const uint64_t *)c->buffer + i * words, words, 0};
        if (pthread_create(&threads[i], NULL, read_part, &parts[i]))
            out_die("could not start %u threads", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        c->sink += parts[i].sum;
    }
}

static void read_cuda(void *arg)
{
    struct ceiling *c = arg;
    uint64_t address = (uintptr_t)c->buffer, words = CUDA_CEILING_BYTES / 16, sink = address;
    void *params[] = {&address, &words, &sink};
    must(c->d,
         c->d->cuda.launch(c->function, (unsigned)c->d->num_sms * 8, 1, 1, 256, 1, 1, 0,
                           c->d->stream, params, NULL),
         "the read kernel");
}

double device_read_gbps(struct device *d)
{
    const size_t bytes = device_is_cuda(d) ? CUDA_CEILING_BYTES : CPU_CEILING_BYTES;
    struct ceiling c = {.d = d};
    void *module;
    if (d->read_gbps != 0)
        return d->read_gbps;
    d->read_gbps = NAN;
    if (device_is_cuda(d) && (d->cuda.module_load(&module, cuda_read_kernel) ||
                              d->cuda.module_function(&c.function, module, "read_all")))
        return d->read_gbps;
    c.buffer = device_alloc(d, bytes);
    double best_us = INFINITY;
    for (int i = 0; i < CEILING_RUNS; i++) {
        const double us = device_time_us(d, device_is_cuda(d) ? read_cuda : read_cpu, &c);
        best_us = us < best_us ? us : best_us;
    }
    device_free(d, c.buffer);
    d->read_gbps = (double)bytes / best_us * 1e-3;
    return d->read_gbps;
}
