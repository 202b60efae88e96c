"""CPU kernels of the stateless ops: accuracy over whole ranges, edges, strides, rows, aliasing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_checks import (
    check_all,
    check_curve,
    check_edges,
    check_padding,
    check_reused_memory,
    check_row_bits,
)
from one_op import bits, compute, feed, normal
from riverrun.graph import Graph


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Written as a sigmoid, which loses nothing for negative x."""
    return x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


CURVES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "exp": (np.exp, -104, 88.7228),
    "sigmoid": (sigmoid, -104, 104),
    "silu": (lambda x: x * sigmoid(x), -104, 104),
    "gelu": (gelu, -20, 20),
    "tanh": (np.tanh, -20, 20),
    "softplus": (softplus, -104, 104),
    "sqrt": (np.sqrt, 0, 100),
    "sqr": (np.square, -20, 20),
}


def sweep(lo: float, hi: float) -> np.ndarray:
    """Even steps through a range, and all magnitudes near zero on both sides."""
    small = np.logspace(-40, 0, 20001)
    x = np.concatenate([np.linspace(lo, hi, 200001), small, -small]).astype(np.float32)
    return x[(x >= lo) & (x <= hi)]


@pytest.mark.parametrize("op", CURVES)
def test_relative_error_is_below_1e_6_everywhere(op: str) -> None:
    f, lo, hi = CURVES[op]
    x = sweep(lo, hi)
    with np.errstate(over="ignore"):
        want = f(x.astype(np.float64))
    check_curve(op, want, x)


@pytest.mark.parametrize("lo, hi", [(-20, -10), (-60, -40), (-87, -80), (-90, -10), (15, 25)])
def test_softplus_of_rows_far_from_zero(lo: float, hi: float) -> None:
    x = np.linspace(lo, hi, 999, dtype=np.float32)[None]
    want = softplus(x.astype(np.float64))
    error = ((compute("softplus", x) - want) ** 2).sum() / (want**2).sum()
    assert error < 1e-12


EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38]
    + [88.72283, 88.73, 89.0, -87.3, -87.4, -103.0, -103.9, -104.0, -150.0, 20.0, 20.00001]
    + [1e4, -1e4, 1e18, -1e18, 0.625, -0.625, 14.0, -14.0, 14.1],
    np.float32,
)


@pytest.mark.parametrize(
    "op", ["exp", "sigmoid", "silu", "gelu", "tanh", "softplus", "sqrt", "sqr", "neg", "relu"]
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_edges(op: str) -> None:
    signed = (np.isfinite(EDGES) | (EDGES > 0)) & (op != "relu")
    check_edges(op, EDGES, signed)


@pytest.mark.parametrize("axes", [(1, 0), (0, 2, 1), (2, 0, 1), (3, 1, 0, 2), (5, 3, 1, 0, 2, 4)])
@pytest.mark.parametrize("threads", [1, 2])
def test_any_strides(axes: tuple[int, ...], threads: int) -> None:
    shape = {2: (150, 130), 3: (20, 31, 33), 4: (5, 11, 19, 23), 6: (3, 4, 5, 6, 7, 8)}[len(axes)]
    x, other = normal(1, *shape), normal(2, *shape)
    moved = x.transpose(axes)
    flat = other.transpose(axes)[..., :1, :]
    g = Graph("strides")
    a, b = (g.permute(v, axes=axes) for v in feed(g, {"x": x, "other": other}))
    row = g.view(b, axis=-2, start=0, stop=1)
    g.output("neg", g.neg(a))
    g.output("scale", g.scale(a, factor=0.3, bias=2.0))
    g.output("cont", g.cont(a))
    g.output("cast", g.cast(a, to="f16"))
    g.output("sub", g.sub(a, b))
    g.output("row", g.mul(a, row))
    g.output("mixed", g.add(g.neg(a), b))
    g.output("concat", g.concat(a, row, b, axis=-2))
    want = {
        "neg": -moved,
        "scale": (moved.astype(np.float64) * 0.3 + 2.0).astype(np.float32),
        "cont": moved,
        "cast": moved.astype(np.float16),
        "sub": moved - other.transpose(axes),
        "row": moved * flat,
        "mixed": other.transpose(axes) - moved,
        "concat": np.concatenate([moved, flat, other.transpose(axes)], -2),
    }
    check_all(g, {"x": x, "other": other}, threads, want)


@pytest.mark.parametrize("threads", [1, 2])
def test_broadcasts_of_every_kind(threads: int) -> None:
    a = normal(3, 9, 8, 7, 6, 5, 4)
    shapes = [(), (4,), (1,), (5, 1), (6, 1, 4), (1, 7, 1, 1, 4), (9, 1, 1, 1, 1, 1)]
    shapes += [(9, 1, 7, 1, 5, 1), (1, 8, 1, 6, 1, 4), (9, 8, 7, 6, 5, 1)]
    for seed, shape in enumerate(shapes):
        b = np.asarray(normal(seed, *shape), np.float32)
        got = compute("mul", a, b, threads=threads)
        np.testing.assert_array_equal(got, a * b, err_msg=str(shape))


def test_concat_of_many_along_each_axis() -> None:
    for axis in range(3):
        parts = []
        for i, extent in enumerate((1, 0, 5, 2, 17)):
            shape = [3, 4, 6]
            shape[axis] = extent
            parts.append(normal(i, *shape))
        got = compute("concat", *parts, axis=axis)
        np.testing.assert_array_equal(got, np.concatenate(parts, axis))


def test_casts_of_every_half() -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)[None]
    np.testing.assert_array_equal(compute("cast", every, to="f32"), every.astype(np.float32))
    got = compute("cast", every[~np.isnan(every)].astype(np.float32)[None], to="f16")
    np.testing.assert_array_equal(bits(got[0]), bits(every[~np.isnan(every)]))
    between = np.linspace(-7e4, 7e4, 100003, dtype=np.float32)[None]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            compute("cast", between, to="f16"), between.astype(np.float16)
        )


ROW_OPS: dict[str, tuple[int, tuple[int, ...], dict[str, Any]]] = {
    **{op: (1, (100,), {}) for op in CURVES},
    **{op: (1, (100,), {}) for op in ("neg", "relu", "cont", "argmax")},
    **{op: (2, (100,), {}) for op in ("add", "sub", "mul", "swiglu", "geglu")},
    "scale": (1, (100,), {"factor": 0.3, "bias": 0.1}),
    "cast": (1, (100,), {"to": "f16"}),
    "l2_norm": (1, (3, 33), {"eps": 1e-6, "form": "add"}),
    "top_k": (1, (100,), {"k": 7}),
}


@pytest.mark.parametrize("op", ROW_OPS)
def test_rows_do_not_depend_on_company_or_threads(op: str) -> None:
    count, width, attributes = ROW_OPS[op]
    rows = [np.abs(normal(i, 260, *width)) + 0.01 for i in range(count)]
    check_row_bits(op, rows, attributes)


@pytest.mark.parametrize("op", ROW_OPS)
def test_padding_rows_are_left_alone(op: str) -> None:
    count, width, attributes = ROW_OPS[op]
    arrays = [np.abs(normal(i, 6, *width)) for i in range(count)]
    check_padding(op, arrays, attributes, skipped=op != "argmax")


def chain(g: Graph, x: Any, wide: Any, positions: Any) -> list[Any]:
    """Ops that may write onto their inputs, one upon the other; [6, 8, 32] throughout."""
    steps = [g.neg(x)]
    for step in (
        lambda v: g.scale(v, factor=0.7, bias=0.1),
        lambda v: g.rope(v, positions, style="neox", n_rot=16, base=1e4),
        lambda v: g.rope(v, positions, style="norm", n_rot=22, base=1e4),
        lambda v: g.l2_norm(v, eps=1e-6, form="max"),
        lambda v: g.mul(v, g.view(v, axis=1, start=0, stop=1)),
        lambda v: g.swiglu(v, g.view(wide, axis=2, start=0, stop=32)),
        lambda v: g.geglu(g.view(wide, axis=2, start=32, stop=64), v),
        lambda v: g.sub(v, g.permute(g.reshape(v, shape=(6, 32, 8)), axes=(0, 2, 1))),
        lambda v: g.add(v, v),
        lambda v: g.softplus(v),
        lambda v: g.tanh(v),
        lambda v: g.rms_norm(v, eps=1e-6),
    ):
        steps.append(step(steps[-1]))
    return steps


@pytest.mark.parametrize("threads", [1, 2])
def test_reused_memory_changes_nothing(threads: int) -> None:
    arrays = {
        "x": normal(1, 6, 8, 32),
        "wide": normal(2, 6, 8, 64),
        "positions": np.array([0, 5, 700, 8000, 3, 100000], np.int32),
    }
    check_reused_memory(chain, arrays, threads)


VOCABULARY = 248320


@pytest.mark.parametrize(
    "kind",
    ["random", "ascending", "descending", "constant", "ties", "hidden", "nan", "one nan"],
)
@pytest.mark.parametrize("k", [1, 64, 1024])
def test_top_k_of_a_vocabulary(kind: str, k: int) -> None:
    """Rows in one piece and in several, with indices in the order of a stable sort."""
    rng = np.random.default_rng(7)
    x = {
        "random": rng.standard_normal(VOCABULARY),
        "ascending": np.arange(VOCABULARY),
        "descending": -np.arange(VOCABULARY),
        "constant": np.zeros(VOCABULARY),
        "ties": rng.integers(-50, 3, VOCABULARY),
        # All but ten are minus infinity.
        "hidden": np.where(np.arange(VOCABULARY) % 24832 == 7, rng.random(VOCABULARY), -np.inf),
        "one nan": np.where(np.arange(VOCABULARY) == 200000, np.nan, rng.random(VOCABULARY)),
        "nan": np.where(rng.random(VOCABULARY) < 0.999, np.nan, rng.standard_normal(VOCABULARY)),
    }[kind].astype(np.float32)
    rows = np.stack([x, x[::-1]])
    ranked = np.where(np.isnan(rows), np.inf, rows)  # no other element is infinite
    order = np.argsort(-ranked, axis=-1, kind="stable")[:, :k]
    for given, threads in ((rows, 2), (rows, 5), (rows[:1], 3)):
        values, indices = compute("top_k", given, threads=threads, k=k)
        np.testing.assert_array_equal(indices, order[: len(given)])
        np.testing.assert_array_equal(values, np.take_along_axis(given, indices, -1))
    largest = np.where(np.isnan(rows), -np.inf, rows).argmax(-1)
    np.testing.assert_array_equal(compute("argmax", rows), largest)


@pytest.mark.parametrize("at", [0, 255, 16383, 16384, 50000, 99_999])
@pytest.mark.parametrize("k", [1, 64])
def test_the_largest_is_found_wherever_it_is(at: int, k: int) -> None:
    """First and last of blocks, pieces and what remains behind whole blocks."""
    x = np.random.default_rng(at).random((1, 100_000), np.float32)
    for value in (2.0, np.inf, np.nan):
        x[0, at] = value
        for threads in (1, 4):
            values, indices = compute("top_k", x, threads=threads, k=k)
            np.testing.assert_array_equal(values[0, 0], np.float32(value))
            assert indices[0, 0] == at
