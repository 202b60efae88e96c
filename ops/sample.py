"""Drawing a token from the likeliest ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.case import Case, Declared, f32, fixed, rand
from ..graph.dtype import i32
from ..graph.op import Cost, Op, register
from ..graph.random import uniform
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows, require_plain

WORD = 0xFFFFFFFF
PARAMETERS = ("temperature", "top_p", "min_p")


def counted(candidates: int, top_k: int) -> int:
    """How many of the candidates count for a row that asks for top_k."""
    return min(max(1, top_k), candidates)


def weights(below: np.ndarray) -> np.ndarray:
    """exp(below), f64 [n]; NaN has no weight."""
    return np.exp(np.where(np.isnan(below), -np.inf, below))


def drawn(logits: np.ndarray, temperature: float, top_p: float, min_p: float, u: float) -> int:
    """Which of the candidates, f32 [K], the number u in [0, 1) takes."""
    if not temperature > 0:
        return 0
    below = logits.astype(np.float64) - float(logits[0])
    n = len(logits)
    if top_p < 1:
        running = np.cumsum(weights(below))
        n = min(n, int(np.searchsorted(running, top_p * running[-1])) + 1)
    least = np.float32(float(logits[0]) + np.log(np.float64(min_p)))
    less = np.flatnonzero(~(logits[:n] >= least))
    n = max(1, int(less[0])) if less.size else n
    running = np.cumsum(weights(below[:n] / temperature))
    at = int(np.searchsorted(running, u * running[-1], side="right"))
    return at if at < n else int(np.searchsorted(running, running[-1]))


@register
class Sample(Op):
    """token = ids[j], where j is drawn with the weight exp((logits[j] - logits[0]) / temperature)

    logits: [N, K] f32, K at least 1, each row descending, as op top_k gives them; ids: [N, K] i32;
    top_k: [N] i32; temperature, top_p, min_p: [N] f64; seed: [N, 2] i32, the low and the high word;
    position: [N] i32; token: [N, 1] i32. Words of the seed and positions count as unsigned.
    Every row is drawn by itself. Its candidates are the first top_k ones: below 1 counts as 1,
    above K as K. They are cut, at temperature 1, to the leading ones whose weights sum up to
    top_p of all (unless top_p is 1 or more), then to those with logit >= logits[0] + ln min_p
    rounded to f32; the first one stays. The j taken is the first whose running sum of weights in
    f64 exceeds u times the last, u = uniform(seed, position) of graph.random. A temperature that is
    not above 0 takes the first candidate. NaN has no weight; without any weight the first candidate
    is taken. Where u lies within some 1e-15 of a boundary, exponentials that are rounded otherwise
    may draw the neighbour.
    Source: top_p, Holtzman et al. 2020; the numbers, Salmon et al. 2011."""

    name, outputs = "sample", ("token",)
    inputs = ("logits", "ids", "top_k", *PARAMETERS, "seed", "position")
    rowwise = True

    def infer(
        self,
        logits: TensorSpec,
        ids: TensorSpec,
        top_k: TensorSpec,
        temperature: TensorSpec,
        top_p: TensorSpec,
        min_p: TensorSpec,
        seed: TensorSpec,
        position: TensorSpec,
    ) -> TensorSpec:
        ok = logits.rank == 2 and logits.shape[1] >= 1
        self.require(ok, "logits", "[N, K] with K of at least 1", logits.shape)
        self.require_dtype("logits", logits, "f32")
        require_dense_rows(self, "logits", logits)
        self.require(ids.shape == logits.shape, "ids", logits.shape, ids.shape)
        self.require_dtype("ids", ids, "i32")
        require_dense_rows(self, "ids", ids)
        n = logits.shape[0]
        require_plain(self, "top_k", top_k, (n,), "i32")
        for name, spec in zip(PARAMETERS, (temperature, top_p, min_p), strict=True):
            require_plain(self, name, spec, (n,), "f64")
        require_plain(self, "seed", seed, (n, 2), "i32")
        require_plain(self, "position", position, (n,), "i32")
        return TensorSpec((n, 1), i32)

    def reference(
        self,
        logits: np.ndarray,
        ids: np.ndarray,
        top_k: np.ndarray,
        temperature: np.ndarray,
        top_p: np.ndarray,
        min_p: np.ndarray,
        seed: np.ndarray,
        position: np.ndarray,
    ) -> np.ndarray:
        token = np.empty((len(logits), 1), np.int32)
        with np.errstate(all="ignore"):
            for i, row in enumerate(logits):
                low, high = (int(word) & WORD for word in seed[i])
                u = uniform(high << 32 | low, int(position[i]) & WORD)
                asked = float(temperature[i]), float(top_p[i]), float(min_p[i])
                token[i] = ids[i, drawn(row[: counted(len(row), int(top_k[i]))], *asked, u)]
        return token

    def cost(self, logits: TensorSpec, *others: TensorSpec) -> Cost:
        read = logits.nbytes + sum(spec.nbytes for spec in others)
        return Cost(80 * logits.size, read, 4 * logits.shape[0])

    @staticmethod
    def cases() -> Iterable[Case]:
        for n, k in ((1, 1), (1, 40), (4, 64), (7, 33), (16, 5), (3, 200)):
            yield _case(f"n={n},k={k}", _descending(n, k))
            yield _case(f"plain,n={n},k={k}", _descending(n, k), top_p=1.0, min_p=0.0)
        yield _case("top_k,n=9,k=64", _descending(9, 64), top_k=[1, 2, 20, 40, 63, 64])
        yield _case("top_k out of range,n=6,k=40", _descending(6, 40), top_k=[0, -7, 41, 2**31 - 1])
        mixed: dict[str, Any] = {"top_k": [1, 40, 64, 7], "temperature": [0.0, 0.8, 1.7]}
        yield _case("mixed,n=12,k=64", _descending(12, 64), top_p=[1.0, 0.9], **mixed)
        yield _case("low,n=8,k=40", _descending(8, 40), temperature=1e-3)
        yield _case("high,n=8,k=40", _descending(8, 40), temperature=1e6)
        yield _case("extreme,n=8,k=40", _descending(8, 40), temperature=[1e-320, 1e-300, 1e300] * 8)
        yield _case("greedy,n=8,k=40", _descending(8, 40), temperature=[0.0, -1.0, np.nan] * 8)
        yield _case("top_p of one,n=8,k=40", _descending(8, 40), top_p=1e-9)
        yield _case("top_p,n=9,k=40", _descending(9, 40), top_p=[0.0, 0.3, 0.999999, 1.0] * 3)
        yield _case("min_p of one,n=8,k=40", _descending(8, 40), min_p=1.0)
        yield _case(
            "min_p,n=9,k=40", _descending(9, 40), top_p=1.0, min_p=[0.0, 0.2, 1e-9, 2.0] * 3
        )
        yield _case("NaN asked,n=4,k=40", _descending(4, 40), top_p=np.nan, min_p=np.nan)
        ties = fixed(
            [[3.0] * 6, [2.0, 2.0, 2.0, 1.0, 1.0, 0.0], [0.0, -0.0, 0.0, -9.0, -9.0, -9.0]]
        )
        for top_p, min_p in ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0)):
            label = f"ties,top_p={top_p},min_p={min_p}"
            yield _case(label, ties, top_p=top_p, min_p=min_p, temperature=1.0)
        none = [[1.0, 0.5, -np.inf, -np.inf], [-np.inf] * 4, [3e38, 0.0, -3e38, -np.inf]]
        lacking = [[2.0, 1.9, np.nan, np.nan], [np.nan] * 4, [np.inf, 1.0, 0.0, -np.inf]]
        for top_p, min_p in ((1.0, 0.0), (0.9999, 0.1)):
            label = f"top_p={top_p},min_p={min_p}"
            yield _case(f"infinite,{label}", fixed(none), top_p=top_p, min_p=min_p)
            yield _case(f"lacking,{label}", fixed(lacking), top_p=top_p, min_p=min_p)
        yield _drawn("any order,n=6,k=40", f32(6, 40, lo=-4, hi=4))
        yield _drawn("gap,n=5,k=33", f32(5, 33, lo=-4, hi=4, gap=24))
        yield _drawn("empty,n=0,k=40", f32(0, 40))
        for n, k in ((1, 40), (1, 1000), (64, 40)):
            yield _case(f"perf,n={n},k={k}", _descending(n, k), tags=("perf",))


def _descending(n: int, k: int) -> Declared:
    rows = 4 * np.random.default_rng((n, k)).standard_normal((n, k))
    return fixed(-np.sort(-rows, axis=1))


def _case(label: str, logits: Declared, tags: tuple[str, ...] = (), **asked: Any) -> Case:
    """Parameters are numbers, or lists of which each row takes one."""
    n, k = logits.shape
    rng = np.random.default_rng(n)
    ids = rng.permutation(16 * n * k)[: n * k].reshape(n, k)
    given: dict[str, Any] = {"top_k": k, "temperature": 0.8, "top_p": 0.95, "min_p": 0.05} | asked
    rows = {name: fixed(np.resize(given[name], n), "f64") for name in PARAMETERS}
    seed = rng.integers(-(2**31), 2**31, (n, 2))
    position = rng.integers(0, 2**31, n)
    return Case(
        label,
        tags=tags,
        logits=logits,
        ids=fixed(ids, "i32"),
        top_k=fixed(np.resize(given["top_k"], n), "i32"),
        seed=fixed(seed, "i32"),
        position=fixed(position, "i32"),
        **rows,
    )


def _drawn(label: str, logits: Declared) -> Case:
    """All inputs drawn."""
    n, k = logits.shape
    limit = 2**31
    return Case(
        label,
        logits=logits,
        ids=rand("i32", n, k, lo=0, hi=limit),
        top_k=rand("i32", n, lo=1, hi=k + 1),
        temperature=rand("f64", n, lo=0.2, hi=2.0),
        top_p=rand("f64", n, lo=0.5, hi=1.1),
        min_p=rand("f64", n, lo=0.0, hi=0.2),
        seed=rand("i32", n, 2, lo=-limit, hi=limit),
        position=rand("i32", n, lo=0, hi=limit),
    )
