"""Rotary embeddings against complex rotation, published rules and values worked out by hand."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import make_op

FAR = [0, 700, 8000, 100000]
QWEN = (11, 11, 10, 0)


def draw(seed: int, *shape: int) -> np.ndarray:
    """Fixed normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rope(x: np.ndarray, positions: Any, factors: Any = None, **attributes: Any) -> np.ndarray:
    """The reference; base 10000 unless given."""
    op = make_op("rope", {"base": 10000.0} | attributes)
    where = np.asarray(positions, np.int32)
    scaled = None if factors is None else np.asarray(factors, np.float32)
    return op.reference(x, where, scaled)


def turning(attributes: dict[str, Any]) -> np.ndarray:
    """The angle of each pair at position 1."""
    op: Any = make_op("rope", {"base": 10000.0} | attributes)
    return op.angles(np.array([1], np.int32), None)[0]


def rotated(
    x: np.ndarray, angles: list[list[float]], interleaved: bool, magnitude: float = 1.0
) -> np.ndarray:
    """x with complex number i of each head turned by angles[token][i]; the rest is copied."""
    y = x.copy()
    half = len(angles[0])
    for n, h, i in np.ndindex(x.shape[0], x.shape[1], half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        z = complex(x[n, h, a], x[n, h, b]) * cmath.rect(magnitude, angles[n][i])
        y[n, h, a], y[n, h, b] = z.real, z.imag
    return y


def plain_angles(positions: list[int], n_rot: int, base: float) -> list[list[float]]:
    """position / base^(2i/n_rot)."""
    return [[p / base ** (2 * i / n_rot) for i in range(n_rot // 2)] for p in positions]


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize("d, n_rot", [(64, 64), (64, 16), (256, 64), (256, 256), (37, 22)])
@pytest.mark.parametrize("base", [10000.0, 1e7])
def test_partial_rotation_at_all_distances(style: str, d: int, n_rot: int, base: float) -> None:
    x = draw(1, 4, 2, d)
    y = rope(x, FAR, style=style, n_rot=n_rot, base=base)
    expected = rotated(x, plain_angles(FAR, n_rot, base), style == "norm")
    np.testing.assert_allclose(y, expected, rtol=2e-7, atol=2e-7)
    assert y[0].tobytes() == x[0].tobytes()
    assert y[..., n_rot:].tobytes() == x[..., n_rot:].tobytes()
    assert not np.allclose(y[1:, :, :n_rot], x[1:, :, :n_rot], atol=0.1)


def test_quarter_turns_by_hand() -> None:
    c, s = math.cos(1.0), math.sin(1.0)
    x = np.array([[[1.0, 0.0, 2.0, 0.0, 9.0]]], np.float32)
    # Pair 0 turns by 1 radian, pair 1 by 1/100 for base 10000 and n_rot 4.
    c2, s2 = math.cos(0.01), math.sin(0.01)
    norm = rope(x, [1], style="norm", n_rot=4)
    np.testing.assert_allclose(norm, [[[c, s, 2 * c2, 2 * s2, 9]]], rtol=1e-7)
    neox = rope(x, [1], style="neox", n_rot=4)
    np.testing.assert_allclose(neox, [[[c - 2 * s, 0, s + 2 * c, 0, 9]]], rtol=1e-7)


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_products_depend_on_distance_only(style: str) -> None:
    q, k = draw(2, 1, 1, 64), draw(3, 1, 1, 64)

    def product(at: int, distance: int) -> float:
        turned = [rope(v, [p], style=style, n_rot=64) for v, p in ((q, at), (k, at - distance))]
        return float(np.vdot(turned[0].astype(np.float64), turned[1].astype(np.float64)))

    for distance in (0, 1, 700):
        near = product(700, distance)
        assert product(100000, distance) == pytest.approx(near, abs=2e-5)
    assert product(700, 0) != pytest.approx(product(700, 1), abs=1e-2)


def test_linear_scaling_and_factors() -> None:
    x = draw(4, 4, 2, 32)
    stretched = rope(x, [0, 8, 800, 8000], style="neox", n_rot=32, freq_scale=0.125)
    exact = rope(x, [0, 1, 100, 1000], style="neox", n_rot=32)
    np.testing.assert_allclose(stretched, exact, rtol=1e-6, atol=1e-6)
    factors = [1.0] * 8 + [4.0] * 8
    y = rope(x, FAR, factors, style="norm", n_rot=32)
    angles = [
        [t / f for t, f in zip(row, factors, strict=True)] for row in plain_angles(FAR, 32, 10000.0)
    ]
    np.testing.assert_allclose(y, rotated(x, angles, True), rtol=2e-7, atol=2e-7)


def test_magnitude_scales_rotated_elements_only() -> None:
    x = draw(5, 2, 1, 8)
    y = rope(x, [0, 3], style="neox", n_rot=4, attn_factor=2.0)
    assert y[0, 0, :4].tolist() == (2 * x[0, 0, :4]).tolist()
    assert y[..., 4:].tobytes() == x[..., 4:].tobytes()


def test_yarn_keeps_fast_pairs_and_scales_slow_ones() -> None:
    # 64 ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 10.47, and 22.51 for one turn: pairs up to 10 keep
    # their frequency, pairs from 23 on are slowed by 4, the 12 between are blended.
    attributes: dict[str, Any] = dict(style="neox", n_rot=64, freq_scale=0.25)
    attributes |= dict(ext_factor=1.0, n_ctx_orig=4096)
    angles = turning(attributes)
    plain = [10000.0 ** -(i / 32) for i in range(32)]
    np.testing.assert_allclose(angles[:11], plain[:11], rtol=1e-14)
    np.testing.assert_allclose(angles[23:], [f / 4 for f in plain[23:]], rtol=1e-14)
    for i in range(11, 23):
        slowed = (i - 10) / 13
        assert angles[i] == pytest.approx(
            plain[i] * (1 - slowed) + plain[i] / 4 * slowed, rel=1e-14
        )
    x = draw(6, 4, 1, 64)
    y = rope(x, FAR, **attributes)
    all_angles = [[p * t for t in angles] for p in FAR]
    expected = rotated(x, all_angles, False, 1 + 0.1 * math.log(4))
    np.testing.assert_allclose(y, expected, rtol=2e-7, atol=2e-7)


def test_yarn_half_on() -> None:
    attributes: dict[str, Any] = dict(style="norm", n_rot=64, n_ctx_orig=4096)
    plain, slow, half = (
        turning(attributes | {"ext_factor": ext, "freq_scale": scale})
        for ext, scale in ((0.0, 1.0), (0.0, 0.25), (0.5, 0.25))
    )
    # The fastest pair is half extrapolated, half interpolated; the slowest only interpolated.
    assert half[0] == pytest.approx((plain[0] + slow[0]) / 2)
    assert half[31] == pytest.approx(slow[31])


def streams(sections: tuple[int, ...], pairs: int) -> list[int]:
    """The stream of each pair: interleaved over t, h, w while their counts last, then e."""
    left = {(kind, 3 * n + kind) for kind in range(3) for n in range(sections[kind])}
    total = sum(sections)
    return [i % total % 3 if (i % total % 3, i % total) in left else 3 for i in range(pairs)]


def test_streams_by_hand() -> None:
    attributes = dict(style="imrope", n_rot=64, base=1e7)
    whole: Any = make_op("rope", attributes | {"sections": QWEN})
    assert whole.streams().tolist() == [0, 1, 2] * 10 + [0, 1]
    few: Any = make_op("rope", attributes | {"sections": (2, 1, 1, 2), "n_rot": 16})
    # Six pairs, t h w t e e, and again from the start.
    assert few.streams().tolist() == [0, 1, 2, 0, 3, 3, 0, 1]


@pytest.mark.parametrize("sections", [QWEN, (8, 8, 8, 8), (3, 2, 2, 1), (4, 0, 2, 0)])
def test_streams_that_differ(sections: tuple[int, ...]) -> None:
    x = draw(7, 4, 2, 80)
    at = [[0, 3, 70, 1], [700, 20, 5, 9], [8000, 41, 999, 2], [100000, 1, 0, 77]]
    y = rope(x, at, style="imrope", n_rot=64, sections=sections, base=1e7)
    of = streams(sections, 32)
    angles = [[row[of[i]] / 1e7 ** (i / 32) for i in range(32)] for row in at]
    np.testing.assert_allclose(y, rotated(x, angles, False), rtol=2e-7, atol=2e-7)


def test_text_positions_mean_three_equal_streams() -> None:
    x = draw(8, 4, 2, 256)
    y = rope(x, FAR, style="imrope", n_rot=64, sections=QWEN, base=1e7)
    assert y.tobytes() == rope(x, FAR, style="neox", n_rot=64, base=1e7).tobytes()
    spelled = [[p, p, p, 0] for p in FAR]
    for sections in (QWEN, (8, 8, 8, 8)):
        attributes: dict[str, Any] = dict(style="imrope", n_rot=64, sections=sections)
        assert rope(x, FAR, **attributes).tobytes() == rope(x, spelled, **attributes).tobytes()
    # The last stream stays at 0, so its pairs do not turn.
    y = rope(x, FAR, style="imrope", n_rot=64, sections=(8, 8, 8, 8))
    assert y[..., 24:32].tobytes() == x[..., 24:32].tobytes()
    assert y[..., 56:64].tobytes() == x[..., 56:64].tobytes()
