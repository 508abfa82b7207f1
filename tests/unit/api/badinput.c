/* Acceptance g: for every exported function NULL, zero, huge, misaligned, wrong device, wrong dtype
 * and released handles give a typed status and a sentence, and nothing changes. Here: contexts,
 * models, the judge, and the check that no exported function was left out. */
#include "tests/unit/api/badinput.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include "core/status.h"

static const char *seen[128];
static unsigned num_seen;
static uint64_t fingerprint;

void called(const char *function)
{
    for (unsigned i = 0; i < num_seen; i++)
        if (!strcmp(seen[i], function))
            return;
    seen[num_seen++] = function;
}

void judge(struct world *w, const char *function, const char *word, lkv_status want,
           lkv_status found, int line)
{
    const char *text = lkv_last_error();
    called(function);
    cr_expect_eq(found, want, "line %d: %s gave %s (%s), want %s", line, function,
                 lkv_status_name(found), text, lkv_status_name(want));
    cr_expect(strstr(text, word), "line %d: %s says \"%s\", want \"%s\" in it", line, function,
              text, word);
    uint64_t now = world_fingerprint(w);
    cr_expect_eq(now, fingerprint, "line %d: %s changed something", line, function);
    fingerprint = now;
    lkvi_fail(LKV_OK, "of an earlier call");
}

static void bad_contexts(struct world *w)
{
    lkv_context **out = MARK(w);
    BAD(lkv_context_create, "NULL", INVALID, NULL, out);
    BAD(lkv_context_create, "out", INVALID, &w->ctx_desc, NULL);
    BAD(lkv_context_create, "alignment", INVALID, OFF(&w->ctx_desc), out);
    WITH(lkv_context_desc, d, w->ctx_desc, d.size = 0,
         BAD(lkv_context_create, "size is 0", INVALID, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.size = SIZE_MAX,
         BAD(lkv_context_create, "size", INVALID, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.device = -2,
         BAD(lkv_context_create, "device is -2", INVALID, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.device = INT32_MAX,
         BAD(lkv_context_create, "", UNSUPPORTED, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.num_threads = UINT32_MAX,
         BAD(lkv_context_create, "num_threads", INVALID, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.isa = 4,
         BAD(lkv_context_create, "isa is 4", INVALID, &d, out));
    WITH(lkv_context_desc, d, w->ctx_desc, d.flags = 1,
         BAD(lkv_context_create, "flags", INVALID, &d, out));
    BAD(lkv_context_query, "NULL", INVALID, NULL, &w->out.context_info);
    BAD(lkv_context_query, "released", INVALID, w->dead_ctx, &w->out.context_info);
    BAD(lkv_context_query, "another kind", INVALID, (lkv_context *)w->pool, &w->out.context_info);
    BAD(lkv_context_query, "no object", INVALID, OFF(w->ctx), &w->out.context_info);
    BAD(lkv_context_query, "NULL", INVALID, w->ctx, NULL);
    BAD(lkv_context_query, "alignment", INVALID, w->ctx, OFF(&w->out.context_info));
}

static void bad_models(struct world *w)
{
    lkv_model_desc *out = &w->out.model;
    BAD(lkv_model_preset, "NULL", INVALID, NULL, out);
    BAD(lkv_model_preset, "NULL", INVALID, "v3", NULL);
    BAD(lkv_model_preset, "alignment", INVALID, "v3", OFF(out));
    BAD(lkv_model_preset, "v2-lite", LKV_E_NOT_FOUND, "v4", out);
    BAD(lkv_model_preset, "v2-lite", LKV_E_NOT_FOUND, "", out);
    BAD(lkv_model_preset, "DSA", UNSUPPORTED, "deepseek-v3.2", out);
    BAD(lkv_model_preset, "DSA", UNSUPPORTED, "glm-5", out);
    cr_expect_null(lkv_model_preset_name(UINT32_MAX));
    called("lkv_model_preset_name");
}

/* Functions without a status: NULL and second releases are no-ops. */
static void without_status(struct world *w)
{
    lkv_context_release(NULL);
    lkv_context_release(w->dead_ctx);
    lkv_pool_release(NULL);
    lkv_pool_release(w->dead_pool);
    lkv_pool_release((lkv_pool *)w->rope);
    lkv_plan_release(NULL);
    lkv_plan_release(w->dead_plan);
    lkv_weights_release(NULL);
    lkv_weights_release(w->dead_weights);
    lkv_rope_release(NULL);
    lkv_rope_release(w->dead_rope);
    cr_expect(lkv_version() && lkv_last_error() && lkv_status_name(INT32_MIN));
    static const char *const names[] = {
        "lkv_context_release", "lkv_pool_release", "lkv_plan_release", "lkv_weights_release",
        "lkv_rope_release",    "lkv_version",      "lkv_last_error",   "lkv_status_name"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        called(names[i]);
    cr_expect_eq(world_fingerprint(w), fingerprint);
}

static void nothing_left_out(void)
{
    char line[256];
    FILE *file = fopen(LKV_SOURCE_DIR "/tests/abi/exports.txt", "r");
    unsigned num_exports = 0;
    cr_assert(file, "tests/abi/exports.txt cannot be read");
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "@\n")] = 0;
        unsigned i = 0;
        while (i < num_seen && strcmp(seen[i], line))
            i++;
        cr_expect(i < num_seen, "%s has no row here", line);
        num_exports++;
    }
    fclose(file);
    cr_expect(num_exports >= 50 && num_seen >= num_exports, "%u exports, %u with rows", num_exports,
              num_seen);
}

Test(badinput, every_function)
{
    struct world *w = world_create();
    fingerprint = world_fingerprint(w);
    lkvi_fail(LKV_OK, "of an earlier call");
    bad_contexts(w);
    bad_models(w);
    bad_blocks(w);
    bad_tensors(w);
    bad_heads(w);
    bad_moe(w);
    bad_slots(w);
    without_status(w);
    nothing_left_out();
    world_destroy(w);
}
