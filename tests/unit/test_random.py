"""Philox4x32-10 against published vectors, and the number formed from its words."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from riverrun.graph.errors import RequestError
from riverrun.graph.random import philox4x32_10, uniform

# Random123's known answers: counter, key, output.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers(counter, key, output):
    assert philox4x32_10(counter, key) == output


def uniforms_in_uint64_lanes(seeds, positions, streams):
    """The documented mapping and rounds once more, over arrays of 32-bit words in u64 lanes."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    seed, position = np.array(seeds, np.uint64), np.array(positions, np.uint64)
    key = [seed & low, seed >> shift]
    word = [position & low, position >> shift, np.array(streams, np.uint64), np.zeros_like(seed)]
    for round_index in range(10):
        if round_index:
            key = [(key[0] + np.uint64(0x9E3779B9)) & low, (key[1] + np.uint64(0xBB67AE85)) & low]
        a, b = np.uint64(0xD2511F53) * word[0], np.uint64(0xCD9E8D57) * word[2]
        word = [
            (b >> shift) ^ word[1] ^ key[0],
            b & low,
            (a >> shift) ^ word[3] ^ key[1],
            a & low,
        ]
    return ((word[1] << shift | word[0]) >> np.uint64(11)).astype(np.float64) / 2.0**53


def test_equals_the_rounds_in_array_form():
    edge = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    rows = list(itertools.product(edge, edge, [0, 1, 7, 2**32 - 1]))
    want = uniforms_in_uint64_lanes(*zip(*rows, strict=True))
    assert [uniform(*row) for row in rows] == want.tolist()


def test_first_number_from_the_first_known_answer():
    assert uniform(0, 0) == ((0xE169C58D << 32 | 0x6627E8D5) >> 11) / 2**53


def test_every_argument_counts():
    seen = {uniform(s, p, t) for s in (0, 1, 2**32) for p in (0, 1, 2**32) for t in (0, 1)}
    assert len(seen) == 18


def test_numpy_integers_give_the_same_number():
    assert uniform(np.int64(5), np.int32(9), np.uint8(3)) == uniform(5, 9, 3)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**40 + 3])
def test_values_are_spread_evenly_over_the_interval(seed):
    values = np.array([uniform(seed, position) for position in range(4096)])
    assert values.min() >= 0 and values.max() < 1
    counts = np.bincount((values * 16).astype(int), minlength=16)
    chi_square = ((counts - 256.0) ** 2 / 256.0).sum()
    assert chi_square < 45
    neighbours = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(neighbours) < 0.06


@pytest.mark.parametrize(
    "arguments", [(-1, 0), (0, -1), (0, 0, -1), (2**64, 0), (0, 2**64), (0, 0, 2**32)]
)
def test_arguments_that_would_wrap_are_refused(arguments):
    with pytest.raises(RequestError, match="got seed="):
        uniform(*arguments)
