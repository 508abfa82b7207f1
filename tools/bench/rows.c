/* In: timed runs of a shape. Out: rows: median and p10, p90 of the time, bytes and operations a
 * second, the read ceiling of the device beside them. */
#include <math.h>
#include <stdio.h>

#include "tools/bench/bench.h"
#include "tools/common/clock.h"
#include "tools/common/out.h"
#include "tools/common/parse.h"

enum { WARM_UPS = 2, RUNS_AT_LEAST = 5 };

void bench_measure(struct bench *b, void (*run)(void *), void *arg, struct series *us)
{
    for (int i = 0; i < WARM_UPS; i++)
        device_time_us(b->device, run, arg);
    const uint64_t begin = clock_ns();
    for (uint32_t i = 0; i < b->options->repeats; i++) {
        if (i >= RUNS_AT_LEAST && (double)(clock_ns() - begin) * 1e-9 > b->options->seconds)
            break;
        if (!b->options->keep_caches && device_flush(b->device))
            out_die("%s: %s", device_label(b->device), device_error());
        const double time_us = device_time_us(b->device, run, arg);
        if (isnan(time_us))
            out_die("%s: %s", device_label(b->device), device_error());
        series_add(us, time_us);
    }
}

static json_t *count(uint64_t n)
{
    return n ? json_integer((json_int_t)n) : json_null();
}

void bench_add_row(struct bench *b, const char *kernel, const struct bench_shape *shape,
                   struct series *us, double bytes, double flops)
{
    const double median = series_percentile(us, 0.5);
    json_t *row = json_pack("{s:s,s:s,s:s,s:o,s:o,s:o,s:o,s:o}", "device", device_label(b->device),
                            "kernel", kernel, "format", format_name(shape->format), "heads",
                            count(shape->heads), "q_len", count(shape->q_len), "batch",
                            count(shape->batch), "context", count(shape->context), "threads",
                            count(device_is_cuda(b->device) ? 0 : b->info.num_threads));
    json_object_set_new(row, "us", out_number(median));
    json_object_set_new(row, "us_p10", out_number(series_percentile(us, 0.1)));
    json_object_set_new(row, "us_p90", out_number(series_percentile(us, 0.9)));
    json_object_set_new(row, "gbps", out_number(bytes / median * 1e-3));
    json_object_set_new(row, "tflops", flops > 0 ? out_number(flops / median * 1e-6) : json_null());
    json_object_set_new(row, "read_ceiling_gbps",
                        out_number(device_read_gbps(b->device, b->options->threads)));
    json_object_set_new(row, "fma_ceiling_tflops",
                        b->fma_tflops > 0 ? out_number(b->fma_tflops) : json_null());
    json_object_set_new(row, "peer", json_null());
    json_object_set_new(row, "peer_us", json_null());
    json_array_append_new(b->rows, row);
}

static void cell(struct out_table *t, const json_t *row, const char *key, const char *format)
{
    const json_t *v = json_object_get(row, key);
    if (json_is_string(v))
        out_cell(t, "%s", json_string_value(v));
    else if (!json_is_number(v))
        out_cell(t, "-");
    else if (format[1] == '.')
        out_cell(t,
                 format[2] == '0'   ? "%.0f"
                 : format[2] == '1' ? "%.1f"
                                    : "%.3f",
                 json_number_value(v));
}

static void share_cell(struct out_table *t, const json_t *row, const char *key, const char *ceiling)
{
    const json_t *part = json_object_get(row, key), *whole = json_object_get(row, ceiling);
    if (json_is_number(part) && json_is_number(whole))
        out_cell(t, "%.1f", 100 * json_number_value(part) / json_number_value(whole));
    else
        out_cell(t, "-");
}

void bench_print_rows(const json_t *rows)
{
    static const char *const keys[] = {"device", "kernel",  "format",  "heads", "q_len",
                                       "batch",  "context", "threads", "us",    "us_p10",
                                       "us_p90", "gbps",    "tflops"};
    static const char *const formats[] = {"",    "",    "",    "%.0", "%.0", "%.0", "%.0",
                                          "%.0", "%.1", "%.1", "%.1", "%.1", "%.3"};
    static const char *const heads[] = {"device",
                                        "kernel",
                                        "format",
                                        "heads",
                                        "q_len",
                                        "batch",
                                        "context",
                                        "threads",
                                        "us",
                                        "p10",
                                        "p90",
                                        "GB/s",
                                        "TFLOP/s",
                                        "% of read peak",
                                        "% of FMA peak",
                                        "peer us, quoted",
                                        "x the peer"};
    enum { NUM_KEYS = sizeof keys / sizeof *keys };
    struct out_table *t = out_table_new(NUM_KEYS + 4, heads);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < NUM_KEYS; k++)
            cell(t, row, keys[k], formats[k]);
        share_cell(t, row, "gbps", "read_ceiling_gbps");
        share_cell(t, row, "tflops", "fma_ceiling_tflops");
        cell(t, row, "peer_us", "%.1");
        const json_t *peer = json_object_get(row, "peer_us"), *us = json_object_get(row, "us");
        if (json_is_number(peer) && json_is_number(us))
            out_cell(t, "%.2f", json_number_value(peer) / json_number_value(us));
        else
            out_cell(t, "-");
    }
    out_table_print(t, stdout);
}
