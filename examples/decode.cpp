/* One decode step in C++ with the engine's own blocks: unique_ptr for objects, one exception for
 * every status, a pool over memory that the engine allocated.
 *   c++ -std=c++17 decode.cpp $(pkg-config --cflags --libs latentkv) */
#include <latentkv/latentkv.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

namespace
{

constexpr int64_t kTokens = 101, kHeads = 16, kLatent = 512, kRope = 64;

void ok(lkv_status status)
{
    if (status != LKV_OK)
        throw std::runtime_error(lkv_last_error());
}

/* unique_ptr of an object of the library: Owned<lkv_pool, lkv_pool_release>. */
template <auto Release> struct Deleter {
    template <class T> void operator()(T *object) const
    {
        Release(object);
    }
};
template <class T, auto Release> using Owned = std::unique_ptr<T, Deleter<Release>>;
using Context = Owned<lkv_context, lkv_context_release>;
using Pool = Owned<lkv_pool, lkv_pool_release>;
using Plan = Owned<lkv_plan, lkv_plan_release>;

/* A descriptor of zeros that knows its size. */
template <class T> T sized()
{
    T desc{};
    desc.size = sizeof(T);
    return desc;
}

/* Rows of floats and their lkv_tensor. */
struct Rows {
    std::vector<float> data;
    lkv_tensor tensor{};
    Rows(int64_t rows, int64_t columns) : data(rows * columns)
    {
        tensor = {data.data(), LKV_DTYPE_F32, 2, {rows, columns}, {columns, 1}};
    }
    Rows(int64_t rows, int64_t heads, int64_t columns) : data(rows * heads * columns)
    {
        tensor = {
            data.data(), LKV_DTYPE_F32, 3, {rows, heads, columns}, {heads * columns, columns, 1}};
    }
};

/* Memory that the engine owns: any allocator with 256-byte alignment will do. */
struct Memory {
    std::align_val_t alignment{256};
    void *data;
    explicit Memory(size_t bytes) : data(::operator new(bytes ? bytes : 1, alignment))
    {
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory()
    {
        ::operator delete(data, alignment);
    }
};

lkv_pool_desc pool_shape()
{
    auto desc = sized<lkv_pool_desc>();
    desc.format = LKV_FORMAT_INT8;
    desc.owner = LKV_OWNER_ENGINE;
    desc.tokens_per_block = 64;
    desc.latent_dim = kLatent;
    desc.rope_dim = kRope;
    desc.num_layers = 1;
    desc.num_blocks = 8;
    return desc;
}

Pool make_pool(lkv_context *ctx, lkv_pool_desc desc, const Memory &memory, uint64_t bytes)
{
    lkv_pool *pool = nullptr;
    desc.memory = memory.data;
    desc.memory_bytes = bytes;
    ok(lkv_pool_create(ctx, &desc, &pool));
    return Pool(pool);
}

/* Writes all tokens' latents; the engine put them into blocks 3 and 6. */
void append(lkv_pool *pool)
{
    Rows latent(kTokens, kLatent), rope(kTokens, kRope);
    std::vector<int64_t> slots(kTokens);
    for (int64_t t = 0; t < kTokens; t++) {
        slots[t] = (t < 64 ? 3 : 6) * 64 + t % 64;
        for (int64_t i = 0; i < kLatent; i++)
            latent.data[t * kLatent + i] = static_cast<float>((t * 37 + i * 11) % 19 - 9) / 9;
    }
    auto args = sized<lkv_append_args>();
    args.latent = &latent.tensor;
    args.rope = &rope.tensor;
    args.slots = slots.data();
    args.flags = LKV_APPEND_CHECKED;
    ok(lkv_append(pool, &args, nullptr));
}

Plan make_plan(lkv_context *ctx, const lkv_pool *pool)
{
    auto desc = sized<lkv_plan_desc>();
    desc.pool = pool;
    desc.num_heads = kHeads;
    desc.max_seqs = desc.max_tokens = desc.max_q_len = 1;
    desc.max_seq_len = 256;
    desc.q_dtype = desc.out_dtype = LKV_DTYPE_F32;
    lkv_plan *plan = nullptr;
    ok(lkv_plan_create(ctx, &desc, &plan));
    return Plan(plan);
}

/* The newest token's query over the whole sequence. */
void attend(lkv_plan *plan, const lkv_pool *pool)
{
    Rows q(1, kHeads, kLatent), q_rope(1, kHeads, kRope), out(1, kHeads, kLatent), lse(1, kHeads);
    for (int64_t h = 0; h < kHeads; h++)
        for (int64_t i = 0; i < kLatent; i++)
            q.data[h * kLatent + i] = static_cast<float>((h * 5 + i) % 7 - 3) / 16;
    const int32_t table[4] = {3, 6, 0, 0}, length = kTokens;
    auto batch = sized<lkv_batch>();
    batch.num_seqs = 1;
    batch.max_blocks_per_seq = 4;
    batch.block_table = table;
    batch.seq_lens = &length;
    batch.num_tokens = 1;
    auto args = sized<lkv_attend_args>();
    args.q = &q.tensor;
    args.q_rope = &q_rope.tensor;
    args.out = &out.tensor;
    args.lse = &lse.tensor;
    args.scale = 0.0721687836;
    ok(lkv_plan_workspace(plan, &args.workspace_bytes));
    Memory workspace(args.workspace_bytes);
    args.workspace = workspace.data;
    ok(lkv_plan_update(plan, &batch, args.workspace, args.workspace_bytes, nullptr));
    ok(lkv_attend(plan, pool, &batch, &args, nullptr));
    std::printf("attended %d tokens: lse[0] %.4f, out[0][0] %.4f\n", length, lse.data[0],
                out.data[0]);
}

void run()
{
    auto desc = sized<lkv_context_desc>();
    desc.device = LKV_DEVICE_CPU;
    lkv_context *made = nullptr;
    ok(lkv_context_create(&desc, &made));
    Context ctx(made);
    const lkv_pool_desc shape = pool_shape();
    auto info = sized<lkv_block_info>();
    ok(lkv_block_query(&shape, &info));
    Memory memory(info.total_bytes);
    Pool pool = make_pool(ctx.get(), shape, memory, info.total_bytes);
    append(pool.get());
    Plan plan = make_plan(ctx.get(), pool.get());
    attend(plan.get(), pool.get());
}

} // namespace

int main()
{
    try {
        run();
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
    return 0;
}
