"""A constraint by a grammar that llguidance follows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.errors import BackendError, RequestError
from ...models.tokenizer import Tokenizer
from .library import shorten
from .vocabulary import Vocabulary

_END = -1


class Compiled:
    """A grammar in the library's form, from which matchers are copied.

    Copies share the states of the lexer, which make later generations faster, and the limit on
    their number, which many different texts use up."""

    def __init__(self, vocabulary: Vocabulary, compile: Callable[[], Any]) -> None:
        """compile: returns an LLMatcher in its initial state, or raises RequestError."""
        self.vocabulary = vocabulary
        self._compile = compile
        self._initial = compile()
        self._lock = threading.Lock()

    def matcher(self) -> Any:
        """A matcher in the initial state."""
        with self._lock:
            return self._initial.deep_copy()

    def renew(self) -> None:
        """Compiles again: matchers from now on have the whole of the limit before them."""
        made = self._compile()
        with self._lock:
            self._initial = made


class GrammarConstraint:
    """See `Constraint`. Follows a matcher of a compiled grammar."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled, self._vocabulary = compiled, compiled.vocabulary
        self._matcher = compiled.matcher()
        # The accepted tokens as rows of the vocabulary, _END for one that ended the generation.
        self._rows: list[int] = []
        self._words = np.zeros(self._vocabulary.n_words, np.uint32)
        self._bounds: np.ndarray | None = None
        self._goes_on = True
        self._out = np.empty(0, np.float32)

    def start(self, tokenizer: Tokenizer) -> GrammarConstraint:
        """See `Constraint.start`."""
        self._vocabulary.require_same(tokenizer)
        return GrammarConstraint(self._compiled)

    @property
    def finished(self) -> bool:
        """Whether only a token that ends the generation may follow."""
        self._update()
        return not self._goes_on

    def mask(self, logits: np.ndarray) -> np.ndarray:
        """See `Constraint.mask`."""
        n_vocab = self._vocabulary.n_vocab
        if logits.ndim != 1 or logits.size < n_vocab or logits.dtype != np.float32:
            raise BackendError(
                f"logits: expected float32 [{n_vocab}] or more, "
                f"got {logits.dtype} {list(logits.shape)}"
            )
        bounds = self._update()
        if self._out.size != logits.size:
            self._out = np.full(logits.size, -np.inf, np.float32)
        np.minimum(logits[:n_vocab], bounds, out=self._out[:n_vocab])
        return self._out

    def allows(self, token: int) -> bool:
        """See `Constraint.allows`."""
        return self._row(token) is not None

    def accept(self, token: int) -> None:
        """See `Constraint.accept`."""
        row = self._row(token)
        if row is None and self._mask_allows(token):
            # The library's limits were reached since, by this constraint or by others.
            self._compiled.renew()
            self._follow_again()
            row = self._row(token)
            if row is None:
                raise RequestError("the constraint takes too much work at this point")
        if row is None:
            raise RequestError(
                f"token {token} does not fit the constraint after {len(self._rows)} tokens; "
                "choose from masked logits"
            )
        self._push(row)

    def rollback(self, n: int) -> None:
        """See `Constraint.rollback`."""
        if not 0 <= n <= len(self._rows):
            raise RequestError(
                f"rollback: expected 0 to {len(self._rows)}, the number of accepted tokens, got {n}"
            )
        if n == 0:
            return
        kept = len(self._rows) - n
        followed = sum(row != _END for row in self._rows[kept:])
        del self._rows[kept:]
        self._bounds = None
        if not self._matcher.rollback(followed):
            self._follow_again()

    def validate(self, tokens: Sequence[int]) -> int:
        """See `Constraint.validate`."""
        n = 0
        try:
            for token in tokens:
                row = self._row(token)
                if row is None:
                    break
                self._push(row)
                n += 1
        except RequestError:
            # A limit of the library: what lies beyond is not legal to a mask either.
            pass
        self.rollback(n)
        return n

    def clone(self) -> GrammarConstraint:
        """See `Constraint.clone`."""
        other = object.__new__(GrammarConstraint)
        other._compiled, other._vocabulary = self._compiled, self._vocabulary
        other._matcher = self._matcher.deep_copy()
        other._rows = self._rows.copy()
        other._words = np.zeros_like(self._words)
        other._bounds, other._goes_on = self._bounds, self._goes_on
        other._out = np.empty(0, np.float32)
        return other

    def _row(self, token: int) -> int | None:
        """The row by which a legal token is followed, None for an illegal one.

        A name in the grammar goes before the token's text, and both before an end."""
        vocabulary = self._vocabulary
        if not 0 <= token < vocabulary.n_vocab:
            return None
        token = int(token)
        if not self._ended:
            for row in (token, vocabulary.second_rows.get(token)):
                if row is not None and self._matcher.validate_tokens([row]) == 1:
                    return row
        return _END if token in vocabulary.ends and self._may_end else None

    @property
    def _ended(self) -> bool:
        return bool(self._rows) and self._rows[-1] == _END

    @property
    def _may_end(self) -> bool:
        return self._ended or self._matcher.is_accepting()

    def _push(self, row: int) -> None:
        if row != _END and not self._consumed(row):
            raise self._failure()
        self._rows.append(row)
        self._bounds = None

    def _consumed(self, row: int) -> bool:
        """Whether the matcher has gone on by this row; if not, it is in an error."""
        if self._matcher.consume_token(row):
            return True
        return self._renewed() and bool(self._matcher.consume_token(row))

    def _mask_allows(self, token: int) -> bool:
        """Whether the mask of this state was computed, and has this token."""
        bounds = self._bounds
        return bounds is not None and 0 <= token < bounds.size and bool(bounds[token] > 0)

    def _renewed(self) -> bool:
        """Whether the lexer's states were used up, so that a new matcher is in this state."""
        if "too many states" not in self._matcher.get_error():
            return False
        self._compiled.renew()
        self._follow_again()
        return True

    def _failure(self) -> RequestError:
        """What went wrong in the matcher, which is put right again."""
        message = self._matcher.get_error()
        self._follow_again()
        if message.startswith("NoExtension"):
            return _dead_end()
        return RequestError(f"the constraint takes too much work at this point: {shorten(message)}")

    def _follow_again(self) -> None:
        """A matcher in the present state: one in which a call has failed never recovers."""
        self._matcher = self._compiled.matcher()
        self._matcher.consume_tokens([row for row in self._rows if row != _END])

    def _update(self) -> np.ndarray:
        """The bounds of the logits in this state, f32 [n_vocab]: +inf for legal tokens, or -inf."""
        if self._bounds is not None:
            return self._bounds
        words, may_end = self._words, self._may_end
        if self._ended:
            words.fill(0)
        else:
            self._compute(words)
        if not may_end and not self._vocabulary.any_legal(words):
            raise _dead_end()
        self._goes_on = self._vocabulary.goes_on(words)
        self._bounds = self._vocabulary.bounds(words, may_end)
        return self._bounds

    def _compute(self, words: np.ndarray) -> None:
        """The library's mask of this state, u32 [n_words]."""
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error() and self._renewed():
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():
            raise self._failure()


def _dead_end() -> RequestError:
    return RequestError(
        "the constraint allows no token at this point: it asks for text that the vocabulary cannot "
        "write, or that never ends"
    )
