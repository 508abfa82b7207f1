"""One decode step from Python: a prompt of 100 tokens and its next token through an int8 cache.

    pip install latentkv numpy && python decode.py
"""
import numpy as np

import latentkv

TOKENS, HEADS, LATENT, ROPE = 101, 16, 512, 64


def append(pool, tokens, latent, rope):
    """Admits the prompt, adds the new token, and writes the latents of both into the cache."""
    seq = pool.admit(tokens[:-1])
    step = pool.step([seq], num_new=[1], tokens=tokens[-1:], row_begin=[0], num_rows=[len(tokens)])
    pool.append(latent, rope, step.slots)
    seq.commit(len(tokens))
    return seq


def attend(pool, seq, q, q_rope):
    """The newest token's query over the whole sequence."""
    plan = latentkv.Plan(pool, num_heads=HEADS, max_seqs=1, max_seq_len=256)
    plan.update(pool.step([seq], row_begin=[len(seq) - 1], num_rows=[1]))
    out, lse = np.empty((1, HEADS, LATENT), np.float32), np.empty((1, HEADS), np.float32)
    plan.attend(q, q_rope, out, lse=lse, scale=0.0721687836)
    return out, lse


def main():
    t, i, h = np.arange(TOKENS)[:, None], np.arange(LATENT), np.arange(HEADS)[:, None]
    latent = ((t * 37 + i * 11) % 19 - 9).astype(np.float32) / 9  # an engine's come from its model
    q = ((h * 5 + i) % 7 - 3).astype(np.float32)[None] / 16
    rope, q_rope = np.zeros((TOKENS, ROPE), np.float32), np.zeros((1, HEADS, ROPE), np.float32)
    with latentkv.Context("cpu") as ctx:
        pool = latentkv.Pool(ctx, format="int8", latent_dim=LATENT, rope_dim=ROPE, num_blocks=32)
        seq = append(pool, range(TOKENS), latent, rope)
        out, lse = attend(pool, seq, q, q_rope)
        print(f"attended {len(seq)} tokens: lse[0] {lse[0, 0]:.4f}, out[0][0] {out[0, 0, 0]:.4f}")


if __name__ == "__main__":
    main()
