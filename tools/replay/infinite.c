/* In: the trace in its own order. Out: the hits of a cache that never evicts, or that evicts if
 * --compare gave it a size. Each prompt is admitted, declared written and freed before the next
 * arrives; nothing is decoded. */
#include "tools/replay/replay.h"

#include "tools/common/out.h"

enum { INFINITE_SAMPLES = 256 }; /* a query of a large pool takes milliseconds */

static void run_request(struct replay *r, uint64_t i)
{
    const struct trace_request *q = &r->trace.requests[i];
    const lkv_prompt prompt = {.size = sizeof prompt,
                               .tokens = expand_prompt(&r->expander, i),
                               .num_tokens = q->input_length};
    const lkv_admit_args args = {.size = sizeof args, .max_tokens = q->input_length};
    lkv_admission admission = {.size = sizeof admission};
    lkv_seq seq;
    const struct stopwatch admit = manager_begin();
    const lkv_status status = lkv_seq_admit(r->pool.pool, &prompt, &args, &admission, &seq);
    const double us = 1e6 * manager_end(r, admit);
    if (status == LKV_E_NEVER_FITS) {
        r->result.never_fits++;
        return;
    }
    out_must(status, "admission");
    series_add(&r->result.match_admit_us, us);
    const struct stopwatch publish = manager_begin();
    if (admission.partial_hit_tokens)
        replay_settle_copies(r);
    out_must(lkv_seq_commit(r->pool.pool, seq, q->input_length), "commit");
    out_must(lkv_seq_free(r->pool.pool, seq, 0), "free");
    series_add(&r->result.step_us, 1e6 * manager_end(r, publish));
    replay_count_hits(r, q->input_length, &admission);
    if (admission.num_blocks > r->result.blocks_peak)
        r->result.blocks_peak = admission.num_blocks;
}

void replay_infinite(struct replay *r)
{
    const uint64_t stride = r->trace.num_requests / INFINITE_SAMPLES + 1;
    progress_start(&r->progress, "replay", r->trace.num_requests);
    for (uint64_t i = 0; i < r->trace.num_requests; i++) {
        run_request(r, i);
        replay_count_step(r);
        if (i % stride == 0 || i + 1 == r->trace.num_requests)
            replay_sample(r, r->trace.requests[i].arrival_s, 0, 0);
        progress_show(&r->progress, i + 1);
    }
    progress_end(&r->progress);
    r->result.simulated_s = r->trace.requests[r->trace.num_requests - 1].arrival_s;
}
