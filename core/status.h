/* Status codes with a sentence. Every failure path of the library ends in lkvi_fail(), which
 * records the sentence for the calling thread; nothing is printed. Also here: admission of
 * size-first descriptors. */
#ifndef LKVI_CORE_STATUS_H
#define LKVI_CORE_STATUS_H

#include "latentkv/latentkv.h"

#define LKV_TRY(call)                                                                              \
    do {                                                                                           \
        lkv_status s_ = (call);                                                                    \
        if (s_ != LKV_OK)                                                                          \
            return s_;                                                                             \
    } while (0)

/* Records the sentence (printf rules, cut at 512 bytes) and returns status. */
lkv_status lkvi_fail(lkv_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Copies a size-first struct from the caller into known (known_bytes long, zero-filled first): a
 * shorter one is zero-extended, a longer one must have a zero tail. what names the type in the
 * sentence. */
lkv_status lkvi_admit(void *known, size_t known_bytes, const void *given, const char *what);

/* The reverse for results: writes the first `size` bytes that the caller has room for, keeps its
 * size field, zeroes an unknown tail. The caller must have checked given != NULL with
 * lkvi_admit_out first. */
lkv_status lkvi_admit_out(const void *given, const char *what);
void lkvi_give(void *given, const void *known, size_t known_bytes);

#endif
