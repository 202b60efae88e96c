"""The draw from candidates: worked by hand, and what the op refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from one_op import cpu
from riverrun.backends import Backend
from riverrun.backends.reference import ReferenceBackend
from riverrun.graph import Graph
from riverrun.graph.errors import DTypeError, ShapeError
from riverrun.graph.random import uniform

BACKENDS = {"reference": ReferenceBackend(), "cpu": cpu(1)}
IDS = [50, 40, 30, 20]
DRAWS = [
    (seed, position) for seed in (0, 7, 2**40 + 3, 2**64 - 1) for position in (0, 5, 2**31 - 1)
]
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "logits": ((2, 4), "f32"),
    "ids": ((2, 4), "i32"),
    "top_k": ((2,), "i32"),
    "temperature": ((2,), "f64"),
    "top_p": ((2,), "f64"),
    "min_p": ((2,), "f64"),
    "seed": ((2, 2), "i32"),
    "position": ((2,), "i32"),
}


def graph(shapes: dict[str, tuple[tuple[int, ...], str]]) -> Graph:
    g = Graph("sample")
    g.output("token", g.sample(*(g.input(n, shape, of) for n, (shape, of) in shapes.items())))
    return g


def fitted(n: int, k: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """SHAPES for n rows of k candidates."""
    shapes = {name: ((n, *shape[1:]), of) for name, (shape, of) in SHAPES.items()}
    return shapes | {name: ((n, k), shapes[name][1]) for name in ("logits", "ids")}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]


def tokens(
    backend: Backend,
    logits: list[float],
    temperature: float = 1.0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    top_k: int = 4,
) -> list[int]:
    """One for each of DRAWS."""
    n, k = len(DRAWS), len(logits)
    words = [(seed & 0xFFFFFFFF, seed >> 32) for seed, _ in DRAWS]
    given: dict[str, Any] = {
        "logits": np.tile(np.array(logits, np.float32), (n, 1)),
        "ids": np.tile(np.array(IDS[:k], np.int32), (n, 1)),
        "top_k": np.full(n, top_k, np.int32),
        "temperature": np.full(n, temperature),
        "top_p": np.full(n, top_p),
        "min_p": np.full(n, min_p),
        "seed": np.array(words, np.uint32).view(np.int32),
        "position": np.array([position for _, position in DRAWS], np.int32),
    }
    found: list[int] = backend.compile(graph(fitted(n, k)))(**given)[:, 0].tolist()
    return found


def shares(*weights: float) -> list[int]:
    """Which id each number drawn falls to."""
    edges = np.cumsum(weights) / sum(weights)
    return [IDS[int((edges <= uniform(s, p)).sum())] for s, p in DRAWS]


def test_equal_logits_share_the_numbers_equally(backend: Backend) -> None:
    want = [IDS[math.floor(4 * uniform(s, p))] for s, p in DRAWS]
    assert tokens(backend, [2.0] * 4) == want and len(set(want)) == 4


def test_shares_are_exponentials(backend: Backend) -> None:
    logits = [math.log(8), math.log(4), math.log(2), 0.0]
    assert tokens(backend, logits) == shares(8, 4, 2, 1)
    assert tokens(backend, logits, temperature=0.5) == shares(64, 16, 4, 1)
    assert tokens(backend, logits, temperature=2) == shares(*(math.sqrt(x) for x in (8, 4, 2, 1)))


def test_top_p_keeps_the_one_that_reaches_it(backend: Backend) -> None:
    """Whatever the temperature. Equal weights have exact sums."""
    for top_p, kept in ((0.25, 1), (0.2500001, 2), (0.5, 2), (0.7, 3), (0.99, 4)):
        assert tokens(backend, [1.0] * 4, top_p=top_p) == shares(*[1] * kept)
    logits = [math.log(8), math.log(4), math.log(2), 0.0]
    assert tokens(backend, logits, 3.0, top_p=0.7) == shares(2, 4 ** (1 / 3))


def test_min_p_is_relative_to_the_first(backend: Backend) -> None:
    logits = [math.log(8), math.log(4), math.log(2), 0.0]
    assert tokens(backend, logits, min_p=0.2) == shares(8, 4, 2)
    assert tokens(backend, logits, min_p=0.3) == shares(8, 4)
    assert tokens(backend, logits, min_p=1.0) == shares(8)
    assert tokens(backend, [1.0, 1.0, 0.9, 0.0], min_p=1.0) == shares(1, 1)


def test_top_k_counts_the_first_ones(backend: Backend) -> None:
    """Before top_p, whose sum is then of these alone. What is out of range counts as its end."""
    for top_k in (1, 2, 3, 4):
        assert tokens(backend, [1.0] * 4, top_k=top_k) == shares(*[1] * top_k)
    assert tokens(backend, [1.0] * 4, top_p=0.5, top_k=2) == shares(1)
    assert tokens(backend, [1.0] * 4, top_p=0.7, top_k=3) == shares(1, 1, 1)
    logits = [math.log(8), math.log(4), math.log(2), 0.0]
    assert tokens(backend, logits, top_k=2) == shares(8, 4)
    for top_k in (0, -1, -(2**31)):
        assert tokens(backend, logits, top_k=top_k) == shares(8)
    for top_k in (5, 2**31 - 1):
        assert tokens(backend, logits, top_k=top_k) == shares(8, 4, 2, 1)


def test_rows_are_drawn_by_themselves(backend: Backend) -> None:
    """Rows that ask for different things, against each of them alone."""
    rng, k = np.random.default_rng(4), 64
    asked = [
        (top_k, temperature, top_p, min_p, seed)
        for top_k in (1, 7, 40, 64)
        for temperature, top_p, min_p in ((0.0, 1.0, 0.0), (0.8, 0.95, 0.05), (2.0, 1.0, 0.0))
        for seed in (3, 2**63 + 9)
    ]
    n = len(asked)
    given: dict[str, Any] = {
        "logits": -np.sort(-rng.standard_normal((n, k)), axis=1).astype(np.float32),
        "ids": rng.integers(0, 10**6, (n, k), np.int32),
        "top_k": np.array([row[0] for row in asked], np.int32),
        "temperature": np.array([row[1] for row in asked]),
        "top_p": np.array([row[2] for row in asked]),
        "min_p": np.array([row[3] for row in asked]),
        "seed": np.array([(s & 0xFFFFFFFF, s >> 32) for *_, s in asked], np.uint32).view(np.int32),
        "position": rng.integers(0, 10**6, n, np.int32),
    }
    assert list(given) == list(SHAPES)
    together = backend.compile(graph(fitted(n, k)))(**given)
    alone = backend.compile(graph(fitted(1, k)))
    for i in range(n):
        row = alone(**{name: values[i : i + 1] for name, values in given.items()})
        assert row[0, 0] == together[i, 0]
        top_k = int(given["top_k"][i])
        short = {name: given[name][i : i + 1, :top_k] for name in ("logits", "ids")}
        rest = {name: given[name][i : i + 1] for name in list(SHAPES)[2:]}
        cut = backend.compile(graph(fitted(1, top_k)))(**short, **rest)
        assert cut[0, 0] == together[i, 0]


def test_the_first_is_taken_where_nothing_is_drawn(backend: Backend) -> None:
    first = [IDS[0]] * len(DRAWS)
    assert tokens(backend, [3.0, 3.0, 3.0, 1.0], temperature=0) == first
    assert tokens(backend, [3.0]) == first
    assert tokens(backend, [-math.inf] * 4) == first
    assert tokens(backend, [3.0, -math.inf, -math.inf, math.nan], temperature=1e9) == first
    assert tokens(backend, [3.0, 2.9, 2.8, 2.7], temperature=1e-300) == first


@pytest.mark.parametrize(
    "name, shape, of",
    [
        ("logits", (2,), "f32"),
        ("logits", (2, 0), "f32"),
        ("ids", (2, 3), "i32"),
        ("top_k", (1,), "i32"),
        ("temperature", (3,), "f64"),
        ("top_p", (2, 1), "f64"),
        ("min_p", (1,), "f64"),
        ("seed", (2,), "i32"),
        ("position", (2, 2), "i32"),
    ],
)
def test_shapes_that_do_not_fit(name: str, shape: tuple[int, ...], of: str) -> None:
    with pytest.raises(ShapeError, match=f"sample: '{name}' should be "):
        graph(SHAPES | {name: (shape, of)})


@pytest.mark.parametrize("name", SHAPES)
def test_types_that_do_not_fit(name: str) -> None:
    with pytest.raises(DTypeError, match=f"sample: '{name}' should be {SHAPES[name][1]}, got f16"):
        graph(SHAPES | {name: (SHAPES[name][0], "f16")})
