/* A workload: requests with arrival times, lengths and the ids of their prompt blocks. Equal
 * (space, id) at equal trace block size means equal tokens. Ids are kept as runs. */
#ifndef TOOLS_REPLAY_TRACE_H
#define TOOLS_REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

enum { TRACE_MOONCAKE_BLOCK = 512, TRACE_CLAUDE_BLOCK = 64 };

struct trace_run { /* ids first, first + 1, ..., first + count - 1 */
    uint32_t first, count;
};

struct trace_request {
    double arrival_s;
    uint32_t input_length, output_length;
    uint32_t space; /* ids of different spaces are different blocks */
    uint32_t num_runs;
    uint64_t first_run; /* in trace.runs */
};

struct trace {
    struct trace_request *requests;
    struct trace_run *runs;
    uint64_t num_requests, num_runs, requests_capacity, runs_capacity;
    uint32_t block_tokens; /* of the ids */
    uint32_t num_spaces;
};

/* Starts a request without ids; the pointer holds until the next call. */
struct trace_request *trace_add_request(struct trace *t);
/* Appends ids to the last request. */
void trace_add_ids(struct trace *t, uint32_t first, uint32_t count);

/* Reads the first `limit` requests (0: all) of a file, plain or gzip. The kind is seen from the
 * first line: Mooncake JSONL, Claude Code JSONL (session starts lie session_gap_s apart), Azure CSV
 * (every prompt private). A wrong line ends the command with its number. */
void trace_read(struct trace *t, const char *path, uint64_t limit, double session_gap_s);
/* Writes the Mooncake form. */
void trace_write(const struct trace *t, const char *path);
/* Keeps what arrives before until_s; how many that are. */
uint64_t trace_cut(struct trace *t, double until_s);
/* Where a later request has all whole ids of a request and goes on, its next id is appended to the
 * earlier one's: the tokens past the ids are then the first ones of that id's block. */
void trace_continue_tails(struct trace *t);
/* Stable order by arrival. */
void trace_sort(struct trace *t);
void trace_free(struct trace *t);

uint32_t trace_longest(const struct trace *t); /* input + output */
/* Blocks of block_tokens that hold every distinct prompt of the trace at once. */
uint64_t trace_working_set(const struct trace *t, uint32_t block_tokens);

#endif
