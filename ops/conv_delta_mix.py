"""A layer's convolution and the gated delta rule on what it gives: what of them has memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, f32
from ..graph.dtype import f32 as real
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, make_op, register
from ..graph.spec import TensorSpec
from .delta_mix import DeltaMix
from .ragged import require_dense_rows, require_kept, require_plain
from .replay import SITUATIONS, Batch, Recurrent, Situation, memory_inputs, require_replay
from .ssm_conv_silu import SsmConvSilu

_Memory = tuple[Any, ...]


@register
class ConvDeltaMix(Recurrent):
    """o = delta_mix(q, k, v, alpha, beta, dt, a), q, k, v = parts of ssm_conv_silu(x, w)'s rows

    x: [N, (2*Hk + Hv) * S] f32, rows may have gaps: channels of the queries of key_heads = Hk
    heads, of their keys, and of the values of Hv heads; w: [C, W] f32 for these C channels; alpha,
    beta: [N, Hv] f32, rows may have gaps; dt, a: [Hv] f32. tail and tail_log are ssm_conv's, with
    as many rows, planes and entries as state and log, the delta rule's, and chosen by the same
    numbers. o: [N, Hv, S] f32; heads, scale and eps are those of op delta_mix.
    Source: Yang, Kautz & Hatamizadeh 2024."""

    name = "conv_delta_mix"
    outputs = ("o", "tail_out", "state_out", "log_out?", "tail_log_out?")
    inputs = ("x", "w", "alpha", "beta", "dt", "a", "tail", *memory_inputs("state"), "tail_log?")
    writes = {"state_out": "state", "log_out": "log", "tail_out": "tail"}
    writes |= {"tail_log_out": "tail_log"}
    constants = ("w", "dt", "a")
    per_token = ("x", "alpha", "beta")
    fuses = ("gated_delta_net",)
    tolerance = DeltaMix.tolerance
    key_heads: int
    heads: str
    scale: float = 0.0
    eps: float

    def infer(
        self, x: TensorSpec, w: TensorSpec, alpha: TensorSpec, beta: TensorSpec, *rest: Any
    ) -> tuple[TensorSpec, ...]:
        dt, a, tail, seq_offsets, state_rows, state, start, head, *replay, tail_log = rest
        self.require_attr(self.key_heads >= 1, "key_heads", "at least 1")
        self.require(x.rank == 2 and x.shape[1] >= 1, "x", "[N, C]", x.shape)
        self.require(alpha.rank == 2, "alpha", "[N, Hv]", alpha.shape)
        parts = 2 * self.key_heads + alpha.shape[1]
        ok = x.shape[1] % parts == 0
        self.require(ok, "x", f"[N, {parts} * S], for queries, keys and values", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        channels = x.shape[1]
        ok = w.rank == 2 and w.shape[0] == channels and w.shape[1] >= 2
        self.require(ok, "w", f"[{channels}, W] with W of at least 2", w.shape)
        require_plain(self, "w", w, w.shape, "f32")
        memory = (seq_offsets, state_rows, state, start, head, *replay)
        q, v = self._heads_of(x, alpha)
        o, *kept = self._mix().infer(q, q, v, alpha, beta, dt, a, *memory)
        self._like("tail", tail, state)
        width, batch = (w.shape[1] - 1) * channels, state_rows.shape[0]
        require_kept(self, "tail", tail, width, batch, state_rows, start, head)
        numbers = (tail_log, *replay[1:]) if replay else (tail_log,)
        logs = require_replay(self, "tail", tail, channels, batch, numbers, "tail_log")
        if logs:
            self._like("tail_log", tail_log, replay[0])
        return (o, tail.like(), *kept, *logs)

    def _like(self, arg: str, spec: TensorSpec, other: TensorSpec) -> None:
        """Check that two memories have the same rows and planes or entries."""
        ok = spec.shape[:-1] == other.shape[:-1]
        self.require(ok, arg, f"{(*other.shape[:-1], 'width')}, as many as of the rule", spec.shape)

    def _heads_of(self, x: TensorSpec, alpha: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        """What q and k are, and v."""
        n, heads = alpha.shape
        size = x.shape[1] // (2 * self.key_heads + heads)
        return TensorSpec((n, self.key_heads, size), real), TensorSpec((n, heads, size), real)

    def _mix(self) -> DeltaMix:
        attributes = {"heads": self.heads, "scale": self.scale, "eps": self.eps}
        op = make_op("delta_mix", attributes)
        assert isinstance(op, DeltaMix)
        return op

    def reference(
        self, x: np.ndarray, w: np.ndarray, alpha: np.ndarray, beta: np.ndarray, *rest: Any
    ) -> tuple[np.ndarray, ...]:
        dt, a, tail, *memory, tail_log = rest
        conv = _of_tail(tail, memory, tail_log)
        with np.errstate(over="ignore"):
            y, tail_out, *tail_log_out = SsmConvSilu().reference(x, w, *conv)
        n, heads = alpha.shape
        size = x.shape[1] // (2 * self.key_heads + heads)
        q, k, v = np.split(y, np.cumsum((self.key_heads * size,) * 2), axis=1)
        q, k = (part.reshape(n, self.key_heads, size) for part in (q, k))
        v = v.reshape(n, heads, size)
        o, *kept = self._mix().reference(q, k, v, alpha, beta, dt, a, *memory)
        return (o, tail_out, *kept, *tail_log_out)

    def expand(
        self, graph: Graph, x: Value, w: Value, alpha: Value, beta: Value, *rest: Any
    ) -> tuple[Value, ...]:
        """ssm_conv_silu, delta_mix of its parts."""
        dt, a, tail, *memory, tail_log = rest
        y, tail_out, *tail_log_out = graph.apply(
            make_op("ssm_conv_silu", {}), (x, w, *_of_tail(tail, memory, tail_log))
        ).values
        n, heads = alpha.shape
        size, parts, start = x.shape[1] // (2 * self.key_heads + heads), list[Value](), 0
        for count in (self.key_heads, self.key_heads, heads):
            part = graph.view(y, axis=1, start=start, stop=start + count * size)
            parts.append(graph.reshape(part, shape=(n, count, size)))
            start += count * size
        o, *kept = graph.apply(self._mix(), (*parts, alpha, beta, dt, a, *memory)).values
        return (o, tail_out, *kept, *tail_log_out)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """The rule with what makes its operands of the rows of a convolution."""
        for mix in DeltaMix.fusions(node, uses):
            yield from cls._with_conv(mix, uses)

    @classmethod
    def _with_conv(cls, mix: Fusion, uses: Uses) -> Iterable[Fusion]:
        q, k, v, alpha, beta, dt, a, *memory = mix.inputs
        views, sources, start = list[Node](), set[Value](), 0
        for value in (q, k, v):
            found = _channels(value, start)
            if found is None:
                return
            source, over = found
            start += math.prod(over[0].specs[0].shape[1:])
            sources.add(source)
            views += over
        silu = maker(source, "silu")
        conv = maker(silu.inputs[0], "ssm_conv") if silu is not None else None
        if silu is None or conv is None or len(sources) > 1 or start != source.shape[1]:
            return
        x, w, seq_offsets, state_rows, tail, start_, head, tail_log, *numbers = conv.inputs
        alike = (seq_offsets, state_rows, start_, head, *numbers)
        if alike != (*memory[:2], *memory[3:5], *memory[6:]) or conv.value() != silu.inputs[0]:
            return
        rule = mix.op.attributes()
        op = make_op(cls.name, {**rule, "key_heads": q.shape[1] if q is not None else 0})
        inputs = (x, w, alpha, beta, dt, a, tail, *memory, tail_log)
        results = {value: (i and i + 1, 0) for value, (i, _) in mix.results.items()}
        results[conv.value(1)] = (1, 0)
        if len(conv.specs) > 2:
            results[conv.value(2)] = (4, 0)
        yield Fusion(op, inputs, (conv, silu, *dict.fromkeys(views), *mix.covers), results)

    def cost(self, x: TensorSpec, w: TensorSpec, alpha: TensorSpec, *rest: Any) -> Cost:
        beta, dt, a, tail, *memory, tail_log = rest
        conv = SsmConvSilu().cost(x, w, *_of_tail(tail, memory, tail_log))
        q, v = self._heads_of(x, alpha)
        rule = self._mix().cost(q, q, v, alpha, beta, dt, a, *memory)
        # What the convolution gives is neither written nor read.
        read = conv.read + rule.read - x.size * 4
        return Cost(conv.flops + rule.flops, read, conv.write + rule.write - x.size * 4)

    @staticmethod
    def cases() -> Iterable[Case]:
        for heads in ("tiled", "grouped"):
            yield _case(2, 32, 3, 0, 5, 1, repeat=2, heads=heads, slots=6, pad=3)
            yield _case(16, 128, 1, repeat=3, heads=heads, gap=128)
        for s in (16, 20, 64, 128, 136):
            yield _case(2, s, 1)
            yield _case(2, s, 4, 4, gap=4, keep=4)
        for taps in (2, 3, 5):
            yield _case(2, 32, 5, 1, taps=taps)
        yield _case(2, 128, *(1,) * 9, slots=12)
        yield _case(2, 64, 12, keep=3)
        yield _case(2, 128, 13, 3, repeat=2, gap=4, keep=4)
        yield _case(2, 20, 11, 2, repeat=2, heads="grouped", slots=6, pad=3)
        yield _case(2, 128, 32)
        yield _case(2, 32, 40, scale=0.5)
        yield _case(2, 32, 0, 0, keep=3, pad=3)
        yield _case(3, 1, 4)
        yield _case(2, 32, 3, 2, repeat=2, gap=3)
        yield _case(2, 64, 4, limit=0.0, note="zero rows")
        yield _case(2, 64, 4, limit=1e19, note="large rows")
        yield _case(2, 64, 12, limit=1e19, note="large rows")
        for turn in range(4):
            at = tuple((start + turn) % 4 for start in range(4))
            yield _case(2, 32, 3, 1, 4, 6, keep=4, start=(0, 1, 2, 3), head=at)
        for situation in SITUATIONS:
            yield _case(2, 32, repeat=2, replay=situation, **situation.room)
            yield _case(3, 20, replay=situation, gap=4)
        for situation in (SITUATIONS[12], SITUATIONS[-1]):
            yield _case(2, 128, repeat=3, replay=situation)
        for lengths in ((1,), (4,), (1,) * 8, (1,) * 32):
            yield _case(16, 128, *lengths, repeat=3, tags=("perf",))
        replay = Situation((4,), 8, folded=3, direct=1)
        yield _case(16, 128, repeat=3, replay=replay, tags=("perf",))


def _of_tail(tail: Any, memory: Iterable[Any], tail_log: Any) -> _Memory:
    """The last inputs of the convolution, memory being those of the rule."""
    seq_offsets, state_rows, _, start, head, _, *numbers = memory
    return (seq_offsets, state_rows, tail, start, head, tail_log, *numbers)


def _channels(value: Value | None, start: int) -> tuple[Value, list[Node]] | None:
    """What a value [N, heads, S] has the channels from `start` on of, and the views between."""
    views = list[Node]()
    for name in ("reshape", "view"):
        node = maker(value, name)
        if node is None:
            return None
        views.append(node)
        value = node.inputs[0]
    cut = views[1].op.attributes()
    if value is None or value.spec.rank != 2 or (cut["axis"] % 2, cut["start"]) != (1, start):
        return None
    return value, views


def _case(
    hk: int,
    s: int,
    *lengths: int,
    repeat: int = 1,
    taps: int = 4,
    gap: int = 0,
    heads: str = "tiled",
    scale: float = 0.0,
    limit: float = 3.0,
    note: str = "",
    tags: tuple[str, ...] = (),
    **given: Any,
) -> Case:
    """limit: of the convolution's inputs; given: the rest of the Batch."""
    batch = Batch.of(lengths, **given)
    n, hv = batch.n, hk * repeat
    channels = (2 * hk + hv) * s
    named = {"gap": gap, "k": batch.keep, "r": batch.slots, "pad": batch.pad, "scale": scale}
    label = batch.label(f"hk={hk},hv={hv},s={s}", heads, w=taps if taps != 4 else 0, **named)
    tails = batch.inputs("tail", (taps - 1) * channels, channels, limit)
    kept = {"tail": tails["tail"]}
    if "log" in tails:
        kept["tail_log"] = tails["log"]
    return Case(
        ",".join(filter(None, (label, note, *tags))),
        key_heads=hk,
        heads=heads,
        scale=scale,
        eps=1e-6,
        tags=tags,
        x=f32(n, channels, lo=-limit, hi=limit, gap=gap),
        w=f32(channels, taps),
        alpha=f32(n, hv, lo=-4.0, hi=4.0, gap=gap),
        beta=f32(n, hv, lo=-4.0, hi=4.0, gap=gap),
        dt=f32(hv),
        a=f32(hv, lo=-3.0, hi=-0.01),
        **kept,
        **batch.inputs("state", hv * s * s, (hk + hv) * s + hv),
    )
