/* In: kinds and sizes. Out: object heads whose mark stays readable for ever (core/object.h says
 * why). One queue of retired objects a kind behind one mutex; the mutex and the process generation
 * are carried over fork() by handlers that the first object installs. */
#include "core/object.h"

#include <pthread.h>
#include <string.h>
#include "core/alloc.h"
#include "core/status.h"

enum { RECYCLE_AFTER = 16 }; /* retired objects of a kind before the oldest is used again */

static const struct {
    const char *name;
    uint32_t magic;
} kinds[LKVI_NUM_KINDS] = {
    [LKVI_KIND_CONTEXT] = {"lkv_context", 0x4c4b5643},
    [LKVI_KIND_POOL] = {"lkv_pool", 0x4c4b5650},
    [LKVI_KIND_PLAN] = {"lkv_plan", 0x4c4b564c},
    [LKVI_KIND_WEIGHTS] = {"lkv_weights", 0x4c4b5657},
    [LKVI_KIND_ROPE] = {"lkv_rope", 0x4c4b5652},
    [LKVI_KIND_ROUTER] = {"lkv_router", 0x4c4b5654},
    [LKVI_KIND_GATE] = {"lkv_gate", 0x4c4b5647},
    [LKVI_KIND_SLOTS] = {"lkv_slots", 0x4c4b5653},
};
enum { MAGIC_DEAD = 0x44454144 };

static struct {
    struct lkvi_object *oldest, *newest;
    uint32_t count;
} retired[LKVI_NUM_KINDS];

static pthread_mutex_t retired_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Atomic uint32_t process_generation = 1;

static void before_fork(void)
{
    pthread_mutex_lock(&retired_mutex);
}

static void after_fork_parent(void)
{
    pthread_mutex_unlock(&retired_mutex);
}

static void after_fork_child(void)
{
    atomic_fetch_add(&process_generation, 1);
    pthread_mutex_unlock(&retired_mutex);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static struct lkvi_object *take_retired(enum lkvi_kind kind)
{
    pthread_mutex_lock(&retired_mutex);
    struct lkvi_object *object = NULL;
    if (retired[kind].count >= RECYCLE_AFTER) {
        object = retired[kind].oldest;
        retired[kind].oldest = object->next;
        retired[kind].count--;
    }
    pthread_mutex_unlock(&retired_mutex);
    return object;
}

void *lkvi_object_create(enum lkvi_kind kind, size_t bytes)
{
    pthread_once(&fork_once, watch_forks);
    struct lkvi_object *object = take_retired(kind);
    if (!object)
        object = lkvi_zalloc(NULL, 1, bytes);
    if (!object)
        return NULL;
    /* magic stays as it is: a stale handle's check may read it at this moment */
    memset(object + 1, 0, bytes - sizeof *object);
    object->next = NULL;
    object->kind = kind;
    object->generation = atomic_load(&process_generation);
    atomic_store(&object->refs, 1);
    return object;
}

void lkvi_object_publish(struct lkvi_object *object)
{
    atomic_store(&object->magic, kinds[object->kind].magic);
}

lkv_status lkvi_object_check(const struct lkvi_object *object, enum lkvi_kind kind)
{
    const char *name = kinds[kind].name;
    if (!object)
        return lkvi_fail(LKV_E_INVALID, "%s is NULL; need a live object", name);
    if ((uintptr_t)object % _Alignof(struct lkvi_object))
        return lkvi_fail(LKV_E_INVALID, "%s is at %p; that is no object", name,
                         (const void *)object);
    uint32_t magic = atomic_load((_Atomic uint32_t *)&object->magic);
    if (magic == MAGIC_DEAD)
        return lkvi_fail(LKV_E_INVALID, "%s was released; need a live object", name);
    if (magic != kinds[kind].magic)
        return lkvi_fail(LKV_E_INVALID, "%s has mark 0x%08x; need 0x%08x: another kind of object",
                         name, magic, kinds[kind].magic);
    if (object->generation != atomic_load(&process_generation))
        return lkvi_fail(LKV_E_INVALID, "%s was made before fork(); the child needs its own", name);
    return LKV_OK;
}

void lkvi_object_retain(struct lkvi_object *object)
{
    atomic_fetch_add(&object->refs, 1);
}

int lkvi_object_withdraw(struct lkvi_object *object, enum lkvi_kind kind)
{
    if (!object || lkvi_object_check(object, kind) != LKV_OK)
        return 0;
    uint32_t live = kinds[kind].magic;
    return atomic_compare_exchange_strong(&object->magic, &live, MAGIC_DEAD);
}

int lkvi_object_drop(struct lkvi_object *object)
{
    return atomic_fetch_sub(&object->refs, 1) == 1;
}

void lkvi_object_recycle(struct lkvi_object *object)
{
    atomic_store(&object->magic, MAGIC_DEAD);
    pthread_mutex_lock(&retired_mutex);
    uint32_t kind = object->kind;
    object->next = NULL;
    if (retired[kind].count)
        retired[kind].newest->next = object;
    else
        retired[kind].oldest = object;
    retired[kind].newest = object;
    retired[kind].count++;
    pthread_mutex_unlock(&retired_mutex);
}
