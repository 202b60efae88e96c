"""References against formulations written another way, and against values worked out by hand."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from riverrun.graph import dtype, host_tensor, make_op
from riverrun.graph.errors import BackendError
from riverrun.ops.mul_mat import WEIGHT_TYPES

WIDE = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 7.5, -7.5, 19.9, 20.0, 20.1, 12.0, -12.0]


def call(name: str, *inputs: Any, **attributes: Any) -> Any:
    """An op's reference on lists or arrays; floats become f32."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    narrow = [
        x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in arrays
    ]
    return make_op(name, attributes).reference(*narrow)


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Fixed normal values."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def single(x: float) -> float:
    """A Python float rounded to f32, by the standard library."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


@pytest.mark.parametrize(
    "name, f",
    [("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("mul", lambda a, b: a * b)],
)
@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 5), (5,), (4, 1, 5), (4, 3, 1), (1, 1, 1), ()])
def test_arithmetic_element_by_element(
    name: str, f: Callable[..., float], shape: tuple[int, ...]
) -> None:
    a, b = draw(1, 4, 3, 5), draw(2, *shape)
    y = call(name, a, b)
    for at in itertools.product(range(4), range(3), range(5)):
        other = tuple(0 if n == 1 else i for i, n in zip(at[3 - b.ndim :], b.shape, strict=True))
        # Exact in f64 but for one rounding, which f32's covers.
        assert y[at] == single(f(float(a[at]), float(b[other])))


def test_scale_by_hand() -> None:
    y = call("scale", [[1.0, -2.0, 0.0]], factor=0.5, bias=-1.0)
    assert y.tolist() == [[-0.5, -2.0, -1.0]]
    assert call("scale", [[3.0]], factor=2.0).tolist() == [[6.0]]


OTHER_FORMS: dict[str, Callable[[float], float]] = {
    "silu": lambda x: x / 2 * (1 + math.tanh(x / 2)),
    "gelu": lambda x: x / (1 + math.exp(-2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))),
    "sigmoid": lambda x: (1 + math.tanh(x / 2)) / 2,
    "softplus": lambda x: x if x > 20 else max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "tanh": lambda x: 1 - 2 / (math.exp(2 * x) + 1),
    "exp": lambda x: math.e**x,
    "neg": lambda x: 0 - x,
    "sqr": lambda x: abs(x) ** 2,
    "sqrt": lambda x: abs(x) ** 0.5,
    "relu": lambda x: x if x > 0 else 0.0,
}


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_unary_in_another_form(name: str) -> None:
    x = np.abs(WIDE) if name == "sqrt" else np.array(WIDE)
    x = x.astype(np.float32)
    expected = [OTHER_FORMS[name](float(v)) for v in x]
    np.testing.assert_allclose(call(name, x), expected, rtol=2e-7, atol=1e-15)


@pytest.mark.parametrize(
    "name, x, y",
    [
        ("silu", 1.0, 0.7310585786),
        ("silu", -2.0, -0.2384058440),
        ("gelu", 1.0, 0.8411919906),
        ("gelu", -0.5, -0.1542859972),
        ("sigmoid", 2.0, 0.8807970780),
        ("softplus", 0.0, 0.6931471806),
        ("softplus", 20.5, 20.5),
        ("softplus", -30.0, 9.357622969e-14),
        ("tanh", 0.5, 0.4621171573),
        ("exp", 1.0, 2.7182818285),
        ("exp", -104.5, 0.0),
        ("exp", 89.0, math.inf),
        ("neg", 3.0, -3.0),
        ("sqr", -3.0, 9.0),
        ("sqrt", 2.25, 1.5),
        ("relu", -3.0, 0.0),
    ],
)
def test_unary_value(name: str, x: float, y: float) -> None:
    assert call(name, [x])[0] == pytest.approx(y, rel=1e-7)


def test_unary_far_out_is_finite() -> None:
    far = [-1e30, -1e4, 1e4, 1e30]
    assert call("silu", far).tolist() == pytest.approx([0, 0, 1e4, 1e30])
    assert call("gelu", far).tolist() == pytest.approx([0, 0, 1e4, 1e30])
    assert call("sigmoid", far).tolist() == [0, 0, 1, 1]
    assert call("softplus", far).tolist() == pytest.approx([0, 0, 1e4, 1e30])


@pytest.mark.parametrize("name, inner", [("swiglu", "silu"), ("geglu", "gelu")])
def test_gated_activation_element_by_element(name: str, inner: str) -> None:
    gate, up = draw(3, 3, 8, scale=4), draw(4, 3, 8)
    y = call(name, gate, up)
    for at in itertools.product(range(3), range(8)):
        expected = OTHER_FORMS[inner](float(gate[at])) * float(up[at])
        assert y[at] == pytest.approx(expected, rel=2e-7)


def test_norms_by_hand() -> None:
    x = [[3.0, 4.0], [0.0, 0.0]]
    assert call("l2_norm", x, eps=0.25, form="max").tolist() == [[single(0.6), single(0.8)], [0, 0]]
    # 3 / sqrt(25 + 11) and 4 / 6.
    assert call("l2_norm", x, eps=11.0, form="add").tolist() == [[0.5, single(4 / 6)], [0, 0]]
    # Shorter than eps: divided by eps itself, where the other form divides by sqrt(eps) or so.
    short = [[3e-4, 4e-4]]
    np.testing.assert_allclose(call("l2_norm", short, eps=1e-3, form="max"), [[0.3, 0.4]], 1e-6)
    added = 1 / math.sqrt(25e-8 + 1e-3)
    np.testing.assert_allclose(
        call("l2_norm", short, eps=1e-3, form="add"), [[3e-4 * added, 4e-4 * added]], 1e-6
    )
    # mean square 12.5 + 3.5 = 16.
    assert call("rms_norm", x[:1], [2.0, 8.0], eps=3.5).tolist() == [[1.5, 8.0]]


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-20, 1e15])
def test_norms_with_exact_sums(scale: float) -> None:
    x, eps = draw(5, 4, 37, scale=scale), 1e-6
    total = [float(sum(Fraction(float(v)) ** 2 for v in row)) for row in x]
    for form, length in (
        ("add", lambda s: math.sqrt(s + eps)),
        ("max", lambda s: max(math.sqrt(s), eps)),
    ):
        expected = [[float(v) / length(s) for v in row] for row, s in zip(x, total, strict=True)]
        np.testing.assert_allclose(call("l2_norm", x, eps=eps, form=form), expected, 1e-7)
    root = [math.sqrt(s / 37 + eps) for s in total]
    expected = [[float(v) / r for v in row] for row, r in zip(x, root, strict=True)]
    np.testing.assert_allclose(call("rms_norm", x, None, eps=eps), expected, 1e-7)


def test_get_rows() -> None:
    table = draw(6, 5, 7).astype(np.float16)
    y = call("get_rows", table, np.array([4, 0, 4], np.int32))
    assert y.dtype == np.float32
    assert y.tolist() == [[float(v) for v in table[i]] for i in (4, 0, 4)]


@pytest.mark.parametrize("bad", [-1, 5, 2**31 - 1])
def test_get_rows_outside_the_table(bad: int) -> None:
    with pytest.raises(BackendError, match=rf"get_rows: 'ids' should be .*\[0, 5\), got {bad}"):
        call("get_rows", draw(6, 5, 7), np.array([0, bad], np.int32))


def test_mul_mat_by_hand() -> None:
    y = call("mul_mat", [[1.0, 2.0], [0.0, -1.0]], [[3.0, 4.0], [5.0, 6.0], [0.0, 1.0]])
    assert y.tolist() == [[11, 17, 2], [-4, -6, -1]]


@pytest.mark.parametrize("of", WEIGHT_TYPES)
@pytest.mark.parametrize("scale", [1.0, 3e5])
def test_mul_mat_with_exact_sums(of: str, scale: float) -> None:
    x = draw(7, 2, 3, 256, scale=scale)
    w = host_tensor(draw(8, 4, 256), of).decoded()
    y = call("mul_mat", x, w)
    for a, b, m in itertools.product(range(2), range(3), range(4)):
        products = [
            Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x[a, b], w[m], strict=True)
        ]
        size = float(sum(abs(p) for p in products))
        assert float(y[a, b, m]) == pytest.approx(float(sum(products)), rel=6e-8, abs=1e-14 * size)


def test_cont_and_concat() -> None:
    x = draw(9, 3, 4, 5)
    y = call("cont", x.transpose(2, 0, 1))
    assert y.flags.c_contiguous and not np.shares_memory(x, y)
    assert all(y[k, i, j] == x[i, j, k] for i, j, k in np.ndindex(3, 4, 5))
    parts = [draw(i, 2, n, 3) for i, n in enumerate((1, 4, 2))]
    for axis in (1, -2):
        y = call("concat", *parts, axis=axis)
        rows = [
            [part[i, j].tolist() for part in parts for j in range(part.shape[1])] for i in (0, 1)
        ]
        assert y.tolist() == rows


def test_cast_to_f16_and_i32_by_hand() -> None:
    x = [1.5, 65519.0, 65520.0, -1e30, 2049.0, 2051.0, 6e-8, 2.9e-8]
    half = call("cast", x, to="f16")
    tiny = 2.0**-24
    assert half.tolist() == [1.5, 65504.0, math.inf, -math.inf, 2048.0, 2052.0, tiny, 0.0]
    x = [1.9, -1.9, 0.5, -0.5, 3e9, -3e9, math.inf, -math.inf, math.nan, 16777218.0]
    top, low = 2**31 - 1, -(2**31)
    assert call("cast", x, to="i32").tolist() == [1, -1, 0, 0, top, low, top, low, 0, 16777218]
    back = call("cast", np.array([16777217, -5, 70000], np.int32), to="f32")
    assert back.tolist() == [16777216.0, -5.0, 70000.0]


def test_cast_to_bf16_is_the_codec_s_rounding() -> None:
    rng = np.random.default_rng(10)
    bits = rng.integers(0, 2**32, 20000, np.uint64).astype(np.uint32)
    ties = np.arange(0x3F800000, 0x40000000, 0x8000).astype(np.uint32)
    x = np.concatenate([bits, ties]).view(np.float32)
    x = x[~np.isnan(x)]
    assert call("cast", x, to="bf16").tolist() == host_tensor(x, "bf16").decoded().tolist()
    assert call("cast", [1.00390625, 1.01171875, 3.4e38], to="bf16").tolist() == [
        1.0,
        1.015625,
        math.inf,
    ]
    assert np.isnan(call("cast", [math.nan], to="bf16")).all()


def test_cast_round_trips_what_fits() -> None:
    for to in ("f32", "f16", "bf16", "i32"):
        x = np.arange(-128, 129, dtype=np.float32)
        there = call("cast", x, to=to)
        assert there.dtype == (dtype(to).numpy or np.float32)
        assert call("cast", there, to="f32").tolist() == x.tolist()


def test_argmax_and_top_k_by_hand() -> None:
    x = [[1.0, 3.0, 3.0, 2.0], [math.nan, -1.0, -math.inf, math.nan], [-0.0, 0.0, -1.0, -1.0]]
    assert call("argmax", x).tolist() == [1, 1, 0]
    _, indices = call("top_k", x, k=3)
    assert indices.tolist() == [[1, 2, 3], [0, 3, 1], [0, 1, 2]]
    _, indices = call("top_k", [[math.inf, 1.0, math.nan, -math.inf]], k=4)
    assert indices.tolist() == [[2, 0, 1, 3]]
    values, _ = call("top_k", x[:1], k=2)
    assert values.tolist() == [[3.0, 3.0]]
    one = call("argmax", [2.0, 5.0])
    assert (one.shape, int(one)) == ((), 1)


@pytest.mark.parametrize("k", [1, 3, 40])
def test_top_k_is_the_head_of_a_sort(k: int) -> None:
    # Few distinct values, so that ties are common.
    x = np.random.default_rng(11).integers(0, 9, (6, 40)).astype(np.float32)
    values, indices = call("top_k", x, k=k)
    for row, v, i in zip(x.tolist(), values.tolist(), indices.tolist(), strict=True):
        order = sorted(range(40), key=lambda j: (-row[j], j))[:k]
        assert (i, v) == (order, [row[j] for j in order])
    assert call("argmax", x).tolist() == call("top_k", x, k=1)[1][:, 0].tolist()
