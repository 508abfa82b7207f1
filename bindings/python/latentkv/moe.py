"""Beside the attention path, in the order of a token: Router (which experts) -> Gate (is it
uncertain?) -> choose_fallback (which other expert?) -> combine. Trace keeps the choice beside the
KV block; measure() and metrics_text() say how it goes. Slots, in slots.py, hold payloads.

moe_cache.h is the reference. T tokens, D hidden_dim, E num_experts, K top_k, H heads. Arrays are
the caller's, outputs too; they are densely packed unless their strides are named."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from . import _abi, _errors, _handle
from ._arguments import choice, dense, stream as stream_of, tensor
from ._library import call
from .context import Context
from .pool import Pool
from .slots import Slot, SlotKey, Slots
from .tensor import ArrayLike, view

__all__ = ["Chosen", "Gate", "Router", "Slot", "SlotKey", "Slots", "TokenScale", "Trace",
           "Triggers", "choose_fallback", "combine", "measure", "metrics_text"]
KINDS = {"trace": _abi.LKV_ROUTER_TRACE, "v3": _abi.LKV_ROUTER_V3}
REDUCE = {"mean": _abi.LKV_GATE_MEAN, "max": _abi.LKV_GATE_MAX}
POLICIES = {"none": _abi.LKV_FALLBACK_NONE, "fnv1a": _abi.LKV_FALLBACK_FNV1A,
            "lcg": _abi.LKV_FALLBACK_LCG, "buddy": _abi.LKV_FALLBACK_BUDDY,
            "shared": _abi.LKV_FALLBACK_SHARED}
MODES = {"add": _abi.LKV_COMBINE_ADD, "substitute": _abi.LKV_COMBINE_SUBSTITUTE,
         "stat_only": _abi.LKV_COMBINE_STAT_ONLY}


def _length(what: str, array: ArrayLike) -> int:
    """Of the first dimension."""
    found = view(array)
    if not found.shape:
        raise _errors.invalid(f"{what} is {found!r}; need at least one dimension")
    return found.shape[0]


class Router(_handle.Object):
    """Hidden states or logits to experts. Immutable; may be shared between threads. CPU contexts.

    kind          "v3": sigmoid scores, a bias for the choice alone, groups; "trace": a small MLP
                  over the hidden state and the layer's number, one expert by softmax
    hidden_dim    D, a multiple of 16; 0: logits are given, no weights
    weight, bias  host fp32, copied. v3: [E, D], [E] or None; trace: [E, M], [E]
    trace_weight, trace_bias  [M, D + 1] (the last column is the layer's), [M]; M = trace_dim
    normalise     v3: weights are divided by their sum before routed_scale"""

    def __init__(self, context: Context, *, num_experts: int, top_k: int = 1, kind: str = "v3",
                 hidden_dim: int = 0, weight: ArrayLike | None = None,
                 bias: ArrayLike | None = None, trace_weight: ArrayLike | None = None,
                 trace_bias: ArrayLike | None = None, trace_dim: int = 0, num_groups: int = 0,
                 topk_groups: int = 0, normalise: bool = False, temperature: float = 0.0,
                 routed_scale: float = 0.0) -> None:
        self.device, self.num_experts = context.device, num_experts
        self.top_k = top_k or 1
        middle = trace_dim or 256
        inner = middle if kind == "trace" else hidden_dim
        desc = _abi.lkv_router_desc(
            kind=choice("kind", kind, KINDS), flags=_abi.LKV_ROUTER_NORMALISE * normalise,
            hidden_dim=hidden_dim, num_experts=num_experts, top_k=top_k, num_groups=num_groups,
            topk_groups=topk_groups, trace_dim=trace_dim, temperature=temperature,
            routed_scale=routed_scale,
            weight=dense("weight", weight, "float32", -1, (num_experts, inner)),
            bias=dense("bias", bias, "float32", -1, (num_experts,)),
            trace_weight=dense("trace_weight", trace_weight, "float32", -1,
                               (middle, hidden_dim + 1)),
            trace_bias=dense("trace_bias", trace_bias, "float32", -1, (middle,)))
        self._create(call.lkv_router_create, call.lkv_router_release, context.handle, desc)

    def route(self, x: ArrayLike | None = None, *, experts: ArrayLike,
              weights: ArrayLike | None = None, entropy: ArrayLike | None = None,
              logits: ArrayLike | None = None, load: ArrayLike | None = None, layer: int = 0,
              stream: Any = None) -> None:
        """Routes T tokens. x [T, D] float32 or bfloat16; None: logits fp32 [T, E] are read, else
        they are written where given. Out: experts int32 [T, K] by falling score; weights fp32
        [T, K]; entropy fp32 [T] in nats, of the whole distribution. load uint64 [E]: counts of
        experts are added. Equal scores: the lowest index."""
        where, rows = self.device, _length("experts", experts)
        chosen = (rows, self.top_k)
        args = _abi.lkv_route_args(
            x=tensor("x", x, where), logits=tensor("logits", logits, where, x is not None),
            experts=dense("experts", experts, "int32", where, chosen, True),
            weights=dense("weights", weights, "float32", where, chosen, True),
            entropy=dense("entropy", entropy, "float32", where, (rows,), True),
            load=dense("load", load, "uint64", where, (self.num_experts,), True),
            num_tokens=rows, layer=layer)
        call.lkv_route(self.handle, args, stream_of(stream))


class Triggers(NamedTuple):
    """Of one Gate.step(): triggered tokens; active ones whose entropy is not finite."""

    num_triggered: int
    num_skipped: int


class Gate(_handle.Object):
    """A threshold on entropies that follows their statistics. May be shared between threads.

    reduce        over the heads of an attention entropy: "mean", "max"
    window_steps  0: 1000
    threshold     nats, until the first window is full; 0: 2.1
    stddevs       the next one is mean + stddevs * standard deviation; 0: 0.5
    hysteresis    nats: a triggered token stays so above threshold - hysteresis"""

    def __init__(self, *, reduce: str = "mean", window_steps: int = 0, threshold: float = 0.0,
                 stddevs: float = 0.0, hysteresis: float = 0.0, frozen: bool = False) -> None:
        desc = _abi.lkv_gate_desc(
            reduce=choice("reduce", reduce, REDUCE), window_steps=window_steps,
            threshold=threshold, stddevs=stddevs, hysteresis=hysteresis, frozen=int(frozen))
        self._create(call.lkv_gate_create, call.lkv_gate_release, desc)

    def step(self, entropy: ArrayLike, triggered: ArrayLike, *, active: ArrayLike | None = None,
             reduced: ArrayLike | None = None) -> Triggers:
        """One step, on the host. entropy fp32 [T, H] of Plan.attend or [T] of Router.route;
        triggered uint8 [T], out 0 or 1 (with hysteresis in: each row's last answer); active uint8
        [T], 0: a padding row; reduced fp32 [T], out: what was compared."""
        rows = _length("entropy", entropy)
        args = _abi.lkv_gate_args(
            entropy=tensor("entropy", entropy, -1),
            active=dense("active", active, "uint8", -1, (rows,)),
            triggered=dense("triggered", triggered, "uint8", -1, (rows,), True),
            reduced=dense("reduced", reduced, "float32", -1, (rows,), True))
        call.lkv_gate_step(self.handle, ctypes.byref(args))
        return Triggers(args.num_triggered, args.num_skipped)

    def freeze(self, frozen: bool = True) -> None:
        """A frozen gate keeps its threshold; its windows run on."""
        call.lkv_gate_freeze(self.handle, int(frozen))

    def save(self) -> _abi.lkv_gate_state:
        """All that it knows: threshold, window, sums. Plain numbers."""
        state = _abi.lkv_gate_state()
        call.lkv_gate_save(self.handle, state)
        return state

    def load(self, state: _abi.lkv_gate_state) -> None:
        """Goes on as the gate that was saved, if its window is as long."""
        call.lkv_gate_load(self.handle, state)

    @property
    def threshold(self) -> float:
        """In nats, now."""
        return self.save().threshold


class Chosen(NamedTuple):
    """Of choose_fallback(): tokens that got an expert; those whose expert is not resident."""

    num_chosen: int
    num_absent: int


def choose_fallback(primary: ArrayLike, fallback: ArrayLike, *, num_experts: int,
                    policy: str = "fnv1a", triggered: ArrayLike | None = None,
                    buddy: ArrayLike | None = None, resident: ArrayLike | None = None,
                    shared_expert: int = 0) -> Chosen:
    """The second expert of each triggered token, on the host. primary int32 [T], -1: none; fallback
    int32 [T], out, -1: none, never the primary; triggered uint8 [T], None: all; resident uint8 [E],
    None: all. policy: "fnv1a", "lcg": hashes of the primary; "buddy": buddy int32 [E] is a table;
    "shared": shared_expert for all; "none"."""
    rows = _length("primary", primary)
    args = _abi.lkv_fallback_args(
        policy=choice("policy", policy, POLICIES), num_experts=num_experts,
        primary=dense("primary", primary, "int32", -1, (rows,)),
        triggered=dense("triggered", triggered, "uint8", -1, (rows,)),
        buddy=dense("buddy", buddy, "int32", -1, (num_experts,)),
        resident=dense("resident", resident, "uint8", -1, (num_experts,)),
        fallback=dense("fallback", fallback, "int32", -1, (rows,), True),
        num_tokens=rows, shared_expert=shared_expert)
    call.lkv_fallback_choose(ctypes.byref(args))
    return Chosen(args.num_chosen, args.num_absent)


def combine(context: Context, primary: ArrayLike, fallback: ArrayLike | None, out: ArrayLike, *,
            chosen: ArrayLike, weight: ArrayLike | None = None, mode: str = "add",
            stream: Any = None) -> int:
    """Joins expert outputs [T, D] of one dtype, float32 or bfloat16; how many rows had a fallback.
    chosen int32 [T], negative: the row is primary's; weight fp32 [T], None: 1. mode: "add",
    primary + weight * fallback; "substitute", weight * fallback; "stat_only", primary (fallback
    None). out may be primary's memory."""
    where, rows = context.device, _length("primary", primary)
    args = _abi.lkv_combine_args(
        primary=tensor("primary", primary, where), fallback=tensor("fallback", fallback, where),
        out=tensor("out", out, where, True),
        chosen=dense("chosen", chosen, "int32", where, (rows,)),
        weight=dense("weight", weight, "float32", where, (rows,)),
        mode=choice("mode", mode, MODES))
    call.lkv_combine(context.handle, ctypes.byref(args), stream_of(stream))
    return args.num_combined


class TokenScale:
    """Each row's norm against the running mean of norms, clamped: a weight for combine(). mean and
    count are what earlier calls left; decay 0: the mean of all rows so far."""

    def __init__(self, low: float, high: float, decay: float = 0.0) -> None:
        self.low, self.high, self.decay = low, high, decay
        self.mean, self.count = 0.0, 0

    def measure(self, context: Context, x: ArrayLike, scale: ArrayLike, *,
                stream: Any = None) -> None:
        """x [T, D] float32 or bfloat16; scale fp32 [T], out: clamp(|x| / mean, low, high)."""
        where = context.device
        args = _abi.lkv_token_scale_args(
            x=tensor("x", x, where),
            scale=dense("scale", scale, "float32", where, (_length("x", x),), True),
            low=self.low, high=self.high, decay=self.decay, mean=self.mean, count=self.count)
        call.lkv_token_scale(context.handle, ctypes.byref(args), stream_of(stream))
        self.mean, self.count = args.mean, args.count


class Trace:
    """Which experts a token took, in a side plane of the pool (Plane(bytes, tag=1), of at least
    tokens_per_block * num_layers * top_k * 2 bytes a block): a prefix hit brings it along."""

    def __init__(self, pool: Pool, plane: int, *, num_layers: int, top_k: int) -> None:
        self.pool, self.plane, self.num_layers, self.top_k = pool, plane, num_layers, top_k

    def write(self, slots: ArrayLike, experts: ArrayLike, *, layer: int = 0) -> None:
        """slots int64 [T] as for Pool.append, experts int32 [T, K], both on the host; -1: none."""
        call.lkv_trace_write(self.pool.handle, self._args(slots, experts, layer, False))

    def read(self, slots: ArrayLike, experts: ArrayLike, *, layer: int = 0) -> None:
        """The same, into experts; a negative slot reads as none."""
        call.lkv_trace_read(self.pool.handle, self._args(slots, experts, layer, True))

    def _args(self, slots: ArrayLike, experts: ArrayLike, layer: int,
              out: bool) -> _abi.lkv_trace_args:
        rows = _length("slots", slots)
        return _abi.lkv_trace_args(
            slots=dense("slots", slots, "int64", -1, (rows,)),
            experts=dense("experts", experts, "int32", -1, (rows, self.top_k), out),
            num_tokens=rows, plane=self.plane, layer=layer, num_layers=self.num_layers,
            top_k=self.top_k)


def _signals(load: ArrayLike | None, gate: Gate | None, slots: Slots | None, pool: Pool | None,
             overload_factor: float, utilisation: tuple[float, float],
             trigger: tuple[float, float]) -> _abi.lkv_moe_args:
    experts = _length("load", load) if load is not None else 0
    return _abi.lkv_moe_args(
        load=dense("load", load, "uint64", -1, (experts,)), num_experts=experts,
        gate=gate.handle if gate is not None else None,
        slots=slots.handle if slots is not None else None,
        pool=pool.handle if pool is not None else None, overload_factor=overload_factor,
        utilisation_low=utilisation[0], utilisation_high=utilisation[1], trigger_low=trigger[0],
        trigger_high=trigger[1])


def measure(load: ArrayLike | None = None, *, gate: Gate | None = None, slots: Slots | None = None,
            pool: Pool | None = None, overload_factor: float = 0.0,
            utilisation: tuple[float, float] = (0.0, 0.0),
            trigger: tuple[float, float] = (0.0, 0.0)) -> _abi.lkv_moe_stats:
    """Health signals. load uint64 [E] on the host, tokens an expert got (Router.route adds to it).
    utilisation, trigger: healthy bands, in nats and as a rate; zeros: the defaults of moe_cache.h.
    outside: LKV_MOE_* of what has left its band."""
    stats = _abi.lkv_moe_stats()
    call.lkv_moe_measure(
        _signals(load, gate, slots, pool, overload_factor, utilisation, trigger), stats)
    return stats


def metrics_text(load: ArrayLike | None = None, *, labels: str = "", gate: Gate | None = None,
                 slots: Slots | None = None, pool: Pool | None = None, overload_factor: float = 0.0,
                 utilisation: tuple[float, float] = (0.0, 0.0),
                 trigger: tuple[float, float] = (0.0, 0.0)) -> str:
    """The same as Prometheus text, latentkv_moe_*. labels: name="value" pairs with commas
    between."""
    args = _signals(load, gate, slots, pool, overload_factor, utilisation, trigger)
    needed, given = ctypes.c_size_t(), labels.encode()
    call.lkv_moe_metrics_text(args, given, None, 0, ctypes.byref(needed))
    room = ctypes.create_string_buffer(needed.value + 64)  # numbers grow between two calls
    call.lkv_moe_metrics_text(args, given, ctypes.addressof(room), len(room), ctypes.byref(needed))
    return room.value.decode()
