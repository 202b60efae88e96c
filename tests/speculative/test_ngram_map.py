"""ngram-map-k and ngram-map-k4v: hand-worked cases, and a plain reading of their rules."""

from __future__ import annotations

import pytest
from ngram_rounds import ask, judge, text_of
from riverrun.speculative.ngram_map_k import NgramMapK
from riverrun.speculative.ngram_map_k4v import NgramMapK4V

TWICE = [0, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 9, 1, 2]


def continuations(context, n, m):
    """Position and next m tokens of each earlier occurrence of the key, first to last."""
    text, key = context[:-1], context[-n:]
    if len(text) < 2 * n + m:
        return []
    places = range(1, len(text) - n - m + 1)
    return [(at, text[at + n : at + n + m]) for at in places if text[at : at + n] == key]


def plain_k(context, n, m):
    """The first occurrence."""
    return (continuations(context, n, m) or [None])[0]


def plain_k4v(context, n, m, min_hits):
    """The continuation that outnumbers the others of the first four distinct ones."""
    found = continuations(context, n, m)
    firsts, counts = [], []
    for at, value in found:
        known = [v for _, v in firsts]
        if value in known:
            counts[known.index(value)] += 1
        elif len(firsts) < 4:
            firsts.append((at, value))
            counts.append(1)
    if len(found) < min_hits or not counts:
        return None
    most = max(counts)
    return firsts[counts.index(most)] if most >= 2 * (sum(counts) - most) else None


def check_rounds(drafter, text, plain, m):
    """Each round drafts what the rule says, capped at what was accepted from there before."""
    caps, p, found = {}, 12, 0
    while p + 1 < len(text):
        draft = ask(drafter, text[: p + 1], 5)
        chosen = plain(text[: p + 1])
        at, value = chosen or (None, [])
        assert draft == value[: caps.get(at, m)][:5]
        found += bool(draft)
        before, p = p, judge(drafter, draft, text, p)
        if draft and p - before - 1 < len(draft):
            caps[at] = p - before - 1
    return found


@pytest.mark.parametrize("cls", [NgramMapK, NgramMapK4V])
@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([0, 1, 2, 3, 4, 5, 2], []),  # 6 tokens are fewer than 2n + m
        ([1, 2, 3, 4, 5, 6, 1, 2], []),  # position 0 is no place to match
        ([0, 9, 9, 1, 2, 3, 4, 1, 2], [3, 4, 1]),  # the key's own first token counts
        ([0, 9, 9, 9, 1, 2, 3, 1, 2], []),  # 2 of m tokens stand behind
        ([0, 9, 9, 1, 2, 3, 4, 1, 3], []),
    ],
)
def test_worked_examples(cls, context, expected):
    assert ask(cls(n=2, m=3), context) == expected


def test_the_first_place_wins():
    assert ask(NgramMapK(n=2, m=3), TWICE) == [3, 4, 5]


def test_a_key_drafts_what_was_accepted_last_and_no_more():
    drafter = NgramMapK(n=2, m=3)
    for accepted, then in [(3, 3), (2, 2), (2, 2), (1, 1), (0, 0)]:
        drafter.accept(0, len(ask(drafter, TWICE)), accepted)
        assert ask(drafter, TWICE) == [3, 4, 5][:then]
    drafter.begin(0, TWICE)
    assert ask(drafter, TWICE) == [3, 4, 5]


def test_a_draft_cut_by_the_caller_and_accepted_whole_is_no_cap():
    drafter = NgramMapK(n=2, m=3)
    drafter.accept(0, len(ask(drafter, TWICE, limit=1)), 1)
    assert ask(drafter, TWICE) == [3, 4, 5]


def test_a_cap_belongs_to_one_key_and_one_sequence():
    text = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    drafter = NgramMapK(n=2, m=3)
    drafter.accept(0, len(ask(drafter, [*text, 1, 2])), 0)
    assert ask(drafter, [*text, 1, 2]) == []
    assert ask(drafter, [*text, 3, 4]) == [5, 6, 7]
    assert ask(drafter, [*text, 1, 2], seq=1) == [3, 4, 5]


def test_acceptance_without_a_draft_changes_nothing():
    drafter = NgramMapK(n=2, m=3)
    drafter.accept(0, 3, 0)
    ask(drafter, [*TWICE[:-1], 9])
    drafter.accept(0, 3, 0)
    assert ask(drafter, TWICE) == [3, 4, 5]


def after_five(*followers):
    """A text in which these tokens follow 5, and 5 is newest."""
    return [0, *(t for f in followers for t in (5, f)), 8, 5]


@pytest.mark.parametrize(
    ("context", "min_hits", "expected"),
    [
        (after_five(1), 1, [1]),
        (after_five(1), 2, []),
        (after_five(1, 1), 2, [1]),
        (after_five(1, 2), 1, []),
        (after_five(1, 2, 2), 1, [2]),
        (after_five(1, 2, 2), 4, []),
        (after_five(1, 2, 3, 2, 2), 1, []),  # 3 of 2 + 2 wanted
        (after_five(1, 2, 3, 2, 2, 2), 1, [2]),
        (after_five(1, 2, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9), 1, []),  # the fifth is not kept
        (after_five(1, 2, 3, 4, 9, 9, 9, 9, 1, 1, 1, 1, 1), 1, [1]),  # nor counted against
        (after_five(1, 2, 9, 9, 9, 9, 9), 7, [9]),
        (after_five(1, 2, 9, 9, 9, 9, 9), 8, []),
    ],
)
def test_the_continuation_must_outnumber_the_others(context, min_hits, expected):
    assert ask(NgramMapK4V(n=1, m=1, min_hits=min_hits), context) == expected


def test_caps_belong_to_a_continuation():
    drafter = NgramMapK4V(n=1, m=2)
    context = [0, 5, 1, 1, 5]
    drafter.accept(0, len(ask(drafter, context)), 1)
    assert ask(drafter, context) == [1]
    more = [*context, 2, 2, 5, 2, 2, 5]
    assert ask(drafter, more) == [2, 2]


def test_draft_max_shortens_continuations():
    context = [0, 5, 1, 1, 5, 1, 2, 5]
    assert ask(NgramMapK4V(n=1, m=2), context) == []
    assert ask(NgramMapK4V(n=1, m=2, draft_max=1), context) == [1]
    assert ask(NgramMapK(n=2, m=3, draft_max=2), TWICE) == [3, 4]


def test_defaults_are_12_and_48():
    key = list(range(1, 13))
    text = [0, *key, *range(20, 100), *key]
    assert ask(NgramMapK(), text) == list(range(20, 68))
    assert ask(NgramMapK4V(), text) == list(range(20, 68))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 8)])
def test_every_round_of_map_k_follows_the_rule(seed, n, m):
    text = text_of(seed, 300)
    assert check_rounds(NgramMapK(n=n, m=m), text, lambda c: plain_k(c, n, m), m)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("n", "m", "min_hits"), [(1, 1, 1), (2, 1, 3), (2, 3, 1), (3, 8, 2)])
def test_every_round_of_map_k4v_follows_the_rule(seed, n, m, min_hits):
    text = text_of(seed, 400)
    drafter = NgramMapK4V(n=n, m=m, min_hits=min_hits)
    assert check_rounds(drafter, text, lambda c: plain_k4v(c, n, m, min_hits), m)
