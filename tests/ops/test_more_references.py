"""References of the ops for free-hand graphs and mixtures of experts, against formulations written
another way and values worked out by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from riverrun.graph import dtype, host_tensor, make_op
from riverrun.graph.codec import encode
from riverrun.graph.errors import BackendError

NAN, INF = math.nan, math.inf


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


def i32(values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def test_division_by_hand() -> None:
    y = call("div", [[1.0, -3.0, 0.0, 1.0, -1.0, 0.0]], [[3.0, 2.0, 5.0, 0.0, 0.0, 0.0]])
    assert y[0, :5].tolist() == [np.float32(1 / 3), -1.5, 0.0, INF, -INF] and math.isnan(y[0, 5])


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 5), (5,), (4, 1, 5), (4, 3, 1), ()])
def test_division_rounds_the_exact_quotient(shape: tuple[int, ...]) -> None:
    a, b = draw(1, 4, 3, 5), draw(2, *shape)
    y, wide = call("div", a, b), np.broadcast_to(b, a.shape)
    for at in np.ndindex(a.shape):
        exact = Fraction(float(a[at])) / Fraction(float(wide[at]))
        near = [np.nextafter(y[at], np.float32(to)) for to in (-INF, INF)]
        errors = [abs(Fraction(float(v)) - exact) for v in (y[at], *near)]
        assert errors[0] == min(errors)


def series_erf(x: float) -> float:
    """erf by its Maclaurin series in fractions."""
    t = Fraction(x)
    terms = (t ** (2 * n + 1) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(60))
    return 2 / math.sqrt(math.pi) * float(sum(terms))


@pytest.mark.parametrize("x", [0.0, 0.25, -0.25, 1.0, -1.0, 2.5, -2.5])
def test_gelu_in_its_exact_form(x: float) -> None:
    expected = x / 2 * (1 + series_erf(x * math.sqrt(0.5)))
    assert call("gelu_erf", [x])[0] == pytest.approx(expected, rel=2e-7, abs=1e-15)


def test_gelu_keeps_its_lower_tail() -> None:
    # x * Q(-x) by the continued fraction of Mills' ratio.
    for x in (-6.0, -10.0, -13.0):
        ratio = 0.0
        for n in range(200, 0, -1):
            ratio = n / (-x + ratio)
        tail = math.exp(-x * x / 2) / math.sqrt(2 * math.pi) / (-x + ratio)
        assert call("gelu_erf", [x])[0] == pytest.approx(x * tail, rel=3e-7)
    assert call("gelu_erf", [-1e18, -100.0, 100.0, 1e18]).tolist() == [0, 0, 100, np.float32(1e18)]


@pytest.mark.parametrize(
    "name, x, y",
    [
        ("abs", -3.5, 3.5),
        ("abs", -0.0, 0.0),
        ("log", math.e, 1.0),
        ("log", 2.0**-126, -87.3365447506),
        ("log", 1.0, 0.0),
        ("log", 0.0, -INF),
        ("log", -1.0, NAN),
        ("sin", 0.5, 0.4794255386),
        ("sin", 1e4, -0.3056143889),
        ("cos", 0.5, 0.8775825619),
        ("cos", 1e4, -0.9521553682),
        ("sin", INF, NAN),
    ],
)
def test_unary_value(name: str, x: float, y: float) -> None:
    got = call(name, [x])
    assert got.dtype == np.float32
    assert got[0] == pytest.approx(y, rel=1e-7, nan_ok=True)


def test_sines_and_cosines_turn_with_the_angle() -> None:
    x = draw(3, 100, scale=30.0)
    turned = np.exp(1j * x.astype(np.float64))
    np.testing.assert_allclose(call("sin", x), turned.imag, atol=1e-7)
    np.testing.assert_allclose(call("cos", x), turned.real, atol=1e-7)


def test_clamp_by_hand() -> None:
    x = [-2.0, -0.5, 0.0, 0.7, 3.0, NAN, INF, -INF]
    y = call("clamp", x, min=-0.5, max=0.75).tolist()
    assert y[:5] == [-0.5, -0.5, 0.0, np.float32(0.7), 0.75]
    assert math.isnan(y[5]) and y[6:] == [0.75, -0.5]
    assert call("clamp", [-9.0, 9.0], min=-INF, max=1e300).tolist() == [-9.0, 9.0]


def test_norm_by_hand() -> None:
    # Mean 3, deviations -2 0 2, variance 8/3; eps 4/3 makes the root 2.
    x = [[1.0, 3.0, 5.0]]
    assert call("norm", x, None, None, eps=4 / 3).tolist() == [[-1.0, 0.0, 1.0]]
    y = call("norm", x, [2.0, 3.0, 4.0], [0.5, 1.0, -1.0], eps=4 / 3)
    assert y.tolist() == [[-1.5, 1.0, 3.0]]
    assert call("norm", x, None, [1.0, 1.0, 1.0], eps=4 / 3).tolist() == [[0.0, 1.0, 2.0]]
    assert call("norm", [[7.0], [-1.0]], [2.0], [3.0], eps=1e-6).tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize("scale, shift", [(1.0, 0.0), (1e-20, 0.0), (1e15, 0.0), (1.0, 1e4)])
def test_norm_with_exact_sums(scale: float, shift: float) -> None:
    x, eps = draw(5, 4, 37, scale=scale) + np.float32(shift), 1e-6
    y = call("norm", x, None, None, eps=eps)
    for row, got in zip(x, y, strict=True):
        exact = [Fraction(float(v)) for v in row]
        middle = sum(exact) / 37
        root = math.sqrt(float(sum((v - middle) ** 2 for v in exact) / 37) + eps)
        np.testing.assert_allclose(got, [float(v - middle) / root for v in exact], 1e-6, 1e-30)


def softmax_row(scores: list[float]) -> list[float]:
    """Without subtracting anything, in Python floats."""
    weights = [math.exp(s) for s in scores]
    return [w / math.fsum(weights) for w in weights] if any(weights) else weights


@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 7), (1, 7), (2, 1, 7), (2, 1, 1), (3, 1), ()])
@pytest.mark.parametrize("scale", [1.0, 0.25, -2.0])
def test_softmax_row_by_row(shape: tuple[int, ...], scale: float) -> None:
    x, mask = draw(6, 2, 3, 7, scale=3.0), draw(7, *shape)
    y, wide = call("softmax", x, mask, scale=scale), np.broadcast_to(mask, x.shape)
    for at in np.ndindex(2, 3):
        scores = [float(v) * scale + float(m) for v, m in zip(x[at], wide[at], strict=True)]
        np.testing.assert_allclose(y[at], softmax_row(scores), 1e-6)


def test_softmax_edges() -> None:
    hidden = [[-INF, 0.0, -INF], [-INF, -INF, -INF], [0.0, 0.0, -INF]]
    y = call("softmax", [[5.0, 1.0, 2.0]] * 3, hidden)
    half = softmax_row([5.0, 1.0])
    np.testing.assert_allclose(y, [[0, 1, 0], [0, 0, 0], [*half, 0]], 1e-6)
    assert call("softmax", [[-INF, -INF]], None).tolist() == [[0.0, 0.0]]
    assert np.isnan(call("softmax", [[NAN, 0.0], [INF, 0.0]], None)).all()
    assert call("softmax", [[1e30, -1e30]], None, scale=1e8).tolist() == [[1.0, 0.0]]
    assert call("softmax", np.zeros((2, 0), np.float32), None).shape == (2, 0)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_sums_means_and_running_sums(axis: int) -> None:
    x = draw(8, 3, 4, 5, scale=100.0)
    sums, means = (call(name, x, axis=axis, keepdims=False) for name in ("sum", "mean"))
    running = call("cumsum", x, axis=axis)
    lines = np.moveaxis(x, axis, -1)
    for at in np.ndindex(lines.shape[:-1]):
        line = [float(v) for v in lines[at]]
        exact = math.fsum(line)
        assert sums[at] == np.float32(exact)
        assert means[at] == pytest.approx(exact / len(line), rel=1e-7)
        steps = [np.float32(math.fsum(line[: j + 1])) for j in range(len(line))]
        assert np.moveaxis(running, axis, -1)[at].tolist() == steps
    for name, flat in (("sum", sums), ("mean", means)):
        kept = call(name, x, axis=axis)
        assert kept.shape[axis] == 1 and kept.tobytes() == flat.tobytes()


def test_sums_are_wide_and_of_nothing_zero() -> None:
    assert call("sum", [1e8, 1.0, -1e8, 0.5], axis=0).tolist() == [1.5]
    assert call("cumsum", [1e8, 1.0, -1e8], axis=0).tolist() == [1e8, 1e8, 1.0]
    assert call("sum", [3e38, 3e38, -3e38], axis=0, keepdims=False) == np.float32(3e38)
    assert call("mean", [3e38, 3e38], axis=0).tolist() == [np.float32(3e38)]
    assert call("sum", np.zeros((2, 0), np.float32), axis=1).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_argsort_is_stable(order: str) -> None:
    x = np.random.default_rng(11).integers(0, 9, (6, 40)).astype(np.float32)
    sign = 1 if order == "asc" else -1
    expected = [sorted(range(40), key=lambda j: (sign * row[j], j)) for row in x.tolist()]
    assert call("argsort", x, order=order).tolist() == expected
    odd = [[2.0, NAN, -INF, 2.0, INF, -0.0, 0.0]]
    last, first = [1, 2], [5, 6, 0, 3, 4]
    want = last + first if order == "asc" else [4, 0, 3, 5, 6, 1, 2]
    assert call("argsort", odd, order=order).tolist() == [want]


@pytest.mark.parametrize("of", [np.float32, np.float16, np.int32])
def test_repeat_indexes_modulo(of: type) -> None:
    x = (draw(9, 2, 3, 4) * 100).astype(of)
    y = call("repeat", x, repeats=(3, 1, 2))
    assert (y.shape, y.dtype) == ((6, 3, 8), x.dtype)
    assert all(y[i, j, k] == x[i % 2, j, k % 4] for i, j, k in np.ndindex(y.shape))


def test_pad_by_hand() -> None:
    y = call("pad", [[1.0, 2.0], [3.0, 4.0]], before=(0, 1), after=(1, 2), value=-7.5)
    v = -7.5
    assert y.tolist() == [[v, 1, 2, v, v], [v, 3, 4, v, v], [v] * 5]
    assert call("pad", [1.0], before=(0,), after=(2,)).tolist() == [1.0, 0.0, 0.0]
    assert call("pad", [1.0], before=(1,), after=(0,), value=-INF).tolist() == [-INF, 1.0]


@pytest.mark.parametrize("of", [np.float32, np.float16, np.int32])
@pytest.mark.parametrize("axis, start", [(0, 1), (1, 0), (-1, 2), (2, 3)])
def test_set_replaces_a_slice(of: type, axis: int, start: int) -> None:
    dst = (draw(10, 3, 4, 5) * 100).astype(of)
    part = [3, 4, 5]
    part[axis] = 2
    src = (draw(12, *part) * 100).astype(of)
    before = dst.copy()
    y = call("set", dst, src, axis=axis, start=start)
    assert y.dtype == of and np.array_equal(dst, before) and not np.shares_memory(y, dst)
    for at in np.ndindex(3, 4, 5):
        j = at[axis] - start
        inner = tuple(j if a == axis % 3 else i for a, i in enumerate(at))
        assert y[at] == (src[inner] if 0 <= j < 2 else dst[at])


@pytest.mark.parametrize("to", ["q8_0", "q5_0", "q4_0"])
def test_cast_to_blocks_is_the_codec_s_rounding_and_settles(to: str) -> None:
    rows = [draw(13, 2, 96, scale=s) for s in (1.0, 1e4, 1e-6, 3e-7, 1e-30, 0.0)]
    x = np.concatenate([*rows, np.arange(-96, 96).reshape(2, 96).astype(np.float32)])
    y = call("cast", x, to=to)
    assert y.dtype == np.float32
    assert y.tobytes() == host_tensor(x, to).decoded().tobytes()
    assert np.array_equal(call("cast", y, to=to), y)
    normal = np.concatenate([rows[0], rows[1]])
    once = encode(dtype(to), normal)
    again = encode(dtype(to), call("cast", normal, to=to))
    assert once.tobytes() == again.tobytes()
    assert call("cast", i32([range(32)]), to=to).tobytes() == (
        call("cast", [[float(i) for i in range(32)]], to=to).tobytes()
    )


def test_cast_to_q8_0_by_hand() -> None:
    # The scale is 127 / 127 = 1, so whole numbers stay and halves go away from zero.
    x = np.zeros((1, 32))
    x[0, :6] = [127.0, -126.5, 0.5, -0.5, 0.49, 2.5]
    assert call("cast", x, to="q8_0")[0, :6].tolist() == [127.0, -127.0, 1.0, -1.0, 0.0, 3.0]


@pytest.mark.parametrize("to", ["q8_0", "q5_0", "q4_0"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 3e8])
def test_cast_to_blocks_of_what_does_not_fit(to: str, bad: float) -> None:
    x = np.zeros((2, 32), np.float32)
    x[1, 3] = bad
    with pytest.raises(BackendError, match=rf"cast: {to}|cast: block scale must fit f16"):
        call("cast", x, to=to)


@pytest.mark.parametrize("lower, unit", list(itertools.product([True, False], repeat=2)))
def test_solve_tri_solves(lower: bool, unit: bool) -> None:
    full = draw(14, 2, 3, 9, 9) / 9 + np.eye(9, dtype=np.float32) * 2
    b = draw(15, 2, 3, 9, 4)
    x = call("solve_tri", full, b, lower=lower, unit=unit)
    a = (np.tril if lower else np.triu)(full).astype(np.float64)
    if unit:
        a = np.where(np.eye(9), 1.0, a)
    np.testing.assert_allclose(a @ x, b, atol=2e-6)
    np.testing.assert_allclose(x, np.linalg.solve(a, b.astype(np.float64)), rtol=1e-6, atol=1e-9)


def test_solve_tri_by_hand() -> None:
    a = [[2.0, 9.0], [4.0, 5.0]]
    assert call("solve_tri", a, [[2.0], [14.0]]).tolist() == [[1.0], [2.0]]
    assert call("solve_tri", a, [[2.0], [14.0]], unit=True).tolist() == [[2.0], [6.0]]
    assert call("solve_tri", a, [[20.0], [10.0]], lower=False).tolist() == [[1.0], [2.0]]
    zero = call("solve_tri", [[0.0]], [[1.0, 0.0, -1.0]])
    assert zero[0, 0] == INF and math.isnan(zero[0, 1]) and zero[0, 2] == -INF


@pytest.mark.parametrize("of", ["f32", "bf16", "q8_0", "q4_k"])
@pytest.mark.parametrize("apart", [False, True])
def test_mul_mat_id_is_mul_mat_of_the_chosen_matrix(of: str, apart: bool) -> None:
    w = host_tensor(draw(16, 5, 7, 256), of).decoded()
    ids = i32([[0, 4], [4, 4], [-1, 2], [3, -1]])
    x = draw(17, 4, 2, 256) if apart else draw(17, 4, 256)
    y = call("mul_mat_id", x, w, ids)
    assert y.shape == (4, 2, 7)
    for n, u in np.ndindex(4, 2):
        row = x[n, u] if apart else x[n]
        one = call("mul_mat", row, w[max(0, ids[n, u])]) if ids[n, u] >= 0 else np.zeros(7)
        assert y[n, u].tolist() == one.tolist()


def test_mul_mat_id_by_hand() -> None:
    w = [[[1.0, 2.0]], [[10.0, 20.0]], [[0.5, 0.0]]]
    ids = i32([[1, 0], [2, -5]])
    assert call("mul_mat_id", [[1.0, 3.0], [4.0, 5.0]], w, ids).tolist() == [
        [[70.0], [7.0]],
        [[2.0], [0.0]],
    ]
    apart = [[[1.0, 0.0], [0.0, 1.0]], [[2.0, 0.0], [9.0, 9.0]]]
    assert call("mul_mat_id", apart, w, ids).tolist() == [[[10.0], [2.0]], [[1.0], [0.0]]]


def test_mul_mat_id_of_an_expert_that_is_not_there() -> None:
    message = r"mul_mat_id: 'ids' should be below 3, the number of experts, got 3 at \[1, 0\]"
    with pytest.raises(BackendError, match=message):
        call("mul_mat_id", draw(1, 2, 4), draw(2, 3, 5, 4), i32([[0, -1], [3, 0]]))


GATES: dict[str, Callable[[list[float]], list[float]]] = {
    "softmax": softmax_row,
    "sigmoid": lambda row: [(1 + math.tanh(v / 2)) / 2 for v in row],
}


@pytest.mark.parametrize("gating", GATES)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_topk_moe_row_by_row(gating: str, normalize: bool, biased: bool) -> None:
    logits = draw(18, 6, 20, scale=2.0)
    bias = draw(19, 20, scale=0.3) if biased else None
    rule = dict(k=4, normalize=normalize, gating=gating, scale=2.5)
    weights, ids = call("topk_moe", logits, bias, **rule)
    assert (weights.dtype, ids.dtype) == (np.float32, np.int32)
    for row, w, chosen in zip(logits, weights, ids, strict=True):
        p = GATES[gating]([float(v) for v in row])
        score = [v + (float(bias[j]) if bias is not None else 0.0) for j, v in enumerate(p)]
        order = sorted(range(20), key=lambda j: (-score[j], j))[:4]
        assert chosen.tolist() == order
        total = sum(p[j] for j in order) if normalize else 1.0
        np.testing.assert_allclose(w, [2.5 * p[j] / total for j in order], 1e-6)


def test_topk_moe_edges() -> None:
    rule: dict[str, Any] = dict(k=2, gating="softmax", normalize=True)
    weights, ids = call("topk_moe", [[1.0, 3.0, 3.0, 3.0], [NAN, -INF, -INF, 2.0]], None, **rule)
    assert ids.tolist() == [[1, 2], [3, 0]]
    assert weights[0].tolist() == [0.5, 0.5] and np.isnan(weights[1]).all()
    # Sums below 2^-14 do not blow up: sigmoid(-20) / 2^-14.
    rule["gating"] = "sigmoid"
    weights, _ = call("topk_moe", [[-20.0, -30.0, -40.0]], None, **rule)
    assert weights[0, 0] == pytest.approx(2.0611536e-9 * 2**14, rel=1e-6)
    # Logits that f32's sigmoid cannot tell apart are still in order.
    assert call("topk_moe", [[40.0, 50.0, 45.0]], None, **rule)[1].tolist() == [[1, 2]]
    # A bias chooses but does not weigh.
    weights, ids = call("topk_moe", [[0.0, 0.0, 0.0]], [0.0, 1.0, 0.5], **rule)
    assert (weights.tolist(), ids.tolist()) == ([[0.5, 0.5]], [[1, 2]])
