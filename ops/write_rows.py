"""Scattered row writes into a state: how keys and values enter their pools."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, Rand, f32, ints, rand
from ..graph.dtype import dtype
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import POOL_TYPES, data_error, require_dense_rows, require_plain, require_pool


@register
class WriteRows(Op):
    """state_out = state with state_out[idx[i]] = rows[i] for every i with idx[i] >= 0

    state: [R, ...] f32, f16, bf16, q8_0 or q4_0, of the block types in whole blocks along the last
    axis; rows: [N, ...] f32, its leading axes may have gaps; idx: i32 [N]. A negative index writes
    nothing; of equal indices the last one wins. Bytes of rows that are not written stay.
    Rows are rounded to the state's dtype: to nearest, ties to even, and what is too large for f16
    becomes infinite; to blocks as their codec encodes. The reference sees bf16 and blocks decoded
    to f32, so there the rounding is the encoding of what it gives.
    Raises BackendError when an index is R or more, and for block types when a value to be written
    is not finite or too large for a block's f16 scale; nothing is written then."""

    name, inputs, outputs = "write_rows", ("state", "rows", "idx"), ("state_out",)
    writes = {"state_out": "state"}
    per_token = ("rows", "idx")
    tolerance = 0.0  # one rounding of each value, which has one right answer

    def infer(self, state: TensorSpec, rows: TensorSpec, idx: TensorSpec) -> TensorSpec:
        self.require(state.rank >= 2, "state", "at least rank 2", state.shape)
        require_pool(self, "state", state)
        self.require(rows.rank >= 2, "rows", "at least rank 2", rows.shape)
        want = (rows.shape[0], *state.shape[1:])
        self.require(rows.shape == want, "rows", f"{want}, rows like the state's", rows.shape)
        self.require_dtype("rows", rows, "f32")
        require_dense_rows(self, "rows", rows)
        require_plain(self, "idx", idx, (rows.shape[0],), "i32")
        return state.like()

    def reference(self, state: np.ndarray, rows: np.ndarray, idx: np.ndarray) -> np.ndarray:
        return written(self, state, rows, idx)

    def cost(self, state: TensorSpec, rows: TensorSpec, idx: TensorSpec) -> Cost:
        written = rows.size // state.dtype.block * state.dtype.nbytes
        return Cost(0, rows.nbytes + idx.nbytes, written)

    @staticmethod
    def cases() -> Iterable[Case]:
        for of in POOL_TYPES:
            yield _case(of, 8, (64,), 5, 0, 7, 2)
            yield _case(of, 9, (2, 64), -1, 3, -1, 8, 0, note="some negative")
            yield _case(of, 4, (_whole(of, 48),), 1, 2, 1, 1, note="last of equal wins")
            yield _case(of, 6, (3, _whole(of, 20)), 4, 1, gap=12)
            yield _case(of, 600, (2, _whole(of, 16)), 255, 256, 511, 512, 257, note="page edges")
            large = Rand((2, _whole(of, 33)), dtype("f32"), -1e5, 1e5)
            yield _case(of, 3, (_whole(of, 33),), 2, 0, rows=large, note="large")
        yield _case("f32", 1, (1,), 0)
        yield _case("f16", 5, (7,), -1, -1, note="all negative")
        yield _case("f16", 5, (16,), note="no rows")
        for of in ("q8_0", "q4_0"):
            tiny = Rand((2, 64), dtype("f32"), -1e-6, 1e-6)
            yield _case(of, 3, (64,), 2, 0, rows=tiny, note="tiny")
            yield _case(of, 3, (64,), 2, 0, rows=Rand((2, 64), dtype("f32"), 0, 0), note="zero")
            yield _case(of, 5, (32,), -1, note="all negative")
            yield _case(of, 5, (32,), note="no rows")
        for of in ("f16", "q8_0", "q4_0"):
            for n in (1, 4, 512):
                yield _case(of, 8192, (2, 256), *range(1000, 1000 + n), tags=("perf",))


def written(op: Op, state: np.ndarray, rows: np.ndarray, idx: np.ndarray) -> np.ndarray:
    """The state after rows[i] went to row idx[i], of negative indices nowhere.

    Raises BackendError for an index behind the last row."""
    for i, to in enumerate(idx):
        if to >= len(state):
            raise data_error(op, "idx", f"below {len(state)}", f"{to} at [{i}]")
    out = state.copy()
    with np.errstate(over="ignore"):
        for i, to in enumerate(idx):
            if to >= 0:
                out[to] = rows[i]
    return out


def _whole(of: str, n: int) -> int:
    """n rounded up to whole blocks of a type."""
    block = dtype(of).block
    return -(-n // block) * block


def _case(
    of: str,
    r: int,
    inner: tuple[int, ...],
    *idx: int,
    gap: int = 0,
    rows: Rand | None = None,
    note: str = "",
    tags: tuple[str, ...] = (),
) -> Case:
    label = f"{of},r={r},inner={'x'.join(map(str, inner))},n={len(idx)}"
    label += f",gap={gap}" if gap else ""
    return Case(
        f"{label},{note}" if note else label,
        state=rand(of, r, *inner),
        rows=rows or f32(len(idx), *inner, gap=gap),
        idx=ints(*idx),
        tags=tags,
    )
