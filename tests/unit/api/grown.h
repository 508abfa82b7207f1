/* Structs as a caller of a later release has them, for the tests of the size-first rule. */
#ifndef LKVT_UNIT_API_GROWN_H
#define LKVT_UNIT_API_GROWN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Eight more bytes, the last of them `byte`. */
static inline void *grown(const void *given, uint8_t byte)
{
    static uint64_t buffers[4][512];
    static unsigned next;
    uint8_t *buffer = (uint8_t *)buffers[next++ % 4];
    size_t size;
    memcpy(&size, given, sizeof size);
    memcpy(buffer, given, size);
    memset(buffer + size, 0, 8);
    buffer[size + 7] = byte;
    size += 8;
    memcpy(buffer, &size, sizeof size);
    return buffer;
}

#endif
