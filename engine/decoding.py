"""How a generation gets its tokens: plainly one a pass, or several a round with drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph.errors import RequestError
from .chooser import Chooser
from .session import Session

if TYPE_CHECKING:
    from .model import Model


class Decoding(ABC):
    """Feeds one sequence of a session."""

    def __init__(self, session: Session, seq: int = 0) -> None:
        self.session, self.seq = session, seq

    def prepare(self, n_tokens: int, chooser: Chooser) -> None:
        """Compile what a prompt of so many more tokens, and what follows it, will run."""
        self.session.prepare(n_tokens, self.seq)

    @abstractmethod
    def prompt(self, tokens: Sequence[int], kept: int) -> np.ndarray:
        """Evaluate what of a prompt follows its first `kept` tokens, which the session holds;
        logits f32 [n_vocab] of the last one."""

    @abstractmethod
    def round(self, token: int, chooser: Chooser, left: int | None) -> Iterator[int]:
        """Evaluate the newest token; yield those that follow, each chosen by the chooser.

        The sequence holds, in the end, the newest token and all that were taken but the last, also
        when the iterator is closed early. left: how many tokens are wanted at most, None for any.
        """

    def statistics(self) -> dict[str, Any]:
        """Fields for the timings."""
        return {}

    def close(self) -> None:  # noqa: B027
        """The session is done with: write what is to be kept."""


class PlainDecoding(Decoding):
    """One token a pass."""

    def prompt(self, tokens: Sequence[int], kept: int) -> np.ndarray:
        """A prefill."""
        return self.session.prefill(tokens[kept:], self.seq)

    def round(self, token: int, chooser: Chooser, left: int | None) -> Iterator[int]:
        """One decode step."""
        logits = self.session.decode(token, self.seq)
        yield chooser.choose(logits, self.session.length(self.seq))


# Makes the decoding that `generate(speculative=...)` asks for: (model, session or None, context
# size, what was asked). Set by the package of speculation, which this one does not know.
Opener = Callable[["Model", Session | None, int | None, Any], Decoding]
_openers: list[Opener] = []


def register_opener(opener: Opener) -> None:
    """Make `speculative=` available."""
    _openers[:] = [opener]


def open_decoding(
    model: Model, session: Session | None, n_ctx: int | None, speculative: Any
) -> Decoding:
    """Plain decoding for None, ahead of the host where that can be; else what the registered
    opener makes of it."""
    if speculative is None:
        from .ahead import AheadDecoding, can_run_ahead  # it builds on this module

        session = session or model.session(n_ctx)
        return AheadDecoding(session) if can_run_ahead(session) else PlainDecoding(session)
    if not _openers:
        raise RequestError("speculative decoding is not at hand; import riverrun.speculative")
    return _openers[0](model, session, n_ctx, speculative)
