"""The gated delta rule over ragged sequences, with its matrices kept as state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.case import Case, Rand, f32, unit
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows, require_plain
from .replay import SITUATIONS, Batch, Recurrent, Situation, memory_inputs


@register
class GatedDeltaNet(Recurrent):
    """Per token and value head h, with key head m(h) and state M [S values, S keys]:

    M <- M * exp(g)  |  d <- beta * (v - M k)  |  M <- M + d k^T  |  o <- (M q) * scale

    q, k: [N, Hk, S] f32; v: [N, Hv, S] f32; their leading axes may have gaps. g: [N, Hv] f32, or
    [N, Hv, S] for a decay per key dimension; beta: [N, Hv] f32; a plane of state: [Hv, S values, S
    keys]; an entry of the log: k [Hk*S], the d of all heads [Hv*S], and exp(g) [Hv or Hv*S].
    o: [N, Hv, S] f32, zero in padding rows.
    heads: "tiled" m(h) = h mod Hk, "grouped" m(h) = h // (Hv/Hk). scale: 0 means 1/sqrt(S).
    M, d and exp(g) are rounded to f32 at every token, so that passes may be split anywhere.
    Source: Yang, Kautz & Hatamizadeh 2024; per-dimension decay, Kimi Team 2025."""

    name, outputs = "gated_delta_net", ("o", "state_out", "log_out?")
    inputs = ("q", "k", "v", "g", "beta", *memory_inputs("state"))
    writes = {"state_out": "state", "log_out": "log"}
    per_token = ("q", "k", "v", "g", "beta")
    tolerance = 1e-9  # the state is carried through hundreds of f32 updates
    heads: str
    scale: float = 0.0

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        g: TensorSpec,
        beta: TensorSpec,
        *memory: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        self.require_attr(self.heads in ("tiled", "grouped"), "heads", "'tiled' or 'grouped'")
        self.require_attr(math.isfinite(self.scale), "scale", "finite")
        require_operands(self, "N", q, k, v, g, beta)
        _, heads, s = v.shape
        entry = (q.shape[1] + heads) * s + heads * (s if g.rank == 3 else 1)
        return v.like(), *self.memory_specs(memory, heads * s * s, entry)

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        g: np.ndarray,
        beta: np.ndarray,
        *memory: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        _, heads, s = v.shape
        shared, every = q.shape[1], np.arange(heads)
        of_key = every % shared if self.heads == "tiled" else every * shared // heads
        scale = self.scale or 1.0 / math.sqrt(s)
        decay = fading(v, g)
        o = np.zeros(v.shape, np.float32)

        def fold(m: np.ndarray, entry: np.ndarray) -> np.ndarray:
            keys, wrote, faded = np.split(entry, [shared * s, (shared + heads) * s])
            keys, wrote = keys.reshape(shared, s), wrote.reshape(heads, s)
            return _advance(m, keys[of_key], wrote, faded.reshape(heads, -1))

        def token(m: np.ndarray, t: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
            query, key = q[t, of_key], k[t, of_key]
            m, o[t], d = delta_step(m, query, key, v[t], decay[t], beta[t], scale)
            return m, (k[t], d, decay[t])

        return o, *self.run(len(v), memory, (heads, s, s), fold, token)

    def cost(self, q: TensorSpec, k: TensorSpec, v: TensorSpec, *others: TensorSpec) -> Cost:
        return self.work(v.size * (7 * v.shape[2] + 4), (q, k, v, *others), v)

    @staticmethod
    def cases() -> Iterable[Case]:
        yield from _grid()
        yield from _kept_planes()
        yield from _edges()
        yield from _replays()
        yield from _prompts()
        for t in (1, 64, 256, 512, 1024):
            yield _case(32, 128, t, tags=("perf",))
            yield _case(4, 128, t, tags=("perf",))
        for t in (1, 64):
            yield _case(32, 128, t, kda=True, tags=("perf",))
            yield _case(4, 128, t, kda=True, tags=("perf",))
        for t, keep in ((1, 0), (4, 0), (4, 4), (64, 0), (512, 0)):
            yield _case(16, 128, t, keep=keep, tags=("perf",))
        yield _case(16, 128, *(4,) * 8, keep=4, tags=("perf",))
        for folded in (0, 4):
            yield _case(16, 128, replay=Situation((5,), 10, folded=folded), tags=("perf",))


def require_operands(
    op: Op,
    rows: str,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    g: TensorSpec,
    beta: TensorSpec,
) -> None:
    """Check what the rule takes per token; rows: names of the axes before those of a token."""
    axes = len(rows.split(", "))
    ok = q.rank == axes + 2 and 0 not in q.shape[axes:]
    op.require(ok, "q", f"[{rows}, Hk, S]", q.shape)
    (*lead, key_heads, s), n = q.shape, ", ".join(map(str, q.shape[:axes]))
    op.require(k.shape == q.shape, "k", f"{q.shape} like q", k.shape)
    heads = v.shape[-2] if v.rank == q.rank else 0
    ok = heads > 0 and heads % key_heads == 0 and v.shape == (*lead, heads, s)
    op.require(ok, "v", f"({n}, Hv, {s}), Hv a multiple of {key_heads}", v.shape)
    for arg, spec in (("q", q), ("k", k), ("v", v)):
        op.require_dtype(arg, spec, "f32")
        require_dense_rows(op, arg, spec)
    scalar = (*lead, heads)
    op.require(g.shape in (scalar, v.shape), "g", f"{scalar} or {v.shape}", g.shape)
    require_plain(op, "g", g, g.shape, "f32")
    require_plain(op, "beta", beta, scalar, "f32")


def fading(v: np.ndarray, g: np.ndarray) -> np.ndarray:
    """exp(g), f32, [..., Hv, 1 or S] for v of [..., Hv, S]."""
    g = g if g.ndim == v.ndim else g[..., None]
    return np.exp(g.astype(np.float64)).astype(np.float32)


def delta_step(
    m: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    beta: np.ndarray,
    scale: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One token, all f32: m [Hv, S, S], q, k, v [Hv, S], decay [Hv, 1 or S], beta [Hv].

    Returns the next state, f32, the output, f64, and d [Hv, S], f32."""
    k_wide, q_wide = k[:, None].astype(np.float64), q[:, None].astype(np.float64)
    known = (m * decay[:, None].astype(np.float64) * k_wide).sum(-1)
    d = (beta[:, None] * (v - known)).astype(np.float32)
    m = _advance(m, k, d, decay)
    return m, (m * q_wide).sum(-1) * scale, d


def _advance(m: np.ndarray, k: np.ndarray, d: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """The state after a token that wrote d, f32."""
    decayed = m * decay[:, None].astype(np.float64)
    return (decayed + d[:, :, None].astype(np.float64) * k[:, None]).astype(np.float32)


def _grid() -> Iterable[Case]:
    """The sizes that the test grid of ggml's op covers, ragged: decoding, short and long prompts
    beside the edges of 64-token chunks, as many tokens as planes, more, and other state rows."""
    for kda in (False, True):
        yield _case(32, 16, 1, kda=kda)
        yield _case(4, 64, 4, 4, kda=kda)
        yield _case(8, 32, 4, 4, repeat=2, kda=kda)
        yield _case(4, 64, 4, 4, gap=64, kda=kda)
        yield _case(4, 64, 4, 4, keep=4, kda=kda)
        for t in (64, 33, 100):
            yield _case(4, 64, t, kda=kda)
    yield _case(32, 128, 1)
    yield _case(32, 16, 1, gap=16, kda=True)
    yield _case(16, 64, 1, 1)
    yield _case(4, 64, 4)
    yield _case(4, 64, 4, gap=64)
    yield _case(4, 64, 1, kda=True)
    yield _case(4, 64, 1, 1, kda=True)
    yield _case(4, 16, 1, 1, kda=True)
    yield _case(4, 32, 4, kda=True)
    yield _case(4, 16, 4, 4, gap=16, kda=True)
    for t in (127, 256, 65, 200):
        yield _case(4, 64, t)
    yield _case(4, 64, 127, 127)
    yield _case(4, 16, 2, keep=2)
    yield _case(4, 32, 4, keep=4)
    yield _case(8, 128, 4, keep=4)
    yield _case(8, 32, 4, 4, repeat=2, keep=4, kda=True)
    yield _case(4, 32, 8, keep=3)
    yield _case(4, 64, 16, 16, keep=4)
    yield _case(4, 32, 2, keep=2, slots=4)
    yield _case(4, 64, 4, keep=2, slots=4)
    yield _case(4, 32, 4, keep=4, slots=4)
    yield _case(8, 32, 4, 4, keep=4, slots=4)
    yield _case(4, 32, 8, keep=4, slots=4)


def _kept_planes() -> Iterable[Case]:
    """Fewer tokens than planes, more, and every place in the ring."""
    yield _case(16, 128, 4, repeat=2, keep=4)
    yield _case(2, 16, 1, keep=1)
    yield _case(2, 16, 5, 2, keep=1)
    for t in (1, 2, 3, 5, 9):
        yield _case(2, 32, t, repeat=2, keep=4)
    yield _case(2, 16, 3, keep=18, kda=True)
    for turn in range(4):
        heads = tuple((start + turn) % 4 for start in range(4))
        yield _case(2, 16, 3, 1, 4, 6, keep=4, start=(0, 1, 2, 3), head=heads)
    yield _case(2, 32, 3, 0, 5, 1, keep=4, slots=7, pad=2)
    yield _case(2, 32, 0, 0, keep=3, pad=3)


def _edges() -> Iterable[Case]:
    """Head mappings, ragged lengths, decay and input extremes."""
    for of_heads in ("tiled", "grouped"):
        yield _case(2, 32, 3, repeat=3, heads=of_heads, kda=True)
        yield _case(16, 128, 2, repeat=3, heads=of_heads)
        yield _case(2, 32, 3, 0, 5, 1, repeat=2, heads=of_heads, slots=6, pad=3)
    yield _case(2, 32, 0)
    yield _case(2, 32, 0, 0, pad=2)
    yield _case(2, 64, 1, fresh=True)
    yield _case(1, 20, 6)
    yield _case(3, 1, 4)
    yield _case(2, 32, 5, gap=7, repeat=2, kda=True)
    yield _case(2, 32, 4, scale=0.5)
    for kda in (False, True):
        for low, high in ((0.0, 0.0), (-20.0, -20.0), (-100.0, -100.0), (-0.1, -1e-4)):
            yield _case(2, 64, 70, kda=kda, decay=(low, high))
    yield _case(2, 32, 4, keys=Rand((4, 2, 32), f32().dtype, 0.0, 0.0), note="zero keys")


def _replays() -> Iterable[Case]:
    """Passes with a log, for both kinds of decay and both head mappings."""
    for situation in SITUATIONS:
        several: dict[str, Any] = dict(replay=situation, **situation.room)
        yield _case(2, 32, repeat=2, **several)
        yield _case(2, 16, repeat=2, heads="grouped", kda=True, **several)
        yield _case(3, 20, replay=situation, gap=4)
    for kda in (False, True):
        yield _case(2, 128, repeat=3, kda=kda, replay=SITUATIONS[-1])
        yield _case(2, 64, kda=kda, replay=Situation((3,), 5, folded=2), decay=(-100.0, -100.0))


def _prompts() -> Iterable[Case]:
    """Long enough for kernels that take chunks of tokens at once: sequences with and without a
    whole chunk, decay extremes inside and across chunks, and passes with a log."""
    yield _case(2, 128, 512)
    yield _case(1, 64, 128, repeat=2, scale=0.5)
    for of_heads in ("tiled", "grouped"):
        yield _case(2, 64, 333, 64, 0, 3, 200, repeat=2, heads=of_heads, slots=7, pad=5, gap=4)
    yield _case(1, 128, 63, 129, 65, repeat=2, gap=5, decay=(-0.1, -1e-4))
    for low, high in ((0.0, 0.0), (-20.0, -20.0), (-100.0, -100.0), (-100.0, 0.0), (-0.01, 0.0)):
        yield _case(1, 64, 200, decay=(low, high))
    yield _case(1, 64, 140, keys=Rand((140, 1, 64), f32().dtype, 0.0, 0.0), note="zero keys")
    alike = Rand((200, 1, 64), f32().dtype, 0.11, 0.13)
    yield _case(1, 64, 200, keys=alike, note="keys alike", decay=(-0.01, 0.0))
    yield _case(1, 128, replay=Situation((150,), 2, head=1, direct=150))
    yield _case(1, 64, replay=Situation((150,), 4, head=3, direct=147), decay=(-0.1, 0.0))
    folding = Situation((150, 64), 6, head=(4, 1), folded=(3, 6), direct=(150, 64))
    yield _case(1, 64, repeat=2, replay=folding, decay=(-0.1, 0.0))
    mixed = Situation(
        (70, 90, 3, 64, 66),
        6,
        head=(1, 4, 0, 2, 3),
        folded=(0, 2, 1, 0, 0),
        held=(0, 0, 2, 0, 0),
        direct=(70, 88, 0, 64, 66),
    )
    yield _case(1, 64, repeat=2, replay=mixed, slots=6, pad=2, decay=(-1.0, 0.0))


def _case(
    hk: int,
    s: int,
    *lengths: int,
    repeat: int = 1,
    kda: bool = False,
    gap: int = 0,
    heads: str = "tiled",
    scale: float = 0.0,
    decay: tuple[float, float] = (-20.0, -1e-4),
    fresh: bool = False,
    keys: Rand | None = None,
    note: str = "",
    tags: tuple[str, ...] = (),
    **given: Any,
) -> Case:
    """given: the rest of the Batch."""
    batch = Batch.of(lengths, **given)
    n, hv = batch.n, hk * repeat
    named = {"gap": gap, "r": batch.slots, "pad": batch.pad, "scale": scale, "head": ""}
    named["g"] = f"{decay[0]:g}..{decay[1]:g}" if decay != (-20.0, -1e-4) else ""
    planes = f"k={batch.keep}" if batch.keep else ""
    kinds = planes, heads, "kda" if kda else "", "fresh" if fresh else ""
    label = batch.label(f"hk={hk},hv={hv},s={s}", *kinds, **named)
    entry = (hk + hv) * s + hv * (s if kda else 1)
    return Case(
        ",".join(filter(None, (label, note, *tags))),
        heads=heads,
        scale=scale,
        tags=tags,
        q=keys or unit(n, hk, s, gap=gap),
        k=keys or unit(n, hk, s, gap=gap),
        v=f32(n, hv, s, lo=-0.3, hi=5.0, gap=gap),
        g=f32(n, hv, *((s,) if kda else ()), lo=decay[0], hi=decay[1]),
        beta=f32(n, hv, lo=0.0, hi=1.0),
        **batch.inputs("state", hv * s * s, entry, 0.0 if fresh else 1.0),
    )
