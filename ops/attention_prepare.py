"""What is done to queries, keys and values between their products and attention."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

from ..graph.builder import Graph
from ..graph.case import Case, Declared, f32, fixed, ints, rand
from ..graph.fusion import Fusion, Uses, maker
from ..graph.node import Node, Value
from ..graph.op import Cost, make_op, register
from ..graph.spec import TensorSpec
from .ragged import POOL_TYPES, require_dense_rows, require_plain, require_pool
from .rms_norm import normalised
from .rope import Rotary
from .write_rows import written


@register
class AttentionPrepare(Rotary):
    """q_out = rope(norm(q)), k_out = k_pool with rows rope(norm(k)), v_out = v_pool with rows v

    q: [N, H, D] f32; k: [N, Hk, D] f32; v: [N, Hk, Dv] f32; their leading axes may have gaps.
    positions, factors and attributes: as op rope has them. q_norm, k_norm: [D] f32, weights of
    rms_norm with eps; what has none is not normalised. idx: i32 [N]; k_pool: [R, Hk, D], v_pool:
    [R, Hk, Dv], both as op write_rows has its state, and rows enter them as there.
    Raises BackendError when an index is R or more; nothing is written then. For block types also
    for values that are not finite or too large for a block's f16 scale: then pools hold what there
    was or what goes there, in any mixture, in the rows that idx names."""

    name, outputs = "attention_prepare", ("q_out", "k_out", "v_out")
    inputs = (
        *("q", "k", "v", "positions", "idx", "k_pool", "v_pool"),
        *("q_norm?", "k_norm?", "factors?"),
    )
    writes = {"k_out": "k_pool", "v_out": "v_pool"}
    constants = ("q_norm", "k_norm", "factors")
    per_token = ("q", "k", "v", "positions", "idx")
    fuses = ("attention",)
    tolerance = 1e-7  # f32 arithmetic, of which a value may round to f16's or bf16's other side
    block_tolerance = 1e-5  # or to a block's other step
    eps: float = 0.0

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        positions: TensorSpec,
        idx: TensorSpec,
        k_pool: TensorSpec,
        v_pool: TensorSpec,
        *weights: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        q_norm, k_norm, factors = weights
        self.require_attr(0 <= self.eps < math.inf, "eps", "zero or positive")
        self.require(q.rank == 3, "q", "rank 3, [N, H, D]", q.shape)
        n, _, d = q.shape
        ok = k.rank == 3 and (k.shape[0], k.shape[2]) == (n, d)
        self.require(ok, "k", f"({n}, Hk, {d})", k.shape)
        ok = v.rank == 3 and v.shape[:2] == k.shape[:2]
        self.require(ok, "v", f"{k.shape[:2]} and Dv", v.shape)
        for arg, spec in (("q", q), ("k", k), ("v", v)):
            self.require_dtype(arg, spec, "f32")
            require_dense_rows(self, arg, spec)
        self.require_turning(n, d, positions, factors)
        require_plain(self, "idx", idx, (n,), "i32")
        for arg, pool, of in (("k_pool", k_pool, k), ("v_pool", v_pool, v)):
            want = (*k_pool.shape[:1], *of.shape[1:])
            self.require(pool.shape == want, arg, want, pool.shape)
            require_pool(self, arg, pool)
        for arg, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
            if weight is not None:
                require_plain(self, arg, weight, (d,), "f32")
        return q.like(), k_pool.like(), v_pool.like()

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        positions: np.ndarray,
        idx: np.ndarray,
        k_pool: np.ndarray,
        v_pool: np.ndarray,
        *weights: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        q_norm, k_norm, factors = weights
        q, k = (
            self.turned(x if w is None else normalised(x, w, self.eps), positions, factors)
            for x, w in ((q, q_norm), (k, k_norm))
        )
        return q, written(self, k_pool, k, idx), written(self, v_pool, v, idx)

    def expand(
        self,
        graph: Graph,
        q: Value,
        k: Value,
        v: Value,
        positions: Value,
        idx: Value,
        k_pool: Value,
        v_pool: Value,
        *weights: Value | None,
    ) -> tuple[Value, ...]:
        """rms_norm where there is a weight, rope, write_rows."""
        q_norm, k_norm, factors = weights
        turning = {f.name: getattr(self, f.name) for f in fields(Rotary)}
        if q_norm is not None:
            q = graph.rms_norm(q, q_norm, eps=self.eps)
        if k_norm is not None:
            k = graph.rms_norm(k, k_norm, eps=self.eps)
        q, k = (graph.rope(x, positions, factors, **turning) for x in (q, k))
        return q, graph.write_rows(k_pool, k, idx), graph.write_rows(v_pool, v, idx)

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """What makes the queries of an attention, and what enters its pools before it."""
        q, *pools = node.inputs[:3]
        entering = [n for n in (maker(pool, "write_rows") for pool in pools) if n is not None]
        if len(entering) < 2:
            return
        (k_pool, k, idx), (v_pool, v, also) = (write.inputs for write in entering)
        ropes = [n for n in (maker(q, "rope"), maker(k, "rope")) if n is not None]
        if len(ropes) < 2 or len({(r.op, *r.inputs[1:]) for r in ropes}) > 1 or also != idx:
            return
        norms = [_norm(rope.inputs[0]) for rope in ropes]
        eps = {norm.op.attributes()["eps"] for norm in norms if norm} or {0.0}
        if len(eps) > 1:
            return
        raw = [(norm or rope).inputs[0] for norm, rope in zip(norms, ropes, strict=True)]
        weights = [norm.inputs[1] if norm else None for norm in norms]
        positions, factors = ropes[0].inputs[1:]
        yield Fusion(
            make_op(cls.name, {**ropes[0].op.attributes(), "eps": eps.pop()}),
            (*raw, v, positions, idx, k_pool, v_pool, *weights, factors),
            (*filter(None, norms), *ropes, *entering),
            {part.value(): (i, 0) for i, part in enumerate((ropes[0], *entering))},
        )

    def cost(self, q: TensorSpec, k: TensorSpec, v: TensorSpec, *others: TensorSpec) -> Cost:
        positions, idx, k_pool, v_pool, *weights = others
        entered = ((k, k_pool), (v, v_pool))
        written = sum(x.size // p.dtype.block * p.dtype.nbytes for x, p in entered)
        read = sum(s.nbytes for s in (q, k, v, positions, idx, *weights) if s is not None)
        return Cost(7 * (q.size + k.size), read, q.nbytes + written)

    @staticmethod
    def cases() -> Iterable[Case]:
        for of in POOL_TYPES:
            for style in ("norm", "neox", "imrope"):
                yield _case(of, style, 4, 2, 64, (5, 0, 7), n_rot=32)
        for style in ("norm", "neox", "imrope"):
            yield _case("f16", style, 3, 1, 256, (2,), norm=True, gap=256)
            yield _case("f16", style, 24, 4, 256, (9, -1, 3, 3), norm=True)
            yield _case("f16", style, 2, 2, 96, (1, 8), note="factors", factors=True)
            yield _case("bf16", style, 2, 1, 64, (1, 8), note="yarn", norm=True, **YARN)
            yield _case("f32", style, 9, 9, 128, (6,) * 2, norm=True, values=64)
            yield _case("q8_0", style, 5, 3, 128, (6, 3, -1), norm=True, gap=32)
        yield _case("f32", "neox", 3, 1, 37, (4, 2), n_rot=22, norm=True)
        yield _case("f16", "neox", 3, 1, 64, (4, 2), norm=True, gap=5)
        yield _case("f32", "norm", 1, 1, 2, (0,), norm=True)
        yield _case("f16", "neox", 2, 1, 512, (3, 4), norm=True)
        yield _case("f16", "neox", 2, 1, 64, (-1, -1), note="all negative")
        yield _case("f16", "neox", 2, 1, 64, (), note="no rows")
        for scale in (1e-20, 1e15):
            yield _case("f32", "neox", 2, 1, 64, (1, 2), norm=True, limit=scale)
        streams = fixed([[0, 3, 70, 1], [700, 20, 5, 9]], "i32")
        yield _case("f16", "imrope", 2, 1, 256, (1, 2), norm=True, note="streams", where=streams)
        for of in ("f16", "q8_0"):
            for n in (1, 8, 32, 512):
                rows = tuple(range(1000, 1000 + n))
                yield _case(of, "imrope", 24, 4, 256, rows, norm=True, gap=256, tags=("perf",))


def _norm(value: Value | None) -> Node | None:
    """The rms_norm that makes a value, if it has a weight."""
    norm = maker(value, "rms_norm")
    return norm if norm is not None and norm.inputs[1] is not None else None


YARN: dict[str, Any] = {"freq_scale": 0.25, "ext_factor": 1.0, "n_ctx_orig": 4096}


def _case(
    of: str,
    style: str,
    heads: int,
    shared: int,
    d: int,
    rows: tuple[int, ...],
    *,
    n_rot: int = 0,
    values: int = 0,
    norm: bool = False,
    factors: bool = False,
    gap: int = 0,
    limit: float = 2.0,
    where: Declared | None = None,
    note: str = "",
    tags: tuple[str, ...] = (),
    **more: Any,
) -> Case:
    """heads of queries and shared ones of d values, going to these rows of a pool of some type."""
    n, n_rot = len(rows), n_rot or min(64, d)
    if style == "imrope":
        more["sections"] = (11, 11, 10, 0)
    weights = {w: f32(d) for w in ("q_norm", "k_norm") if norm}
    if factors:
        weights["factors"] = f32(n_rot // 2, lo=1, hi=32)
    named = {"dv": values, "gap": gap, "scale": "" if limit == 2.0 else limit}
    said = [f"{of},{style},h={heads}+{shared},d={d},rot={n_rot},n={n}"]
    said += [f"{name}={value}" for name, value in named.items() if value]
    said += ["norm"] if norm else []
    return Case(
        ",".join(filter(None, (*said, note))),
        tags=tags,
        q=f32(n, heads, d, lo=-limit, hi=limit, gap=gap),
        k=f32(n, shared, d, lo=-limit, hi=limit, gap=gap),
        v=f32(n, shared, values or d, lo=-2, hi=2, gap=gap),
        positions=where or ints(*(700 * i + 3 for i in range(n))),
        idx=ints(*rows),
        k_pool=rand(of, max(10, *rows, 0) + 1 if tags else 10, shared, d),
        v_pool=rand(of, max(10, *rows, 0) + 1 if tags else 10, shared, values or d),
        style=style,
        n_rot=n_rot,
        base={"norm": 10000.0, "neox": 1e6, "imrope": 1e7}[style],
        eps=1e-6 if norm else 0.0,
        **weights,
        **more,
    )
