"""The gated delta rule in ggml's dense form, with one packed result."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32, unit
from ..graph.node import Value
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .gated_delta_net import delta_step, fading, require_operands
from .ragged import require_plain
from .reshape import reshaped_strides


@register
class GgmlGatedDeltaNet(Op):
    """ggml's gated_delta_net: the rule of the op of that name for B sequences of T tokens each

    q, k: [B, T, Hk, S] f32; v: [B, T, Hv, S] f32; their leading axes may have gaps. g: [B, T, Hv]
    f32, or [B, T, Hv, S] for a decay per key dimension; beta: [B, T, Hv] f32; state: [B, K,
    Hv*S*S] f32, a plane being [Hv, S values, S keys], of which plane 0 is where each sequence
    starts; K alone says how many states are kept. The states of ggml's earlier signatures, [B,
    Hv*S*S] and [B, Hv, S values, S keys], keep the final one: K = 1. No extent is 0. Head h reads
    key head h mod Hk; results are scaled by 1/sqrt(S).
    packed: [B*T*Hv*S + K*B*Hv*S*S] f32, the results [B, T, Hv, S] and then the planes [K, B, Hv, S
    values, S keys]: plane j holds the states as they were j tokens before the newest; planes from T
    on, which ggml leaves undefined, hold zeros.
    Source: Yang, Kautz & Hatamizadeh 2024; layout of the ggml op."""

    name, outputs = "ggml_gated_delta_net", ("packed",)
    inputs = ("q", "k", "v", "g", "beta", "state")
    tolerance = 1e-9  # the state is carried through hundreds of f32 updates
    no_rows = "results and states are packed into one row; gated_delta_net, which runs, has rows"

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        g: TensorSpec,
        beta: TensorSpec,
        state: TensorSpec,
    ) -> TensorSpec:
        self.require(0 not in q.shape, "q", "[B, T, Hk, S], no extent 0", q.shape)
        require_operands(self, "B, T", q, k, v, g, beta)
        batch, s = v.shape[0], v.shape[-1]
        final = (batch, v.shape[2] * s * s), (batch, v.shape[2], s, s)
        keep = _planes(state.shape)
        fits = state.shape in (*final, (batch, keep, final[0][1])) and keep >= 1
        want = f"({batch}, K, {final[0][1]}), or {final[0]} or {final[1]} for K = 1"
        self.require(fits, "state", want, state.shape)
        require_plain(self, "state", state, state.shape, "f32")
        return TensorSpec((v.size + state.size,))

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        g: np.ndarray,
        beta: np.ndarray,
        state: np.ndarray,
    ) -> np.ndarray:
        batch, tokens, heads, s = v.shape
        keep = _planes(state.shape)
        state = state.reshape(batch, keep, -1)
        of_key = np.arange(heads) % q.shape[2]
        decay = fading(v, g)
        o = np.zeros(v.shape, np.float32)
        planes = np.zeros((keep, batch, heads, s, s), np.float32)
        for b in range(batch):
            m = state[b, 0].reshape(heads, s, s)
            for t in range(tokens):
                key, query = k[b, t, of_key], q[b, t, of_key]
                m, o[b, t], _ = delta_step(
                    m, query, key, v[b, t], decay[b, t], beta[b, t], 1.0 / np.sqrt(s)
                )
                age = tokens - 1 - t
                if age < keep:
                    planes[age, b] = m
        return np.concatenate([o.reshape(-1), planes.reshape(-1)])

    def expand(
        self, graph: Graph, q: Value, k: Value, v: Value, g: Value, beta: Value, state: Value
    ) -> Value:
        """gated_delta_net on a copy of the state, whose ring starts at plane 0 and ends there."""
        batch, t = v.shape[:2]
        keep = _planes(state.shape)
        if state.spec.rank != 3:
            state = graph.reshape(state, shape=(batch, 1, -1))
        if keep == 1:
            scratch = graph.cont(state)
        else:
            oldest = graph.view(state, axis=1, start=0, stop=1)
            scratch = graph.pad(oldest, before=(0, 0, 0), after=(0, keep - 1, 0))
        offsets = graph.constant(np.arange(batch + 1, dtype=np.int32) * np.int32(t))
        rows = graph.constant(np.arange(batch, dtype=np.int32))
        first = graph.constant(np.zeros(batch, np.int32))
        q, k, v, g, beta = (_flat(graph, x) for x in (q, k, v, g, beta))
        o, after = graph.gated_delta_net(
            q, k, v, g, beta, offsets, rows, scratch, first, first, heads="tiled"
        )
        planes = graph.transpose(after, a=0, b=1)
        planes = planes if planes.spec.contiguous else graph.cont(planes)
        flat = (graph.reshape(x, shape=(-1,)) for x in (o, planes))
        return graph.concat(*flat, axis=0)

    def cost(self, *operands: TensorSpec) -> Cost:
        *_, v, _, _, state = operands
        s = v.shape[-1]
        read = sum(x.nbytes for x in operands[:-1]) + state.nbytes // _planes(state.shape)
        return Cost(v.size * (7 * s + 4), read, v.nbytes + state.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        yield from _decoding()
        yield from _short()
        yield from _prompts()
        yield from _kept_planes()
        yield from _final_states()
        for t in (1, 64, 256, 512, 1024):
            yield _case(32, 128, t, 1, tags=("perf",))
            yield _case(4, 128, t, 1, tags=("perf",))
        for t in (1, 64):
            yield _case(32, 128, t, 1, kda=True, tags=("perf",))
            yield _case(4, 128, t, 1, kda=True, tags=("perf",))


def _planes(state: tuple[int, ...]) -> int:
    """K, of a state of this shape."""
    return state[1] if len(state) == 3 else 1


def _flat(graph: Graph, x: Value) -> Value:
    """[B, T, ...] as [B*T, ...], copied where its strides do not allow a view."""
    shape = (x.shape[0] * x.shape[1], *x.shape[2:])
    if reshaped_strides(x.shape, x.spec.byte_strides, shape) is None:
        x = graph.cont(x)
    return graph.reshape(x, shape=shape)


def _decoding() -> Iterable[Case]:
    """The test grid of ggml's op, of which these are the decoding steps."""
    yield _case(32, 128, 1, 1)
    yield _case(32, 16, 1, 1)
    yield _case(32, 16, 1, 1, gap=16, kda=True)
    yield _case(32, 16, 1, 1, kda=True)
    yield _case(16, 64, 1, 2)
    yield _case(4, 64, 1, 1, kda=True)
    yield _case(4, 64, 1, 2, kda=True)
    yield _case(4, 16, 1, 2, kda=True)


def _short() -> Iterable[Case]:
    """The grid's passes of four tokens."""
    yield _case(4, 64, 4, 1)
    yield _case(4, 64, 4, 1, gap=64)
    yield _case(4, 32, 4, 1, kda=True)
    yield _case(4, 16, 4, 2, gap=16, kda=True)
    for kda in (False, True):
        yield _case(4, 64, 4, 2, kda=kda)
        yield _case(8, 32, 4, 2, repeat=2, kda=kda)
        yield _case(4, 64, 4, 2, gap=64, kda=kda)


def _prompts() -> Iterable[Case]:
    """The grid's lengths around the edges of 64-token chunks."""
    for t in (64, 127, 256, 65, 100, 200):
        yield _case(4, 64, t, 1)
    yield _case(4, 64, 127, 2)
    for t in (64, 33, 100):
        yield _case(4, 64, t, 1, kda=True)


def _kept_planes() -> Iterable[Case]:
    """The grid's as many tokens as planes, and more; then fewer, and other edges."""
    yield _case(4, 16, 2, 1, keep=2)
    yield _case(4, 32, 4, 1, keep=4)
    yield _case(8, 128, 4, 1, keep=4)
    yield _case(4, 64, 4, 2, keep=4)
    yield _case(4, 64, 4, 2, keep=4, kda=True)
    yield _case(8, 32, 4, 2, repeat=2, keep=4, kda=True)
    yield _case(4, 32, 8, 1, keep=3)
    yield _case(4, 64, 16, 2, keep=4)
    yield _case(4, 32, 2, 1, keep=2)
    yield _case(4, 64, 4, 1, keep=2)
    yield _case(8, 32, 4, 2, keep=4)
    yield _case(4, 32, 8, 1, keep=4)
    for t in (1, 3):
        yield _case(2, 32, t, 2, repeat=2, keep=4)
        yield _case(2, 16, t, 2, keep=18, kda=True)
    yield _case(2, 32, 5, 3, repeat=3, keep=2, gap=7)
    yield _case(3, 1, 4, 2, keep=2)
    yield _case(1, 20, 6, 1)
    for kda in (False, True):
        for low, high in ((0.0, 0.0), (-100.0, -100.0)):
            yield _case(2, 32, 70, 1, kda=kda, decay=(low, high))


def _final_states() -> Iterable[Case]:
    """States of the earlier signatures, of rank 2 and 4: steps, prompts, and edges."""
    for rank in (2, 4):
        yield _case(4, 64, 1, 1, rank=rank)
        yield _case(16, 128, 1, 2, rank=rank)
        for kda in (False, True):
            yield _case(4, 64, 4, 2, rank=rank, kda=kda)
            yield _case(8, 32, 4, 2, repeat=2, rank=rank, kda=kda)
            yield _case(2, 32, 70, 1, rank=rank, kda=kda, decay=(-100.0, -100.0))
        yield _case(2, 20, 5, 3, repeat=3, rank=rank, gap=7)
        yield _case(3, 1, 4, 2, rank=rank)
        yield _case(4, 64, 127, 2, rank=rank)
    yield _case(4, 4, 3, 4, rank=4)  # B = Hv = S


def _case(
    hk: int,
    s: int,
    t: int,
    b: int,
    repeat: int = 1,
    keep: int = 1,
    rank: int = 3,
    kda: bool = False,
    gap: int = 0,
    decay: tuple[float, float] = (-20.0, -1e-4),
    tags: tuple[str, ...] = (),
) -> Case:
    """repeat: value heads per key head; keep: K; rank: of the state."""
    hv = hk * repeat
    shapes = {2: (b, hv * s * s), 3: (b, keep, hv * s * s), 4: (b, hv, s, s)}
    label = f"hk={hk},hv={hv},s={s},t={t},b={b},k={keep}" + (",kda" if kda else "")
    label += f",rank={rank}" if rank != 3 else ""
    label += (f",gap={gap}" if gap else "") + "".join(f",{tag}" for tag in tags)
    label += f",g={decay[0]:g}..{decay[1]:g}" if decay != (-20.0, -1e-4) else ""
    return Case(
        label,
        q=unit(b, t, hk, s, gap=gap),
        k=unit(b, t, hk, s, gap=gap),
        v=f32(b, t, hv, s, lo=-0.3, hi=5.0, gap=gap),
        g=f32(b, t, hv, *((s,) if kda else ()), lo=decay[0], hi=decay[1]),
        beta=f32(b, t, hv, lo=0.0, hi=1.0),
        state=f32(*shapes[rank]),
        tags=tags,
    )
