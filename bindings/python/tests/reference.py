"""The float64 twin: attention, RoPE and projections as the formulas read, one row at a time."""
from __future__ import annotations

import numpy as np


def attend(q, q_rope, latents, ropes, visible, scale, bias=None):
    """One query row of H heads over keys 0 .. visible - 1: (out [H, L], lse [H], entropy [H])."""
    c = np.asarray(latents[:visible], np.float64)
    s = scale * (q.astype(np.float64) @ c.T + q_rope.astype(np.float64)
                 @ np.asarray(ropes[:visible], np.float64).T)
    if bias is not None:
        s = s + bias[:visible].astype(np.float64)
    top = s.max(axis=1, keepdims=True)
    e = np.exp(s - top)
    lse = np.log(e.sum(axis=1)) + top[:, 0]
    p = e / e.sum(axis=1, keepdims=True)
    return p @ c, lse, lse - (p * s).sum(axis=1)


def rope(x, positions, theta, style):
    """Pair i of x [..., R] turned by position * theta^(-2i / R)."""
    x = x.astype(np.float64)
    half = x.shape[-1] // 2
    angle = positions[:, None].astype(np.float64) * theta ** (-np.arange(half) / half)
    angle = angle.reshape(angle.shape[:1] + (1,) * (x.ndim - 2) + angle.shape[1:])
    a, b = x[..., :half], x[..., half:]
    if style == "interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
    turned = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    out = np.empty_like(x)
    if style == "interleaved":
        out[..., 0::2], out[..., 1::2] = turned
    else:
        out[..., :half], out[..., half:] = turned
    return out
