/* In: statistics, a table of their names, the caller's labels. Out: Prometheus text, or how long it
 * would be. One table says every name, once; the writer runs over it whether there is room or not,
 * so asking for the length and writing are the same code. Labels are parsed before they are copied:
 * a label from outside cannot add a line or a metric. */
#include "block_manager/prometheus.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "core/status.h"

#define FIELD(field) offsetof(lkv_pool_stats, field), 0
#define BLOCKS "latentkv_pool_blocks", "gauge", "Blocks by state; the states add up to capacity."
#define HOST                                                                                       \
    "latentkv_pool_host_blocks", "gauge", "Host blocks by state; the states add up to capacity."
#define MOVED "latentkv_pool_moved_blocks_total", "counter", "Blocks copied between the tiers."
#define METADATA "latentkv_pool_metadata_bytes", "gauge", "Host memory of the block manager."

/* Samples of one name stand together, as the format wants. */
static const struct lkvi_metric pool_metrics[] = {
    {BLOCKS, "state=\"free\"", FIELD(blocks_free)},
    {BLOCKS, "state=\"idle\"", FIELD(blocks_idle)},
    {BLOCKS, "state=\"in_use\"", FIELD(blocks_in_use)},
    {BLOCKS, "state=\"pending\"", FIELD(blocks_pending)},
    {BLOCKS, "state=\"lent\"", FIELD(blocks_lent)},
    {"latentkv_pool_capacity_blocks", "gauge", "Blocks that can hold tokens.", NULL,
     FIELD(blocks_total)},
    {"latentkv_pool_base_blocks", "gauge", "Blocks that sequences may use; the rest can be lent.",
     NULL, FIELD(blocks_base)},
    {"latentkv_pool_reserved_blocks", "gauge", "Promised to admitted sequences, not taken yet.",
     NULL, FIELD(blocks_reserved)},
    {"latentkv_pool_cached_blocks", "gauge", "Blocks in the prefix index.", NULL,
     FIELD(blocks_cached)},
    {"latentkv_pool_longest_free_run_blocks", "gauge", "Longest run of ids free or idle.", NULL,
     FIELD(longest_free_run)},
    {"latentkv_pool_sequences", "gauge", "Live sequences.", NULL, FIELD(seqs_live)},
    {"latentkv_pool_tokens", "gauge", "Lengths of live sequences, added up.", NULL,
     FIELD(tokens_live)},
    {"latentkv_pool_waste_tokens", "gauge", "Room of live sequences that holds no token.", NULL,
     FIELD(waste_tokens)},
    {HOST, "state=\"free\"", FIELD(host_blocks_free)},
    {HOST, "state=\"idle\"", FIELD(host_blocks_idle)},
    {HOST, "state=\"in_use\"", FIELD(host_blocks_in_use)},
    {HOST, "state=\"pending\"", FIELD(host_blocks_pending)},
    {"latentkv_pool_host_capacity_blocks", "gauge", "Blocks of the host tier.", NULL,
     FIELD(host_blocks_total)},
    {"latentkv_pool_host_cached_blocks", "gauge", "In the prefix index, on the host alone.", NULL,
     FIELD(host_blocks_cached)},
    {"latentkv_pool_host_copy_blocks", "gauge", "Copies of blocks that are cached on the device.",
     NULL, FIELD(host_blocks_copies)},
    {"latentkv_pool_swapped_sequences", "gauge", "Sequences that are swapped out.", NULL,
     FIELD(seqs_swapped)},
    {METADATA, "kind=\"allocated\"", FIELD(metadata_allocated_bytes)},
    {METADATA, "kind=\"active\"", FIELD(metadata_active_bytes)},
    {METADATA, "kind=\"resident\"", FIELD(metadata_resident_bytes)},
    {"latentkv_pool_prompt_tokens_total", "counter", "Tokens of admitted prompts.", NULL,
     FIELD(prompt_tokens)},
    {"latentkv_pool_hit_tokens_total", "counter", "Of these, found in the prefix cache.", NULL,
     FIELD(hit_tokens)},
    {"latentkv_pool_partial_hit_tokens_total", "counter",
     "Of the hits, tokens copied from inside a block.", NULL, FIELD(partial_hit_tokens)},
    {"latentkv_pool_evicted_blocks_total", "counter", "Cached blocks given up for room.", NULL,
     FIELD(evicted_blocks)},
    {"latentkv_pool_copied_blocks_total", "counter", "Copies on write and of partial hits.", NULL,
     FIELD(copied_blocks)},
    {"latentkv_pool_published_blocks_total", "counter", "Blocks that entered the prefix index.",
     NULL, FIELD(published_blocks)},
    {MOVED, "kind=\"demoted\"", FIELD(demoted_blocks)},
    {MOVED, "kind=\"promoted\"", FIELD(promoted_blocks)},
    {MOVED, "kind=\"swapped_out\"", FIELD(swapped_out_blocks)},
    {MOVED, "kind=\"swapped_in\"", FIELD(swapped_in_blocks)},
};

/* ---- labels: name="value"[,name="value"]... */

static int name_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static const char *skip_name(const char *p)
{
    if (!name_letter(*p))
        return NULL;
    while (name_letter(*p) || (*p >= '0' && *p <= '9'))
        p++;
    return p;
}

/* Behind the closing quote; NULL for a raw newline, an unknown escape, no closing quote. */
static const char *skip_value(const char *p)
{
    if (*p++ != '"')
        return NULL;
    for (; *p != '"'; p++) {
        if (*p == '\\' && (*++p != '\\' && *p != '"' && *p != 'n'))
            return NULL;
        if (!*p || *p == '\n' || *p == '\r')
            return NULL;
    }
    return p + 1;
}

/* Names that samples of the table use themselves would stand twice on one line. */
static int is_taken(const char *name, size_t length)
{
    static const char *const taken[] = {"state", "kind", "expert"};
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strlen(taken[i]) == length && !memcmp(name, taken[i], length))
            return 1;
    return 0;
}

static lkv_status labels_check(const char *labels)
{
    const char *p = labels;
    while (*p) {
        const char *name = p, *end = skip_name(p);
        if (end && is_taken(name, (size_t)(end - name)))
            return lkvi_fail(LKV_E_INVALID,
                             "labels name %.*s, which samples use themselves; need "
                             "another name",
                             (int)(end - name), name);
        p = end && *end == '=' ? skip_value(end + 1) : NULL;
        if (!p || (*p && *p != ',') || (*p == ',' && !p[1]))
            return lkvi_fail(LKV_E_INVALID,
                             "labels break at byte %zu; need name=\"value\" pairs "
                             "with commas between them",
                             (size_t)(name - labels));
        p += *p == ',';
    }
    return LKV_OK;
}

/* ---- text */

struct writer {
    char *buffer;
    size_t capacity, length;
};

static void put(struct writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct writer *w, const char *format, ...)
{
    va_list args;
    size_t at = w->length < w->capacity ? w->length : w->capacity;
    va_start(args, format);
    int n = vsnprintf(w->capacity ? w->buffer + at : NULL, w->capacity - at, format, args);
    va_end(args);
    w->length += n > 0 ? (size_t)n : 0;
}

static void put_head(struct writer *w, const char *name, const char *type, const char *help)
{
    put(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_metric(struct writer *w, const struct lkvi_metric *metric, const void *stats,
                       const char *labels)
{
    const char *own = metric->label ? metric->label : "";
    const char *comma = *own && *labels ? "," : "";
    const char *at = (const char *)stats + metric->offset;
    uint64_t whole;
    double real;
    if (*own || *labels)
        put(w, "%s{%s%s%s} ", metric->name, own, comma, labels);
    else
        put(w, "%s ", metric->name);
    if (metric->is_real) {
        memcpy(&real, at, sizeof real);
        put(w, "%.17g\n", real);
    } else {
        memcpy(&whole, at, sizeof whole);
        put(w, "%llu\n", (unsigned long long)whole);
    }
}

static void put_series(struct writer *w, const struct lkvi_series *s, const char *labels)
{
    if (s->num)
        put_head(w, s->name, s->type, s->help);
    for (uint32_t i = 0; i < s->num; i++)
        put(w, "%s{%s=\"%u\"%s%s} %llu\n", s->name, s->label, i, *labels ? "," : "", labels,
            (unsigned long long)s->values[i]);
}

static size_t write_all(struct writer w, const struct lkvi_metrics *metrics, const void *stats,
                        const char *labels)
{
    for (size_t i = 0; i < metrics->num; i++) {
        const struct lkvi_metric *m = &metrics->table[i];
        if (!i || strcmp(m->name, metrics->table[i - 1].name))
            put_head(&w, m->name, m->type, m->help);
        put_metric(&w, m, stats, labels);
    }
    put_series(&w, &metrics->series, labels);
    return w.length + 1;
}

lkv_status lkvi_metrics_text(const struct lkvi_metrics *metrics, const void *stats,
                             const char *labels, char *buffer, size_t capacity, size_t *needed)
{
    labels = labels ? labels : "";
    LKV_TRY(labels_check(labels));
    size_t want = write_all((struct writer){NULL, 0, 0}, metrics, stats, labels);
    if (capacity && capacity < want)
        return lkvi_fail(LKV_E_INVALID, "capacity is %zu bytes; need %zu", capacity, want);
    if (capacity)
        write_all((struct writer){buffer, capacity, 0}, metrics, stats, labels);
    *needed = want;
    return LKV_OK;
}

lkv_status lkvi_stats_text(const lkv_pool_stats *stats, const char *labels, char *buffer,
                           size_t capacity, size_t *needed)
{
    static const struct lkvi_metrics metrics = {
        .table = pool_metrics, .num = sizeof pool_metrics / sizeof pool_metrics[0]};
    return lkvi_metrics_text(&metrics, stats, labels, buffer, capacity, needed);
}
