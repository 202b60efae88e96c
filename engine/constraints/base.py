"""What a generation may ask of a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...graph.errors import RequestError
from ...models.tokenizer import Tokenizer


class Constraint(Protocol):
    """The tokens that may come next, given those accepted so far. Used by one thread at a time.

    A generation works on what `start` gives it, so that one object serves any number of
    generations, one after another or at the same time.

    A token is legal if the text so far and its own bytes begin a text that fits, whatever way the
    tokenizer would have cut that text. The tokens that end a generation (`Tokenizer.eog_ids`) are
    legal where the text may end; after one of them nothing but them is."""

    def start(self, tokenizer: Tokenizer) -> Constraint:
        """A constraint for one generation by this tokenizer, independent of this one.

        A compiled constraint starts before its first token, whatever was accepted since it was
        compiled, and raises RequestError where the tokenizer has another vocabulary than the one
        that it was compiled for. A class that derives from this one starts with a clone of its
        present state and any tokenizer, unless it says otherwise."""
        return self.clone()

    @property
    def finished(self) -> bool:
        """Whether only a token that ends the generation may follow."""

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """logits, f32 [n], with those of illegal tokens and of ids beyond the vocabulary at -inf.

        n is at least the tokenizer's n_vocab. The result belongs to the constraint and is valid
        until the next call. Raises RequestError where no token is legal or a limit on the work
        of one step is passed, BackendError for logits of another shape or dtype."""

    def allows(self, token: int) -> bool:
        """Whether this token is legal; False for an id outside the vocabulary."""

    def accept(self, token: int) -> None:
        """Goes on by one token. Raises RequestError for an illegal one, or where a limit on the
        work of one step is passed, and then changes nothing."""

    def rollback(self, n: int) -> None:
        """Takes back the last n accepted tokens. Raises RequestError if there are fewer."""

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first one on, could be accepted one after another."""

    def clone(self) -> Constraint:
        """A constraint in the same state, independent of this one."""


_METHODS = ("mask", "allows", "accept", "rollback", "validate", "clone")


def start_constraint(constraint: Constraint, tokenizer: Tokenizer) -> Constraint:
    """`constraint.start(tokenizer)`, or a clone of an object that has all other methods of
    Constraint but not this one.

    Raises RequestError for any other object, and what `start` raises."""
    missing = [name for name in _METHODS if not callable(getattr(constraint, name, None))]
    if missing:
        raise RequestError(
            f"constraint: expected what model.constraint(kind, source) returns, got "
            f"{type(constraint).__name__} without {', '.join(missing)}"
        )
    start = getattr(constraint, "start", None)
    return constraint.clone() if start is None else start(tokenizer)
