/* Text of the command line into numbers. Wrong text ends the command through argp_error, which
 * names the value, prints the usage hint and exits with EXIT_USAGE. */
#ifndef TOOLS_COMMON_PARSE_H
#define TOOLS_COMMON_PARSE_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

uint64_t parse_uint(struct argp_state *state, const char *what, const char *text, uint64_t least,
                    uint64_t most);
double parse_real(struct argp_state *state, const char *what, const char *text, double least,
                  double most);
/* 1234, 8GiB, 512MiB, 64KiB, 1TiB; K, M, G, T alone are binary too */
uint64_t parse_bytes(struct argp_state *state, const char *what, const char *text);
/* "128,256" into at most capacity numbers; returns how many */
size_t parse_list(struct argp_state *state, const char *what, const char *text, uint64_t *out,
                  size_t capacity);
uint32_t parse_format(struct argp_state *state, const char *text); /* bf16, fp8, int8, nvfp4 */
size_t parse_formats(struct argp_state *state, const char *text, uint32_t *out, size_t capacity);
/* cpu, cuda or cuda:N into a context descriptor's device */
int32_t parse_device(struct argp_state *state, const char *text);

const char *format_name(uint32_t format);

#endif
