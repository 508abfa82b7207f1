/* Codes, the thread's sentence, and the size-first rule of structs. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include "core/context.h"
#include "core/cpu.h"
#include "core/status.h"

struct first { /* a release */
    size_t size;
    uint32_t a, b;
};
struct second { /* the next one */
    size_t size;
    uint32_t a, b;
    uint64_t c;
};

Test(status, names_and_version)
{
    cr_assert_str_eq(lkv_status_name(LKV_OK), "LKV_OK");
    cr_assert_str_eq(lkv_status_name(LKV_E_STALE_HIT), "LKV_E_STALE_HIT");
    cr_assert_str_eq(lkv_status_name(LKV_E_INTERNAL), "LKV_E_INTERNAL");
    cr_assert_str_eq(lkv_status_name(4), "unknown status");
    cr_assert_str_eq(lkv_status_name(-1), "unknown status");
    cr_assert_eq(lkv_version(), 0 * 1000000 + 1 * 1000 + 0);
}

Test(status, sentence_is_cut_and_may_quote_the_last_one)
{
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    cr_assert_str_eq(lkv_last_error(), "");
    cr_assert_eq(lkvi_fail(LKV_E_INVALID, "%s", text), LKV_E_INVALID);
    cr_assert_eq(strlen(lkv_last_error()), 511);
    lkvi_fail(LKV_E_INVALID, "n is %d; need %d", 3, 4);
    lkvi_fail(LKV_E_INVALID, "outer: %s", lkv_last_error());
    cr_assert_str_eq(lkv_last_error(), "outer: n is 3; need 4");
}

static void *other_thread(void *arg)
{
    *(int *)arg = lkv_last_error()[0] == 0;
    lkvi_fail(LKV_E_INVALID, "of the other thread");
    return NULL;
}

Test(status, sentence_belongs_to_its_thread)
{
    pthread_t thread;
    int was_empty = 0;
    lkvi_fail(LKV_E_INVALID, "of this thread");
    cr_assert_eq(pthread_create(&thread, NULL, other_thread, &was_empty), 0);
    pthread_join(thread, NULL);
    cr_assert(was_empty);
    cr_assert_str_eq(lkv_last_error(), "of this thread");
}

Test(status, shorter_struct_is_zero_extended)
{
    struct first given = {sizeof given, 7, 8};
    struct second known;
    memset(&known, 0xff, sizeof known);
    cr_assert_eq(lkvi_admit(&known, sizeof known, &given, "first"), LKV_OK);
    cr_assert(known.size == sizeof known && known.a == 7 && known.b == 8 && known.c == 0);
}

Test(status, longer_struct_needs_a_zero_tail)
{
    struct second given = {sizeof given, 7, 8, 0};
    struct first known = {0};
    cr_assert_eq(lkvi_admit(&known, sizeof known, &given, "second"), LKV_OK);
    cr_assert(known.size == sizeof known && known.a == 7 && known.b == 8);
    for (unsigned byte = 0; byte < 8; byte++) {
        given.c = (uint64_t)1 << (8 * byte);
        struct first before = known;
        cr_assert_eq(lkvi_admit(&known, sizeof known, &given, "second"), LKV_E_VERSION);
        cr_assert_eq(memcmp(&before, &known, sizeof known), 0);
        cr_assert(strstr(lkv_last_error(), "second has a nonzero byte at offset"));
    }
}

Test(status, impossible_heads_are_refused)
{
    char memory[64] __attribute__((aligned(16))) = {0};
    struct first known;
    const size_t sizes[] = {0, 1, 7, 9, 12, 20, 4097, SIZE_MAX, (size_t)1 << 40};
    cr_assert_eq(lkvi_admit(&known, sizeof known, NULL, "x"), LKV_E_INVALID);
    cr_assert_eq(lkvi_admit(&known, sizeof known, memory + 1, "x"), LKV_E_INVALID);
    cr_assert_eq(lkvi_admit_out(memory + 4, "x"), LKV_E_INVALID);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memcpy(memory, &sizes[i], sizeof sizes[i]);
        cr_assert_eq(lkvi_admit(&known, sizeof known, memory, "x"), LKV_E_INVALID, "size %zu",
                     sizes[i]);
        cr_assert_eq(lkvi_admit_out(memory, "x"), LKV_E_INVALID, "size %zu", sizes[i]);
    }
}

Test(status, results_keep_to_the_callers_size)
{
    struct second known = {sizeof known, 1, 2, 3};
    struct {
        struct second s;
        uint64_t tail, guard;
    } given;
    memset(&given, 0xee, sizeof given);
    given.s.size = sizeof(struct first); /* an older caller: c is not his */
    lkvi_give(&given, &known, sizeof known);
    cr_assert(given.s.size == sizeof(struct first) && given.s.a == 1 && given.s.b == 2);
    cr_assert_eq(given.s.c, 0xeeeeeeeeeeeeeeeeu);
    given.s.size = sizeof(struct second) + 8; /* a newer caller: what we do not know is zero */
    lkvi_give(&given, &known, sizeof known);
    cr_assert(given.s.c == 3 && given.tail == 0 && given.guard == 0xeeeeeeeeeeeeeeeeu);
}

Test(status, processor_has_a_name_and_an_instruction_set)
{
    char name[128] = "";
    lkvi_cpu_name(name, sizeof name);
    cr_assert(name[0]);
    uint32_t isa = lkvi_cpu_isa();
    cr_assert(isa >= LKV_ISA_SCALAR && isa <= LKV_ISA_AVX512);
#if defined(__x86_64__) /* the compiler's own view of the same bits */
    cr_assert_eq(isa >= LKV_ISA_AVX2, __builtin_cpu_supports("avx2") &&
                                          __builtin_cpu_supports("fma") &&
                                          __builtin_cpu_supports("bmi2"));
    if (isa == LKV_ISA_AVX512)
        cr_assert(__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"));
#endif
}
