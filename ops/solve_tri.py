"""Triangular systems of equations."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, Fixed, f32, fixed
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import require_contiguous


@register
class SolveTri(Op):
    """x with a x = b, a triangular, by substitution

    a: [..., n, n] f32, of which only the lower triangle is read, or only the upper one for lower
    False; b: [..., n, m] f32, its leading axes those of a; x like b. unit: the diagonal counts as
    ones and is not read. A zero on the diagonal gives infinities and NaN (IEEE 754)."""

    name, inputs, outputs = "solve_tri", ("a", "b"), ("x",)
    inplace = {"x": "b"}
    no_rows = "every row of a system depends on those before it"
    lower: bool = True
    unit: bool = False

    def infer(self, a: TensorSpec, b: TensorSpec) -> TensorSpec:
        square = a.rank >= 2 and a.shape[-1] == a.shape[-2]
        self.require(square, "a", "square, [..., n, n]", a.shape)
        fits = b.rank == a.rank and b.shape[:-1] == a.shape[:-1]
        self.require(fits, "b", f"{a.shape[:-1]} + (m,) for a {a.shape}", b.shape)
        for arg, spec in (("a", a), ("b", b)):
            self.require_dtype(arg, spec, "f32")
            require_contiguous(self, arg, spec)
        return b.like()

    def reference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        n = a.shape[-1]
        wide, x = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            for i in range(n) if self.lower else reversed(range(n)):
                known = slice(0, i) if self.lower else slice(i + 1, n)
                x[..., i, :] -= (wide[..., i, known, None] * x[..., known, :]).sum(-2)
                if not self.unit:
                    x[..., i, :] /= wide[..., i, i, None]
            return x.astype(np.float32)

    def cost(self, a: TensorSpec, b: TensorSpec) -> Cost:
        return Cost(b.size * a.shape[-1], a.nbytes // 2 + b.nbytes, b.nbytes)

    @staticmethod
    def cases() -> Iterable[Case]:
        for lower in (True, False):
            for unit in (True, False):
                for lead, n, m in (((), 1, 1), ((), 5, 3), ((3,), 16, 8), ((2, 3), 33, 17)):
                    yield _case(lead, n, m, lower, unit)
        yield _case((2,), 64, 64, True, True)
        yield _case((), 100, 1, True, False)
        yield _case((), 0, 3, True, False)
        yield _case((2,), 4, 0, True, False)
        yield _case((0,), 4, 2, True, False)
        nan = np.nan
        a = [[2.0, nan, nan], [1.0, 4.0, nan], [3.0, 2.0, 0.5]]
        yield Case("other triangle unread", a=fixed(a), b=f32(3, 2))
        a = [[nan, 0.5, 0.25], [nan, nan, -0.5], [nan, nan, nan]]
        yield Case("diagonal unread", a=fixed(a), b=f32(3, 2), lower=False, unit=True)
        yield Case("zero diagonal", a=fixed([[1.0, 0.0], [1.0, 0.0]]), b=fixed([[1.0], [3.0]]))
        for n, m in ((64, 64), (64, 256)):
            yield _case((32,), n, m, True, True, tags=("perf",))


def _case(
    lead: tuple[int, ...], n: int, m: int, lower: bool, unit: bool, tags: tuple[str, ...] = ()
) -> Case:
    """A well-conditioned system: off the diagonal a row adds up to about 1, on it is 1 to 2."""
    label = f"{'x'.join(map(str, (*lead, n, m)))},{'lower' if lower else 'upper'}"
    label += ",unit" if unit else ""
    return Case(label, a=_matrix(lead, n), b=f32(*lead, n, m), lower=lower, unit=unit, tags=tags)


def _matrix(lead: tuple[int, ...], n: int) -> Fixed:
    rng = np.random.default_rng(n)
    a = rng.uniform(-2, 2, (*lead, n, n)) / max(n, 1)
    return fixed(np.where(np.eye(n), rng.uniform(1, 2, a.shape), a))
