"""Choosing where bias and penalties change a few logits of a large vocabulary: from the largest
ones and those that change, since reading all of them takes longer than everything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .chain import Candidates, ChainState
from .params import SamplerParams
from .window import TokenWindow

HUGE = 3e38  # below the largest number of f32
Step = Callable[[Candidates, ChainState], Candidates]


@dataclass(frozen=True, slots=True)
class Placed:
    """A window of candidates that are not the whole vocabulary."""

    ids: np.ndarray
    counts: np.ndarray


def largest_lowered(
    ids: np.ndarray, logits: np.ndarray, window: TokenWindow, p: SamplerParams, n_vocab: int
) -> int | None:
    """The token of the largest logit, where penalties only lower some: one of those up to the first
    that they leave alone. None where all are lowered, or the logits are not sound.

    ids, logits: the largest ones, descending; ids from n_vocab on are padding."""
    best, peak = -1, -math.inf
    for token, value in zip(ids.tolist(), logits.tolist(), strict=True):
        if not math.isfinite(value):
            return None
        if token >= n_vocab:
            continue
        count = window.count(token)
        if count:
            value = value / p.repeat_penalty if value > 0 else value * p.repeat_penalty
            value -= count * p.frequency_penalty + p.presence_penalty
            if not -HUGE < value < HUGE:
                return None
            value = float(np.float32(value))
        if value > peak or (value == peak and token < best):
            best, peak = token, value
        if not count:
            return best
    return None


def changed_candidates(
    logits: np.ndarray,
    largest_ids: np.ndarray,
    state: ChainState,
    steps: Sequence[Step],
    n_vocab: int,
) -> Candidates:
    """The largest logits and all that bias and penalties change, after these steps.

    logits: of the whole vocabulary; ids from n_vocab on are padding."""
    window = state.window
    ids = _distinct(np.concatenate((largest_ids, window.ids, state.bias_ids)))
    ids = ids[: ids.searchsorted(n_vocab)]
    placed = Placed(ids.searchsorted(window.ids), window.counts)
    state = replace(state, bias_ids=ids.searchsorted(state.bias_ids), window=placed)
    candidates = Candidates(ids, logits[ids])
    for step in steps:
        candidates = step(candidates, state)
    return candidates


def _distinct(ids: np.ndarray) -> np.ndarray:
    """What np.unique gives, which takes several times as long for so few."""
    ids.sort()
    return ids[np.flatnonzero(np.diff(ids, prepend=-1))]
