/* In: a gate's descriptor, entropies, stored states. Out: checked numbers to moe_cache/gate.c under
 * the gate's lock. A gate needs no device: it reads host memory. */
#include <math.h>
#include "api/check.h"
#include "api/moe_objects.h"
#include "core/status.h"
#include "moe_cache/gate.h"

enum { WINDOW_STEPS = 1000, MAX_WINDOW_STEPS = 1 << 30 };
static const double first_threshold = 2.1, first_stddevs = 0.5;

static lkv_status finite_from(const char *name, double value, double low)
{
    if (!isfinite(value) || value < low)
        return lkvi_fail(LKV_E_INVALID, "%s is %g; need a finite value from %g", name, value, low);
    return LKV_OK;
}

static lkv_status desc_check(lkv_gate_desc *d)
{
    if (d->reduce > LKV_GATE_MAX)
        return lkvi_fail(LKV_E_INVALID, "reduce is %u; need LKV_GATE_MEAN or LKV_GATE_MAX",
                         d->reduce);
    if (d->window_steps > MAX_WINDOW_STEPS)
        return lkvi_fail(LKV_E_INVALID, "window_steps is %u; need at most 2^30", d->window_steps);
    LKV_TRY(finite_from("threshold", d->threshold, -1e30));
    LKV_TRY(finite_from("stddevs", d->stddevs, -1e30));
    LKV_TRY(finite_from("hysteresis", d->hysteresis, 0));
    LKV_TRY(lkvi_flags_check(d->frozen, 1, "frozen"));
    LKV_TRY(lkvi_flags_check(d->flags, 0, "gate flags"));
    d->window_steps = d->window_steps ? d->window_steps : WINDOW_STEPS;
    d->threshold = d->threshold != 0 ? d->threshold : first_threshold;
    d->stddevs = d->stddevs != 0 ? d->stddevs : first_stddevs;
    return LKV_OK;
}

lkv_status lkv_gate_create(const lkv_gate_desc *given, lkv_gate **out)
{
    lkv_gate_desc desc;
    LKV_TRY(lkvi_admit(&desc, sizeof desc, given, "lkv_gate_desc"));
    LKV_TRY(lkvi_array_check(out, 1, sizeof(void *), "out"));
    LKV_TRY(desc_check(&desc));
    struct lkv_gate *gate = lkvi_object_create(LKVI_KIND_GATE, sizeof *gate);
    if (!gate)
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a gate of %zu bytes", sizeof *gate);
    if (pthread_mutex_init(&gate->mutex, NULL)) {
        lkvi_object_recycle(&gate->object);
        return lkvi_fail(LKV_E_NO_MEMORY, "no memory for a gate's mutex");
    }
    gate->desc = desc;
    gate->state = (lkv_gate_state){
        .size = sizeof gate->state, .threshold = desc.threshold, .frozen = desc.frozen};
    lkvi_object_publish(&gate->object);
    *out = gate;
    return LKV_OK;
}

void lkv_gate_release(lkv_gate *gate)
{
    if (!lkvi_object_withdraw((struct lkvi_object *)gate, LKVI_KIND_GATE) ||
        !lkvi_object_drop(&gate->object))
        return;
    pthread_mutex_destroy(&gate->mutex);
    lkvi_object_recycle(&gate->object);
}

static lkv_status gate_live(const struct lkv_gate *gate)
{
    return lkvi_object_check((const struct lkvi_object *)gate, LKVI_KIND_GATE);
}

/* Host tensors follow the rules of a CPU context. */
static lkv_status entropy_check(const lkv_tensor *t)
{
    static const struct lkv_context host = {.device = LKV_DEVICE_CPU};
    struct lkvi_want want = {"entropy", LKVI_F32_LOOSE, 1, {-1, -1}};
    if (lkvi_tensor_ndim(t) == 2)
        want.ndim = 2;
    LKV_TRY(lkvi_tensor_check(&host, t, &want));
    if (t->ndim == 2 && (t->shape[1] < 1 || t->shape[1] > 65535))
        return lkvi_fail(LKV_E_INVALID, "entropy has shape[1] %lld; need 1 to 65535 heads",
                         (long long)t->shape[1]);
    return LKV_OK;
}

lkv_status lkv_gate_step(lkv_gate *gate, lkv_gate_args *given)
{
    lkv_gate_args args;
    LKV_TRY(gate_live(gate));
    LKV_TRY(lkvi_admit(&args, sizeof args, given, "lkv_gate_args"));
    LKV_TRY(entropy_check(args.entropy));
    uint64_t rows = (uint64_t)args.entropy->shape[0];
    LKV_TRY(lkvi_array_check(args.triggered, rows, 1, "triggered"));
    LKV_TRY(
        lkvi_array_check(args.reduced, args.reduced ? rows : 0, sizeof *args.reduced, "reduced"));
    struct lkvi_gate_rows r = {.entropy = args.entropy->data,
                               .row_stride = (uint64_t)args.entropy->stride[0],
                               .num_rows = rows,
                               .num_heads =
                                   args.entropy->ndim == 2 ? (uint32_t)args.entropy->shape[1] : 1,
                               .active = args.active,
                               .triggered = args.triggered,
                               .reduced = args.reduced};
    pthread_mutex_lock(&gate->mutex);
    lkvi_gate_step(&gate->desc, &gate->state, &r);
    pthread_mutex_unlock(&gate->mutex);
    args.num_triggered = r.num_triggered;
    args.num_skipped = r.num_skipped;
    lkvi_give(given, &args, sizeof args);
    return LKV_OK;
}

lkv_status lkv_gate_freeze(lkv_gate *gate, uint32_t frozen)
{
    LKV_TRY(gate_live(gate));
    LKV_TRY(lkvi_flags_check(frozen, 1, "frozen"));
    pthread_mutex_lock(&gate->mutex);
    gate->state.frozen = frozen;
    pthread_mutex_unlock(&gate->mutex);
    return LKV_OK;
}

lkv_status lkv_gate_save(lkv_gate *gate, lkv_gate_state *given)
{
    LKV_TRY(gate_live(gate));
    LKV_TRY(lkvi_admit_out(given, "lkv_gate_state"));
    pthread_mutex_lock(&gate->mutex);
    lkv_gate_state state = gate->state;
    pthread_mutex_unlock(&gate->mutex);
    lkvi_give(given, &state, sizeof state);
    return LKV_OK;
}

static lkv_status state_check(const struct lkv_gate *gate, const lkv_gate_state *s)
{
    if (s->steps >= gate->desc.window_steps)
        return lkvi_fail(LKV_E_INVALID, "steps is %llu; need less than window_steps %u",
                         (unsigned long long)s->steps, gate->desc.window_steps);
    if (s->count && !s->steps)
        return lkvi_fail(LKV_E_INVALID, "count is %llu with 0 steps; need 0",
                         (unsigned long long)s->count);
    if (s->count > s->total || s->triggered > s->total)
        return lkvi_fail(LKV_E_INVALID, "total is %llu; need count %llu and triggered %llu in it",
                         (unsigned long long)s->total, (unsigned long long)s->count,
                         (unsigned long long)s->triggered);
    LKV_TRY(finite_from("mean", s->mean, -1e38));
    LKV_TRY(finite_from("m2", s->m2, 0));
    LKV_TRY(finite_from("threshold", s->threshold, -1e38));
    LKV_TRY(lkvi_flags_check(s->frozen, 1, "frozen"));
    return lkvi_flags_check(s->reserved, 0, "reserved");
}

lkv_status lkv_gate_load(lkv_gate *gate, const lkv_gate_state *given)
{
    lkv_gate_state state;
    LKV_TRY(gate_live(gate));
    LKV_TRY(lkvi_admit(&state, sizeof state, given, "lkv_gate_state"));
    LKV_TRY(state_check(gate, &state));
    state.size = sizeof state;
    pthread_mutex_lock(&gate->mutex);
    gate->state = state;
    pthread_mutex_unlock(&gate->mutex);
    return LKV_OK;
}
