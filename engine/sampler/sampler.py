"""A sampler: parameters bound to a vocabulary and a token history."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ...graph.errors import BackendError, RequestError
from ...graph.random import uniform
from ...models.step import CANDIDATES
from .chain import CHAIN, Candidates, ChainState, draw, penalized, softmax_weights
from .params import SamplerParams
from .shortlist import changed_candidates, largest_lowered
from .window import TokenWindow

LARGE = 1 << 15  # tokens, from which on a shortlist is faster than the whole vocabulary


@lru_cache(maxsize=4)
def _vocabulary(n_vocab: int) -> np.ndarray:
    ids = np.arange(n_vocab)
    ids.flags.writeable = False
    return ids


def _random_seed() -> int:
    # 32 bits, so that the reported seed survives clients that read JSON numbers as doubles.
    return int.from_bytes(os.urandom(4), "little")


@dataclass(frozen=True)
class DeviceDraw:
    """How many of the largest logits to draw from, and how: the inputs of op `sample`."""

    top_k: int
    temperature: float
    top_p: float
    min_p: float
    seed: int

    @property
    def candidates(self) -> int:
        """What a pass must pick from, StepShape.candidates, to draw so: 1 or CANDIDATES. A pass of
        several sequences takes the larger number of them; a draw from 1 is the same in both."""
        return 1 if self.top_k == 1 else CANDIDATES


class Sampler:
    """Chooses tokens from logits by the chain of `chain.CHAIN` and a draw.

    The draw for a position uses `uniform(seed, position)`, so a result depends on the logits, the
    seed, the position and the accepted tokens, and on nothing else. Greedy (temperature 0) is the
    first maximum after logit_bias and penalties. Used by one thread at a time."""

    __slots__ = (
        "_n_vocab",
        "_on_device",
        "_only_penalties",
        "_pick_steps",
        "_sample_steps",
        "_seed",
        "_state",
        "_window",
        "shortens",
    )

    def __init__(
        self,
        params: SamplerParams,
        n_vocab: int,
        prompt_tokens: Sequence[int] | np.ndarray = (),
    ) -> None:
        """prompt_tokens: what the penalties see before the first accepted token.

        Raises RequestError for a parameter out of range or a prompt token outside the vocabulary.
        """
        params.validate(n_vocab)
        prompt = np.asarray(prompt_tokens, np.int64)
        if prompt.size and not (prompt.min() >= 0 and prompt.max() < n_vocab):
            raise RequestError(
                f"prompt_tokens: expected ids in 0 .. {n_vocab - 1}, "
                f"got {prompt.min()} .. {prompt.max()}"
            )
        self._n_vocab = n_vocab
        self._seed = _random_seed() if params.seed is None else int(params.seed)
        self._window = TokenWindow(params.repeat_last_n if params.penalizes else 0, prompt)
        self._state = ChainState(
            params,
            np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            np.fromiter(params.logit_bias.values(), np.float64, len(params.logit_bias)),
            self._window,
        )
        rows = [row for row in CHAIN if row.active(params)]
        self._pick_steps = tuple(row.apply for row in rows if row.shapes_greedy)
        self._sample_steps = tuple(row.apply for row in rows if not row.shapes_greedy)
        run = [row for row in rows if row.shapes_greedy or not params.greedy]
        self._only_penalties = params.greedy and [r.name for r in rows if r.shapes_greedy] == [
            "penalties"
        ]
        self._on_device = all(row.on_device for row in run)
        # Whether a shortlist mostly spares `sample` the reading of all logits: bias or penalties
        # change a few of a large vocabulary, and no more are drawn from than a shortlist holds.
        few = params.greedy or 1 <= params.top_k < CANDIDATES
        self.shortens = few and bool(self._pick_steps) and n_vocab >= LARGE

    @property
    def params(self) -> SamplerParams:
        """The parameters this sampler was made with."""
        return self._state.params

    @property
    def device_draw(self) -> DeviceDraw | None:
        """What gives the same tokens as `sample` from the largest logits alone, whatever was
        accepted before; None where it takes more: logit_bias, penalties, more candidates, a step of
        the chain that is not marked `on_device`."""
        p = self.params
        if not self._on_device:
            return None
        if p.greedy:
            return DeviceDraw(1, 0.0, p.top_p, p.min_p, self._seed)
        # With as many candidates as tokens top_k is off, and the draw is in the order of ids.
        if not 1 <= p.top_k <= min(CANDIDATES, self._n_vocab - 1):
            return None
        return DeviceDraw(p.top_k, p.temperature, p.top_p, p.min_p, self._seed)

    @property
    def seed(self) -> int:
        """The seed in use, also where the parameters left it open."""
        return self._seed

    def sample(
        self,
        logits: np.ndarray,
        position: int,
        shortlist: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> int:
        """The token for `position` (its absolute index in the sequence) from logits, f32 [V].

        shortlist: ids i32 [K] of the largest logits and these, f32 [K] descending, of a vocabulary
        that may be padded; the token is the same without. Changes nothing: asking again gives the
        same token. Raises BackendError for logits that hold NaN or +Inf or are all -inf,
        RequestError if bias and penalties leave no token."""
        if shortlist is not None and self.shortens:
            token = self._sample_short(logits, position, *shortlist)
            if token is not None:
                return token
        if not self.params.greedy:
            return self._drawn(self._filter(logits, position), position)
        if self._only_penalties:
            return self._largest_penalized(logits, position)
        if self._pick_steps:
            shaped = self._shape(logits, position).logits
            return int(shaped.argmax())
        self._check_shape(logits)
        best = int(logits.argmax())
        self._check_peak(float(logits[best]), logits, position)
        return best

    def probs(
        self, logits: np.ndarray, position: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The distribution that `sample` draws from: ids, int [n], and probabilities, f64 [n].

        Ids are in the order in which `sample` sums up; a masked token may be among them with
        probability 0. Greedy gives one token with probability 1. `position` only serves
        error messages, which are those of `sample`."""
        if self.params.greedy:
            best = int(self._shape(logits, position).logits.argmax())
            return np.array([best]), np.ones(1)
        final = self._filter(logits, position)
        weights = softmax_weights(final.logits)
        return final.ids, weights / weights.sum()

    def accept(self, token: int) -> None:
        """Adds a token to the history. Raises RequestError outside the vocabulary."""
        if not 0 <= token < self._n_vocab:
            raise RequestError(f"token: expected an id in 0 .. {self._n_vocab - 1}, got {token}")
        self._window.push(int(token))

    def clone(self) -> Sampler:
        """A sampler with the same seed and a history of its own."""
        other = object.__new__(Sampler)
        other._n_vocab, other._seed = self._n_vocab, self._seed
        other._pick_steps, other._sample_steps = self._pick_steps, self._sample_steps
        other._on_device, other._only_penalties = self._on_device, self._only_penalties
        other.shortens = self.shortens
        other._window = self._window.copy()
        other._state = replace(self._state, window=other._window)
        return other

    def _sample_short(
        self, logits: np.ndarray, position: int, largest_ids: np.ndarray, largest: np.ndarray
    ) -> int | None:
        """The token, from the largest logits and those that bias and penalties change; None where
        one of the others might be it, or the logits are not sound."""
        params = self.params
        if self._only_penalties and params.only_lowers:
            return largest_lowered(largest_ids, largest, self._window, params, self._n_vocab)
        if not math.isfinite(largest[0]):
            return None
        candidates = changed_candidates(
            logits, largest_ids, self._state, self._pick_steps, self._n_vocab
        )
        # All others are as they were, and so at most the last of the largest.
        last = largest[-1]
        if params.greedy:
            best = int(candidates.logits.argmax())
            found = int(candidates.ids[best])
            return found if last < candidates.logits[best] < math.inf else None
        k = params.top_k
        if candidates.ids.size <= k or np.count_nonzero(candidates.logits > last) < k:
            return None
        return self._drawn(self._narrow(candidates), position)

    def _drawn(self, final: Candidates, position: int) -> int:
        return int(final.ids[draw(softmax_weights(final.logits), uniform(self._seed, position))])

    def _largest_penalized(self, logits: np.ndarray, position: int) -> int:
        """The largest of a whole vocabulary of which penalties change a few: these are put in their
        places for the search alone, since copying the others takes longer than that."""
        self._check_shape(logits)
        p, window = self.params, self._window
        ids = window.ids
        old = logits[ids]
        try:
            logits[ids] = penalized(
                old, window, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
            )
            best = int(logits.argmax())
            peak = float(logits[best])
        finally:
            logits[ids] = old
        if not math.isfinite(peak):
            best = int(self._shape(logits, position).logits.argmax())  # it says what is wrong
        return best

    def _filter(self, logits: np.ndarray, position: int | None) -> Candidates:
        return self._narrow(self._shape(logits, position))

    def _narrow(self, candidates: Candidates) -> Candidates:
        """The steps from top_k on."""
        for step in self._sample_steps:
            candidates = step(candidates, self._state)
        return candidates

    def _shape(self, logits: np.ndarray, position: int | None) -> Candidates:
        """The whole vocabulary after logit_bias and penalties, the largest logit finite."""
        self._check_shape(logits)
        self._check_peak(float(logits.max()), logits, position)
        candidates = Candidates(_vocabulary(self._n_vocab), logits)
        if not self._pick_steps:
            return candidates
        for step in self._pick_steps:
            candidates = step(candidates, self._state)
        peak = float(candidates.logits.max())
        if not math.isfinite(peak):
            raise RequestError(
                "logit_bias, repeat_penalty, frequency_penalty, presence_penalty: expected values "
                f"that leave a finite largest logit, got {peak}; ban fewer tokens or use smaller "
                "values"
            )
        return candidates

    def _check_shape(self, logits: np.ndarray) -> None:
        if logits.shape != (self._n_vocab,) or logits.dtype != np.float32:
            raise BackendError(
                f"logits: expected float32 [{self._n_vocab}], "
                f"got {logits.dtype} {list(logits.shape)}"
            )

    def _check_peak(self, peak: float, logits: np.ndarray, position: int | None) -> None:
        """`peak` is the maximum, or the first NaN, so that it alone tells whether to refuse."""
        if math.isfinite(peak):
            return
        place = "logits" if position is None else f"logits of position {position}"
        if peak < 0:
            raise BackendError(f"{place} are all -inf: no token is left to choose")
        kind = "NaN" if math.isnan(peak) else "+Inf"
        bad = ~np.isfinite(logits) & ~np.isneginf(logits)
        raise BackendError(
            f"{place} hold {kind}, {int(bad.sum())} of {logits.size} values, the first at id "
            f"{int(bad.argmax())}: the weights are damaged or a kernel overflowed"
        )
