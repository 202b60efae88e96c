"""Asking drafters: the first one with an idea wins, for each sequence by itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Protocol

import numpy as np

from ..engine.drafting import Entry
from ..graph.errors import DrafterError
from .calling import call
from .drafter import Ask, Distribution, Draft, Drafter

NO_DRAFT = Draft([])
ROUNDING = 1e-3  # by which the sum of a distribution may miss 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft for an entry, empty where no drafter had an idea. draft_s: its share of the time of
    drafting; company: sequences in the pass; asked: whether any drafter was asked."""

    entry: Entry
    drafter: Drafter | None
    draft: Draft
    draft_s: float
    company: int
    asked: bool = True

    @property
    def tokens(self) -> list[int]:
        """The drafted tokens."""
        return self.draft.tokens

    @property
    def drafter_name(self) -> str:
        """Whose draft it is, "" for nobody's."""
        return self.drafter.name if self.drafter is not None else ""

    def cut(self, n: int) -> Proposal:
        """With the first n of the drafted tokens."""
        drafter = self.drafter if n else None
        return replace(self, drafter=drafter, draft=_cut(self.draft, self.tokens[:n]))


@dataclass(slots=True)
class Open:
    """An entry that has no draft yet. room: drafts that there is room for, once that was asked;
    draft_s: of what its drafter took, its share; spent_s: of what all took that were asked."""

    entry: Entry
    room: int | None = None
    drafter: Drafter | None = None
    draft: Draft = NO_DRAFT
    draft_s: float = 0.0
    spent_s: float = 0.0
    asked: bool = False


class Asking(Protocol):
    """What `propose` has to know of a round."""

    def limit(self, drafter: Drafter, company: int) -> int:
        """Tokens that the drafter is asked for at most; called once for each."""

    def room(self, entry: Entry, company: int) -> int:
        """Drafts that there is room for."""

    def ask(self, entry: Entry, limit: int) -> Ask:
        """The entry as drafters are asked for it."""

    def waste(self, drafter: Drafter, seconds: float, company: int) -> None:
        """Seconds without an outcome."""


def propose(
    drafters: Sequence[Drafter],
    opened: Sequence[Open],
    company: int,
    asking: Asking,
    n_vocab: int,
) -> None:
    """Find a draft for each entry of a pass of `company` sequences.

    Raises DrafterError for a drafter that raises, or answers with something else than drafts."""
    for drafter in drafters:
        most = asking.limit(drafter, company)
        if most <= 0:
            continue
        asked = []
        for o in opened:
            if o.room is None:
                o.room = asking.room(o.entry, company)
            if not o.draft.tokens and o.room > 0:
                asked.append((o, min(most, o.room)))
        if asked:
            _ask(drafter, asked, company, asking, n_vocab)


def _ask(
    drafter: Drafter,
    asked: Sequence[tuple[Open, int]],
    company: int,
    asking: Asking,
    n_vocab: int,
) -> None:
    """Ask one drafter for drafts of these, each of at most so many tokens."""
    began = time.perf_counter()
    drafts = call(drafter, "draft", [asking.ask(o.entry, most) for o, most in asked])
    seconds = (time.perf_counter() - began) / len(asked)
    _check_drafts(drafter, drafts, len(asked))
    for (o, most), draft in zip(asked, drafts, strict=True):
        o.asked = True
        o.spent_s += seconds
        tokens = _known(_checked_tokens(drafter, draft)[:most], n_vocab)
        tokens = o.entry.chooser.likely_legal(tokens)
        if tokens:
            o.drafter, o.draft, o.draft_s = drafter, _cut(draft, tokens), seconds
        else:
            asking.waste(drafter, seconds, company)


def _check_drafts(drafter: Drafter, drafts: object, n: int) -> None:
    if (
        not isinstance(drafts, Sequence)
        or len(drafts) != n
        or not all(isinstance(draft, Draft) for draft in drafts)
    ):
        raise DrafterError(
            f"drafter {drafter.name!r}: draft should return a list of {n} Draft, one for each ask "
            f"(Draft([]) for no idea), got {drafts!r}"
        )


def _checked_tokens(drafter: Drafter, draft: Draft) -> list[int]:
    """The tokens, all of them integers, each with its distribution where the drafter draws."""
    try:
        tokens = list(map(index, draft.tokens))
    except TypeError:
        raise DrafterError(
            f"drafter {drafter.name!r}: a Draft's tokens should be a list of token ids, got "
            f"{draft.tokens!r}"
        ) from None
    drawn = draft.distributions
    if drawn is None:
        return tokens
    if len(drawn) != len(tokens):
        raise DrafterError(
            f"drafter {drafter.name!r}: a Draft of {len(tokens)} tokens should have as many "
            f"distributions, or None, got {len(drawn)}"
        )
    for token, distribution in zip(tokens, drawn, strict=True):
        if not _is_drawn(token, distribution):
            raise DrafterError(
                f"drafter {drafter.name!r}: a distribution should be (ids, probabilities), arrays "
                f"of one length with a sum of 1 and a chance for the drawn token {token}, got "
                f"{distribution!r}"
            )
    return tokens


def _is_drawn(token: int, distribution: Distribution) -> bool:
    """Whether this can be what the token was drawn from."""
    if len(distribution) != 2 or not all(isinstance(a, np.ndarray) for a in distribution):
        return False
    ids, p = distribution
    if ids.ndim != 1 or ids.shape != p.shape:
        return False
    return bool(abs(p.sum() - 1) <= ROUNDING and p.min() >= 0 and p[ids == token].sum() > 0)


def _known(tokens: list[int], n_vocab: int) -> list[int]:
    """The leading tokens that can be chosen at all."""
    bad = (i for i, token in enumerate(tokens) if not 0 <= token < n_vocab)
    return tokens[: next(bad, len(tokens))]


def _cut(draft: Draft, tokens: list[int]) -> Draft:
    """The first tokens of a draft, with what they were drawn from."""
    drawn = draft.distributions
    return Draft(tokens, drawn[: len(tokens)] if drawn is not None else None)
