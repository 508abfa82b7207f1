/* After fork(): the parent's objects are refused in the child and releasing them does nothing; the
 * child makes its own, threads included; the parent goes on. A plain program: it has threads. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/api/world.h"

static int refused(lkv_status status)
{
    return status == LKV_E_INVALID && strstr(lkv_last_error(), "fork") != NULL;
}

static int child(struct world *w)
{
    lkv_seq seq;
    int wrong = 0;
    wrong += !refused(lkv_context_query(w->ctx, &w->out.context_info));
    wrong += !refused(lkv_pool_check(w->pool));
    wrong += !refused(lkv_append(w->pool, &w->append, NULL));
    wrong += !refused(lkv_attend(w->plan, w->pool, &w->batch, &w->attend, NULL));
    wrong += !refused(lkv_seq_admit(w->pool, &w->prompt, NULL, NULL, &seq));
    wrong += !refused(lkv_plan_update(w->plan, &w->batch, w->workspace, w->workspace_bytes, NULL));
    wrong += !refused(lkv_project_workspace(w->weights, 1, &w->out.bytes));
    wrong += !refused(lkv_rope_apply(w->rope, &w->t.rope, &w->t.gather_rope, w->positions, NULL));
    lkv_plan_release(w->plan);
    lkv_pool_release(w->pool);
    lkv_weights_release(w->weights);
    lkv_rope_release(w->rope);
    lkv_context_release(w->ctx);
    struct world *own = world_create(); /* appends and attends on threads of its own */
    wrong += lkv_pool_check(own->pool) != LKV_OK;
    world_destroy(own);
    return wrong;
}

int main(void)
{
    struct world *w = world_create();
    uint64_t before = world_fingerprint(w);
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(child(w));
    waitpid(pid, &status, 0);
    int changed = world_fingerprint(w) != before;
    int attends = lkv_attend(w->plan, w->pool, &w->batch, &w->attend, NULL) == LKV_OK;
    world_destroy(w);
    printf("child: status %d; parent: %s, %s\n", status, changed ? "changed" : "unchanged",
           attends ? "attends" : "broken");
    return status || changed || !attends;
}
