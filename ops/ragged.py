"""What ops over ragged batches and kept states share: their checks, and planes of state.

A ragged batch holds the tokens of all sequences flat, [N, ...]. Sequence b owns the rows
seq_offsets[b] .. seq_offsets[b + 1] - 1, possibly none; rows from seq_offsets[B] on are padding.

A kept state is [R, width], or [R, K, width] with K planes that form a ring: sequence b reads plane
start[b] of its row state_rows[b], and the state j tokens before its newest one goes to plane
(head[b] + j) mod K for j < min(T, K). Other planes stay, and a sequence without tokens leaves its
whole row as it is. Rank 2 is the same with K = 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from ..graph.errors import BackendError
from ..graph.op import Op
from ..graph.spec import TensorSpec

GAPS = "make it contiguous with cont"
POOL_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def require_dense_rows(op: Op, arg: str, spec: TensorSpec) -> None:
    """Raise ShapeError unless elements of the last axis are adjacent; other axes may have gaps."""
    dense = spec.rank == 0 or spec.byte_strides[-1] == spec.dtype.nbytes
    op.require(dense, arg, "dense along its last axis", f"strides {spec.byte_strides}", GAPS)


def require_contiguous(op: Op, arg: str, spec: TensorSpec) -> None:
    """Raise ShapeError for a tensor with gaps."""
    op.require(spec.contiguous, arg, "contiguous", f"strides {spec.byte_strides}", GAPS)


def require_pool(op: Op, arg: str, spec: TensorSpec) -> None:
    """Check the type and layout of a pool of keys or values: rows of block types are whole blocks
    of the last axis, the head size."""
    op.require_dtype(arg, spec, *POOL_TYPES)
    block = spec.dtype.block
    want = f"[..., D] with D a multiple of {block} for {spec.dtype.name}"
    op.require(spec.shape[-1] % block == 0, arg, want, spec.shape, "use f16")
    require_contiguous(op, arg, spec)


def require_plain(op: Op, arg: str, spec: TensorSpec, shape: tuple[int, ...], dtype: str) -> None:
    """Raise ShapeError or DTypeError unless spec is a contiguous tensor of this shape and dtype."""
    op.require(spec.shape == shape, arg, shape, spec.shape)
    op.require_dtype(arg, spec, dtype)
    require_contiguous(op, arg, spec)


def require_batch(op: Op, seq_offsets: TensorSpec) -> int:
    """Check seq_offsets, i32 [B + 1], and return B."""
    extents = seq_offsets.shape
    ok = len(extents) == 1 and extents[0] >= 2
    op.require(ok, "seq_offsets", "[B+1] with B of at least 1", extents)
    require_plain(op, "seq_offsets", seq_offsets, extents, "i32")
    return extents[0] - 1


def require_kept(
    op: Op,
    arg: str,
    state: TensorSpec,
    width: int,
    batch: int,
    state_rows: TensorSpec,
    start: TensorSpec | None,
    head: TensorSpec | None,
) -> None:
    """Check a kept state f32 of the given width per plane, and the indices that go with it."""
    ok = state.rank in (2, 3) and state.shape[-1] == width and 0 not in state.shape
    op.require(ok, arg, f"[R, {width}] or [R, K, {width}]", state.shape)
    require_plain(op, arg, state, state.shape, "f32")
    require_plain(op, "state_rows", state_rows, (batch,), "i32")
    for name, spec in (("start", start), ("head", head)):
        if state.rank == 3:
            remedy = "planes are chosen by start and head"
            op.require(spec is not None, name, f"({batch},) for a rank-3 {arg}", None, remedy)
        else:
            remedy = f"a {arg} with planes has rank 3"
            op.require(spec is None, name, f"absent for a rank-2 {arg}", spec, remedy)
        if spec is not None:
            require_plain(op, name, spec, (batch,), "i32")


def data_error(op: Op, arg: str, want: str, got: object) -> BackendError:
    """The error of a run whose input data are out of range; the caller raises it."""
    return BackendError(f"{op.name}: '{arg}' should be {want}, got {got}")


def check_range(op: Op, arg: str, values: np.ndarray, low: int, high: int) -> None:
    """Raise BackendError for the first value outside [low, high)."""
    for place, value in enumerate(values):
        if not low <= value < high:
            raise data_error(op, arg, f"in [{low}, {high})", f"{value} at [{place}]")


def sequences(op: Op, seq_offsets: np.ndarray, n: int) -> list[range]:
    """The token rows of each sequence.

    Raises BackendError unless offsets start at 0, ascend, and stay within the n rows."""
    offsets = [int(at) for at in seq_offsets]
    if offsets[0] != 0:
        raise data_error(op, "seq_offsets", "0 at [0]", offsets[0])
    for b in range(1, len(offsets)):
        if not offsets[b - 1] <= offsets[b] <= n:
            want = f"ascending and at most {n}, the number of rows"
            raise data_error(op, "seq_offsets", want, f"{offsets[b - 1]}, {offsets[b]} at [{b}]")
    return [range(a, b) for a, b in pairwise(offsets)]


class KeptState:
    """A copy of a kept state, read and written by sequence.

    folds: how many entries of a log each sequence adds to its state before its tokens.
    Raises BackendError for a row or plane index out of range, or two sequences with tokens or folds
    that share a row."""

    def __init__(
        self,
        op: Op,
        rows_of: list[range],
        state: np.ndarray,
        state_rows: np.ndarray,
        start: np.ndarray | None,
        head: np.ndarray | None,
        folds: Sequence[int] | None = None,
    ) -> None:
        self.state = state.copy()
        self.planes = self.state.reshape(len(state), -1, state.shape[-1])
        self.count = self.planes.shape[1]
        first = np.zeros(len(rows_of), np.int32)
        self.rows = state_rows
        self.start = first if start is None else start
        self.head = first if head is None else head
        check_range(op, "state_rows", state_rows, 0, len(state))
        check_range(op, "start", self.start, 0, self.count)
        check_range(op, "head", self.head, 0, self.count)
        users: dict[int, int] = {}
        for b, rows in enumerate(rows_of):
            row = int(state_rows[b])
            used = bool(rows) or (folds is not None and folds[b] > 0)
            if used and users.setdefault(row, b) != b:
                got = f"{row} for sequences {users[row]} and {b}"
                raise data_error(op, "state_rows", "a row of its own for each sequence", got)

    def read(self, b: int) -> np.ndarray:
        """The state from which sequence b goes on, [width]."""
        return self.planes[self.rows[b], self.start[b]].copy()

    def write(self, b: int, newest: Iterable[np.ndarray]) -> None:
        """Store sequence b's states, newest first; at most `count` of them."""
        for j, plane in enumerate(newest):
            self.planes[self.rows[b], (self.head[b] + j) % self.count] = plane.reshape(-1)
