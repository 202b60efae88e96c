"""Matrix products with weight matrices chosen per row: mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed, rand
from ..graph.dtype import dtype
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .mul_mat import QUANTISED_PRODUCT, WEIGHT_TYPES, rows_with_nan
from .ragged import data_error, require_contiguous, require_dense_rows, require_plain


@register
class MulMatId(Op):
    """y[n, u, m] = sum over k of x[n, k] * w[ids[n, u], m, k], or of x[n, u, k] * w[...]

    x: [N, K] f32 (one row for all U experts of a token) or [N, U, K] (a row for each), its rows may
    have gaps; w: [E, M, K] of a type that mul_mat takes, contiguous; ids: i32 [N, U];
    y: [N, U, M] f32. A negative id gives a row of zeros.
    Raises BackendError in a run when an id is E or more."""

    name, inputs, outputs = "mul_mat_id", ("x", "w", "ids"), ("y",)
    constants = ("w",)
    rowwise = True
    tolerance = 1e-10  # sums of several thousand f32 products
    block_tolerance = QUANTISED_PRODUCT

    def infer(self, x: TensorSpec, w: TensorSpec, ids: TensorSpec) -> TensorSpec:
        self.require(x.rank in (2, 3), "x", "[N, K] or [N, U, K]", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        k = x.shape[-1]
        fits = w.rank == 3 and w.shape[0] >= 1 and w.shape[2] == k
        self.require(fits, "w", f"[E, M, {k}] for x {x.shape}", w.shape)
        self.require_dtype("w", w, *WEIGHT_TYPES)
        require_contiguous(self, "w", w)
        fits = ids.rank == 2 and ids.shape[: x.rank - 1] == x.shape[:-1]
        self.require(fits, "ids", f"[N, U] for x {x.shape}", ids.shape)
        require_plain(self, "ids", ids, ids.shape, "i32")
        return TensorSpec((*ids.shape, w.shape[1]))

    def reference(self, x: np.ndarray, w: np.ndarray, ids: np.ndarray) -> np.ndarray:
        y = np.zeros((*ids.shape, w.shape[1]), np.float32)
        rows = x[:, None] if x.ndim == 2 else x
        rows = np.broadcast_to(rows, (*ids.shape, x.shape[-1])).astype(np.float64)
        wide: dict[int, np.ndarray] = {}
        for n, u in np.ndindex(*ids.shape):
            expert = int(ids[n, u])
            if expert >= len(w):
                got = f"{expert} at [{n}, {u}]"
                raise data_error(self, "ids", f"below {len(w)}, the number of experts", got)
            if expert >= 0:
                chosen = wide.setdefault(expert, w[expert].astype(np.float64))
                y[n, u] = chosen @ rows[n, u]
        return y

    def cost(self, x: TensorSpec, w: TensorSpec, ids: TensorSpec) -> Cost:
        """Bytes of as many experts as the rows can choose."""
        experts, m, k = w.shape
        read = x.nbytes + ids.nbytes + w.nbytes // experts * min(experts, ids.size)
        return Cost(2 * ids.size * m * k, read, 4 * ids.size * m)

    @staticmethod
    def cases() -> Iterable[Case]:
        for i, of in enumerate(WEIGHT_TYPES):
            wide = 256 if dtype(of).block == 256 else 64
            for j, (n, u) in enumerate(((1, 2), (3, 1), (5, 4), (17, 2))):
                m = (16, 33, 1, 64)[(i + j) % 4]
                if m == 1 and n * u < 8 and dtype(of).quantized:
                    m = 15  # as for mul_mat: a few sums may be far off their average error
                yield _case(of, n, u, 8, m, wide * (1 + (i + j) % 2), apart=(i + j) % 2 == 1)
        yield _case("f32", 1, 1, 1, 1, 1)
        yield _case("f32", 4, 3, 5, 7, 33)
        yield _case("f16", 4, 3, 5, 7, 33, apart=True)
        yield _case("q8_0", 3, 2, 4, 33, 64, gap=32)
        yield _case("q4_k", 3, 2, 4, 33, 256, gap=32, apart=True)
        same = fixed(np.full((9, 2), 3), "i32")
        yield Case("one expert", x=f32(9, 64), w=rand("q8_0", 4, 17, 64), ids=same)
        # Of eight experts one with many pairs, some with few, some with none.
        uneven = fixed(np.minimum(np.arange(100)[:, None] % 7 * np.arange(3), 5), "i32")
        for of, m, k in (("q4_k", 37, 256), ("q8_0", 130, 96), ("bf16", 19, 48)):
            yield Case(f"uneven,{of}", x=f32(100, k), w=rand(of, 8, m, k), ids=uneven)
        padding = fixed([[1, -1], [-1, -1], [3, 3]], "i32")
        yield Case("padding", x=f32(3, 64), w=rand("q8_0", 4, 17, 64), ids=padding)
        yield Case("padding,f32", x=f32(3, 2, 64), w=f32(4, 17, 64), ids=padding)
        large = f32(2, 256, lo=-3e5, hi=3e5)
        ids = fixed([[0, 1], [1, 2]], "i32")
        yield Case("large,q4_k", x=large, w=rand("q4_k", 3, 33, 256, lo=-8, hi=8), ids=ids)
        ids = fixed([[0, 1], [1, 2], [3, 0]], "i32")
        for of in WEIGHT_TYPES:
            w = rand(of, 4, 17, 256)
            yield Case(f"nan,{of}", x=fixed(rows_with_nan(3, 256)), w=w, ids=ids)
        yield _case("f16", 0, 2, 4, 17, 64)
        for of in ("f16", "q8_0", "q4_k"):
            for n in (1, 4, 64):
                yield _case(of, n, 8, 32, 512, 1024, tags=("perf",))


def _case(
    of: str,
    n: int,
    u: int,
    e: int,
    m: int,
    k: int,
    apart: bool = False,
    gap: int = 0,
    tags: tuple[str, ...] = (),
) -> Case:
    """apart: a row of x for each chosen expert. The experts of a row differ where there are u."""
    label = f"{of},n={n},u={u},e={e},m={m},k={k}" + (",apart" if apart else "")
    label += f",gap={gap}" if gap else ""
    ids = (np.arange(n)[:, None] * 5 + np.arange(u) * 3) % e
    x = f32(n, u, k, gap=gap) if apart else f32(n, k, gap=gap)
    return Case(label, x=x, w=rand(of, e, m, k), ids=fixed(ids, "i32"), tags=tags)
