/* How a batch is split over the CTAs, compiled for host and device. In: sequence lengths. Out: for
 * each range of KV tiles where it starts, and back from a sequence to its ranges. The one idea: all
 * sequences' tiles lie end to end on one line; a range is an interval of that line, so the work is
 * even whatever the lengths are. A partial result of (range r, sequence s) has slot r + s: going
 * along the line one of the two grows at every step, so slots never collide.
 *
 *   sequence   |------0------|--1--|-----------2-----------|
 *   range      |---0---|---1---|---2---|---3---|---4---|---5-
 *
 * With BATCH_INVARIANT a sequence is cut into chunks of fixed size instead, so that its cuts depend
 * on its own length alone. */
#ifndef LKVI_ATTENTION_CUDA_SPLIT_H
#define LKVI_ATTENTION_CUDA_SPLIT_H

#include <stdint.h>
#include "attention/params.h"

#ifdef __CUDACC__
#define LKVI_BOTH __host__ __device__ static inline
#else
#define LKVI_BOTH static inline
#endif

enum {
    LKVI_TILE_TOKENS = 64,    /* KV tokens of one step of a kernel */
    LKVI_SEQ_COST_TILES = 2,  /* what starting a sequence costs: q, partial output */
    LKVI_CHUNKS_MAX = 16,     /* of one sequence, batch invariant */
    LKVI_PARTIAL_FLOATS = 512 /* latent dims of one partial row */
};

/* Sizes fixed at plan creation. */
struct lkvi_split_shape {
    uint32_t num_seqs, num_tokens; /* maxima */
    uint32_t num_ranges;           /* maximum */
    uint32_t row_tiles;            /* CTAs that share one range: rows / rows_per_tile */
    uint32_t rows;                 /* (token, head) rows one CTA holds */
    uint32_t chunk_tiles;          /* 0: even split; else batch invariant */
};

/* What a kernel asks for lies in one 32-byte sector: with cold caches a chain of dependent loads
 * costs more than a short sequence's attention. */
struct lkvi_split_seq {
    int32_t first_row, q_len;
    int32_t length;     /* keys, 0 also where a fault hides them */
    int32_t tile_start; /* its place on the line */
};
struct lkvi_split_range { /* an interval of the line */
    int32_t tile, tile_end;
    int32_t seq, reserved;       /* that holds its first tile */
    struct lkvi_split_seq first; /* the same sequence's place; zeros in an empty range */
};
struct lkvi_split_token {
    int32_t seq;              /* -1: row of no sequence */
    int32_t first_row;        /* of the sequence */
    int32_t range, num_parts; /* first range of the sequence and how many follow on */
};

/* Arrays in the workspace. */
struct lkvi_split {
    struct lkvi_split_range *ranges; /* [ranges] all of them; unused ones are empty */
    struct lkvi_split_seq *seqs;     /* [S] */
    struct lkvi_split_token *tokens; /* [T] */
    int32_t *tile_start;             /* [S + 1] prefix of tiles */
    int32_t *cost_start;             /* [S + 1] prefix of costs (even split) or of chunks */
    float *partial_stats; /* [ranges + S, row_tiles, rows, 4]: max (log2), sum, sum p*(s - max) */
    float *partial_out;   /* [ranges + S, row_tiles, rows, 512], not normalised */
};

LKVI_BOTH uint64_t lkvi_split_round(uint64_t bytes)
{
    return (bytes + 255) & ~(uint64_t)255;
}

/* Places the arrays from base on; returns the bytes used. base NULL: only the size. */
LKVI_BOTH uint64_t lkvi_split_place(const struct lkvi_split_shape *shape, void *base,
                                    struct lkvi_split *out)
{
    uint64_t at = 0, slots = (uint64_t)shape->num_ranges + shape->num_seqs;
    uint64_t rows = slots * shape->row_tiles * shape->rows;
    uint8_t *p = (uint8_t *)base;
    out->ranges = (struct lkvi_split_range *)(p + at);
    at += lkvi_split_round(sizeof(struct lkvi_split_range) * (uint64_t)shape->num_ranges);
    out->seqs = (struct lkvi_split_seq *)(p + at);
    at += lkvi_split_round(sizeof(struct lkvi_split_seq) * (uint64_t)shape->num_seqs);
    out->tokens = (struct lkvi_split_token *)(p + at);
    at += lkvi_split_round(sizeof(struct lkvi_split_token) * (uint64_t)shape->num_tokens);
    out->tile_start = (int32_t *)(p + at);
    at += lkvi_split_round(4 * ((uint64_t)shape->num_seqs + 1));
    out->cost_start = (int32_t *)(p + at);
    at += lkvi_split_round(4 * ((uint64_t)shape->num_seqs + 1));
    out->partial_stats = (float *)(p + at);
    at += lkvi_split_round(rows * 16);
    out->partial_out = (float *)(p + at);
    return at + rows * LKVI_PARTIAL_FLOATS * 4;
}

/* Keys a sequence shows: never more than its table row can name, none without query rows, and none
 * if it is shorter than its query rows (a fault). */
LKVI_BOTH int32_t lkvi_split_length(int32_t seq_len, int32_t q_len, uint32_t table_width,
                                    uint32_t tokens_per_block)
{
    int64_t room = (int64_t)table_width * tokens_per_block;
    if (seq_len <= 0 || q_len <= 0 || q_len > seq_len)
        return 0;
    return seq_len > room ? (int32_t)room : seq_len;
}

/* Start of range i of n on a line of `total`. */
LKVI_BOTH int32_t lkvi_split_point(int32_t total, int32_t n, int32_t i)
{
    return (int32_t)((int64_t)total * i / n);
}

/* Largest i in [0, n) with start[i] <= x and start[i + 1] > x: the interval that holds x. */
LKVI_BOTH int32_t lkvi_split_find(const int32_t *start, int32_t n, int32_t x)
{
    int32_t low = 0, high = n; /* start[low] <= x < start[high] */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (start[mid] <= x)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Cost of a sequence in the even split, chunks of it otherwise. */
LKVI_BOTH int32_t lkvi_split_cost(int32_t tiles, uint32_t chunk_tiles)
{
    if (tiles == 0)
        return 0;
    if (chunk_tiles)
        return (tiles + (int32_t)chunk_tiles - 1) / (int32_t)chunk_tiles;
    return tiles + LKVI_SEQ_COST_TILES;
}

/* Where a point of the cost line lies among a sequence's tiles: its fixed cost comes first. */
LKVI_BOTH int32_t lkvi_split_tile(int32_t cost, int32_t cost_start, int32_t tile_start,
                                  uint32_t chunk_tiles)
{
    int32_t in = cost - cost_start;
    if (chunk_tiles)
        return tile_start + in * (int32_t)chunk_tiles;
    in -= LKVI_SEQ_COST_TILES;
    return tile_start + (in > 0 ? in : 0);
}

#endif
