"""The gated delta rule on what a layer's products and convolution give."""

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
from .gated_delta_net import GatedDeltaNet
from .l2_norm import normalised
from .ragged import require_dense_rows, require_plain
from .replay import SITUATIONS, Batch, Situation, memory_inputs
from .unary import sigmoid, softplus


@register
class DeltaMix(GatedDeltaNet):
    """o = gated_delta_net(q / |q|, k / |k|, v, g, beta') with one decay a head:

    |x| = sqrt(sum(x*x) + eps)  |  g = softplus(alpha + dt) * a  |  beta' = sigmoid(beta)

    q, k: [N, Hk, S] f32; v: [N, Hv, S] f32; alpha, beta: [N, Hv] f32; of all these the leading axes
    may have gaps. dt, a: [Hv] f32, a at most 0 for a decay that is one. heads, scale, o, a plane of
    state and an entry of the log, which holds k / |k| and exp(g), are those of gated_delta_net.
    Source: Yang, Kautz & Hatamizadeh 2024; the gates are Mamba 2's, Dao & Gu 2024."""

    name = "delta_mix"
    inputs = ("q", "k", "v", "alpha", "beta", "dt", "a", *memory_inputs("state"))
    constants = ("dt", "a")
    per_token = ("q", "k", "v", "alpha", "beta")
    fuses = ("gated_delta_net",)
    eps: float

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        alpha: TensorSpec,
        beta: TensorSpec,
        *rest: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        dt, a, *memory = rest
        self.require_attr(0 <= self.eps < math.inf, "eps", "zero or positive")
        gates = TensorSpec(v.shape[:2], real)
        specs = super().infer(q, k, v, gates, gates, *memory)
        for arg, spec in (("alpha", alpha), ("beta", beta)):
            self.require(spec.shape == gates.shape, arg, gates.shape, spec.shape)
            self.require_dtype(arg, spec, "f32")
            require_dense_rows(self, arg, spec)
        for arg, weight in (("dt", dt), ("a", a)):
            if weight is not None:
                require_plain(self, arg, weight, v.shape[1:2], "f32")
        return specs

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        alpha: np.ndarray,
        beta: np.ndarray,
        *rest: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        (dt, a), memory = (x for x in rest[:2] if x is not None), rest[2:]
        with np.errstate(over="ignore"):
            g = softplus((alpha + dt).astype(np.float64)).astype(np.float32) * a
            strength = sigmoid(beta.astype(np.float64)).astype(np.float32)
        q, k = (normalised(x, self.eps, "add") for x in (q, k))
        return super().reference(q, k, v, g, strength, *memory)

    def expand(
        self, graph: Graph, q: Value, k: Value, v: Value, alpha: Value, beta: Value, *rest: Value
    ) -> tuple[Value, ...]:
        """l2_norm of queries and keys, the gates' functions, gated_delta_net."""
        dt, a, *memory = rest
        q, k = (graph.l2_norm(x, eps=self.eps, form="add") for x in (q, k))
        g = graph.mul(graph.softplus(graph.add(alpha, dt)), a)
        rule = make_op("gated_delta_net", {"heads": self.heads, "scale": self.scale})
        return graph.apply(rule, (q, k, v, g, graph.sigmoid(beta), *memory)).values

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """The rule with what makes its queries, keys and gates."""
        q, k, v, g, beta, *memory = node.inputs
        norms = [n for n in (maker(q, "l2_norm"), maker(k, "l2_norm")) if n is not None]
        sigmoid, gate = maker(beta, "sigmoid"), _decay(g)
        if len(norms) < 2 or norms[0].op != norms[1].op or sigmoid is None or gate is None:
            return
        length = norms[0].op.attributes()
        if length["form"] != "add":
            return
        op = make_op(cls.name, {**node.op.attributes(), "eps": length["eps"]})
        parts, (alpha, dt, a) = gate
        operands = (*(n.inputs[0] for n in norms), v, alpha, sigmoid.inputs[0], dt, a)
        results = {value: (i, 0) for i, value in enumerate(node.values)}
        yield Fusion(op, (*operands, *memory), (*norms, *parts, sigmoid, node), results)

    def cost(self, q: TensorSpec, k: TensorSpec, v: TensorSpec, *others: TensorSpec) -> Cost:
        return self.work(
            v.size * (7 * v.shape[2] + 4) + 3 * (q.size + k.size), (q, k, v, *others), v
        )

    @staticmethod
    def cases() -> Iterable[Case]:
        for heads in ("tiled", "grouped"):
            yield _case(2, 32, 3, 0, 5, 1, repeat=2, heads=heads, slots=6, pad=3)
            yield _case(16, 128, 1, repeat=3, heads=heads, gap=128)
        for s in (16, 20, 64, 128, 136):
            yield _case(2, s, 1)
            yield _case(2, s, 4, 4, gap=4, keep=4)
        yield _case(2, 128, *(1,) * 9, slots=12)
        yield _case(2, 32, 40, scale=0.5)
        yield _case(2, 32, 0, 0, keep=3, pad=3)
        yield _case(3, 1, 4)
        yield _case(2, 32, 3, 2, repeat=2, gap=3)
        yield _case(2, 300, 2)
        yield _case(2, 64, 70, dt=(20.0, 40.0), note="forgetful")
        yield _case(2, 64, 70, dt=(-40.0, -20.0), note="retentive")
        yield _case(2, 64, 4, limit=0.0, note="zero keys")
        yield _case(2, 64, 4, limit=1e-20, note="tiny keys")
        yield _case(2, 64, 4, limit=1e19, note="large keys")
        for situation in SITUATIONS:
            yield _case(2, 32, repeat=2, replay=situation, **situation.room)
            yield _case(3, 20, replay=situation, gap=4)
        yield _case(2, 128, repeat=3, replay=SITUATIONS[-1])
        for lengths in ((1,), (4,), (1,) * 8, (1,) * 32):
            yield _case(16, 128, *lengths, repeat=3, gap=128, tags=("perf",))
        replay = Situation((4,), 8, folded=3, direct=1)
        yield _case(16, 128, repeat=3, gap=128, replay=replay, tags=("perf",))


def _decay(g: Value | None) -> tuple[list[Node], list[Value]] | None:
    """The nodes that make one decay a head, softplus(alpha + dt) * a, and alpha, dt and a."""
    nodes: list[Node] = []
    for name in ("mul", "softplus", "add"):
        node = maker(g, name)
        if node is None:
            return None
        nodes.append(node)
        g = node.inputs[0]
    values = [v for v in (*nodes[2].inputs, nodes[0].inputs[1]) if v is not None]
    return (nodes, values) if [v.spec.rank for v in values] == [2, 1, 1] else None


def _case(
    hk: int,
    s: int,
    *lengths: int,
    repeat: int = 1,
    gap: int = 0,
    heads: str = "tiled",
    scale: float = 0.0,
    dt: tuple[float, float] = (-1.0, 1.0),
    limit: float = 3.0,
    note: str = "",
    tags: tuple[str, ...] = (),
    **given: Any,
) -> Case:
    """limit: of queries and keys; given: the rest of the Batch."""
    batch = Batch.of(lengths, **given)
    n, hv = batch.n, hk * repeat
    named = {"gap": gap, "k": batch.keep, "r": batch.slots, "pad": batch.pad, "scale": scale}
    label = batch.label(f"hk={hk},hv={hv},s={s}", heads, **named)
    return Case(
        ",".join(filter(None, (label, note, *tags))),
        heads=heads,
        scale=scale,
        eps=1e-6,
        tags=tags,
        q=f32(n, hk, s, lo=-limit, hi=limit, gap=gap),
        k=f32(n, hk, s, lo=-limit, hi=limit, gap=gap),
        v=f32(n, hv, s, lo=-0.3, hi=5.0, gap=gap),
        alpha=f32(n, hv, lo=-4.0, hi=4.0, gap=gap),
        beta=f32(n, hv, lo=-4.0, hi=4.0, gap=gap),
        dt=f32(hv, lo=dt[0], hi=dt[1]),
        a=f32(hv, lo=-3.0, hi=-0.01),
        **batch.inputs("state", hv * s * s, (hk + hv) * s + hv),
    )
