"""Which rows of a pass get logits, and what a pass gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .bound_step import BoundStep, Part
from .draws import RowDraws
from .sampler import DeviceDraw


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass gives: logits f32 [M, n_vocab] of the rows that wanted them, in the order of the
    items; hidden f32 [N, n_embd] of all new tokens when asked for; shortlists, likewise: of the
    same rows the ids i32 [M, K] of the largest logits and these, f32 [M, K] descending; in a pass
    that chooses, logits only of the rows whose token it did not.

    tokens: where a device has drawn, i32 [M], one for each row, and largest, f32 [M], the largest
    logit of each. All are views, valid until the next pass of the session."""

    logits: np.ndarray
    hidden: np.ndarray | None
    shortlists: tuple[np.ndarray, np.ndarray] | None = None
    tokens: np.ndarray | None = None
    largest: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of a pass's rows. rows: those that give something; shown: of these those that
    give logits, all of them where nothing is chosen; draws: how rows draw, all of the pass."""

    rows: Sequence[int]
    shown: Sequence[int]
    draws: RowDraws = ()

    @staticmethod
    def of(
        parts: Sequence[Part], want: str, logits: bool, draws: Sequence[DeviceDraw | None]
    ) -> Wanted:
        """Of a pass over these parts, which are drawn for so, where any is; logits: else rows give
        logits, and nothing in their place."""
        rows = wanted_rows(parts, want)
        if all(draw is None for draw in draws):
            return Wanted(rows, rows if logits else ())
        shown = wanted_rows(parts, want, [draw is None for draw in draws])
        by = [(draw, len(part.tokens)) for draw, part in zip(draws, parts, strict=True)]
        return Wanted(rows, shown, by)


NOTHING = Wanted((), ())


def wanted_rows(parts: Sequence[Part], want: str, of: Sequence[bool] | None = None) -> list[int]:
    """The rows of a pass that get logits. of: the parts whose rows count, by default all."""
    if want == "none":
        return []
    rows: list[int] = []
    at = 0
    for i, part in enumerate(parts):
        end = at + len(part.tokens)
        if of is None or of[i]:
            rows.extend([end - 1] if want == "last" else range(at + part.again, end))
        at = end
    return rows


def gather(step: BoundStep, wanted: Wanted, new: Sequence[int] | None, n_vocab: int) -> Pass:
    """What a pass gave. new: its rows of new tokens, where hidden rows are wanted."""
    found = step.bound.outputs
    hidden = None if new is None else take_rows(found["hidden"], new)
    logits = np.empty((0, n_vocab), np.float32)
    if not wanted.rows:
        return Pass(logits, hidden)
    rows = wanted.rows if step.out_rows is None else range(len(wanted.rows))
    if wanted.shown:
        shown = rows if len(wanted.shown) == len(rows) else wanted.shown
        logits = take_rows(found["logits"], shown if step.logit_rows is None else range(len(shown)))
    if "token" in found:
        tokens, largest = (take_rows(found[name], rows)[:, 0] for name in ("token", "largest"))
        return Pass(logits, hidden, None, tokens, largest)
    short = None
    if "candidates" in found:
        short = take_rows(found["candidates"], rows), take_rows(found["largest"], rows)
    return Pass(logits, hidden, short)


def take_rows(array: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """Ascending rows of an array: a view where they are adjacent."""
    first, n = rows[0], len(rows)
    return array[first : first + n] if rows[-1] - first == n - 1 else array[list(rows)]
