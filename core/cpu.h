/* What this processor is. lkvi_cpu_isa() is in core/context.h. */
#ifndef LKVI_CORE_CPU_H
#define LKVI_CORE_CPU_H

#include <stddef.h>

/* The processor's name, zero-terminated, cut at bytes; its architecture where it has none. */
void lkvi_cpu_name(char *out, size_t bytes);

#endif
