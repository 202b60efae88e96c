"""The CPU's rotary embedding against complex rotation in f64, written from the published rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from one_op import bits, compute, feed, normal, run_graph, unwritten
from riverrun.graph import Graph
from riverrun.graph.errors import Unsupported

FAR = np.array([0, 1, 700, 8000, 100000, 1000000], np.int32)
APART = np.array(
    [[0, 3, 70, 1], [1, 1, 1, 0], [700, 20, 5, 9], [8000, 41, 999, 2], [100000, 1, 0, 77]]
    + [[1000000, 999999, 123456, 54321]],
    np.int32,
)
QWEN = (11, 11, 10, 0)


def frequencies(n_rot: int, base: float) -> list[float]:
    return [math.exp(-2 * i / n_rot * math.log(base)) for i in range(n_rot // 2)]


def turned(
    x: np.ndarray, angles: np.ndarray, style: str, magnitude: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Real and imaginary parts of all pairs, turned; angles: [tokens, pairs]."""
    pairs = angles.shape[1]
    wide = x[..., : 2 * pairs].astype(np.float64)
    if style == "norm":
        z = wide[..., 0::2] + 1j * wide[..., 1::2]
    else:
        z = wide[..., :pairs] + 1j * wide[..., pairs:]
    z = z * magnitude * np.exp(1j * angles)[:, None, :]
    return z.real, z.imag


def check(
    x: np.ndarray, y: np.ndarray, angles: np.ndarray, style: str, magnitude: float = 1.0
) -> None:
    """y is x turned, to 1e-6 for elements of about 1; what lies beyond the pairs is the same."""
    real, imag = turned(x, angles, style, magnitude)
    pairs = angles.shape[1]
    if style == "norm":
        got = y[..., 0 : 2 * pairs : 2], y[..., 1 : 2 * pairs : 2]
    else:
        got = y[..., :pairs], y[..., pairs : 2 * pairs]
    for have, want in zip(got, (real, imag), strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-6 * magnitude)
    np.testing.assert_array_equal(bits(y[..., 2 * pairs :]), bits(x[..., 2 * pairs :]))


def uniform(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize(
    "d, n_rot", [(256, 64), (64, 64), (128, 128), (37, 22), (2, 2), (80, 6), (1024, 1024)]
)
@pytest.mark.parametrize("base", [1e4, 1e7])
def test_partial_rotation_at_all_distances(style: str, d: int, n_rot: int, base: float) -> None:
    x = uniform(1, FAR.size, 3, d)
    y = compute("rope", x, FAR, style=style, n_rot=n_rot, base=base)
    check(x, y, FAR[:, None] * np.array(frequencies(n_rot, base)), style)


@pytest.mark.parametrize("style", ["norm", "neox"])
def test_factors_and_linear_scaling(style: str) -> None:
    x, factors = uniform(2, FAR.size, 2, 64), np.linspace(1, 32, 32, dtype=np.float32)
    attributes: dict[str, Any] = {"style": style, "n_rot": 64, "base": 5e5}
    y = compute("rope", x, FAR, factors, freq_scale=0.125, attn_factor=1.5, **attributes)
    freq = np.array(frequencies(64, 5e5)) / factors.astype(np.float64) * 0.125
    check(x, y, FAR[:, None] * freq, style, 1.5)


@pytest.mark.parametrize("ext", [1.0, 0.5])
@pytest.mark.parametrize("factor", [4.0, 32.0])
def test_yarn(ext: float, factor: float) -> None:
    x, n_rot, base, context = uniform(3, FAR.size, 2, 128), 64, 1e6, 32768
    attributes: dict[str, Any] = {"style": "neox", "n_rot": n_rot, "base": base}
    yarn: dict[str, Any] = {"freq_scale": 1 / factor, "ext_factor": ext, "n_ctx_orig": context}
    y = compute("rope", x, FAR, attn_factor=1.1, **attributes, **yarn)

    def pair(turns: float) -> float:
        return n_rot * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base))

    low, high = max(0, math.floor(pair(32))), min(n_rot - 1, math.ceil(pair(1)))
    freq = []
    for i, own in enumerate(frequencies(n_rot, base)):
        ramp = (1 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))) * ext
        freq.append(own / factor * (1 - ramp) + own * ramp)
    magnitude = 1.1 * (1 + 0.1 * math.log(factor))
    check(x, y, FAR[:, None] * np.array(freq), "neox", magnitude)


@pytest.mark.parametrize("sections", [QWEN, (4, 2, 2, 0), (8, 8, 8, 8), (3, 2, 2, 1)])
@pytest.mark.parametrize("text", [True, False])
def test_streams_of_imrope(sections: tuple[int, ...], text: bool) -> None:
    x = uniform(4, FAR.size, 2, 256)
    y = compute(
        "rope", x, FAR if text else APART, style="imrope", n_rot=64, base=1e7, sections=sections
    )
    angles = np.zeros((FAR.size, 32))
    for i, freq in enumerate(frequencies(64, 1e7)):
        j = i % sum(sections)
        stream = j % 3 if j < 3 * sections[j % 3] else 3
        where = APART[:, stream] if not text else FAR * (stream != 3)
        angles[:, i] = where.astype(np.float64) * freq
    check(x, y, angles, "imrope")
    if text and sections == QWEN:
        plain = compute("rope", x, FAR, style="neox", n_rot=64, base=1e7)
        np.testing.assert_array_equal(bits(plain), bits(y))


STYLES: dict[str, dict[str, Any]] = {
    "norm": {"style": "norm", "n_rot": 48, "base": 1e4},
    "neox": {"style": "neox", "n_rot": 44, "base": 1e4},
    "imrope": {"style": "imrope", "n_rot": 64, "base": 1e7, "sections": QWEN},
}


@pytest.mark.parametrize("style", STYLES)
def test_rows_do_not_depend_on_company_threads_or_gaps(style: str) -> None:
    x = normal(5, 260, 2, 70)
    where = np.random.default_rng(6).integers(0, 200000, 260).astype(np.int32)
    attributes = STYLES[style]
    alone = [compute("rope", x[i : i + 1], where[i : i + 1], **attributes)[0] for i in range(18)]
    for threads in (1, 2):
        for n in (*range(1, 18), 33, 65, 260):
            order = np.roll(np.arange(260), -n * 7)[:n]
            order[n // 2] = n % 18
            y = compute("rope", x[order], where[order], threads=threads, **attributes)
            np.testing.assert_array_equal(bits(y[n // 2]), bits(alone[n % 18]), err_msg=f"n={n}")
    g = Graph("gaps")
    wide = np.full((260, 3, 90), np.nan, np.float32)
    wide[:, 1:, 20:] = x
    value, positions = feed(g, {"wide": wide, "positions": where})
    part = g.view(g.view(value, axis=1, start=1, stop=3), axis=2, start=20, stop=90)
    g.output("y", g.rope(part, positions, **attributes))
    got = run_graph(g, {"wide": wide, "positions": where}, threads=2)["y"]
    np.testing.assert_array_equal(bits(got[:18]), bits(np.stack(alone)))


@pytest.mark.parametrize("style", STYLES)
def test_padding_tokens_are_left_alone(style: str) -> None:
    x, where = normal(7, 5, 2, 70), np.arange(5, dtype=np.int32)
    whole = compute("rope", x, where, **STYLES[style])
    part = compute("rope", x, where, rows=3, **STYLES[style])
    np.testing.assert_array_equal(bits(part[:3]), bits(whole[:3]))
    assert unwritten(part[3:])


def test_position_zero_keeps_everything() -> None:
    x = normal(8, 1, 4, 64)
    for attributes in STYLES.values():
        y = compute("rope", x, np.zeros(1, np.int32), **attributes)
        np.testing.assert_array_equal(y, x)


def test_more_pairs_than_the_kernel_holds_are_refused_with_the_reason() -> None:
    x, where = normal(9, 1, 1, 1026), np.zeros(1, np.int32)
    with pytest.raises(Unsupported, match="at most the head size and 1024"):
        compute("rope", x, where, style="neox", n_rot=1026, base=1e4)
