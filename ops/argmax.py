"""Where the largest elements are."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed
from ..graph.dtype import i32
from ..graph.op import Op, register
from ..graph.spec import TensorSpec


def ranked(x: np.ndarray) -> np.ndarray:
    """x in the order of comparison: NaN counts as minus infinity."""
    return np.where(np.isnan(x), -np.inf, x)


@register
class Argmax(Op):
    """y = the index of the largest element along the last axis, the first of equals

    x: [..., D] f32, D at least 1; y: [...] i32. NaN counts as minus infinity."""

    name, inputs, outputs = "argmax", ("x",), ("y",)
    rowwise = True

    def infer(self, x: TensorSpec) -> TensorSpec:
        ok = x.rank >= 1 and x.shape[-1] >= 1
        self.require(ok, "x", "at least rank 1, with one element or more in a row", x.shape)
        self.require_dtype("x", x, "f32")
        return TensorSpec(x.shape[:-1], i32)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return ranked(x).argmax(-1).astype(np.int32)[...]  # an array also where it is one number

    @staticmethod
    def cases() -> Iterable[Case]:
        yield from rows()
        none = [[np.nan, -1.0, np.nan, 3.0], [np.nan] * 4, [np.nan, -np.inf, -1e38, -np.inf]]
        yield Case("nan", x=fixed(none))
        for n in (1, 4):
            yield Case(x=f32(n, 248320), tags=("perf",))


@register
class TopK(Op):
    """values[j], indices[j] = the j-th largest element along the last axis and where it is

    x: [..., D] f32; values: [..., k] f32, descending; indices: [..., k] i32; of equal elements the
    one with the lower index comes first. NaN comes before all numbers, so that values[0] tells of
    any NaN in a row, as its maximum does in numpy."""

    name, inputs, outputs = "top_k", ("x",), ("values", "indices")
    rowwise = True
    tolerance = 0.0  # the values are copies
    k: int

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        self.require(x.rank >= 1, "x", "at least rank 1", x.shape)
        self.require_dtype("x", x, "f32")
        d = x.shape[-1]
        self.require_attr(1 <= self.k <= d, "k", f"from 1 to {d}, the row length")
        shape = (*x.shape[:-1], self.k)
        return TensorSpec(shape), TensorSpec(shape, i32)

    def reference(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Two keys, since no number is above infinity; of lexsort the last one counts most.
        indices = np.lexsort((-ranked(x), ~np.isnan(x)), axis=-1)[..., : self.k]
        return np.take_along_axis(x, indices, -1), indices.astype(np.int32)

    @staticmethod
    def cases() -> Iterable[Case]:
        for case in rows():
            d = case.named["x"].shape[-1]
            for k in sorted({1, min(4, d), d}):
                label = f"{case.label or 'x'.join(map(str, case.named['x'].shape))},k={k}"
                yield Case(label, x=case.named["x"], k=k)
        nan = [[np.nan, -1.0, np.nan, 3.0], [np.inf, -np.inf, 0.0, -np.nan], [-np.inf] * 4]
        for k in (1, 3, 4):
            yield Case(f"nan,k={k}", x=fixed(nan), k=k)
        wide = np.random.default_rng(5).standard_normal((3, 20000)).astype(np.float32)
        wide[1] = np.round(wide[1])  # many equal ones
        wide[2, ::1999] = np.nan
        for k in (1, 64, 3000):
            yield Case(f"wide,k={k}", x=fixed(wide), k=k)
        for n in (1, 4):
            for k in (1, 64):
                yield Case(f"n={n},d=248320,k={k}", x=f32(n, 248320), k=k, tags=("perf",))


def rows() -> Iterable[Case]:
    """Rows that the ops which compare elements are tried on."""
    for shape in ((1, 256), (4, 64), (7, 33), (3, 1), (2, 3, 50), (9,)):
        yield Case(x=f32(*shape))
    yield Case("ties", x=fixed([[1.0, 3.0, 3.0, 2.0], [0.0, -0.0, 0.0, 0.0], [-5.0] * 4]))
    yield Case("last wins,d=65", x=fixed([[*range(65)]]))
    yield Case("infinite", x=fixed([[-np.inf, -np.inf, -np.inf], [0.0, np.inf, -np.inf]]))
    yield Case("gap,n=3,d=40", x=f32(3, 40, gap=24))
    yield Case("empty,n=0,d=64", x=f32(0, 64))
