"""The gated delta rule over ragged sequences, with its matrices kept as state."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, Rand, f32, fixed, ints, unit
from ..graph.op import Cost, register
from ..graph.spec import TensorSpec
from .ragged import (
    KeptState,
    require_batch,
    require_dense_rows,
    require_kept,
    require_plain,
    sequences,
)
from .replay import INPUTS, SITUATIONS, Recurrent, Replay, Situation, require_replay


@register
class GatedDeltaNet(Recurrent):
    """Per token and value head h, with key head m(h) and state M [S values, S keys]:

    M <- M * exp(g)  |  d <- beta * (v - M k)  |  M <- M + d k^T  |  o <- (M q) * scale

    q, k: [N, Hk, S] f32; v: [N, Hv, S] f32; their leading axes may have gaps. g: [N, Hv] f32, or
    [N, Hv, S] for a decay per key dimension; beta: [N, Hv] f32; seq_offsets: i32 [B + 1];
    state_rows: i32 [B]; state: [R, Hv*S*S] or [R, K, Hv*S*S] f32, a plane being [Hv, S values,
    S keys]; start, head: i32 [B], given exactly when state has planes (ops/ragged.py says which
    are read and written). o: [N, Hv, S] f32, zero in padding rows. A fresh sequence has a state of
    zeros.
    log: [R, L, E] f32, and log_head, n_replay, n_held, n_direct: i32 [B], all or none, for a state
    without planes: tokens that are computed but not committed (ops/replay.py). An entry is k
    [Hk*S], the d of all heads [Hv*S], and exp(g) [Hv or Hv*S].
    heads: "tiled" m(h) = h mod Hk, "grouped" m(h) = h // (Hv/Hk). scale: 0 means 1/sqrt(S).
    M, d and exp(g) are rounded to f32 at every token, so that passes may be split anywhere.
    Raises BackendError for offsets, rows, planes or numbers of entries out of range and for a
    shared state row.
    Source: Yang, Kautz & Hatamizadeh 2024; per-dimension decay, Kimi Team 2025."""

    name, outputs = "gated_delta_net", ("o", "state_out", "log_out?")
    inputs = (
        *("q", "k", "v", "g", "beta", "seq_offsets", "state_rows", "state", "start?", "head?"),
        *INPUTS,
    )
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
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        state: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        self.require_attr(self.heads in ("tiled", "grouped"), "heads", "'tiled' or 'grouped'")
        self.require_attr(math.isfinite(self.scale), "scale", "finite")
        self.require(q.rank == 3 and 0 not in q.shape[1:], "q", "[N, Hk, S]", q.shape)
        n, key_heads, s = q.shape
        self.require(k.shape == q.shape, "k", f"{q.shape} like q", k.shape)
        ok = v.rank == 3 and v.shape[1] > 0 and v.shape[1] % key_heads == 0
        ok = ok and (v.shape[0], v.shape[2]) == (n, s)
        self.require(ok, "v", f"({n}, Hv, {s}), Hv a multiple of {key_heads}", v.shape)
        for arg, spec in (("q", q), ("k", k), ("v", v)):
            self.require_dtype(arg, spec, "f32")
            require_dense_rows(self, arg, spec)
        heads = v.shape[1]
        fits = g.shape in ((n, heads), (n, heads, s))
        self.require(fits, "g", f"({n}, {heads}) or ({n}, {heads}, {s})", g.shape)
        require_plain(self, "g", g, g.shape, "f32")
        require_plain(self, "beta", beta, (n, heads), "f32")
        batch = require_batch(self, seq_offsets)
        require_kept(self, "state", state, heads * s * s, batch, state_rows, start, head)
        entry = (key_heads + heads) * s + heads * (s if g.rank == 3 else 1)
        logged = require_replay(self, "state", state, entry, batch, replay)
        return v.like(), state.like(), *logged

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        g: np.ndarray,
        beta: np.ndarray,
        seq_offsets: np.ndarray,
        state_rows: np.ndarray,
        state: np.ndarray,
        start: np.ndarray | None,
        head: np.ndarray | None,
        *replay: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        rows_of = sequences(self, seq_offsets, len(q))
        passes = Replay(self, rows_of, state_rows, replay)
        kept = KeptState(self, rows_of, state, state_rows, start, head, passes.folded)
        _, heads, s = v.shape
        shared = q.shape[1]
        of_key = [
            h % shared if self.heads == "tiled" else h * shared // heads for h in range(heads)
        ]
        scale = self.scale or 1.0 / math.sqrt(s)
        decay = np.exp((g if g.ndim == 3 else g[..., None]).astype(np.float64)).astype(np.float32)
        o = np.zeros(v.shape, np.float32)
        for b, rows in enumerate(rows_of):
            if not passes.busy(b):
                continue
            m = kept.read(b).reshape(heads, s, s)
            newest: deque[np.ndarray] = deque(maxlen=kept.count)
            for entry in passes.to_fold(b):
                m = _advance(m, *_parts(entry, of_key, shared, s))
                newest.append(m)
            for i, t in enumerate(rows):
                if i == passes.direct[b]:
                    for entry in passes.to_hold(b):
                        m = _advance(m, *_parts(entry, of_key, shared, s))
                m, o[t], d = delta_step(
                    m, q[t, of_key], k[t, of_key], v[t], decay[t], beta[t], scale
                )
                if i < passes.direct[b]:
                    newest.appendleft(m)
                else:
                    passes.write(b, i, k[t], d, decay[t])
            kept.write(b, newest)
        return o, kept.state, *passes.outputs

    def cost(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        g: TensorSpec,
        beta: TensorSpec,
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        state: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
    ) -> Cost:
        """Bytes of the states of B sequences, and of the planes that N / B tokens each fill.

        With a log, those of a pass that logs all its tokens and folds nothing."""
        n, heads, s = v.shape
        batch = state_rows.shape[0]
        plane = 4 * state.shape[-1] * batch
        planes = min(state.shape[1] if state.rank == 3 else 1, -(-n // batch))
        read = sum(x.nbytes for x in (q, k, v, g, beta, seq_offsets, state_rows)) + plane
        log = replay[0] if replay else None
        kept = plane * planes if log is None else 4 * n * log.shape[2]
        return Cost(n * heads * (7 * s * s + 4 * s), read, v.nbytes + kept)

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


def _parts(
    entry: np.ndarray, of_key: list[int], key_heads: int, s: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An entry's k and d [Hv, S], and decay [Hv, 1 or S]."""
    keys, values = key_heads * s, (key_heads + len(of_key)) * s
    k, d, decay = entry[:keys], entry[keys:values], entry[values:]
    return k.reshape(-1, s)[of_key], d.reshape(-1, s), decay.reshape(len(of_key), -1)


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
        slots, pad = (7, 3) if len(situation.lengths) > 1 else (0, 0)
        yield _case(2, 32, repeat=2, replay=situation, slots=slots, pad=pad)
        yield _case(
            2, 16, repeat=2, replay=situation, heads="grouped", kda=True, slots=slots, pad=pad
        )
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
    keep: int = 0,
    kda: bool = False,
    gap: int = 0,
    heads: str = "tiled",
    scale: float = 0.0,
    pad: int = 0,
    slots: int = 0,
    start: tuple[int, ...] | None = None,
    head: tuple[int, ...] | None = None,
    decay: tuple[float, float] = (-20.0, -1e-4),
    fresh: bool = False,
    keys: Rand | None = None,
    note: str = "",
    replay: Situation | None = None,
    tags: tuple[str, ...] = (),
) -> Case:
    """lengths: tokens per sequence, unless replay says it; keep: K, 0 for a rank-2 state; slots: R,
    with rows permuted.

    Planes follow the ring unless start and head are given: newest T planes before the old one."""
    lengths = replay.lengths if replay else lengths
    batch, n, hv = len(lengths), sum(lengths) + pad, hk * repeat
    label = f"hk={hk},hv={hv},s={s},t={'+'.join(map(str, lengths))}"
    label += (f",k={keep}" if keep else "") + f",{heads}"
    label += "".join(f",{word}" for word, said in (("kda", kda), ("fresh", fresh)) if said)
    named: dict[str, object] = {"gap": gap, "r": slots, "pad": pad, "scale": scale}
    named["head"] = head and "".join(map(str, head))
    named["g"] = f"{decay[0]:g}..{decay[1]:g}" if decay != (-20.0, -1e-4) else ""
    label += "".join(f",{key}={value}" for key, value in named.items() if value)
    label += replay.label if replay else ""
    label += "".join(f",{word}" for word in (note, *tags) if word)
    plane, size = hv * s * s, 0.0 if fresh else 1.0
    shape = (slots or batch, keep, plane) if keep else (slots or batch, plane)
    inputs = dict(
        q=keys or unit(n, hk, s, gap=gap),
        k=keys or unit(n, hk, s, gap=gap),
        v=f32(n, hv, s, lo=-0.3, hi=5.0, gap=gap),
        g=f32(n, hv, *((s,) if kda else ()), lo=decay[0], hi=decay[1]),
        beta=f32(n, hv, lo=0.0, hi=1.0),
        seq_offsets=fixed(np.cumsum((0, *lengths)), "i32"),
        state_rows=ints(*((slots or batch) - 1 - b for b in range(batch))),
        state=f32(*shape, lo=-size, hi=size),
    )
    if keep:
        first = start or tuple(b % keep for b in range(batch))
        newest = head or tuple((f - t) % keep for f, t in zip(first, lengths, strict=True))
        inputs.update(start=ints(*first), head=ints(*newest))
    if replay:
        entry = (hk + hv) * s + hv * (s if kda else 1)
        inputs.update(replay.inputs(slots or batch, entry))
    return Case(label, heads=heads, scale=scale, tags=tags, **inputs)
