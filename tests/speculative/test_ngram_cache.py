"""ngram-cache: thresholds, weights and the order of its sources, against a plain reading."""

from __future__ import annotations

import random
import struct
from collections import Counter, defaultdict

import pytest
from ngram_rounds import ask, judge, text_of
from riverrun.speculative.ngram_cache import NgramCache

LAX = [(2, 66), (2, 50), (1, 50), (1, 50)]
STRICT = [(4, 75), (3, 66), (2, 66), (2, 66)]


def counted(text):
    """Followers of every n-gram of 1 to 4 tokens."""
    table = defaultdict(Counter)
    for at in range(1, len(text)):
        for n in range(1, min(4, at) + 1):
            table[tuple(text[at - n : at])][text[at]] += 1
    return table


def plain_step(tables, static, last):
    """All tokens that the rules allow next: several only where weights are equal."""
    weights = static.get(tuple(last[-2:]), {})
    for table, limits in zip(tables, (LAX, STRICT), strict=True):
        for n in range(min(4, len(last)), 0, -1):
            found = table.get(tuple(last[-n:]))
            if not found:
                continue
            heavy = {t: c * (100 * weights[t] if t in weights else 1) for t, c in found.items()}
            total, (samples, percent) = sum(found.values()), limits[n - 1]
            best = [t for t in heavy if heavy[t] == max(heavy.values())]
            best = [t for t in best if 100 * found[t] >= percent * total]
            if total >= samples and best:
                return best
    if sum(weights.values()) >= 2:
        best = [t for t, c in weights.items() if c == max(weights.values())]
        return [t for t in best if 100 * weights[t] >= 50 * sum(weights.values())]
    return []


def file_of(path, table):
    """Writes followers by n-gram in the file's format."""
    with path.open("wb") as f:
        for gram, found in table.items():
            f.write(struct.pack("<4i", *gram, *[-1] * (4 - len(gram))))
            f.write(struct.pack("<i", len(found)))
            for item in found.items():
                f.write(struct.pack("<2i", *item))
    return path


@pytest.fixture
def loaded(tmp_path):
    """Makes a drafter with these tables loaded."""

    def make(dynamic=None, static=None, **more):
        drafter = NgramCache(**more)
        if dynamic:
            drafter.load(file_of(tmp_path / "dynamic", dynamic))
        if static:
            drafter.load(file_of(tmp_path / "static", static), static=True)
        return drafter

    return make


def test_a_text_that_repeats_is_continued_to_8_tokens():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1, 2, 3]
    assert ask(NgramCache(), text) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert ask(NgramCache(), text, limit=3) == [4, 5, 6]
    assert ask(NgramCache(draft_max=2), text) == [4, 5]
    assert ask(NgramCache(m=5, draft_max=7), text) == [4, 5, 6, 7, 8]
    assert ask(NgramCache(), text[:12]) == []  # one observation of one token is not enough
    assert ask(NgramCache(), [1]) == []


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([9, 1, 8, 1, 8, 1], [8]),  # 1 -> 8 twice of two
        ([9, 1, 8, 7, 1, 7, 6, 1], []),  # 1 of 2 are 50 % of 66 wanted
        ([9, 1, 8, 7, 1, 8, 6, 1, 7, 5, 1], [8]),  # 2 of 3 are 66.7 %
        ([1, 2, 8, 0, 1, 2], []),  # pairs are asked for 2 observations
        ([0, 1, 2, 8, 0, 1, 2], [8]),  # a triple for one
    ],
)
def test_thresholds_of_the_own_text(context, expected):
    assert ask(NgramCache(m=1), context) == expected


GRAMS = [(1,), (2, 1), (3, 2, 1), (4, 3, 2, 1)]


@pytest.mark.parametrize(
    ("n", "counts", "passes"),
    [
        (1, (3, 0), False),
        (1, (4, 0), True),
        (1, (3, 1), True),
        (1, (5, 2), False),
        (2, (2, 0), False),
        (2, (3, 0), True),
        (2, (2, 1), True),
        (2, (5, 3), False),
        (3, (1, 0), False),
        (3, (2, 0), True),
        (4, (1, 0), False),
        (4, (2, 0), True),
        (4, (2, 1), True),
        (4, (3, 2), False),
    ],
)
def test_thresholds_of_loaded_counts(loaded, n, counts, passes):
    followers = {t: c for t, c in zip((50, 51), counts, strict=True) if c}
    drafter = loaded(dynamic={GRAMS[n - 1]: followers}, m=1)
    assert ask(drafter, [4, 3, 2, 1]) == ([50] if passes else [])


def test_longer_n_grams_are_asked_first_and_the_own_text_before_files(loaded):
    dynamic = {(1,): {50: 9}, (2, 1): {51: 9}, (4, 3, 2, 1): {52: 9}}
    assert ask(loaded(dynamic=dynamic, m=1), [4, 3, 2, 1]) == [52]
    assert ask(loaded(dynamic=dynamic, m=1), [9, 3, 2, 1]) == [51]
    assert ask(loaded(dynamic=dynamic, m=1), [9, 3, 9, 1]) == [50]
    assert ask(loaded(dynamic=dynamic, m=1), [1, 7, 1, 7, 4, 3, 2, 1]) == [7]


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        (None, [50]),
        ({(2, 1): {51: 1}}, [51]),  # 1 * 100 against 1
        ({(2, 1): {50: 2, 51: 1}}, [50]),
        ({(2, 1): {50: 1, 51: 2}}, [51]),
        ({(9, 1): {51: 1}}, [50]),
    ],
)
def test_a_static_file_weighs_candidates(loaded, static, expected):
    context = [2, 1, 50, 7, 2, 1, 51, 8, 2, 1]
    assert ask(loaded(static=static, m=1), context) == expected


def test_the_chosen_token_must_be_frequent_itself(loaded):
    drafter = loaded(dynamic={(2, 1): {50: 8, 51: 1}}, static={(2, 1): {51: 1}}, m=1)
    assert ask(drafter, [2, 1]) == []


@pytest.mark.parametrize(
    ("followers", "expected"),
    [({50: 1}, []), ({50: 2}, [50]), ({50: 2, 51: 2}, [50]), ({50: 3, 51: 2, 52: 2}, [])],
)
def test_a_static_file_alone(loaded, followers, expected):
    assert ask(loaded(static={(2, 1): followers}), [2, 1]) == expected


def test_drafts_are_themselves_followed(loaded):
    static = {(1, 2): {3: 2}, (2, 3): {4: 2}, (3, 4): {1: 2}, (4, 1): {2: 2}}
    assert ask(loaded(static=static), [1, 2]) == [3, 4, 1, 2, 3, 4, 1, 2]


def test_loaded_counts_serve_all_sequences_until_forgotten(loaded):
    drafter = loaded(dynamic={(1,): {50: 4}}, static={(8, 9): {51: 2}})
    drafter.begin(0, [1])
    drafter.clear(0)
    for seq in (0, 1):
        assert ask(drafter, [1, 1], seq=seq) == [50]
        assert ask(drafter, [8, 9], seq=seq) == [51]
    drafter.forget()
    for seq in (0, 1):
        assert ask(drafter, [1, 1], seq=seq) == []
        assert ask(drafter, [8, 9], seq=seq) == []


@pytest.mark.parametrize("seed", range(12))
def test_every_round_follows_the_rules(loaded, seed):
    rng = random.Random(seed)
    text = text_of(seed, 250, alphabet=5)
    dynamic = counted(text_of(seed + 50, 200, alphabet=5))
    static = {g: f for g, f in counted(text_of(seed + 90, 60, alphabet=5)).items() if len(g) == 2}
    static = static if seed % 2 else {}
    drafter = loaded(dynamic, static)
    p, found = 2, 0
    while p + 1 < len(text):
        limit = rng.randrange(1, 10)
        draft = ask(drafter, text[: p + 1], limit)
        tables, last = (counted(text[:p]), dynamic), text[max(p - 3, 0) : p + 1]
        for token in draft:
            assert token in plain_step(tables, static, last)
            last = [*last, token][-4:]
        assert len(draft) == min(limit, 8) or not plain_step(tables, static, last)
        found += len(draft)
        p = judge(drafter, draft, text, p)
    assert found
