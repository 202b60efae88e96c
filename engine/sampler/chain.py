"""The sampler chain: one small pure function per step, and the table that orders them.

A step takes candidates and gives candidates; it never writes into what it was given. To add a
sampler, write its function, add its fields to `SamplerParams`, and put one row into `CHAIN`. While
its row is active, tokens are chosen by the host: only the steps that op `sample` computes, too, are
marked `on_device`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .params import SamplerParams

_LOWEST = np.finfo(np.float32).min
_GROUPS = 2048
_BINS, _BINS_PER_NAT = 512, 8.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be chosen.

    ids: int [n]; logits: f32 or f64 [n]. Ordered by logit downwards and then by id upwards if
    `ordered` (from top_k on), else by id upwards: the order follows from the logits alone."""

    ids: np.ndarray
    logits: np.ndarray
    ordered: bool = False

    def take(self, index: np.ndarray | slice, ordered: bool) -> Candidates:
        """The candidates at `index`, in that order."""
        return Candidates(self.ids[index], self.logits[index], ordered)


class Window(Protocol):
    """Where the tokens that penalties lower are among the candidates, and how often each occurs."""

    @property
    def ids(self) -> np.ndarray:
        """Places, int [n]; in a whole vocabulary the ids themselves."""

    @property
    def counts(self) -> np.ndarray:
        """i64 [n], each >= 1."""


@dataclass(frozen=True, slots=True)
class ChainState:
    """What steps may look at besides the candidates. bias_ids: places among them, as window.ids."""

    params: SamplerParams
    bias_ids: np.ndarray
    bias_values: np.ndarray
    window: Window


def add_bias(c: Candidates, ids: np.ndarray, values: np.ndarray) -> Candidates:
    """Adds values [m] to the logits at the places ids [m] among the candidates."""
    logits = c.logits.copy()
    with np.errstate(over="ignore"):
        logits[ids] = logits[ids] + values
    return Candidates(c.ids, logits)


def penalize(
    c: Candidates, window: Window, repeat: float, frequency: float, presence: float
) -> Candidates:
    """Lowers the logits of tokens in the window.

    A positive logit is divided by `repeat`, another multiplied by it; then
    count * frequency + presence is subtracted."""
    logits = c.logits.copy()
    logits[window.ids] = penalized(logits[window.ids], window, repeat, frequency, presence)
    return Candidates(c.ids, logits)


def penalized(
    logits: np.ndarray, window: Window, repeat: float, frequency: float, presence: float
) -> np.ndarray:
    """What `penalize` makes of the logits of the window's tokens, in their order; of their type."""
    old = logits.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        new = np.where(old > 0, old / repeat, old * repeat)
        return (new - (window.counts * frequency + presence)).astype(logits.dtype)


def top_k(c: Candidates, k: int) -> Candidates:
    """The k largest logits, ordered; of equal ones at the end, those with the lowest ids.

    With k >= n there is nothing to drop and c returns as it is; otherwise -inf never stays."""
    if k >= c.ids.size:
        return c
    if c.ordered:
        return c.take(slice(k), True)
    index = _holding_largest(c.logits, k)
    order = np.argsort(-c.logits[index], kind="stable")[:k]
    return c.take(index[order], True)


def top_p(c: Candidates, p: float) -> Candidates:
    """The likeliest tokens up to and including the one that brings their sum to p.

    Probabilities are those of c at temperature 1 (Holtzman et al. 2020); of equal tokens at the
    end, those with the lowest ids stay. Keeps the order of c."""
    weights = softmax_weights(c.logits)
    target = p * float(weights.sum())
    if c.ordered:
        return c.take(slice(int(np.searchsorted(np.cumsum(weights), target)) + 1), True)
    # Only the bin of logits in which the sum crosses the target is ever sorted.
    depth = np.minimum(-_BINS_PER_NAT * _below_peak(c.logits), _BINS - 1).astype(np.intp)
    mass = np.cumsum(np.bincount(depth, weights))
    last = min(int(np.searchsorted(mass, target)), mass.size - 1)
    edge = np.flatnonzero(depth == last)
    edge = edge[np.argsort(-c.logits[edge], kind="stable")]
    running = (mass[last - 1] if last else 0.0) + np.cumsum(weights[edge])
    keep = depth < last
    keep[edge[: int(np.searchsorted(running, target)) + 1]] = True
    return c.take(np.flatnonzero(keep), False)


def min_p(c: Candidates, p: float) -> Candidates:
    """The tokens at least p times as likely as the likeliest: logit >= max + ln p."""
    keep = c.logits >= c.logits.dtype.type(float(c.logits.max()) + math.log(p))
    return c.take(np.flatnonzero(keep), c.ordered)


def scale(c: Candidates, temperature: float) -> Candidates:
    """Logits divided by the temperature, as f64 with the largest at 0.

    The shift changes no probability, and keeps a small temperature from overflowing."""
    with np.errstate(over="ignore"):
        scaled = _below_peak(c.logits) / temperature
    return Candidates(c.ids, scaled, c.ordered)


def softmax_weights(logits: np.ndarray) -> np.ndarray:
    """exp(logit - max), f64 [n]: probabilities before normalisation."""
    return np.exp(_below_peak(logits))


def draw(weights: np.ndarray, u: float) -> int:
    """The first index whose running sum of weights, f64 [n], exceeds u * total, for u in [0, 1).

    Exceeds, not reaches: an index of weight 0 is never drawn, u = 0 included."""
    running = np.cumsum(weights)
    index = int(np.searchsorted(running, u * running[-1], side="right"))
    if index == weights.size:
        index = int(np.searchsorted(running, running[-1]))
    return index


@dataclass(frozen=True, slots=True)
class Row:
    """One step of the chain: when it has an effect, and what it does.

    `shapes_greedy` marks steps that can change which logit is the largest; greedy decoding
    runs these alone. They come first in the table, since they need the whole vocabulary.
    `on_device` marks steps that op `sample` takes, too, in the order of the table: another active
    step makes `Sampler.device_draw` None, so that the host chooses."""

    name: str
    active: Callable[[SamplerParams], bool]
    apply: Callable[[Candidates, ChainState], Candidates]
    shapes_greedy: bool = False
    on_device: bool = False


CHAIN: tuple[Row, ...] = (
    Row(
        "logit_bias",
        lambda p: bool(p.logit_bias),
        lambda c, s: add_bias(c, s.bias_ids, s.bias_values),
        shapes_greedy=True,
    ),
    Row(
        "penalties",
        lambda p: p.penalizes,
        lambda c, s: penalize(
            c,
            s.window,
            s.params.repeat_penalty,
            s.params.frequency_penalty,
            s.params.presence_penalty,
        ),
        shapes_greedy=True,
    ),
    Row(
        "top_k",
        lambda p: p.top_k > 0,
        lambda c, s: top_k(c, s.params.top_k),
        on_device=True,
    ),
    Row(
        "top_p",
        lambda p: p.top_p < 1,
        lambda c, s: top_p(c, s.params.top_p),
        on_device=True,
    ),
    Row(
        "min_p",
        lambda p: p.min_p > 0,
        lambda c, s: min_p(c, s.params.min_p),
        on_device=True,
    ),
    Row(
        "temperature",
        lambda p: p.temperature != 1,
        lambda c, s: scale(c, s.params.temperature),
        on_device=True,
    ),
)


def _below_peak(logits: np.ndarray) -> np.ndarray:
    return np.subtract(logits, logits.max(), dtype=np.float64)


def _holding_largest(logits: np.ndarray, k: int) -> np.ndarray:
    """Ascending indices of a set that holds the k < n largest finite logits, and few others.

    The k-th largest of the maxima of disjoint groups is a bound that at least k entries reach;
    finding it takes one pass of maxima, several times less than partitioning a vocabulary."""
    n = logits.size
    if n < 8 * _GROUPS or 8 * k > _GROUPS:
        bound = max(np.partition(logits, n - k)[n - k], _LOWEST)
        return np.flatnonzero(logits >= bound)
    depth = n // _GROUPS
    body = logits[: depth * _GROUPS].reshape(depth, _GROUPS)
    peaks = body.max(axis=0)
    bound = max(np.partition(peaks, _GROUPS - k)[_GROUPS - k], _LOWEST)
    columns = np.flatnonzero(peaks >= bound)
    row, column = np.nonzero(body[:, columns] >= bound)
    tail = np.flatnonzero(logits[depth * _GROUPS :] >= bound)
    return np.concatenate((row * _GROUPS + columns[column], tail + depth * _GROUPS))
