/* In: sequence calls as callers make them. Out: the same calls to the manager with structs of this
 * release's size and checked pointers. The one idea: an admission result is written back on every
 * status, because the caller decides by it what to do next. */
#include <string.h>
#include "api/check.h"
#include "api/objects.h"
#include "core/status.h"

enum { MAX_KEYS = 4096, MAX_KEY_BYTES = 65535, MAX_TAG = 255, MAX_PRIORITY = 100 };
#define MAX_TOKENS ((uint64_t)INT32_MAX) /* lengths are int32 in the tables of attend */

/* For calls of no tokens: the manager computes addresses into the array. */
static const int32_t no_tokens[1];

lkv_status lkvi_key_check(const lkv_key *key, uint32_t i)
{
    if (key->tag < LKV_KEY_ADAPTER || key->tag > MAX_TAG ||
        (key->tag > LKV_KEY_MULTIMODAL && key->tag < LKV_KEY_USER))
        return lkvi_fail(LKV_E_INVALID, "keys[%u].tag is %u; need LKV_KEY_* or %d to %d", i,
                         key->tag, LKV_KEY_USER, MAX_TAG);
    if (key->bytes > MAX_KEY_BYTES || (key->bytes && !key->data))
        return lkvi_fail(LKV_E_INVALID, "keys[%u] has %u bytes at %p; need at most %d, not NULL", i,
                         key->bytes, key->data, MAX_KEY_BYTES);
    return LKV_OK;
}

static lkv_status key_check(const lkv_key *key, uint32_t i)
{
    LKV_TRY(lkvi_key_check(key, i));
    if (key->begin >= key->end)
        return lkvi_fail(LKV_E_INVALID, "keys[%u] covers [%llu, %llu); need begin < end", i,
                         (unsigned long long)key->begin, (unsigned long long)key->end);
    return LKV_OK;
}

static lkv_status count_check(uint64_t n, const char *name)
{
    if (n > MAX_TOKENS)
        return lkvi_fail(LKV_E_INVALID, "%s is %llu; need at most %llu", name,
                         (unsigned long long)n, (unsigned long long)MAX_TOKENS);
    return LKV_OK;
}

static lkv_status prompt_admit(lkv_prompt *prompt, const lkv_prompt *given)
{
    const uint32_t flags = LKV_PROMPT_NO_MATCH | LKV_PROMPT_NO_PARTIAL | LKV_PROMPT_NO_PUBLISH;
    LKV_TRY(lkvi_admit(prompt, sizeof *prompt, given, "lkv_prompt"));
    LKV_TRY(count_check(prompt->num_tokens, "num_tokens"));
    LKV_TRY(lkvi_array_check(prompt->tokens, prompt->num_tokens, sizeof(int32_t), "tokens"));
    if (!prompt->num_tokens)
        prompt->tokens = no_tokens;
    LKV_TRY(lkvi_flags_check(prompt->flags, flags, "prompt flags"));
    if (prompt->num_keys > MAX_KEYS)
        return lkvi_fail(LKV_E_INVALID, "num_keys is %u; need at most %d", prompt->num_keys,
                         MAX_KEYS);
    LKV_TRY(lkvi_array_check(prompt->keys, prompt->num_keys, _Alignof(lkv_key), "keys"));
    for (uint32_t i = 0; i < prompt->num_keys; i++)
        LKV_TRY(key_check(&prompt->keys[i], i));
    return LKV_OK;
}

static lkv_status result_check(const lkv_admission *given)
{
    return given ? lkvi_admit_out(given, "lkv_admission") : LKV_OK;
}

static lkv_status result_give(lkv_status status, lkv_admission *given, const lkv_admission *result)
{
    if (given)
        lkvi_give(given, result, sizeof *result);
    return status;
}

lkv_status lkv_seq_match(lkv_pool *pool, const lkv_prompt *given, lkv_match *given_out)
{
    struct lkvi_manager *manager;
    lkv_prompt prompt;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(prompt_admit(&prompt, given));
    LKV_TRY(lkvi_admit_out(given_out, "lkv_match"));
    lkv_match match = {.size = sizeof match};
    LKV_TRY(lkvi_seq_match(manager, &prompt, &match));
    lkvi_give(given_out, &match, sizeof match);
    return LKV_OK;
}

static lkv_status admit_args(lkv_admit_args *args, lkv_match *match, const lkv_admit_args *given)
{
    *args = (lkv_admit_args){.size = sizeof *args};
    if (given)
        LKV_TRY(lkvi_admit(args, sizeof *args, given, "lkv_admit_args"));
    LKV_TRY(lkvi_flags_check(args->flags, LKV_ADMIT_WHOLE, "admit flags"));
    if (args->priority > MAX_PRIORITY)
        return lkvi_fail(LKV_E_INVALID, "priority is %u; need at most %d", args->priority,
                         MAX_PRIORITY);
    LKV_TRY(count_check(args->room_tokens, "room_tokens"));
    if (args->match) {
        LKV_TRY(lkvi_admit(match, sizeof *match, args->match, "lkv_match"));
        args->match = match;
    }
    return LKV_OK;
}

lkv_status lkv_seq_admit(lkv_pool *pool, const lkv_prompt *given_prompt,
                         const lkv_admit_args *given_args, lkv_admission *given_result,
                         lkv_seq *out)
{
    struct lkvi_manager *manager;
    lkv_prompt prompt;
    lkv_admit_args args;
    lkv_match match;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(prompt_admit(&prompt, given_prompt));
    LKV_TRY(admit_args(&args, &match, given_args));
    LKV_TRY(result_check(given_result));
    LKV_TRY(lkvi_array_check(out, 1, sizeof *out, "out"));
    lkv_admission result = {.size = sizeof result};
    lkv_status status = lkvi_seq_admit(manager, &prompt, &args, &result, out);
    return result_give(status, given_result, &result);
}

lkv_status lkv_seq_append(lkv_pool *pool, lkv_seq seq, const int32_t *tokens, uint64_t n,
                          lkv_admission *given_result)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(count_check(n, "n"));
    LKV_TRY(lkvi_array_check(tokens, n, sizeof *tokens, "tokens"));
    LKV_TRY(result_check(given_result));
    lkv_admission result = {.size = sizeof result};
    lkv_status status = lkvi_seq_append(manager, seq, n ? tokens : no_tokens, n, &result);
    return result_give(status, given_result, &result);
}

lkv_status lkv_seq_reserve(lkv_pool *pool, lkv_seq seq, uint64_t n, lkv_admission *given_result)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(count_check(n, "n"));
    LKV_TRY(result_check(given_result));
    lkv_admission result = {.size = sizeof result};
    lkv_status status = lkvi_seq_reserve(manager, seq, n, &result);
    return result_give(status, given_result, &result);
}

lkv_status lkv_seq_commit(lkv_pool *pool, lkv_seq seq, uint64_t upto)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_seq_commit(manager, seq, upto);
}

lkv_status lkv_seq_truncate(lkv_pool *pool, lkv_seq seq, uint64_t length, uint64_t fence)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_seq_truncate(manager, seq, length, fence);
}

lkv_status lkv_seq_fork(lkv_pool *pool, lkv_seq seq, lkv_seq *child)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(child, 1, sizeof *child, "child"));
    return lkvi_seq_fork(manager, seq, child);
}

lkv_status lkv_seq_free(lkv_pool *pool, lkv_seq seq, uint64_t fence)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    return lkvi_seq_free(manager, seq, fence);
}

lkv_status lkv_seq_query(lkv_pool *pool, lkv_seq seq, lkv_seq_info *given)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_admit_out(given, "lkv_seq_info"));
    lkv_seq_info info = {.size = sizeof info};
    LKV_TRY(lkvi_seq_query(manager, seq, &info));
    lkvi_give(given, &info, sizeof info);
    return LKV_OK;
}

lkv_status lkv_seq_table(lkv_pool *pool, lkv_seq seq, int32_t *blocks, uint64_t capacity,
                         uint64_t *num_blocks)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(blocks, capacity, sizeof *blocks, "blocks"));
    LKV_TRY(lkvi_array_check(num_blocks, 1, sizeof *num_blocks, "num_blocks"));
    return lkvi_seq_table(manager, seq, blocks, capacity, num_blocks);
}

lkv_status lkv_seq_common(lkv_pool *pool, const lkv_seq *seqs, uint64_t num_seqs,
                          uint64_t *num_blocks)
{
    struct lkvi_manager *manager;
    LKV_TRY(lkvi_pool_manager(pool, &manager));
    LKV_TRY(lkvi_array_check(seqs, num_seqs, sizeof *seqs, "seqs"));
    LKV_TRY(lkvi_array_check(num_blocks, 1, sizeof *num_blocks, "num_blocks"));
    return lkvi_seq_common(manager, seqs, num_seqs, num_blocks);
}
