"""Choosing a sequence's next token: constraint and sampler, kept in step with what was chosen."""

from __future__ import annotations

import numpy as np

from .constraints import Constraint
from .sampler import DeviceDraw, Sampler


class Chooser:
    """Both see exactly the tokens that were chosen, whatever was drafted beside them.

    n_vocab: tokens that may be chosen at all; rows of logits beyond it are padding."""

    def __init__(
        self, sampler: Sampler, n_vocab: int, constraint: Constraint | None = None
    ) -> None:
        self.sampler, self.constraint, self.n_vocab = sampler, constraint, n_vocab
        # Whether a choice depends on what was chosen before.
        self.remembers = constraint is not None or sampler.params.penalizes

    @property
    def shortens(self) -> bool:
        """Whether `choose` is faster with the largest logits at hand."""
        return self.constraint is None and self.sampler.shortens

    def choose(
        self,
        logits: np.ndarray,
        position: int,
        shortlist: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """The token for `position` from a row of logits, f32 [at least n_vocab]. shortlist: as for
        `Sampler.sample`."""
        token = self.find(logits, position, shortlist)
        self.accept(token)
        return token

    def find(
        self,
        logits: np.ndarray,
        position: int,
        shortlist: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """The token that `choose` would choose; it is not chosen yet."""
        if self.constraint is not None:
            shortlist = None
        return self.sampler.sample(self._legal(logits), position, shortlist)

    def probs(self, logits: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The distribution that `choose` draws from: ids, int [n], probabilities, f64 [n]."""
        return self.sampler.probs(self._legal(logits), position)

    def accept(self, token: int) -> None:
        """A token was chosen, here or elsewhere."""
        if self.constraint is not None:
            self.constraint.accept(token)
        self.sampler.accept(token)

    @property
    def device_draw(self) -> DeviceDraw | None:
        """What a device needs to choose the same tokens; None where it cannot."""
        return None if self.constraint is not None else self.sampler.device_draw

    @property
    def finished(self) -> bool:
        """Whether the constraint leaves nothing but tokens that end the text."""
        return self.constraint is not None and self.constraint.finished

    def likely_legal(self, tokens: list[int]) -> list[int]:
        """The leading tokens that the constraint allows: others would only be rejected."""
        if self.constraint is None:
            return tokens
        return tokens[: self.constraint.validate(tokens)]

    def _legal(self, logits: np.ndarray) -> np.ndarray:
        row = logits[: self.n_vocab]
        return row if self.constraint is None else self.constraint.mask(row)
