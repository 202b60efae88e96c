"""Which rows of a pass get logits, and what a pass gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bound_step import Part


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass gives: logits f32 [M, n_vocab] of the rows that wanted them, in the order of the
    items; hidden f32 [N, n_embd] of all new tokens when asked for; shortlists, likewise: of the
    same rows the ids i32 [M, K] of the largest logits and these, f32 [M, K] descending.

    All are views, valid until the next pass of the session."""

    logits: np.ndarray
    hidden: np.ndarray | None
    shortlists: tuple[np.ndarray, np.ndarray] | None = None


def wanted_rows(parts: Sequence[Part], want: str) -> list[int]:
    """The rows of a pass that get logits."""
    if want == "none":
        return []
    rows: list[int] = []
    at = 0
    for part in parts:
        end = at + len(part.tokens)
        rows.extend([end - 1] if want == "last" else range(at + part.again, end))
        at = end
    return rows


def take_rows(array: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Ascending rows of an array: a view where they are adjacent."""
    first, n = rows[0], len(rows)
    return array[first : first + n] if rows[-1] - first == n - 1 else array[list(rows)]
