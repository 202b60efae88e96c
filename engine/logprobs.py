"""Log-probabilities of the tokens that were chosen, and of the likeliest beside each.

They are the natural logarithm of the softmax of the model's own logits: before temperature, bias,
penalties, filters and constraints, as the OpenAI API's `logprobs`. Rows of logits that pad the
vocabulary take no part, so that the probabilities of all tokens sum up to 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..models.tokenizer import Tokenizer
from .sampler.chain import Candidates, softmax_weights, top_k


class Logprobs:
    """What a request that asked for them has so far: `entries`, one for each generated token.

    An entry is {"token": id, "text": str, "bytes": [int], "logprob": float, "top": [...]}; bytes:
    those of the token, of which text is the reading, parts of characters being U+FFFD; top: the n
    likeliest, likeliest first, of equal ones the lower id, each with the same fields but `top`.
    Tokens of probability 0 are not among them."""

    def __init__(self, tokenizer: Tokenizer, n: int, n_vocab: int) -> None:
        self.entries: list[dict[str, Any]] = []
        self._tokenizer, self._n = tokenizer, n
        self._ids = np.arange(n_vocab)

    def add(self, token: int, logits: np.ndarray) -> None:
        """A token was chosen by a row of logits, f32 [at least n_vocab]."""
        row = logits[: self._ids.size]
        scale = float(row.max()) + math.log(softmax_weights(row).sum())
        entry = self._entry(token, float(row[token]) - scale)
        ids, found = self._likeliest(row)
        entry["top"] = [
            self._entry(t, x - scale) for t, x in zip(ids.tolist(), found.tolist(), strict=True)
        ]
        self.entries.append(entry)

    def _likeliest(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of the n largest logits, and these."""
        n = min(self._n, int(np.count_nonzero(row > -np.inf)))
        if not n:
            return self._ids[:0], row[:0]
        found = top_k(Candidates(self._ids, row), n)
        if not found.ordered:  # with as many as there are tokens nothing was picked
            found = found.take(np.argsort(-row, kind="stable"), True)
        return found.ids, found.logits

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._tokenizer.token_bytes(token, special=True)
        return {
            "token": token,
            "text": piece.decode("utf-8", "replace"),
            "bytes": list(piece),
            "logprob": logprob,
        }
