/* The pool's statistics as Prometheus text: read back by a strict reader of the exposition format
 * (0.0.4), compared with lkv_pool_query, and attacked through the labels. */
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "latentkv/latentkv.h"

enum { BLOCKS = 20, BLOCK = 16, MAX_SAMPLES = 64 };

struct sample {
    char name[96], labels[256];
    uint64_t value;
};

struct exposition {
    struct sample samples[MAX_SAMPLES];
    size_t num;
};

static int is_name(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(p[i] == '_' || (p[i] >= 'a' && p[i] <= 'z') || (i && p[i] >= '0' && p[i] <= '9')))
            return 0;
    return n > 0;
}

/* name{labels} value, value a whole number */
static void read_sample(const char *line, const char *family, struct sample *out)
{
    size_t name = strcspn(line, "{ ");
    const char *p = line + name;
    cr_assert(is_name(line, name) && name < sizeof out->name, "bad name in: %s", line);
    memcpy(out->name, line, name);
    out->name[name] = 0;
    cr_assert_str_eq(out->name, family, "sample outside its family %s: %s", family, line);
    if (*p == '{') {
        const char *end = strrchr(p, '}');
        cr_assert(end && end > p + 1, "labels do not close: %s", line);
        snprintf(out->labels, sizeof out->labels, "%.*s", (int)(end - p - 1), p + 1);
        p = end + 1;
    }
    char *end;
    cr_assert(p[0] == ' ' && p[1] >= '0' && p[1] <= '9', "no value: %s", line);
    out->value = strtoull(p + 1, &end, 10);
    cr_assert_eq(*end, 0, "more behind the value: %s", line);
}

/* HELP, then TYPE, then the samples of that name; no family twice; a counter ends in _total. */
static void read_text(char *text, struct exposition *out)
{
    char families[64][96] = {{0}}, type[16] = "";
    size_t num_families = 0;
    cr_assert(*text && text[strlen(text) - 1] == '\n', "the last line does not end");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *family = families[num_families ? num_families - 1 : 0];
        if (!strncmp(line, "# HELP ", 7)) {
            for (size_t i = 0; i < num_families; i++)
                cr_assert(strncmp(line + 7, families[i], strlen(families[i])) ||
                              line[7 + strlen(families[i])] != ' ',
                          "family twice: %s", line);
            sscanf(line + 7, "%95[^ ]", families[num_families++]);
            type[0] = 0;
        } else if (!strncmp(line, "# TYPE ", 7)) {
            char name[96] = "";
            cr_assert_eq(sscanf(line + 7, "%95s %15s", name, type), 2, "bad type: %s", line);
            cr_assert_str_eq(name, family);
            const char *total = strstr(name, "_total");
            cr_assert_eq(!strcmp(type, "counter"), total && !total[6], "%s is a %s", name, type);
            cr_assert(!strcmp(type, "counter") || !strcmp(type, "gauge"), "bad type: %s", line);
        } else {
            cr_assert(type[0] && out->num < MAX_SAMPLES, "sample before its type: %s", line);
            read_sample(line, family, &out->samples[out->num++]);
        }
    }
}

static uint64_t value_of(const struct exposition *e, const char *name, const char *labels)
{
    for (size_t i = 0; i < e->num; i++)
        if (!strcmp(e->samples[i].name, name) && !strcmp(e->samples[i].labels, labels))
            return e->samples[i].value;
    cr_assert(0, "no sample %s{%s}", name, labels);
    return 0;
}

static lkv_pool *pool_create(lkv_context **ctx)
{
    lkv_context_desc context = {.size = sizeof context, .device = LKV_DEVICE_CPU, .num_threads = 1};
    lkv_pool_desc desc = {.size = sizeof desc,
                          .format = LKV_FORMAT_INT8,
                          .flags = LKV_POOL_METADATA_ONLY,
                          .tokens_per_block = BLOCK,
                          .latent_dim = 64,
                          .rope_dim = 16,
                          .num_layers = 1,
                          .num_blocks = BLOCKS,
                          .fallback_headroom = 0.25,
                          .host_blocks = 7};
    lkv_pool *pool;
    cr_assert_eq(lkv_context_create(&context, ctx), LKV_OK, "%s", lkv_last_error());
    cr_assert_eq(lkv_pool_create(*ctx, &desc, &pool), LKV_OK, "%s", lkv_last_error());
    return pool;
}

/* Two prompts with a common prefix: hits, an idle tail, a live sequence. */
static void use(lkv_pool *pool)
{
    int32_t tokens[40];
    uint64_t queued;
    lkv_seq seq;
    for (int i = 0; i < 40; i++)
        tokens[i] = i;
    lkv_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .num_tokens = 40};
    cr_assert_eq(lkv_seq_admit(pool, &prompt, NULL, NULL, &seq), LKV_OK);
    cr_assert_eq(lkv_seq_commit(pool, seq, 40), LKV_OK);
    cr_assert_eq(lkv_seq_free(pool, seq, 0), LKV_OK);
    cr_assert_eq(lkv_pool_demote(pool, 1, &queued), LKV_OK);
    prompt.num_tokens = 35;
    cr_assert_eq(lkv_seq_admit(pool, &prompt, NULL, NULL, &seq), LKV_OK);
}

static char *text_of(lkv_pool *pool, const char *labels)
{
    size_t needed = 0, again = 0;
    cr_assert_eq(lkv_pool_metrics_text(pool, labels, NULL, 0, &needed), LKV_OK, "%s",
                 lkv_last_error());
    char *text = malloc(needed + 1);
    memset(text, '#', needed + 1);
    cr_assert_eq(lkv_pool_metrics_text(pool, labels, text, needed, &again), LKV_OK);
    cr_assert_eq(needed, again);
    cr_assert_eq(strlen(text), needed - 1);
    cr_assert_eq(text[needed], '#', "written past the end");
    return text;
}

static void equals_query(lkv_pool *pool, const struct exposition *e)
{
    lkv_pool_stats s = {.size = sizeof s};
    cr_assert_eq(lkv_pool_query(pool, &s), LKV_OK);
    const struct {
        const char *name, *labels;
        uint64_t want;
    } rows[] = {
        {"latentkv_pool_blocks", "state=\"free\",model=\"a\"", s.blocks_free},
        {"latentkv_pool_blocks", "state=\"idle\",model=\"a\"", s.blocks_idle},
        {"latentkv_pool_blocks", "state=\"in_use\",model=\"a\"", s.blocks_in_use},
        {"latentkv_pool_blocks", "state=\"pending\",model=\"a\"", s.blocks_pending},
        {"latentkv_pool_blocks", "state=\"lent\",model=\"a\"", s.blocks_lent},
        {"latentkv_pool_capacity_blocks", "model=\"a\"", s.blocks_total},
        {"latentkv_pool_base_blocks", "model=\"a\"", s.blocks_base},
        {"latentkv_pool_reserved_blocks", "model=\"a\"", s.blocks_reserved},
        {"latentkv_pool_cached_blocks", "model=\"a\"", s.blocks_cached},
        {"latentkv_pool_longest_free_run_blocks", "model=\"a\"", s.longest_free_run},
        {"latentkv_pool_sequences", "model=\"a\"", s.seqs_live},
        {"latentkv_pool_tokens", "model=\"a\"", s.tokens_live},
        {"latentkv_pool_waste_tokens", "model=\"a\"", s.waste_tokens},
        {"latentkv_pool_prompt_tokens_total", "model=\"a\"", s.prompt_tokens},
        {"latentkv_pool_hit_tokens_total", "model=\"a\"", s.hit_tokens},
        {"latentkv_pool_partial_hit_tokens_total", "model=\"a\"", s.partial_hit_tokens},
        {"latentkv_pool_evicted_blocks_total", "model=\"a\"", s.evicted_blocks},
        {"latentkv_pool_copied_blocks_total", "model=\"a\"", s.copied_blocks},
        {"latentkv_pool_published_blocks_total", "model=\"a\"", s.published_blocks},
        {"latentkv_pool_host_blocks", "state=\"free\",model=\"a\"", s.host_blocks_free},
        {"latentkv_pool_host_blocks", "state=\"idle\",model=\"a\"", s.host_blocks_idle},
        {"latentkv_pool_host_blocks", "state=\"in_use\",model=\"a\"", s.host_blocks_in_use},
        {"latentkv_pool_host_blocks", "state=\"pending\",model=\"a\"", s.host_blocks_pending},
        {"latentkv_pool_host_capacity_blocks", "model=\"a\"", s.host_blocks_total},
        {"latentkv_pool_host_cached_blocks", "model=\"a\"", s.host_blocks_cached},
        {"latentkv_pool_host_copy_blocks", "model=\"a\"", s.host_blocks_copies},
        {"latentkv_pool_swapped_sequences", "model=\"a\"", s.seqs_swapped},
        {"latentkv_pool_moved_blocks_total", "kind=\"demoted\",model=\"a\"", s.demoted_blocks},
        {"latentkv_pool_moved_blocks_total", "kind=\"promoted\",model=\"a\"", s.promoted_blocks},
        {"latentkv_pool_moved_blocks_total", "kind=\"swapped_out\",model=\"a\"",
         s.swapped_out_blocks},
        {"latentkv_pool_moved_blocks_total", "kind=\"swapped_in\",model=\"a\"",
         s.swapped_in_blocks},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t found = value_of(e, rows[i].name, rows[i].labels);
        cr_assert_eq(found, rows[i].want, "%s{%s} is %" PRIu64 ", want %" PRIu64, rows[i].name,
                     rows[i].labels, found, rows[i].want);
    }
    cr_assert_gt(s.hit_tokens, 0);
    cr_assert_gt(s.published_blocks, 0);
    cr_assert_gt(s.demoted_blocks, 0);
}

Test(prometheus, text_is_valid_and_equals_the_statistics)
{
    lkv_context *ctx;
    lkv_pool *pool = pool_create(&ctx);
    static struct exposition plain, labelled;
    use(pool);
    char *text = text_of(pool, "model=\"a\"");
    read_text(text, &labelled);
    equals_query(pool, &labelled);
    free(text);
    text = text_of(pool, NULL);
    read_text(text, &plain);
    cr_assert_eq(plain.num, labelled.num);
    cr_assert_eq(value_of(&plain, "latentkv_pool_capacity_blocks", ""), BLOCKS);
    free(text);
    lkv_pool_release(pool);
    lkv_context_release(ctx);
}

Test(prometheus, labels_cannot_break_the_format)
{
    static const char *const bad[] = {
        "a",         "a=b",       "a=\"b",    "=\"b\"",         "1a=\"b\"",
        "a=\"b\n\"", "a=\"\\q\"", "a=\"b\",", "a=\"b\"c=\"d\"", "a=\"b\" 1\nx 2",
        ",",         "a=\"b\"}",  "a=\"b\\",  "state=\"free\"", "b=\"\",kind=\"x\"",
    };
    static const char *const good[] = {"", "a=\"\"", "_a1=\"x y\",B=\"\\\"\\\\\\n\"",
                                       "a=\"{},= \\\" #\""};
    lkv_context *ctx;
    lkv_pool *pool = pool_create(&ctx);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        size_t needed = 77;
        cr_assert_eq(lkv_pool_metrics_text(pool, bad[i], NULL, 0, &needed), LKV_E_INVALID,
                     "accepted: %s", bad[i]);
        cr_assert_eq(needed, 77);
    }
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        free(text_of(pool, good[i]));
    lkv_pool_release(pool);
    lkv_context_release(ctx);
}

Test(prometheus, too_small_a_buffer_is_left_alone)
{
    lkv_context *ctx;
    lkv_pool *pool = pool_create(&ctx);
    char one[1] = {'#'};
    size_t needed = 0;
    cr_assert_eq(lkv_pool_metrics_text(pool, NULL, one, 1, &needed), LKV_E_INVALID);
    cr_assert_eq(one[0], '#');
    cr_assert_eq(needed, 0);
    lkv_pool_release(pool);
    lkv_context_release(ctx);
}
