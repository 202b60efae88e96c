"""Rows of one weight type as rows of another, by the compiled encoders of the processor."""

from __future__ import annotations

import numpy as np

from .. import _cpu
from ..graph.dtype import DType
from ..graph.errors import DTypeError
from .processors import usable_threads


def can_encode(kind: DType) -> bool:
    """Whether rows can be made in this type."""
    return _cpu.encodable(kind.ggml_id)


def can_decode(kind: DType) -> bool:
    """Whether rows of this type can be read."""
    return _cpu.decodable(kind.ggml_id)


class BlockRecoder:
    """Makes rows of one type of rows of another, with threads and without the interpreter's lock.

    The result depends neither on the number of threads nor on the instruction set. threads: as of
    `riverrun.load`, None for one for each core."""

    def __init__(self, threads: int | None = None) -> None:
        self._pool = _cpu.ThreadPool(usable_threads(threads), all=True)

    def __call__(
        self,
        raw: np.ndarray,
        source: DType,
        to: DType,
        n: int,
        importance: np.ndarray | None = None,
    ) -> np.ndarray:
        """raw: uint8 of whole rows of n values of type `source`; the rows in type `to`, uint8.

        importance: weights f32 [n] of squared errors; without them a type's own rule weighs them.
        Raises DTypeError for types that have no decoder or encoder, rows that are no whole blocks,
        and values that are not finite, or too large for the new type's scales."""
        if not can_decode(source) or not can_encode(to):
            raise DTypeError(f"no rows of {to.name} can be made of {source.name}")
        rows = raw.size // source.row_bytes(n)
        out = np.empty(rows * to.row_bytes(n), np.uint8)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        raw = np.ascontiguousarray(raw)
        fault = _cpu.recode_rows(
            self._pool, source.ggml_id, raw, to.ggml_id, out, weights, max(rows, 1), n
        )
        if fault:
            raise DTypeError(fault)
        return out
