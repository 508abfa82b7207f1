/* In: a failure and its sentence, or a size-first struct of some release. Out: the code, the
 * calling thread's last sentence, a struct of this release's size. The one idea: a struct's first
 * field is its length, so an older caller's is zero-extended here and a newer caller's is accepted
 * while the part unknown to this library is zero. */
#include "core/status.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    TEXT_BYTES = 512,
    STRUCT_BYTES_MAX = 4096 /* a size beyond this is no struct of any release: never read so far */
};

static _Thread_local char last_error[TEXT_BYTES];

lkv_status lkvi_fail(lkv_status status, const char *format, ...)
{
    char text[TEXT_BYTES]; /* an argument may be last_error itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return status;
}

const char *lkv_last_error(void)
{
    return last_error;
}

uint32_t lkv_version(void)
{
    return LKV_VERSION_MAJOR * 1000000u + LKV_VERSION_MINOR * 1000u + LKV_VERSION_PATCH;
}

const char *lkv_status_name(lkv_status status)
{
    static const struct {
        lkv_status status;
        const char *name;
    } names[] = {
        {LKV_OK, "LKV_OK"},
        {LKV_E_INVALID, "LKV_E_INVALID"},
        {LKV_E_UNSUPPORTED, "LKV_E_UNSUPPORTED"},
        {LKV_E_VERSION, "LKV_E_VERSION"},
        {LKV_E_NO_MEMORY, "LKV_E_NO_MEMORY"},
        {LKV_E_NO_BLOCKS, "LKV_E_NO_BLOCKS"},
        {LKV_E_WORKSPACE, "LKV_E_WORKSPACE"},
        {LKV_E_NEVER_FITS, "LKV_E_NEVER_FITS"},
        {LKV_E_WAIT_PENDING, "LKV_E_WAIT_PENDING"},
        {LKV_E_NO_HOST_SPACE, "LKV_E_NO_HOST_SPACE"},
        {LKV_E_IO, "LKV_E_IO"},
        {LKV_E_CUDA, "LKV_E_CUDA"},
        {LKV_E_CUBLAS, "LKV_E_CUBLAS"},
        {LKV_E_BUSY, "LKV_E_BUSY"},
        {LKV_E_STALE_HIT, "LKV_E_STALE_HIT"},
        {LKV_E_NOT_FOUND, "LKV_E_NOT_FOUND"},
        {LKV_E_INTERNAL, "LKV_E_INTERNAL"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].status == status)
            return names[i].name;
    return "unknown status";
}

/* Everything that can be known of a size-first struct before its fields are read. */
static lkv_status check_head(const void *given, const char *what, size_t *bytes)
{
    if (!given)
        return lkvi_fail(LKV_E_INVALID, "%s is NULL; need a struct", what);
    if ((uintptr_t)given % sizeof(size_t))
        return lkvi_fail(LKV_E_INVALID, "%s is at %p; need alignment %zu", what, given,
                         sizeof(size_t));
    memcpy(bytes, given, sizeof *bytes);
    /* a multiple of 8, as every sizeof here: a size that ends inside a pointer is not one */
    if (*bytes < sizeof *bytes || *bytes > STRUCT_BYTES_MAX || *bytes % sizeof *bytes)
        return lkvi_fail(LKV_E_INVALID, "%s.size is %zu; need sizeof(%s)", what, *bytes, what);
    return LKV_OK;
}

lkv_status lkvi_admit(void *known, size_t known_bytes, const void *given, const char *what)
{
    size_t bytes = 0;
    LKV_TRY(check_head(given, what, &bytes));
    for (size_t i = known_bytes; i < bytes; i++)
        if (((const unsigned char *)given)[i])
            return lkvi_fail(LKV_E_VERSION,
                             "%s has a nonzero byte at offset %zu; this library knows %zu bytes",
                             what, i, known_bytes);
    memset(known, 0, known_bytes);
    memcpy(known, given, bytes < known_bytes ? bytes : known_bytes);
    memcpy(known, &known_bytes, sizeof known_bytes);
    return LKV_OK;
}

lkv_status lkvi_admit_out(const void *given, const char *what)
{
    size_t bytes;
    return check_head(given, what, &bytes);
}

void lkvi_give(void *given, const void *known, size_t known_bytes)
{
    size_t bytes, head = sizeof bytes;
    memcpy(&bytes, given, head);
    size_t shared = bytes < known_bytes ? bytes : known_bytes;
    memcpy((char *)given + head, (const char *)known + head, shared - head);
    if (bytes > known_bytes)
        memset((char *)given + known_bytes, 0, bytes - known_bytes);
}
