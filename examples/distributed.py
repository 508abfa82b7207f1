"""Two ranks, by heads and by keys. Run by the tests; on two GPUs as it is.

    torchrun --standalone --nproc-per-node 2 examples/distributed.py [int8]   # ranks may share a GPU

Tensor parallel: each rank has the whole latent cache and half of the heads. Context parallel: each
rank has half of the keys and all heads; lkv_merge joins the parts by their lse. Both are compared
with one rank that does everything."""
import os
import sys

import latentkv
import torch
import torch.distributed as dist

H, L, R, BLOCK, TOKENS, ROWS = 16, 512, 64, 64, 4096, 8
SCALE = 192 ** -0.5


def attention(ctx, device, form, latent, rope, q, q_rope):
    """Attention of `q` (its last row sees every key) over these keys: out, lse."""
    blocks = latent.shape[0] // BLOCK
    pool = latentkv.Pool(ctx, format=form, latent_dim=L, rope_dim=R, num_blocks=blocks,
                         owner="engine")
    here = None if device.type == "cpu" else torch.cuda.current_stream(device)
    pool.append(latent, rope, torch.arange(latent.shape[0], device=device), stream=here)
    plan = latentkv.Plan(pool, num_heads=q.shape[1], max_seqs=q.shape[0], max_seq_len=TOKENS,
                         q_dtype="bfloat16", out_dtype="float32")
    space = None if here is None else torch.empty(plan.workspace_bytes, dtype=torch.uint8,
                                                  device=device)
    # Each row is a sequence of its own over the same blocks.
    table = torch.arange(blocks, dtype=torch.int32, device=device).repeat(q.shape[0], 1)
    lens = torch.full((q.shape[0],), latent.shape[0], dtype=torch.int32, device=device)
    plan.update(latentkv.Batch(table, lens), workspace=space, stream=here)
    out = torch.empty(q.shape[0], q.shape[1], L, device=device)
    lse = torch.empty(q.shape[0], q.shape[1], device=device)
    plan.attend(q, q_rope, out, scale=SCALE, lse=lse, stream=here)
    return out, lse


def gathered(part):
    """Of every rank, in order; by the host where NCCL is not (gloo)."""
    sent = part.contiguous() if dist.get_backend() == "nccl" else part.cpu()
    parts = [torch.empty_like(sent) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, sent)
    return [each.to(part.device) for each in parts]


def distance(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


def main():
    form = sys.argv[1] if len(sys.argv) > 1 else "int8"
    gpus, local = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
    cuda = gpus > 0
    dist.init_process_group("nccl" if gpus >= int(os.environ["WORLD_SIZE"]) else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{local % gpus}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    ctx = latentkv.Context(str(device), num_threads=0 if cuda else 1)
    random = torch.Generator().manual_seed(3)  # the same numbers on every rank
    latent, rope, q, q_rope = (torch.randn(*shape, generator=random).to(device, torch.bfloat16)
                               for shape in ((TOKENS, L), (TOKENS, R), (ROWS, H, L), (ROWS, H, R)))
    q = q / 4
    whole, whole_lse = attention(ctx, device, form, latent, rope, q, q_rope)

    mine = slice(rank * H // ranks, (rank + 1) * H // ranks)
    out, _ = attention(ctx, device, form, latent, rope, q[:, mine].contiguous(),
                       q_rope[:, mine].contiguous())
    heads = torch.cat(gathered(out), dim=1)

    mine = slice(rank * TOKENS // ranks, (rank + 1) * TOKENS // ranks)
    out, lse = attention(ctx, device, form, latent[mine], rope[mine], q, q_rope)
    keys, keys_lse = torch.empty_like(whole), torch.empty_like(whole_lse)
    ctx.merge(torch.stack(gathered(out)), torch.stack(gathered(lse)), keys, lse=keys_lse,
              stream=torch.cuda.current_stream(device) if cuda else None)
    if rank == 0:
        print(f"{ranks} ranks on {device.type} ({gpus} GPUs), {form}: heads split {distance(heads, whole):.1e}, "
              f"keys split {distance(keys, whole):.1e}, lse "
              f"{(keys_lse - whole_lse).abs().max().item():.1e}")
    assert distance(heads, whole) < 4e-3  # bf16 rounding
    assert distance(keys, whole) < 1e-3 and (keys_lse - whole_lse).abs().max() < 1e-3
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
