/* In: a trace file of one of three kinds. Out: requests with runs of ids. Lines are parsed one at a
 * time by jansson; what the replay relies on (lengths against numbers of ids) is checked here,
 * once.
 */
#include "tools/replay/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#include "tools/common/out.h"

enum { MAX_LENGTH = 1 << 26, MAX_ID = 0x7fffffff };

struct reader {
    const char *path;
    gzFile file;
    uint64_t line_number;
    char *line;
    size_t capacity;
    struct trace *trace;
    double session_gap_s, first_time;
    char *session;
};

static _Noreturn void bad_line(const struct reader *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void bad_line(const struct reader *r, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    out_die("%s, line %llu: %s", r->path, (unsigned long long)r->line_number, text);
}

struct trace_request *trace_add_request(struct trace *t)
{
    if (t->num_requests == t->requests_capacity) {
        t->requests_capacity = t->requests_capacity ? 2 * t->requests_capacity : 1024;
        t->requests = out_grow(t->requests, t->requests_capacity * sizeof *t->requests);
    }
    struct trace_request *r = &t->requests[t->num_requests++];
    *r = (struct trace_request){.first_run = t->num_runs};
    return r;
}

void trace_add_ids(struct trace *t, uint32_t first, uint32_t count)
{
    struct trace_request *r = &t->requests[t->num_requests - 1];
    struct trace_run *last = r->num_runs ? &t->runs[t->num_runs - 1] : NULL;
    if (last && last->first + last->count == first) {
        last->count += count;
        return;
    }
    if (t->num_runs == t->runs_capacity) {
        t->runs_capacity = t->runs_capacity ? 2 * t->runs_capacity : 4096;
        t->runs = out_grow(t->runs, t->runs_capacity * sizeof *t->runs);
    }
    t->runs[t->num_runs++] = (struct trace_run){first, count};
    r->num_runs++;
}

static int next_line(struct reader *r)
{
    size_t n = 0;
    for (;;) {
        if (r->capacity - n < 4096) {
            r->capacity = r->capacity ? 2 * r->capacity : 65536;
            r->line = out_grow(r->line, r->capacity);
        }
        if (!gzgets(r->file, r->line + n, (int)(r->capacity - n)))
            break;
        n += strlen(r->line + n);
        if (n && r->line[n - 1] == '\n')
            break;
    }
    int error = Z_OK;
    const char *why = gzerror(r->file, &error);
    r->line_number++;
    if (error != Z_OK && error != Z_STREAM_END)
        bad_line(r, "%s", why);
    while (n && (r->line[n - 1] == '\n' || r->line[n - 1] == '\r'))
        r->line[--n] = 0;
    return n > 0;
}

static double number_of(const struct reader *r, const json_t *object, const char *key, double least,
                        double most)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_number(v) || !(json_number_value(v) >= least) || json_number_value(v) > most)
        bad_line(r, "\"%s\" is missing or not a number from %.0f to %.0f", key, least, most);
    return json_number_value(v);
}

static uint32_t id_of(const struct reader *r, const json_t *v)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > MAX_ID)
        bad_line(r, "a block id is not a whole number from 0 to %d", MAX_ID);
    return (uint32_t)json_integer_value(v);
}

static uint64_t count_ids(const struct trace *t)
{
    const struct trace_request *q = &t->requests[t->num_requests - 1];
    uint64_t n = 0;
    for (uint32_t i = 0; i < q->num_runs; i++)
        n += t->runs[q->first_run + i].count;
    return n;
}

static void expect_ids(const struct reader *r, uint64_t wanted)
{
    const uint64_t found = count_ids(r->trace);
    if (found != wanted)
        bad_line(r, "%llu block ids; need %llu for this input_length", (unsigned long long)found,
                 (unsigned long long)wanted);
}

static struct trace_request *read_lengths(struct reader *r, const json_t *object)
{
    struct trace_request *q = trace_add_request(r->trace);
    q->input_length = (uint32_t)number_of(r, object, "input_length", 1, MAX_LENGTH);
    q->output_length = (uint32_t)number_of(r, object, "output_length", 0, MAX_LENGTH);
    return q;
}

static void read_mooncake(struct reader *r, const json_t *object)
{
    struct trace_request *q = read_lengths(r, object);
    q->arrival_s = number_of(r, object, "timestamp", 0, 1e15) / 1000;
    const uint32_t length = q->input_length;
    const json_t *ids = json_object_get(object, "hash_ids");
    for (size_t i = 0; i < json_array_size(ids); i++)
        trace_add_ids(r->trace, id_of(r, json_array_get(ids, i)), 1);
    expect_ids(r, (length + TRACE_MOONCAKE_BLOCK - 1) / TRACE_MOONCAKE_BLOCK);
}

static void read_claude(struct reader *r, const json_t *object)
{
    const char *session = json_string_value(json_object_get(object, "session"));
    if (!session)
        bad_line(r, "\"session\" is missing");
    if (!r->session || strcmp(r->session, session) != 0) {
        free(r->session);
        r->session = strdup(session);
        r->trace->num_spaces++;
    }
    struct trace_request *q = read_lengths(r, object);
    q->space = r->trace->num_spaces - 1;
    q->arrival_s = q->space * r->session_gap_s + number_of(r, object, "t", 0, 1e12);
    const uint32_t length = q->input_length;
    const json_t *runs = json_object_get(object, "hash_runs");
    for (size_t i = 0; i < json_array_size(runs); i++) {
        const json_t *run = json_array_get(runs, i);
        const uint32_t first = id_of(r, json_array_get(run, 0));
        const uint32_t count = id_of(r, json_array_get(run, 1));
        if (count > MAX_LENGTH)
            bad_line(r, "a run of %u ids is longer than any prompt", count);
        trace_add_ids(r->trace, first, count);
    }
    expect_ids(r, length / TRACE_CLAUDE_BLOCK);
}

static double csv_time(const struct reader *r, const char *text)
{
    struct tm day = {0};
    double second;
    if (sscanf(text, "%d-%d-%d %d:%d:%lf", &day.tm_year, &day.tm_mon, &day.tm_mday, &day.tm_hour,
               &day.tm_min, &second) != 6)
        bad_line(r, "the timestamp is not YYYY-MM-DD HH:MM:SS.fff");
    day.tm_year -= 1900;
    day.tm_mon -= 1;
    return (double)timegm(&day) + second;
}

static void read_csv(struct reader *r)
{
    const char *comma = strchr(r->line, ',');
    unsigned input, output;
    if (!comma || sscanf(comma, ",%u,%u", &input, &output) != 2 || input < 1 ||
        input > MAX_LENGTH || output > MAX_LENGTH)
        bad_line(r, "need TIMESTAMP,ContextTokens (1 to %d),GeneratedTokens", MAX_LENGTH);
    const double time_s = csv_time(r, r->line);
    struct trace_request *q = trace_add_request(r->trace);
    if (r->trace->num_requests == 1)
        r->first_time = time_s;
    q->arrival_s = time_s - r->first_time;
    q->input_length = input;
    q->output_length = output;
}

static void read_json(struct reader *r)
{
    json_error_t where;
    json_t *object = json_loads(r->line, 0, &where);
    if (!object)
        bad_line(r, "%s", where.text);
    const int claude = json_object_get(object, "hash_runs") != NULL;
    const uint32_t block = claude ? TRACE_CLAUDE_BLOCK : TRACE_MOONCAKE_BLOCK;
    if (!claude && !json_is_array(json_object_get(object, "hash_ids")))
        bad_line(r, "neither \"hash_ids\" nor \"hash_runs\" is there: not a known trace");
    if (r->trace->block_tokens && r->trace->block_tokens != block)
        bad_line(r, "another kind of trace than the lines before");
    r->trace->block_tokens = block;
    (claude ? read_claude : read_mooncake)(r, object);
    json_decref(object);
}

void trace_read(struct trace *t, const char *path, uint64_t limit, double session_gap_s)
{
    struct reader r = {.path = path, .trace = t, .session_gap_s = session_gap_s};
    *t = (struct trace){0};
    r.file = gzopen(path, "rb");
    if (!r.file)
        out_die("%s: %s", path, strerror(errno));
    gzbuffer(r.file, 1 << 17);
    int csv = 0;
    while ((!limit || t->num_requests < limit) && next_line(&r)) {
        if (r.line_number == 1 && !strncmp(r.line, "TIMESTAMP", 9))
            csv = 1;
        else if (csv)
            read_csv(&r);
        else
            read_json(&r);
    }
    gzclose(r.file);
    free(r.line);
    free(r.session);
    if (!t->num_requests)
        out_die("%s: no requests", path);
    t->block_tokens = t->block_tokens ? t->block_tokens : TRACE_CLAUDE_BLOCK;
    t->num_spaces = t->num_spaces ? t->num_spaces : 1;
}

static void write_request(const struct trace *t, const struct trace_request *q, FILE *to)
{
    fprintf(to,
            "{\"timestamp\": %.0f, \"input_length\": %u, \"output_length\": %u, \"hash_ids\": [",
            q->arrival_s * 1000, q->input_length, q->output_length);
    const char *comma = "";
    for (uint32_t i = 0; i < q->num_runs; i++) {
        const struct trace_run run = t->runs[q->first_run + i];
        for (uint32_t j = 0; j < run.count; j++, comma = ", ")
            fprintf(to, "%s%u", comma, run.first + j);
    }
    fputs("]}\n", to);
}

void trace_write(const struct trace *t, const char *path)
{
    FILE *to = strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!to)
        out_die("%s: %s", path, strerror(errno));
    for (uint64_t i = 0; i < t->num_requests; i++)
        write_request(t, &t->requests[i], to);
    const int bad = ferror(to) | (to == stdout ? fflush(to) : fclose(to));
    if (bad)
        out_die("%s: could not write the trace", path);
}

/* Runs follow requests in the order of first_run, so equal arrivals keep their order. */
static int by_arrival(const void *a, const void *b)
{
    const struct trace_request *x = a, *y = b;
    if (x->arrival_s != y->arrival_s)
        return x->arrival_s < y->arrival_s ? -1 : 1;
    return (x->first_run > y->first_run) - (x->first_run < y->first_run);
}

void trace_sort(struct trace *t)
{
    int sorted = 1;
    for (uint64_t i = 1; i < t->num_requests && sorted; i++)
        sorted = t->requests[i - 1].arrival_s <= t->requests[i].arrival_s;
    if (!sorted)
        qsort(t->requests, t->num_requests, sizeof *t->requests, by_arrival);
}

uint64_t trace_cut(struct trace *t, double until_s)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < t->num_requests; i++)
        if (t->requests[i].arrival_s < until_s)
            t->requests[kept++] = t->requests[i];
    t->num_requests = kept;
    return kept;
}

void trace_free(struct trace *t)
{
    free(t->requests);
    free(t->runs);
    *t = (struct trace){0};
}

uint32_t trace_longest(const struct trace *t)
{
    uint32_t longest = 1;
    for (uint64_t i = 0; i < t->num_requests; i++) {
        const uint32_t n = t->requests[i].input_length + t->requests[i].output_length;
        longest = n > longest ? n : longest;
    }
    return longest;
}

/* ---- distinct ids: one bitmap a space, since ids are small and dense in every known trace */

struct bitmap {
    uint64_t *words;
    uint64_t num_words;
};

static uint64_t bitmap_add(struct bitmap *b, uint64_t first, uint64_t count)
{
    uint64_t fresh = 0;
    if (first + count > 64 * b->num_words) {
        const uint64_t words = (first + count) / 64 + 1 + b->num_words / 2;
        b->words = out_grow(b->words, words * sizeof *b->words);
        memset(b->words + b->num_words, 0, (words - b->num_words) * sizeof *b->words);
        b->num_words = words;
    }
    for (uint64_t i = first; i < first + count; i++) {
        fresh += !(b->words[i / 64] >> (i % 64) & 1);
        b->words[i / 64] |= UINT64_C(1) << (i % 64);
    }
    return fresh;
}

uint64_t trace_working_set(const struct trace *t, uint32_t block_tokens)
{
    struct bitmap *maps = out_alloc(t->num_spaces, sizeof *maps);
    uint64_t ids = 0, tail_blocks = 0;
    for (uint64_t i = 0; i < t->num_requests; i++) {
        const struct trace_request *q = &t->requests[i];
        uint64_t covered = 0;
        for (uint32_t j = 0; j < q->num_runs; j++) {
            const struct trace_run run = t->runs[q->first_run + j];
            ids += bitmap_add(&maps[q->space], run.first, run.count);
            covered += (uint64_t)run.count * t->block_tokens;
        }
        /* what no id names is private: it ends in a block of its own */
        const uint64_t rest = q->input_length > covered ? q->input_length - covered : 0;
        tail_blocks += (rest + block_tokens - 1) / block_tokens;
    }
    for (uint32_t s = 0; s < t->num_spaces; s++)
        free(maps[s].words);
    free(maps);
    return (ids * t->block_tokens + block_tokens - 1) / block_tokens + tail_blocks;
}
