"""CPU kernels of the second set of ops: accuracy over ranges, exact rows, exact bytes, experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from kernel_checks import (
    FLOOR,
    check_all,
    check_curve,
    check_edges,
    check_padding,
    check_reused_memory,
    check_row_bits,
)
from lower_levels import check_at, integers_only
from one_op import bits, compute, cpu, feed, normal, run_graph, unwritten
from riverrun.backends.base import Pools
from riverrun.backends.cpu import instruction_sets
from riverrun.graph import Graph, HostTensor, TensorSpec
from riverrun.graph.codec import encode
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import BackendError
from riverrun.ops.mul_mat import WEIGHT_TYPES

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gelu_erf(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * _erfc(-x / np.sqrt(2))


CURVES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "gelu_erf": (gelu_erf, -20, 20),
    "log": (np.log, 0, 100),
    "sin": (np.sin, -300, 300),
    "cos": (np.cos, -300, 300),
}


@pytest.mark.parametrize("op", CURVES)
def test_relative_error_is_below_1e_6_everywhere(op: str) -> None:
    f, lo, hi = CURVES[op]
    small = np.logspace(-40, 0, 20001)
    turns = np.arange(-95, 96) * (np.pi / 2)
    near = 1 + np.concatenate([small, -small[small < 0.5]])
    x = np.concatenate([np.linspace(lo, hi, 50001), small, -small, turns, near])
    x = x.astype(np.float32)
    x = x[(x >= lo) & (x <= hi) & ((x > 0) | (op != "log"))]
    check_curve(op, f(x.astype(np.float64)), x)


@pytest.mark.parametrize("op", ["sin", "cos"])
def test_far_turns(op: str) -> None:
    x = np.concatenate([np.geomspace(300, 3e38, 5000), [999999.94, 1e6, 1000000.06]])
    x = np.concatenate([x, -x]).astype(np.float32)[None]
    want = getattr(np, op)(x.astype(np.float64))
    np.testing.assert_allclose(compute(op, x), want, rtol=1e-6, atol=FLOOR)


EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38]
    + [14.0, -14.0, 14.4, -14.4, 14.6, -14.6, 1e6, -1e6, 1e18, -1e18, 1.0, -1.0, 0.70710677],
    np.float32,
)


@pytest.mark.parametrize("op", ["gelu_erf", "log", "sin", "cos", "abs"])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_edges(op: str) -> None:
    check_edges(op, EDGES, np.ones(EDGES.shape, bool))


ROW_OPS: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    **{op: (op, ((100,),), {}) for op in (*CURVES, "abs")},
    "div": ("div", ((100,), (100,)), {}),
    "clamp": ("clamp", ((100,),), {"min": 0.2, "max": 0.9}),
    "norm": ("norm", ((3, 333),), {"eps": 1e-6}),
    "softmax": ("softmax", ((700,), (700,)), {"scale": 0.3}),
    "argsort": ("argsort", ((300,),), {"order": "desc"}),
    "topk_moe": ("topk_moe", ((130,),), {"k": 6, "normalize": True, "gating": "softmax"}),
    "sigmoid": ("topk_moe", ((130,),), {"k": 6, "normalize": True, "gating": "sigmoid"}),
    **{to: ("cast", ((160,),), {"to": to}) for to in ("q8_0", "q5_0", "q4_0")},
}


@pytest.mark.parametrize("name", ROW_OPS)
def test_rows_do_not_depend_on_company_or_threads(name: str) -> None:
    op, widths, attributes = ROW_OPS[name]
    rows = [np.abs(normal(i, 260, *width)) + 0.01 for i, width in enumerate(widths)]
    check_row_bits(op, rows, attributes)


@pytest.mark.parametrize("name", ROW_OPS)
def test_padding_rows_are_left_alone(name: str) -> None:
    op, widths, attributes = ROW_OPS[name]
    arrays = [np.abs(normal(i, 6, *width)) for i, width in enumerate(widths)]
    check_padding(op, arrays, attributes)


def test_topk_moe_with_a_bias_does_not_depend_on_company() -> None:
    logits, bias = normal(1, 260, 64), normal(2, 64)
    rule = dict(k=4, normalize=True, gating="sigmoid", scale=2.5)
    weights, ids = compute("topk_moe", logits, bias, threads=2, **rule)
    for i in (0, 7, 131, 259):
        one = compute("topk_moe", logits[i : i + 1], bias, **rule)
        np.testing.assert_array_equal(bits(weights[i]), bits(one[0][0]))
        np.testing.assert_array_equal(ids[i], one[1][0])


VALUES = [normal(3, 64), 1e-6 * normal(4, 64), 1e5 * normal(5, 64), np.zeros(64), -np.zeros(64)]
VALUES += [np.arange(-32, 32) * 0.5, np.repeat([3.0, -3.0], 32), 1e-39 * normal(6, 64)]


@pytest.mark.parametrize("to", ["q8_0", "q5_0", "q4_0"])
@pytest.mark.parametrize("threads", [1, 2])
def test_casts_to_blocks_give_the_bytes_of_the_codecs(to: str, threads: int) -> None:
    rows = np.concatenate([np.array(VALUES, np.float32), 30 * normal(7, 600, 64)])
    want = encode(dtype(to), rows)
    np.testing.assert_array_equal(compute("cast", rows, threads=threads, to=to), want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e9, 9e8])
def test_casts_to_blocks_refuse_what_does_not_fit(bad: float) -> None:
    x = normal(1, 3, 64)
    x[1, 40] = bad
    with pytest.raises(BackendError, match=r"^cast: 'x' should be .* in block 1 of row 1"):
        compute("cast", x, to="q8_0")


@pytest.mark.parametrize("kind", ["random", "ascending", "constant", "ties", "nan"])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_argsort_of_long_rows(kind: str, order: str) -> None:
    rng, n = np.random.default_rng(7), 70000
    x = {
        "random": rng.standard_normal(n),
        "ascending": np.arange(n),
        "constant": np.zeros(n),
        "ties": rng.integers(-50, 3, n),
        "nan": np.where(rng.random(n) < 0.9, np.nan, rng.standard_normal(n)),
    }[kind].astype(np.float32)
    rows = np.stack([x, x[::-1]])
    ranked = np.where(np.isnan(rows), -np.inf, rows)
    want = np.argsort(ranked if order == "asc" else -ranked, axis=-1, kind="stable")
    np.testing.assert_array_equal(compute("argsort", rows, threads=2, order=order), want)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_are_rounded_once(axis: int, threads: int) -> None:
    x = 1e4 * normal(8, 40, 37, 290)
    wide = x.astype(np.float64)
    for op, want in (("sum", wide.sum(axis)), ("mean", wide.mean(axis))):
        got = compute(op, x, threads=threads, axis=axis, keepdims=False)
        np.testing.assert_array_max_ulp(got, want.astype(np.float32), 1)
    got = compute("cumsum", x, threads=threads, axis=axis)
    np.testing.assert_array_max_ulp(got, wide.cumsum(axis).astype(np.float32), 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_any_strides(axes: tuple[int, ...], threads: int) -> None:
    x, other = normal(1, 40, 30, 25), normal(2, 40, 30, 25)
    moved, second = x.transpose(axes), other.transpose(axes)
    g = Graph("strides")
    a, b = (g.permute(v, axes=axes) for v in feed(g, {"x": x, "other": other}))
    half = moved.shape[1] // 2
    g.output("repeat", g.repeat(a, repeats=(2, 1, 3)))
    g.output("pad", g.pad(a, before=(1, 0, 2), after=(0, 3, 1), value=0.5))
    g.output("set", g.set(a, g.view(b, axis=1, start=0, stop=half), axis=1, start=2))
    g.output("argsort", g.argsort(a, order="asc"))
    g.output("div", g.div(a, b))
    put = moved.copy()
    put[:, 2 : 2 + half] = second[:, :half]
    want = {
        "repeat": np.tile(moved, (2, 1, 3)),
        "pad": np.pad(moved, ((1, 0), (0, 3), (2, 1)), constant_values=0.5),
        "set": put,
        "argsort": np.argsort(moved, axis=-1, kind="stable"),
        "div": moved / second,
    }
    check_all(g, {"x": x, "other": other}, threads, want)


def chain(g: Graph, x: Any, a: Any) -> list[Any]:
    """Ops that may write onto their inputs, one upon the other; [6, 32, 64] throughout."""
    steps = [g.neg(x)]
    for step in (
        lambda v: g.norm(v, eps=1e-6),
        lambda v: g.gelu_erf(v),
        lambda v: g.cumsum(v, axis=1),
        lambda v: g.cumsum(v, axis=-1),
        lambda v: g.clamp(v, min=-4.0, max=4.0),
        lambda v: g.set(v, g.view(x, axis=1, start=3, stop=9), axis=1, start=20),
        lambda v: g.set(v, g.view(v, axis=1, start=0, stop=9), axis=1, start=5),
        lambda v: g.solve_tri(a, v, unit=True),
        lambda v: g.softmax(v, scale=0.5),
        lambda v: g.sin(v),
        lambda v: g.abs(v),
    ):
        steps.append(step(steps[-1]))
    return steps


@pytest.mark.parametrize("threads", [1, 2])
def test_reused_memory_changes_nothing(threads: int) -> None:
    arrays = {"x": normal(1, 6, 32, 64), "a": normal(2, 6, 32, 32) / 32}
    check_reused_memory(chain, arrays, threads)


EXPERTS, USED, M = 5, 4, 40


def matrices(kind: str, k: int) -> np.ndarray:
    """Encoded weights of all experts, [EXPERTS, bytes]."""
    raw = np.ascontiguousarray(encode(dtype(kind), normal(5, EXPERTS, M, k)))
    return raw.reshape(EXPERTS, -1).view(np.uint8)


class Experts:
    """mul_mat_id of n tokens. constant: whether the weights are one, and so may be packed."""

    def __init__(self, kind: str, n: int, k: int, threads: int = 1, constant: bool = True):
        g, spec = Graph("experts"), TensorSpec((EXPERTS, M, k), dtype(kind))
        raw = matrices(kind, k)
        x, ids = g.input("x", (n, USED, k), "f32"), g.input("ids", (n, USED), "i32")
        whole = HostTensor(spec, raw.reshape(-1))
        w = g.constant(whole, "w") if constant else g.input("w", spec.shape, spec.dtype)
        g.output("y", g.mul_mat_id(x, w, ids))
        self.plan = cpu(threads).compile(g)
        self.bound = self.plan.bind(self.plan.own_weights(), Pools(self.plan.states))
        if not constant:
            self.bound.inputs["w"][...] = raw.view(spec.dtype.storage).reshape(spec.shape)

    def __call__(self, x: np.ndarray, ids: np.ndarray, rows: int | None = None) -> np.ndarray:
        self.bound.inputs["x"][...], self.bound.inputs["ids"][...] = x, ids
        self.bound.scratch[...] = 0xFF
        self.bound.run(rows)
        return np.array(self.bound.outputs["y"])


def one_by_one(kind: str, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The same by mul_mat with one expert's weight after the other."""
    k, y = x.shape[-1], np.zeros((*ids.shape, M), np.float32)
    for e, raw in enumerate(matrices(kind, k)):
        chosen = x[ids == e]
        g = Graph("one")
        w = g.constant(HostTensor(TensorSpec((M, k), dtype(kind)), raw), "w")
        g.output("y", g.mul_mat(g.input("x", chosen.shape, "f32"), w))
        y[ids == e] = run_graph(g, {"x": chosen})["y"]
    return y


@pytest.mark.parametrize("kind", WEIGHT_TYPES)
def test_experts_give_the_bits_of_mul_mat(kind: str) -> None:
    k = 1280
    x = normal(6, 40, USED, k)
    ids = np.random.default_rng(1).integers(-1, EXPERTS, (40, USED)).astype(np.int32)
    ids[:, 0] = 2  # an expert that many chose
    want = one_by_one(kind, x, ids)
    for threads in (1, 2):
        run = Experts(kind, len(x), k, threads)
        assert ("constant", "w", 1) in run.plan.buffers
        np.testing.assert_array_equal(bits(run(x, ids)), bits(want))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_more_pairs_than_are_taken_at_a_time(kind: str, threads: int) -> None:
    x = normal(7, 700, USED, 64)
    ids = np.random.default_rng(2).integers(0, 3, (700, USED)).astype(np.int32)
    got = Experts(kind, len(x), 64, threads)(x, ids)
    np.testing.assert_array_equal(bits(got), bits(one_by_one(kind, x, ids)))


@pytest.mark.parametrize(
    "kind, constant",
    [
        ("f32", True),
        ("bf16", True),
        ("q8_0", True),
        ("q6_k", True),
        ("f32", False),
        ("bf16", False),
    ],
)
def test_a_token_does_not_depend_on_its_company(kind: str, constant: bool) -> None:
    k = 256
    x = normal(8, 260, USED, k)
    ids = np.random.default_rng(3).integers(0, EXPERTS, (260, USED)).astype(np.int32)
    one = Experts(kind, 1, k, 1, constant)
    alone = np.concatenate([one(x[i : i + 1], ids[i : i + 1]) for i in range(len(x))])
    for n in (2, 3, 5, 8, 17, 33, 65, 260):
        pick = (np.arange(n) * 7 + 3 * n) % len(x)
        for threads in (1, 2):
            together = Experts(kind, n, k, threads, constant)(x[pick], ids[pick])
            np.testing.assert_array_equal(bits(together), bits(alone[pick]), f"{n} tokens")


@pytest.mark.parametrize("kind, constant", [("q8_0", True), ("f16", True), ("f32", False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_without_experts_and_padding(kind: str, constant: bool, threads: int) -> None:
    x = normal(9, 6, USED, 64)
    ids = np.full((6, USED), -1, np.int32)
    ids[2] = [4, -1, 0, -7]
    run = Experts(kind, 6, 64, threads, constant)
    y = run(x, ids)
    np.testing.assert_array_equal(bits(y[[0, 1, 3, 4, 5]]), 0)
    np.testing.assert_array_equal(bits(y[2, [1, 3]]), 0)
    assert (np.abs(y[2, [0, 2]]).max(-1) > 0).all()
    ids[3:], x[3:] = EXPERTS + 1, np.nan
    part = run(x, ids, rows=3)
    np.testing.assert_array_equal(bits(part[:3]), bits(y[:3]))
    assert unwritten(part[3:])


@pytest.mark.parametrize("kind, constant", [("q8_0", True), ("f16", True), ("f32", False)])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_id_beyond_the_experts_is_an_error(kind: str, constant: bool, threads: int) -> None:
    ids = np.zeros((300, USED), np.int32)
    ids[200, 1] = EXPERTS
    run = Experts(kind, 300, 64, threads, constant)
    message = rf"^mul_mat_id: 'ids' should be below {EXPERTS}, .*, got {EXPERTS} at \[200, 1\]"
    with pytest.raises(BackendError, match=message):
        run(normal(1, 300, USED, 64), ids)
    ids[200, 1] = 0
    assert np.isfinite(run(normal(1, 300, USED, 64), ids)).all()


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_all_of_this_at_lower_instruction_sets(isa: str) -> None:
    experts = "experts or more_pairs or a_token"
    check_at(isa, __file__, experts if integers_only(isa) else "not lower_instruction_sets")
