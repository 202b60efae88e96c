"""The static sizes that steps are compiled for; a step runs in the smallest one that fits."""

from __future__ import annotations

from bisect import bisect_left

MAX_TOKENS = 512  # of a pass of kind "step"
TOKENS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Of passes of kind "prefill", which hold as much as the backend's prompt chunk: kernels for so many
# tokens take their time for padding, too, so sizes lie closer.
PROMPT_TOKENS = (*TOKENS, 640, 768, 1024, 1280, 1536, 1792, 2048)
MOST_PROMPT = PROMPT_TOKENS[-1]


def token_bucket(n: int) -> int:
    """The bucket for n tokens, 1 <= n <= MOST_PROMPT."""
    return PROMPT_TOKENS[bisect_left(PROMPT_TOKENS, n)]


def step_counts(n_seqs: int) -> list[int]:
    """Numbers of decoding sequences that stand for all, in steps of a session of n_seqs."""
    return [n for n in TOKENS if n < n_seqs] + [n_seqs]


def sequence_buckets(n_seqs: int) -> list[int]:
    """All that `sequence_bucket` gives, ascending."""
    return sorted({sequence_bucket(n + 1, n_seqs) for n in range(n_seqs)})


def sequence_bucket(n: int, n_seqs: int) -> int:
    """The bucket for n sequences of a session of n_seqs: powers of two, and n_seqs itself."""
    size = 1
    while size < n:
        size *= 2
    return min(size, n_seqs)
