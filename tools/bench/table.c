/* The shapes of `lkv bench decode` on a GPU where none is asked for, and beside each the best bf16
 * peer on one H200. The peers' times are quoted: measured by this project in November 2026 (CUDA
 * 13.0, paged decode, blocks of 64, cold data, checked against fp32), not in the run that prints
 * them. */
#include "tools/bench/bench.h"

const struct bench_table_row bench_table[] = {
    {16, 1, 1, 1024, "FlashMLA", 11.5},    {16, 1, 1, 65536, "FA3", 37.8},
    {16, 1, 8, 16384, "FlashMLA", 46.9},   {16, 1, 32, 65536, "FA3", 557},
    {16, 1, 128, 16384, "FA3", 555},       {64, 1, 32, 65536, "FA3", 572},
    {128, 1, 8, 65536, "FlashMLA", 222},   {128, 1, 32, 65536, "FlashMLA", 896},
    {128, 1, 128, 16384, "FlashMLA", 937}, {128, 2, 32, 65536, "FlashMLA", 1682},
};
const size_t bench_table_rows = sizeof bench_table / sizeof *bench_table;

void bench_add_peer(struct bench *b, const struct bench_table_row *peer)
{
    json_t *row = json_array_get(b->rows, json_array_size(b->rows) - 1);
    json_object_set_new(row, "peer", json_string(peer->peer));
    json_object_set_new(row, "peer_us", json_real(peer->peer_us));
}
