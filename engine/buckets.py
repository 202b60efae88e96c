"""The static sizes that steps are compiled for; a step runs in the smallest one that fits."""

from __future__ import annotations

from bisect import bisect_left

MAX_TOKENS = 512
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def token_bucket(n: int) -> int:
    """The bucket for n tokens, 1 <= n <= MAX_TOKENS."""
    return TOKENS[bisect_left(TOKENS, n)]


def sequence_bucket(n: int, n_seqs: int) -> int:
    """The bucket for n sequences of a session of n_seqs: powers of two, and n_seqs itself."""
    size = 1
    while size < n:
        size *= 2
    return min(size, n_seqs)
