"""What rounds did, one by one: who drafted what for a sequence, and how much of it stayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..graph import debug

if TYPE_CHECKING:
    from ..models.tokenizer import Tokenizer
    from .proposing import Proposal


@dataclass(frozen=True)
class Traced:
    """A sequence's share of a round.

    position: of the first token that the round chose; drafter: whose draft it was, None where
    there was none; asked: whether any drafter was asked; drafted: token ids; kept: how many of
    them stayed; chosen: what the text got, the kept ones and, unless it ended before, one more."""

    seq: int
    position: int
    drafter: str | None
    asked: bool
    drafted: tuple[int, ...]
    kept: int
    chosen: tuple[int, ...]
    tokenizer: Tokenizer

    @property
    def drafted_text(self) -> tuple[str, ...]:
        """The text of each drafted token."""
        return tuple(self._text(token) for token in self.drafted)

    def __str__(self) -> str:
        where = f"sequence {self.seq}, position {self.position}: "
        behind = self.chosen[self.kept :]
        then = f", then {self._named(behind)}" if behind else ""
        if self.drafter is None:
            return where + ("no draft" if self.asked else "not asked") + then
        kept = f"kept {self.kept} of {len(self.drafted)}"
        return f"{where}{self.drafter} {kept}: {self._named(self.drafted)}{then}"

    def _named(self, tokens: Sequence[int]) -> str:
        return " ".join(f"{token} {self._text(token)!r}" for token in tokens)

    def _text(self, token: int) -> str:
        return self.tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")


Trace = Callable[[Traced], None]


def traced(
    proposal: Proposal, tokens: Sequence[int], kept: int, length: int, tokenizer: Tokenizer
) -> Traced:
    """What came of a proposal: the tokens chosen, and how many of them were drafted. length:
    committed tokens before the round."""
    name = proposal.drafter.name if proposal.drafter is not None else None
    drafted, chosen = tuple(proposal.tokens), tuple(tokens)
    seq, asked = proposal.entry.seq, proposal.asked
    return Traced(seq, length + 1, name, asked, drafted, kept, chosen, tokenizer)


def print_traced(one: Traced) -> None:
    """A line to standard error."""
    debug.note([str(one)])


def find_trace(asked: Trace | bool) -> Trace | None:
    """What is called with each round: what was asked for; lines to standard error for True, and
    where the environment asks for them (RIVERRUN_DEBUG); None for nothing."""
    if not isinstance(asked, bool):
        return asked
    return print_traced if asked or debug.level() > 0 else None
