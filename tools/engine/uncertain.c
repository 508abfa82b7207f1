/* In: attention entropies of a model's tokens. Out: for each token and layer what the gate compared
 * (the mean over the heads) and what it answered, and the threshold that was in force. */
#include "tools/engine/uncertain.h"

#include <stdlib.h>

#include "tools/common/out.h"

struct uncertain {
    const struct engine_api *api;
    lkv_gate *gate;
    uint32_t layers, heads, max_chunk;
    float *room;                            /* [layers, max_chunk, heads] */
    float *reduced;                         /* [layers] */
    uint8_t *triggered;                     /* [layers] */
    json_t *entropy, *answers, *thresholds; /* an entry a token */
};

static void must(const struct uncertain *u, lkv_status status)
{
    struct engine_error error;
    if (engine_api_check(u->api, status, "the gate", &error))
        out_die("%s", error.text);
}

struct uncertain *uncertain_new(const struct engine_api *api, const struct model_config *model,
                                uint32_t max_chunk)
{
    struct uncertain *u = out_alloc(1, sizeof *u);
    const lkv_gate_desc desc = {.size = sizeof desc};
    u->api = api;
    u->layers = model->num_layers;
    u->heads = model->num_heads;
    u->max_chunk = max_chunk;
    u->room = out_alloc((size_t)u->layers * max_chunk * u->heads, sizeof *u->room);
    u->reduced = out_alloc(u->layers, sizeof *u->reduced);
    u->triggered = out_alloc(u->layers, sizeof *u->triggered);
    u->entropy = json_array();
    u->answers = json_array();
    u->thresholds = json_array();
    must(u, api->lkv_gate_create(&desc, &u->gate));
    return u;
}

float *uncertain_room(struct uncertain *u)
{
    return u->room;
}

static lkv_gate_state state_of(const struct uncertain *u)
{
    lkv_gate_state state = {.size = sizeof state};
    must(u, u->api->lkv_gate_save(u->gate, &state));
    return state;
}

static void ask_one(struct uncertain *u, uint32_t row)
{
    const lkv_tensor entropy = {u->room + (size_t)row * u->heads,
                                LKV_DTYPE_F32,
                                2,
                                {u->layers, u->heads},
                                {(int64_t)u->max_chunk * u->heads, 1}};
    lkv_gate_args args = {
        .size = sizeof args, .entropy = &entropy, .triggered = u->triggered, .reduced = u->reduced};
    json_t *entropies = json_array(), *answers = json_array();
    json_array_append_new(u->thresholds, json_real(state_of(u).threshold));
    must(u, u->api->lkv_gate_step(u->gate, &args));
    for (uint32_t i = 0; i < u->layers; i++) {
        json_array_append_new(entropies, out_number((double)u->reduced[i]));
        json_array_append_new(answers, json_integer(u->triggered[i]));
    }
    json_array_append_new(u->entropy, entropies);
    json_array_append_new(u->answers, answers);
}

void uncertain_ask(struct uncertain *u, uint32_t n)
{
    for (uint32_t row = 0; row < n; row++)
        ask_one(u, row);
}

json_t *uncertain_end(struct uncertain *u, const char *path)
{
    const lkv_gate_state s = state_of(u);
    json_t *all = json_pack("{s:o,s:o,s:o}", "entropy", u->entropy, "triggered", u->answers,
                            "threshold", u->thresholds);
    if (json_dump_file(all, path, JSON_COMPACT | JSON_REAL_PRECISION(17)))
        out_die("%s: could not write the gate's answers", path);
    json_decref(all);
    json_t *figures =
        json_pack("{s:I,s:I,s:I,s:o,s:o}", "tokens", (json_int_t)s.total, "triggered",
                  (json_int_t)s.triggered, "windows", (json_int_t)s.windows, "trigger_rate",
                  out_number(s.total ? (double)s.triggered / (double)s.total : 0), "threshold",
                  out_number(s.threshold));
    u->api->lkv_gate_release(u->gate);
    free(u->room);
    free(u->reduced);
    free(u->triggered);
    free(u);
    return figures;
}
