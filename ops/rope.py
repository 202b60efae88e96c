"""Rotary position embedding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.case import Case, Declared, Fixed, f32, fixed, ints
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec

STYLES = ("norm", "neox", "imrope")
TEXT_STREAMS = np.array([1, 1, 1, 0])


@dataclass(frozen=True, kw_only=True)
class Rotary(Op):
    """What ops that turn heads by their tokens' positions share: attributes and the turning, which
    the docstring of op rope explains."""

    style: str
    n_rot: int
    base: float
    freq_scale: float = 1.0
    sections: tuple[int, ...] = ()
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0

    def require_turning(
        self, n: int, d: int, positions: TensorSpec, factors: TensorSpec | None
    ) -> None:
        """Check the attributes and what says how far the heads, of d values, of n tokens turn."""
        self._check_attributes(d)
        shapes = ((n,), (n, 4)) if self.style == "imrope" else ((n,),)
        want = " or ".join(map(str, shapes))
        self.require(positions.shape in shapes, "positions", want, positions.shape)
        self.require_dtype("positions", positions, "i32")
        if factors is not None:
            half = (self.n_rot // 2,)
            self.require(factors.shape == half, "factors", f"{half}, n_rot/2", factors.shape)
            self.require_dtype("factors", factors, "f32")

    def _check_attributes(self, d: int) -> None:
        self.require_attr(self.style in STYLES, "style", " or ".join(STYLES))
        even = self.n_rot % 2 == 0 and 2 <= self.n_rot <= d
        self.require_attr(even, "n_rot", f"even, from 2 to the head size {d}")
        for attr in ("freq_scale", "attn_factor", "beta_fast", "beta_slow"):
            self.require_attr(0 < getattr(self, attr) < math.inf, attr, "positive")
        self.require_attr(1 < self.base < math.inf, "base", "greater than 1")
        self.require_attr(math.isfinite(self.ext_factor), "ext_factor", "finite")
        if self.ext_factor != 0:
            self.require_attr(self.n_ctx_orig > 0, "n_ctx_orig", "positive with YaRN on")
        if self.style == "imrope":
            four = len(self.sections) == 4 and min(self.sections) >= 0 and sum(self.sections) > 0
            self.require_attr(four, "sections", "four counts (t, h, w, e), not all 0")
        else:
            self.require_attr(self.sections == (), "sections", f"empty for style {self.style}")

    def turned(
        self, x: np.ndarray, positions: np.ndarray, factors: np.ndarray | None
    ) -> np.ndarray:
        """Heads [N, H, D] turned, f32."""
        t = self.angles(positions, factors)[:, None, :]
        s = self.magnitude()
        half = self.n_rot // 2
        pair = np.arange(half)
        a, b = (2 * pair, 2 * pair + 1) if self.style == "norm" else (pair, pair + half)
        xa, xb = x[..., a].astype(np.float64), x[..., b].astype(np.float64)
        y = x.copy()
        y[..., a] = s * (xa * np.cos(t) - xb * np.sin(t))
        y[..., b] = s * (xa * np.sin(t) + xb * np.cos(t))
        return y

    def angles(self, positions: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        """The angle of each token and pair, [N, n_rot/2] f64."""
        i = np.arange(self.n_rot // 2)
        freq = self.base ** (-2.0 * i / self.n_rot)
        if factors is not None:
            freq = freq / factors.astype(np.float64)
        if self.ext_factor == 0:
            freq = freq * self.freq_scale
        else:
            keep = self.ramp() * self.ext_factor
            freq = freq * self.freq_scale * (1 - keep) + freq * keep
        if self.style != "imrope":
            return positions.astype(np.float64)[:, None] * freq
        if positions.ndim == 1:
            positions = positions[:, None] * TEXT_STREAMS
        return positions[:, self.streams()] * freq

    def streams(self) -> np.ndarray:
        """imrope: which of the four positions each pair takes, [n_rot/2]."""
        j = np.arange(self.n_rot // 2) % sum(self.sections)
        kind = j % 3
        return np.where(j < 3 * np.array(self.sections)[kind], kind, 3)

    def ramp(self) -> np.ndarray:
        """YaRN: 1 for pairs that keep their frequency, 0 for those scaled, [n_rot/2] f64."""

        def pair_turning(times: float) -> float:
            ratio = self.n_ctx_orig / (times * 2 * math.pi)
            return self.n_rot * math.log(ratio) / (2 * math.log(self.base))

        low = max(0, math.floor(pair_turning(self.beta_fast)))
        high = min(self.n_rot - 1, math.ceil(pair_turning(self.beta_slow)))
        i = np.arange(self.n_rot // 2)
        return 1 - np.clip((i - low) / max(0.001, high - low), 0, 1)

    def magnitude(self) -> float:
        """The factor on all rotated elements."""
        if self.ext_factor == 0:
            return self.attn_factor
        return self.attn_factor * (1 + 0.1 * math.log(1 / self.freq_scale))


@register
class Rope(Rotary):
    """(y[a], y[b]) = s * (x[a] cos t - x[b] sin t, x[a] sin t + x[b] cos t) for pairs (a, b)

    x: [N, H, D] f32; positions: [N] i32, for imrope also [N, 4] (t, h, w, e); factors: [n_rot/2]
    f32, optional divisors of the frequencies; y like x, axes past n_rot are copied.
    Pair i of n_rot/2: norm (2i, 2i+1); neox and imrope (i, i + n_rot/2).
    Angle: t = position * base^(-2i/n_rot) / factors[i] * freq_scale, s = attn_factor.
    imrope takes the position of pair i from one of four streams, chosen by j = i mod sum(sections):
    j mod 3 = 0, 1, 2 means t, h, w as long as j < 3 * sections[0, 1, 2], all others e; positions
    of rank 1 are text and mean (p, p, p, 0).
    ext_factor other than 0 turns YaRN on: the angle lies between the one above and the one without
    freq_scale, blended by a ramp over i between the pairs that turn beta_fast and beta_slow times
    in n_ctx_orig positions, and s gains the factor 1 + 0.1 ln(1/freq_scale).
    Sources: Su et al. 2021; Peng et al. 2023 (YaRN); Qwen2-VL and Qwen3-VL for the streams."""

    name, inputs, outputs = "rope", ("x", "positions", "factors?"), ("y",)
    inplace = {"y": "x"}
    constants = ("factors",)
    rowwise = True

    def infer(self, x: TensorSpec, positions: TensorSpec, factors: TensorSpec | None) -> TensorSpec:
        self.require(x.rank == 3, "x", "rank 3, [N, H, D]", x.shape)
        self.require_dtype("x", x, "f32")
        self.require_turning(x.shape[0], x.shape[2], positions, factors)
        return x.like()

    def reference(
        self, x: np.ndarray, positions: np.ndarray, factors: np.ndarray | None
    ) -> np.ndarray:
        return self.turned(x, positions, factors)

    def cost(self, x: TensorSpec, positions: TensorSpec, factors: TensorSpec | None) -> Cost:
        rotated = x.shape[0] * x.shape[1] * self.n_rot
        read = x.nbytes + positions.nbytes + (factors.nbytes if factors else 0)
        return Cost(3 * rotated, read, x.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        far = ints(0, 700, 8000, 100000)
        for style in ("norm", "neox"):
            for d, n_rot in ((64, 64), (64, 16), (256, 64)):
                label = f"{style},far,d={d},n_rot={n_rot}"
                yield _case(label, style, f32(4, 2, d), far, n_rot)
            yield _case(f"{style},one", style, f32(1, 1, 2), ints(5), 2)
            yield _case(f"{style},odd", style, f32(3, 5, 37), ints(1, 2, 3), 22)
            yield _case(f"{style},gap", style, f32(3, 2, 64, gap=64), ints(9, 8, 7), 32)
            yield _case(f"{style},linear", style, f32(4, 2, 64), far, 64, freq_scale=0.125)
            factors = f32(32, lo=1, hi=32)
            yield _case(f"{style},factors", style, f32(4, 2, 64), far, 64, factors=factors)
            for d, n_rot in ((64, 64), (128, 64)):
                label = f"{style},yarn,d={d},n_rot={n_rot}"
                yield _case(label, style, f32(4, 2, d), far, n_rot, **YARN)
            factors = f32(32, lo=1, hi=8)
            scaled = YARN | {"attn_factor": 1.2, "ext_factor": 0.5, "factors": factors}
            yield _case(f"{style},yarn,factors", style, f32(4, 2, 64), far, 64, **scaled)
            yield _case(f"{style},empty,n=0", style, f32(0, 2, 64), ints(), 64)
        yield from _stream_cases(far)
        for n in (1, 512):
            where = ints(*range(1000, 1000 + n))
            for style, d in (("norm", 128), ("neox", 128), ("imrope", 256)):
                more: dict[str, Any] = {"sections": (11, 11, 10, 0)} if style == "imrope" else {}
                x, n_rot = f32(n, 16, d), 64 if style == "imrope" else d
                yield _case(f"{style},n={n}", style, x, where, n_rot, tags=("perf",), **more)


YARN: dict[str, Any] = {"freq_scale": 0.25, "ext_factor": 1.0, "n_ctx_orig": 4096}


def _stream_cases(far: Fixed) -> Iterable[Case]:
    """imrope: text, streams that all differ, and sections of every kind."""
    apart = fixed([[0, 3, 70, 1], [700, 20, 5, 9], [8000, 41, 999, 2], [100000, 1, 0, 77]], "i32")
    for name, sections, d, n_rot in (
        ("qwen", (11, 11, 10, 0), 256, 64),
        ("partial", (4, 2, 2, 0), 64, 16),
        ("extra", (8, 8, 8, 8), 64, 64),
        ("wrapping", (3, 2, 2, 1), 64, 64),
        ("whole", (11, 11, 10, 0), 64, 64),
    ):
        for kind, positions in (("text", far), ("streams", apart)):
            label = f"imrope,{kind},{name},d={d},n_rot={n_rot}"
            yield _case(label, "imrope", f32(4, 2, d), positions, n_rot, sections=sections)
    more: dict[str, Any] = {"sections": (11, 11, 10, 0), "factors": f32(32, lo=1, hi=8)} | YARN
    yield _case("imrope,yarn,factors", "imrope", f32(4, 2, 256), apart, 64, **more)
    gap = f32(4, 2, 256, gap=256)
    yield _case("imrope,gap", "imrope", gap, apart, 64, sections=(11, 11, 10, 0))
    none = fixed(np.zeros((0, 4)), "i32")
    yield _case("imrope,empty,n=0", "imrope", f32(0, 2, 64), none, 16, sections=(4, 2, 2, 0))


def _case(
    label: str,
    style: str,
    x: Declared,
    positions: Declared,
    n_rot: int,
    tags: tuple[str, ...] = (),
    **more: Any,
) -> Case:
    base = {"norm": 10000.0, "neox": 1e6, "imrope": 1e7}[style]
    named: dict[str, Any] = {
        "x": x,
        "positions": positions,
        "style": style,
        "n_rot": n_rot,
        "base": base,
    }
    return Case(label, tags=tags, **named, **more)
