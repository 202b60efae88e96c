"""Reasoning of so many tokens: then the tag of its end is all that may come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...graph.errors import RequestError
from ...models.tokenizer import Tokenizer
from .base import Constraint, start_constraint

_BEFORE, _INSIDE, _CLOSING, _BEHIND = range(4)
_SPACE = b" \t\r\n"


class _State(NamedTuple):
    """Where a text is. n: tokens of reasoning; text: what may be part of a tag; left: tokens of the
    end's tag that have to come."""

    where: int
    n: int = 0
    text: bytes = b""
    left: tuple[int, ...] = ()


class ReasoningBudget:
    """See `Constraint`. Reasoning stands between two tags at the beginning of a text; behind it,
    and in a text without, anything may come, or what another constraint allows. That one goes
    before: where it does not allow the tag of the end, reasoning goes on until it does."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        most: int,
        open: str,
        close: str,
        *,
        begun: bool = False,
        within: Constraint | None = None,
    ) -> None:
        """most: tokens between the tags. begun: the text in front ends with the first tag. within:
        what the whole text must conform to besides."""
        self._tokenizer, self._most, self._within = tokenizer, most, within
        self._open, self._close = open.encode(), close.encode()
        self._states = [self._reasoning(0, b"") if begun else _State(_BEFORE)]

    def start(self, tokenizer: Tokenizer) -> ReasoningBudget:
        """See `Constraint.start`."""
        within = self._within
        within = None if within is None else start_constraint(within, tokenizer)
        return self._copy(self._states[:1], within, tokenizer)

    @property
    def finished(self) -> bool:
        """Whether only a token that ends the generation may follow."""
        return self._within is not None and self._within.finished

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """See `Constraint.mask`."""
        n, forced = self._tokenizer.n_vocab, self._forced
        legal = logits if self._within is None else self._within.mask(logits)
        if forced is None and (self._within is not None or logits.size == n):
            return legal
        out = np.full(logits.size, -np.inf, np.float32)
        kept = slice(n) if forced is None else forced
        out[kept] = legal[kept]
        return out

    def allows(self, token: int) -> bool:
        """See `Constraint.allows`."""
        forced = self._forced
        if forced is not None:
            return token == forced
        if self._within is not None:
            return self._within.allows(token)
        return 0 <= token < self._tokenizer.n_vocab

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        forced = self._forced
        if forced is not None and token != forced:
            raise RequestError(f"token {token}: expected {forced}, which ends the reasoning")
        found = self._next(self._states[-1], token)
        if self._within is not None:
            self._within.accept(token)
        self._states.append(found)

    def rollback(self, n: int) -> None:
        """See `Constraint.rollback`."""
        kept = len(self._states) - n
        if not 1 <= kept <= len(self._states):
            most = len(self._states) - 1
            raise RequestError(f"rollback: expected 0 to {most} accepted tokens, got {n}")
        if self._within is not None:
            self._within.rollback(n)
        del self._states[kept:]

    def validate(self, tokens: Sequence[int]) -> int:
        """See `Constraint.validate`."""
        n = 0
        while n < len(tokens) and self.allows(tokens[n]):
            self.accept(tokens[n])
            n += 1
        self.rollback(n)
        return n

    def clone(self) -> ReasoningBudget:
        """See `Constraint.clone`."""
        within = None if self._within is None else self._within.clone()
        return self._copy(list(self._states), within, self._tokenizer)

    def _copy(
        self, states: list[_State], within: Constraint | None, tokenizer: Tokenizer
    ) -> ReasoningBudget:
        other = object.__new__(ReasoningBudget)
        other._tokenizer, other._most, other._within = tokenizer, self._most, within
        other._open, other._close, other._states = self._open, self._close, states
        return other

    @property
    def _forced(self) -> int | None:
        """The only token that may come, None where others may."""
        state = self._states[-1]
        if state.where != _CLOSING:
            return None
        token = state.left[0]
        return token if self._within is None or self._within.allows(token) else None

    def _next(self, state: _State, token: int) -> _State:
        if state.where == _BEHIND:
            return state
        if state.where == _CLOSING and token == state.left[0]:
            left = state.left[1:]
            return state._replace(left=left) if left else _State(_BEHIND)
        text = state.text + self._tokenizer.token_bytes(token, special=True)
        if state.where != _BEFORE:
            return self._reasoning(state.n + 1, text)
        text = text.lstrip(_SPACE)
        if text.startswith(self._open):
            return self._reasoning(0, text[len(self._open) :])
        return _State(_BEFORE, text=text) if self._open.startswith(text) else _State(_BEHIND)

    def _reasoning(self, n: int, text: bytes) -> _State:
        """Within reasoning, n tokens of it, the last of them with this text."""
        if self._close in text:
            return _State(_BEHIND)
        text = text[1 - len(self._close) :]
        if n < self._most:
            return _State(_INSIDE, n, text)
        return _State(_CLOSING, n, text, self._ending(text))

    def _ending(self, text: bytes) -> tuple[int, ...]:
        """The tokens that end reasoning; of a tag that has begun what is missing, where tokens can
        write just that."""
        for n in range(len(self._close) - 1, 0, -1):
            if text.endswith(self._close[:n]):
                rest = self._tokens(self._close[n:])
                if b"".join(self._tokenizer.token_bytes(t, True) for t in rest) == self._close[n:]:
                    return rest
        return self._tokens(self._close)

    def _tokens(self, text: bytes) -> tuple[int, ...]:
        shown = text.decode("utf-8", "replace")
        return tuple(self._tokenizer.encode(shown, add_special=False, parse_special=True))
