"""What callers give as sequences and token ids, checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

import numpy as np

from ..graph.errors import RequestError

FIRST, BLOCK = 4, 1024  # tokens that texts are compared by, at first and at most


def checked_integer(value: Any, what: str) -> int:
    """An integer, also one of numpy's. Raises RequestError for anything else: a bool is none,
    since numpy would take it for a mask."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return index(value)
    except TypeError:
        raise RequestError(
            f"{what} should be an integer, got {value!r} of type {type(value).__name__}"
        ) from None


def checked_ids(tokens: Iterable[Any], n_vocab: int) -> Sequence[int]:
    """Token ids as a sequence of ints; the same object where it is a list or tuple of these.

    Raises RequestError for what is not a flat series of integers from 0 to n_vocab - 1."""
    if isinstance(tokens, (str, bytes)):
        raise RequestError(
            f"token ids should be integers, got {tokens!r}; `model.tokenize` makes ids of a text"
        )
    try:
        ids: Sequence[Any] = tokens if isinstance(tokens, (list, tuple)) else list(tokens)
    except TypeError:
        raise RequestError(f"token ids should be a series of integers, got {tokens!r}") from None
    if ids and {*map(type, ids)} != {int}:
        ids = [checked_integer(token, "a token id") for token in ids]
    if ids and not (min(ids) >= 0 and max(ids) < n_vocab):
        wrong = next(token for token in ids if not 0 <= token < n_vocab)
        raise RequestError(f"token ids are from 0 to {n_vocab - 1}, got {wrong}")
    return ids


def common_length(a: Sequence[int], b: Sequence[int], most: int | None = None) -> int:
    """How many leading tokens two texts share, of the first `most`. Pieces are compared, whose loop
    is not Python's; the first ones are short, since most texts differ early."""
    whole = min(len(a), len(b))
    most = whole if most is None else min(most, whole)
    if most <= 0 or a[0] != b[0]:
        return 0
    if type(a) is not type(b):
        a, b = list(a), list(b)
    n, size = 0, FIRST
    while n < most and a[n : n + size] == b[n : n + size]:
        n += size
        size = min(4 * size, BLOCK)
    while size > 1 and n < most:
        size //= 2
        if a[n : n + size] == b[n : n + size]:
            n += size
    return min(n, most)
