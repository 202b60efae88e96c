"""ngram-simple: hand-worked cases, and a plain reading of its rule."""

from __future__ import annotations

import pytest
from ngram_rounds import ask, play, text_of
from riverrun.speculative.ngram_simple import NgramSimple


def plain(context, n, m, n_min, limit):
    """The rule, read backwards through the text."""
    text, key = context[:-1], context[-n:]
    if len(text) <= n + m + 1:
        return []
    for at in range(len(text) - n - 1, 0, -1):
        if text[at : at + n] == key:
            behind = text[at + n :]
            return behind[:m][:limit] if len(behind) >= n_min else []
    return []


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([0, 1, 2, 3, 4, 1, 2], []),  # 6 tokens are not more than n + m + 1
        ([1, 2, 3, 4, 5, 6, 1, 2], []),  # position 0 is no place to match
        ([0, 1, 2, 3, 4, 1, 2, 5, 6, 7, 1, 2], [5, 6, 7]),  # the most recent place
        ([0, 1, 2, 9, 9, 1, 2, 8, 1, 2], [8, 1]),  # fewer than m stand behind
        ([0, 1, 2, 9, 9, 9, 1, 2, 1, 2], []),  # the most recent place has 1 behind, n_min is 2
        ([0, 3, 1, 2, 4, 5, 6, 1, 3], []),
    ],
)
def test_worked_examples(context, expected):
    assert ask(NgramSimple(n=2, m=3), context) == expected


def test_defaults_are_12_and_48():
    key = list(range(1, 13))
    text = [0, *key, *range(20, 100), *key]
    assert ask(NgramSimple(), text) == list(range(20, 68))
    assert ask(NgramSimple(), [0, *range(2, 13), *range(20, 100), *key]) == []


def test_draft_max_lowers_the_draft_and_what_must_stand_behind():
    context = [0, 1, 2, 9, 9, 9, 1, 2, 1, 2]
    assert ask(NgramSimple(n=2, m=3, draft_max=1), context) == [1]
    assert ask(NgramSimple(n=2, m=3, draft_max=9), context) == []


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("n", "m", "draft_max"), [(1, 2, None), (2, 3, None), (3, 5, 2), (4, 2, 1)]
)
def test_every_round_follows_the_rule(seed, n, m, draft_max):
    text = text_of(seed, 300)
    drafter = NgramSimple(n=n, m=m, draft_max=draft_max)
    low = draft_max or 99
    found, p = 0, 10
    for draft in play(drafter, text, p, limit=4):
        assert draft == plain(text[: p + 1], n, min(m, low), min(n, low), 4)
        found += bool(draft)
        p += 1
        while draft and p < len(text) and draft[0] == text[p]:
            draft, p = draft[1:], p + 1
    assert found
