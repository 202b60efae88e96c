"""How the rows of a pass draw their tokens on a device, as inputs of its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.errors import BackendError
from ..models.step import CANDIDATES, Choice
from .sampler import DeviceDraw

if TYPE_CHECKING:
    from .model import Model

# How rows draw that nobody asks about: they take the first candidate.
FIRST = DeviceDraw(1, 0.0, 1.0, 0.0, 0)
# A draw of each kind that plans are compiled for.
KINDS = tuple(replace(FIRST, top_k=k) for k in (1, CANDIDATES))
# What several rows that follow one another draw by; None: as FIRST.
RowDraws = Sequence[tuple[DeviceDraw | None, int]]


class Draws:
    """The inputs of op `sample` in a plan that draws, and what they hold: mostly the same from pass
    to pass, but for the positions."""

    def __init__(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._position = inputs.get("draw_position")
        self.wanted = self._position is not None  # without, rows take the only candidate
        if self.wanted:
            self._inputs = {n: inputs[n] for n in ("top_k", "temperature", "top_p", "min_p")}
            self._seeds = inputs["seed"].view(np.uint32)
        self._held: list[tuple[DeviceDraw | None, int]] = []

    def fill(self, draws: RowDraws, positions: Sequence[int] | np.ndarray) -> None:
        """Draws of all rows, which are for tokens at these positions; rows of padding draw from one
        candidate."""
        if self._position is None:
            return
        self._position[: len(positions)] = positions
        if draws == self._held:
            return
        self._held = []  # until all of it is written, should an exception break it off
        counts = [n for _, n in draws]
        asked = [FIRST if draw is None else draw for draw, _ in draws]
        total = sum(counts)
        for name, array in self._inputs.items():
            array[:total] = np.repeat([getattr(draw, name) for draw in asked], counts)
            array[total:] = getattr(FIRST, name)
        seeds = np.array([(d.seed & 0xFFFFFFFF, d.seed >> 32) for d in asked], np.uint32)
        self._seeds[:total] = np.repeat(seeds, counts, axis=0)
        self._held = list(draws)


def drawing(model: Model, draws: Sequence[DeviceDraw | None], n_logits: int = 0) -> Choice:
    """What a pass gives whose items draw so, and the logits of so many rows."""
    k = max(draw.candidates for draw in draws if draw is not None)
    return Choice(model.tokenizer.n_vocab or model.n_vocab, k, True, n_logits)


def require_sound(largest: float) -> None:
    """Raise BackendError for a largest logit that is none."""
    if not math.isfinite(largest):
        raise BackendError(f"the logits' largest value is {largest}; the model is damaged")


def sound(tokens: Sequence[int], largest: Sequence[float]) -> Iterator[int]:
    """Tokens that a device has chosen by these logits. Raises BackendError at one that is none."""
    for token, value in zip(tokens, largest, strict=True):
        require_sound(value)
        yield token
