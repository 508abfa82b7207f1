/* Handles: live, released, of another kind, of another process. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/object.h"

struct thing {
    struct lkvi_object object;
    uint64_t payload[4];
};

static struct thing *make(enum lkvi_kind kind)
{
    struct thing *thing = lkvi_object_create(kind, sizeof *thing);
    cr_assert(thing);
    lkvi_object_publish(&thing->object);
    return thing;
}

static void end(struct thing *thing, enum lkvi_kind kind)
{
    cr_assert(lkvi_object_withdraw(&thing->object, kind));
    cr_assert(lkvi_object_drop(&thing->object));
    lkvi_object_recycle(&thing->object);
}

Test(object, life)
{
    struct thing *a = make(LKVI_KIND_ROPE);
    cr_assert_eq(lkvi_object_check(&a->object, LKVI_KIND_ROPE), LKV_OK);
    cr_assert_eq(lkvi_object_check(&a->object, LKVI_KIND_POOL), LKV_E_INVALID);
    cr_assert(strstr(lkv_last_error(), "another kind"));
    lkvi_object_retain(&a->object); /* a child */
    cr_assert(lkvi_object_withdraw(&a->object, LKVI_KIND_ROPE));
    cr_assert_not(lkvi_object_drop(&a->object));
    cr_assert_eq(lkvi_object_check(&a->object, LKVI_KIND_ROPE), LKV_E_INVALID);
    cr_assert(strstr(lkv_last_error(), "released"));
    cr_assert_not(lkvi_object_withdraw(&a->object, LKVI_KIND_ROPE), "a second release");
    cr_assert(lkvi_object_drop(&a->object));
    lkvi_object_recycle(&a->object);
    cr_assert_eq(lkvi_object_check(&a->object, LKVI_KIND_ROPE), LKV_E_INVALID);
}

Test(object, bad_addresses)
{
    uint64_t raw[8] = {0};
    cr_assert_eq(lkvi_object_check(NULL, LKVI_KIND_POOL), LKV_E_INVALID);
    cr_assert_eq(lkvi_object_check((void *)((char *)raw + 1), LKVI_KIND_POOL), LKV_E_INVALID);
    cr_assert_eq(lkvi_object_check((void *)raw, LKVI_KIND_POOL), LKV_E_INVALID);
    cr_assert_not(lkvi_object_withdraw(NULL, LKVI_KIND_POOL));
}

Test(object, memory_comes_back_zeroed_and_late)
{
    struct thing *all[40];
    struct thing *first = make(LKVI_KIND_PLAN);
    first->payload[3] = 9;
    end(first, LKVI_KIND_PLAN);
    for (int i = 0; i < 10; i++) { /* not recycled at once: the stale handle stays refused */
        all[i] = make(LKVI_KIND_PLAN);
        cr_assert_neq(all[i], first);
        end(all[i], LKVI_KIND_PLAN);
        cr_assert_eq(lkvi_object_check(&first->object, LKVI_KIND_PLAN), LKV_E_INVALID);
    }
    for (int i = 0; i < 40; i++) { /* but recycled: no growth without end */
        all[i] = make(LKVI_KIND_PLAN);
        cr_assert_eq(all[i]->payload[3], 0);
        all[i]->payload[3] = 9;
        end(all[i], LKVI_KIND_PLAN);
    }
    cr_assert_eq(all[39], all[39 - 16]);
}

Test(object, the_child_of_a_fork_is_refused)
{
    struct thing *a = make(LKVI_KIND_CONTEXT);
    int wrong = 1;
    pid_t child = fork();
    cr_assert(child >= 0);
    if (!child) {
        int refused = lkvi_object_check(&a->object, LKVI_KIND_CONTEXT) == LKV_E_INVALID &&
                      strstr(lkv_last_error(), "fork") &&
                      !lkvi_object_withdraw(&a->object, LKVI_KIND_CONTEXT);
        struct thing *own = make(LKVI_KIND_CONTEXT);
        int works = lkvi_object_check(&own->object, LKVI_KIND_CONTEXT) == LKV_OK;
        _exit(refused && works ? 0 : 1);
    }
    waitpid(child, &wrong, 0);
    cr_assert_eq(wrong, 0);
    cr_assert_eq(lkvi_object_check(&a->object, LKVI_KIND_CONTEXT), LKV_OK);
    end(a, LKVI_KIND_CONTEXT);
}
