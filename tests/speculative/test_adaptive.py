"""How much is drafted: never much slower than plain decoding, and nearly all of the gain where
there is one. Times are simulated."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from policy_world import Phase, World, decode
from riverrun.speculative.adaptive import LONGEST_UNSEEN, MOST, START, Budget, Length, Times

N = 500
ACCEPTANCE = (0.0, 0.1, 0.2, 0.35, 0.5, 0.8, 0.95)
CHANGES = ((0.0, 0.8), (0.8, 0.0), (0.2, 0.95), (0.95, 0.2), (0.5, 0.1), (0.1, 0.5), (0.95, 0.0))
TEXTS: list[list[Phase]] = [[(N, a)] for a in ACCEPTANCE]
TEXTS += [[(N // 2, a), (N // 2, b)] for a, b in CHANGES]
WORLDS = [World(d, s) for d, s in product((0.002, 0.1, 0.25, 0.5), (0.02, 0.06, 0.3, 1.0))]
MOST_DRAFTS = (3, 8, 48)
ALLOWED = 1.05


def names(text: list[Phase]) -> str:
    return ",".join(f"{a}" for _, a in text)


@pytest.mark.parametrize("text", TEXTS, ids=names)
@pytest.mark.parametrize("most", MOST_DRAFTS)
def test_never_slower_than_plain_by_a_twentieth(most: int, text: list[Phase]) -> None:
    for world, seed in product(WORLDS, range(2)):
        assert decode(world, text, most, seed).seconds <= ALLOWED * N, (world, seed)


@pytest.mark.parametrize("beside", [0.2, 0.5, 1.0])
def test_what_rounds_take_beside_their_passes_counts(beside: float) -> None:
    """Small models: choosing on the host may take as long as a pass."""
    for text, draft, seed in product(TEXTS, (0.002, 0.5), range(3)):
        world = World(draft, 0.06, beside)
        assert decode(world, text, 3, seed).seconds <= ALLOWED * N, (text, world, seed)
    good, dear = [(N, 0.9)], World(0.3, 0.3, beside)
    drafted = decode(dear, good, 3, 0).lengths
    paying = dear.best(3, good) < N / 1.1
    assert (sum(map(bool, drafted)) > 100) == paying


@pytest.mark.parametrize("chance", [0.0, 0.2])
def test_cold_caches_do_not_make_drafts_look_cheap(chance: float) -> None:
    """The first plain passes, which are timed before all others, take up to half as long again."""
    lost = []
    for draft, slope, seed in product((0.05, 0.25, 0.4), (0.02, 0.06, 0.3), range(12)):
        world = World(draft, slope, cold=0.5)
        lost.append(decode(world, [(128, chance)], 3, seed).seconds / 128 - 1)
    assert sum(lost) / len(lost) < 0.05 and max(lost) < 0.12


def check_gain(most: int, seeds: int, least_share: float) -> None:
    """Where a fixed length gains more than a tenth, most of that gain is had."""
    checked = 0
    for text, world in product(TEXTS, WORLDS):
        best = world.best(most, text)
        if best >= N / 1.1:
            continue
        mean = sum(decode(world, text, most, seed).seconds for seed in range(seeds)) / seeds
        assert N - mean >= least_share * (N - best), (text, world)
        checked += 1
    assert checked > 60


@pytest.mark.parametrize("most", MOST_DRAFTS)
def test_most_of_the_gain(most: int) -> None:
    # The luck of so few texts is a few percent by itself; the full suite takes more of them.
    check_gain(most, 4, 0.8)


@pytest.mark.full
@pytest.mark.parametrize("most,share", [(3, 0.87), (8, 0.87), (48, 0.85)])
def test_nearly_all_of_the_gain(most: int, share: float) -> None:
    """Long drafts are grown into, which takes some of so short a text."""
    check_gain(most, 40, share)


@pytest.mark.full
@pytest.mark.parametrize("text", TEXTS, ids=names)
@pytest.mark.parametrize("most", MOST_DRAFTS)
def test_many_texts(most: int, text: list[Phase]) -> None:
    for world, seed in product(WORLDS, range(20)):
        assert decode(world, text, most, seed).seconds <= ALLOWED * N, (world, seed)


def test_cheap_good_drafts_are_well_below_plain() -> None:
    for seed in range(5):
        assert decode(World(0.02, 0.02), [(N, 0.8)], 8, seed).seconds < 0.4 * N


def test_stalls_neither_stop_drafts_nor_cost_much() -> None:
    """Other work on the machine makes single passes slow."""
    world = World(0.05, 0.05, noise=0.1, stalls=0.04)
    quiet = World(0.05, 0.05)
    for seed in range(10):
        stalled = 1 + 4 * world.stalls
        assert decode(world, [(N, 0.8)], 3, seed).seconds < 1.25 * stalled * quiet.best(
            3, [(N, 0.8)]
        )
        assert decode(world, [(N, 0.0)], 3, seed).seconds < 1.2 * stalled * N


def test_a_stall_in_the_first_draft_does_not_end_drafting() -> None:
    times, budget = Times(), Budget()
    length = Length(times, budget, 3)
    slow = 8.0
    drafted = []
    for _ in range(60):
        budget.earn()
        k = length.choose()
        passing = 1 + 0.05 * k
        if k and slow:
            passing, slow = slow, 0.0
        times.note(1 + k, passing)
        if k:
            length.note(k, k, 0.02 * k)
        drafted.append(k)
    assert sum(drafted[10:]) > 100


def test_a_slow_start_of_the_drafter_does_not_end_drafting() -> None:
    """Its first passes may have had to read a prompt, or to be compiled."""
    times, budget = Times(), Budget()
    length, drafts, tokens = Length(times, budget, 3), 0, 0
    for _ in range(400):
        budget.earn()
        k = length.choose()
        times.note(1 + k, 1 + 0.05 * k)
        tokens += 1 + k
        if k:
            drafts += 1
            length.note(k, k, 10.0 if drafts <= 3 else 0.02 * k)
    assert tokens > 800


def test_plain_passes_are_timed_first_and_now_and_then() -> None:
    times, budget = Times(), Budget()
    length = Length(times, budget, 3)
    chosen = []
    for _ in range(300):
        budget.earn()
        k = length.choose()
        times.note(1 + k, 1 + 0.01 * k)
        if k:
            length.note(k, k, 0.01)
        chosen.append(k)
    assert chosen[:3] == [0, 0, 0] and 0 not in chosen[3:5]
    plain = [i for i, k in enumerate(chosen) if k == 0]
    gaps = [b - a for a, b in pairwise(plain[1:])]
    assert gaps == sorted(gaps) and max(gaps) <= LONGEST_UNSEEN + 1
    assert len(plain) < 15


@pytest.mark.parametrize("least", [0, 1, 4, 8])
def test_lengths_keep_within_their_bounds(least: int) -> None:
    """A drafter drops what is shorter than draft_min, so that asking for less is work in vain."""
    run = decode(World(0.01, 0.02), [(N, 0.7)], 8, 1, least)
    drafted = [k for k in run.lengths if k]
    assert drafted and max(drafted) <= 8 and min(drafted) >= least


def test_drafters_that_find_nothing_are_asked_less() -> None:
    """A model drafter below p_min costs its pass and gives no draft."""
    times, budget = Times(), Budget()
    length, asked = Length(times, budget, 3), 0
    for _ in range(N):
        budget.earn()
        k = length.choose()
        times.note(1, 1.0)
        if k:
            asked += 1
            length.waste(0.25)
    assert asked * 0.25 <= 0.05 * N and asked > 10


def test_several_sequences_weigh_whole_rounds() -> None:
    """Passes that are full already make drafts too dear that pay for one sequence alone."""

    def passing(tokens: int) -> float:
        return 1 + 0.01 * tokens if tokens <= 4 else 0.3 * tokens

    def lengths(n: int) -> list[int]:
        times, budget = Times(), Budget()
        length, chosen = Length(times, budget, 3), []
        for i in range(200):
            budget.earn()
            k = length.choose(n)
            seconds = passing(n * (1 + k))
            times.note(n * (1 + k), seconds)
            for _ in range(n if k else 0):
                length.note(k, int(i % 2), 0.02, n)
            chosen.append(k)
        return chosen

    assert sum(lengths(1)) > 200
    assert sum(lengths(4)) < 30


def test_the_budget_is_bounded() -> None:
    budget = Budget()
    assert budget.left == START
    budget.spend(-1000.0)
    assert budget.left == MOST
    budget.spend(MOST + 1)
    budget.earn()
    assert -1 < budget.left < 0


def test_times_of_sizes_that_were_not_seen() -> None:
    times = Times()
    assert times.of(1) == 0.0 and times.seen(1) == 0
    for n, seconds in ((1, 1.0), (4, 1.6)):
        times.note(n, seconds)
        times.note(n, seconds)
    assert times.of(1) == 1.0 and times.of(2) == pytest.approx(1.2)
    assert 1.6 < times.of(8) < 2.4
    times.note(8, 100.0)
    assert times.of(8) < 5
    times.note(8, 100.0)
    assert times.of(8) == 100.0


def test_what_rounds_take_beside_passes() -> None:
    times = Times()
    times.note_beside(True, 0.5)
    assert times.beside == 0.0
    times.note_beside(False, 0.1)
    assert times.beside == pytest.approx(0.4)
    for _ in range(3):
        times.note_beside(True, 50.0)
    assert times.beside < 8
    times.note_beside(True, 0.1)
    times.note_beside(False, 0.6)
    assert times.beside == 0.0


def test_rounds_that_are_left_out_count_like_others() -> None:
    """`skip` in place of `choose` where that would give 0."""

    def lengths(skips: bool) -> list[int]:
        times, budget = Times(), Budget()
        length, chosen, i = Length(times, budget, 3), [], 0
        while i < 300:
            budget.earn()
            k = length.choose()
            times.note(1 + k, 1 + 0.3 * k)
            if k:
                length.note(k, 0, 0.3 * k)
            chosen.append(k)
            i += 1
            n = length.resting if skips and k == 0 else 0
            if n:
                budget.earn(n)
                length.skip(n)
                times.note(1, 1.0, n)
                chosen += [0] * n
                i += n
        return chosen[:300]

    found = lengths(True)
    assert found == lengths(False) and sum(found) > 2


def test_catching_up_is_part_of_what_a_draft_may_lose() -> None:
    """A drafter that reads hundreds of tokens first is asked less often."""

    def asked(each: float) -> int:
        times, budget = Times(), Budget()
        length, n, idle = Length(times, budget, 3), 0, 0
        for _ in range(2000):
            budget.earn()
            k = length.choose()
            times.note(1 + k, 1 + 0.1 * k)
            idle += 1
            if k:
                n += 1
                length.note(k, 0, 0.1 * k + (each * idle if idle > 2 else 0.0))
                idle = 0
        return n

    assert asked(0.0) > asked(0.05) > 0
