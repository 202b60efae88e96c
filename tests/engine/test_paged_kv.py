"""Attention memory: pages, sharing and copies on write, windows, saving."""

from __future__ import annotations

import random

import numpy as np
import pytest
from paged_rig import STATES, check_pages, everything, grow, memory, read, write
from riverrun.backends import Pools
from riverrun.engine.memory import PagedKV, Reservation
from riverrun.engine.memory.pages import Pages, window_pages
from riverrun.graph import TensorSpec
from riverrun.graph.dtype import bf16
from riverrun.graph.errors import RequestError
from riverrun.models.step import PAGE


def test_pages_count_their_owners() -> None:
    pages = Pages(2)
    a, b = pages.take(), pages.take()
    assert {a, b} == {0, 1} and pages.free == 0
    with pytest.raises(RequestError, match="none of 2"):
        pages.take()
    pages.share(a)
    pages.give_back(a)
    assert pages.owners(a) == 1 and pages.free == 0
    pages.give_back(a)
    assert pages.owners(a) == 0 and pages.free == 1
    for act in (pages.give_back, pages.share):
        with pytest.raises(RequestError, match=f"page {a} should have an owner"):
            act(a)
    assert pages.take() == a


@pytest.mark.parametrize("n", [1, 255, 256, 257, 511, 512, 513])
def test_pages_begin_at_multiples_of_256(n: int) -> None:
    kv = memory(1, 3, 3 * PAGE)
    grow(kv, 0, n)
    assert kv.held(0) == range(-(-n // PAGE))
    assert kv.rows(0, 0, n).dtype == np.int32
    assert [kv.row(0, p) for p in range(n)] == kv.rows(0, 0, n).tolist()
    assert len(set(kv.rows(0, 0, n).tolist())) == n
    assert read(kv, 0, 0, n) == list(range(n))
    kv.reserve([Reservation(0, 200)])
    kv.commit(0, 0)
    assert kv.held(0) == range(-(-n // PAGE))
    check_pages(kv)
    for start in (n, n - 1, 0):
        kv.remove(0, start)
        assert kv.held(0) == range(-(-start // PAGE))
        check_pages(kv)


def test_a_state_of_other_size_is_refused() -> None:
    with pytest.raises(RequestError, match=r"'k' should have 512 rows, .* got \[256, 1\]"):
        PagedKV(1, 2, 2 * PAGE, Pools({"k": TensorSpec((PAGE, 1))}), ["k"])


def test_refusals_change_nothing() -> None:
    kv = memory(3, 4, 3 * PAGE)
    grow(kv, 0, 300)
    kv.reserve([Reservation(1, 5)])
    before = everything(kv)
    reserve = [
        ([Reservation(1, 1), Reservation(0, 469)], "769 tokens do not fit in a context of 768"),
        (
            [Reservation(1, 1), Reservation(0, 300), Reservation(2, 1)],
            "2 attention pages .* 1 free",
        ),
        ([Reservation(2, 1), Reservation(2, 1)], "should be distinct"),
    ]
    for batch, message in reserve:
        with pytest.raises(RequestError, match=message):
            kv.reserve(batch)
    saved = kv.save(0)
    acts = [
        lambda: kv.commit(1, 6),
        lambda: kv.commit(1, -1),
        lambda: kv.remove(0, 301),
        lambda: kv.remove(0, -1),
        lambda: kv.remove(1, 0),
        lambda: kv.copy(0, 0),
        lambda: kv.copy(0, 1),
        lambda: kv.copy(1, 2),
        lambda: kv.copy(2, 0),
        lambda: kv.save(1),
        lambda: kv.restore(0, 300, saved),
        lambda: kv.restore(1, 300, saved),
        lambda: kv.restore(2, 300, saved),
        lambda: kv.restore(2, 769, saved),
    ]
    for act in acts:
        with pytest.raises(RequestError):
            act()
        assert everything(kv) == before
    check_pages(kv)


def test_freed_pages_are_used_again() -> None:
    kv = memory(2, 2, 2 * PAGE)
    for round_ in range(5):
        grow(kv, 0, 2 * PAGE, first=round_)
        assert kv.refusal([Reservation(1, 1)])
        kv.remove(0, 0)
        grow(kv, 1, 1)
        kv.remove(1, 0)
    assert kv.pages.free == 2


def test_a_lost_pass_is_forgotten() -> None:
    kv = memory(1, 3, 3 * PAGE)
    grow(kv, 0, 200)
    kv.reserve([Reservation(0, 100)])
    kv.reserve([Reservation(0, 300)])
    assert kv.max_rollback(0) == 400
    kv.lose(0)
    assert (kv.length(0), kv.pending(0), kv.held(0)) == (200, 0, range(1))
    check_pages(kv)


def test_a_copy_shares_pages_and_copies_only_the_one_it_writes() -> None:
    kv = memory(3, 6, 4 * PAGE)
    grow(kv, 0, 600)
    kv.copy(0, 1)
    kv.copy(0, 2)
    assert kv.pages.free == 3 and kv.block_table[1].tolist() == kv.block_table[0].tolist()
    assert kv.length(1) == 600
    kv.remove(1, 400)
    old, last = kv.block_table[0].tolist(), kv.block_table.item(1, 1)
    grow(kv, 1, 1, first=7000)
    fresh = kv.block_table.item(1, 1)
    assert fresh != last and kv.block_table.item(1, 0) == old[0]
    src, dst = slice(last * PAGE, last * PAGE + 144), slice(fresh * PAGE, fresh * PAGE + 144)
    assert kv.pools.copied == [(name, src, dst) for name in STATES]
    grow(kv, 1, 1, first=7001)
    assert len(kv.pools.copied) == 2
    assert read(kv, 1, 0, 402) == list(range(400)) + [7000, 7001]
    for seq in (0, 2):
        assert kv.block_table[seq].tolist() == old and read(kv, seq, 0, 600) == list(range(600))
    check_pages(kv)


def test_a_copy_of_whole_pages_copies_nothing() -> None:
    kv = memory(2, 4, 2 * PAGE)
    grow(kv, 0, PAGE)
    kv.copy(0, 1)
    kv.reserve([Reservation(0, 0), Reservation(1, 0)])
    grow(kv, 0, 3, first=500)
    grow(kv, 1, 2, first=600)
    assert kv.pools.copied == []
    assert read(kv, 0, 250, 259) == [250, 251, 252, 253, 254, 255, 500, 501, 502]
    assert read(kv, 1, 254, 258) == [254, 255, 600, 601]


def test_the_last_owner_of_a_page_needs_no_copy() -> None:
    kv = memory(2, 2, PAGE)
    grow(kv, 0, 10)
    kv.copy(0, 1)
    kv.reserve([Reservation(0, 1), Reservation(1, 1)])
    write(kv, 0, 10, [100])
    write(kv, 1, 10, [200])
    assert read(kv, 0, 8, 11) == [8, 9, 100] and read(kv, 1, 8, 11) == [8, 9, 200]
    assert len(kv.pools.copied) == 2
    kv.commit(0, 0)
    assert read(kv, 0, 0, 10) == read(kv, 1, 0, 10) == list(range(10))
    check_pages(kv)


def test_no_page_for_a_copy_is_refused() -> None:
    kv = memory(3, 2, PAGE)
    grow(kv, 0, 10)
    kv.copy(0, 1)
    grow(kv, 2, 1)
    before = everything(kv)
    with pytest.raises(RequestError, match="1 attention pages needed, 0 free"):
        kv.reserve([Reservation(1, 1)])
    kv.reserve([Reservation(1, 0)])
    assert everything(kv) == before
    kv.remove(0, 0)
    grow(kv, 1, 1)


@pytest.mark.parametrize("window,slack,most", [(1, 0, 1), (1, 3, 8), (64, 0, 300), (300, 17, 512)])
def test_a_window_keeps_pages_in_use_bounded(window: int, slack: int, most: int) -> None:
    n_ctx = 5600
    bound = window_pages(window, slack, most, n_ctx)
    kv = memory(2, bound + 1, n_ctx, window, slack)
    chance, values, longest, most_held = random.Random(window), list[int](), 0, 0
    while len(values) < 5000:
        n = chance.randint(1, most)
        start, kept = len(values), chance.randint(0, n)
        kv.reserve([Reservation(0, n)])
        write(kv, 0, start, list(range(start, start + n)))
        most_held = max(most_held, len(kv.held(0)))
        first = max(0, start - window + 1)
        assert read(kv, 0, first, start) == values[first:]
        kv.commit(0, kept)
        values += range(start, start + kept)
        longest = max(longest, len(values))
        back_to = chance.randint(min(len(values), max(0, longest - slack)), len(values))
        kv.remove(0, back_to)
        del values[back_to:]
        check_pages(kv)
    assert bound - 1 <= most_held <= bound


@pytest.mark.parametrize("window", [1, 2, 255, 256, 257, 300, 512])
@pytest.mark.parametrize("slack", [0, 1, 16, 256])
@pytest.mark.parametrize("most", [1, 2, 256, 512])
def test_window_pages_is_the_exact_bound(window: int, slack: int, most: int) -> None:
    seen = max(
        -(-(length + most) // PAGE) - max(0, length - slack - window + 1) // PAGE
        for length in range(2000)
    )
    assert window_pages(window, slack, most, 10_000) == seen
    assert window_pages(window, slack, most, 300) == min(seen, 2)
    assert window_pages(0, slack, most, 10_000) == 40


def test_behind_a_window_nothing_is_given_back_too_far() -> None:
    kv = memory(2, 12, 12 * PAGE, window=100, slack=200)
    grow(kv, 0, 5 * PAGE + 45)
    # 5 * 256 + 45 - 200 sees 1026 and on: pages 0 .. 3 are gone, so 1123 is as far as it goes.
    assert kv.held(0) == range(4, 6)
    assert kv.block_table[0].tolist() == [0] * 4 + kv.block_table[0, 4:6].tolist() + [0] * 6
    assert kv.can_remove(0, 1123) and not kv.can_remove(0, 1122) and kv.can_remove(0, 0)
    with pytest.raises(RequestError, match="cannot go back from 1325 to 1122"):
        kv.remove(0, 1122)
    kv.copy(0, 1)
    kv.remove(1, 1123)
    grow(kv, 1, 2, first=9000)
    assert read(kv, 1, 1024, 1125) == [*range(1024, 1123), 9000, 9001]
    assert read(kv, 0, 1024, 1325) == list(range(1024, 1325))
    kv.remove(0, 0)
    assert kv.held(0) == range(0)
    grow(kv, 0, 300)
    assert read(kv, 0, 0, 300) == list(range(300))
    check_pages(kv)


def test_pending_tokens_keep_what_their_start_sees() -> None:
    kv = memory(1, 4, 12 * PAGE, window=10)
    grow(kv, 0, PAGE)
    kv.reserve([Reservation(0, 200)])
    kv.reserve([Reservation(0, 200)])
    assert kv.held(0) == range(0, 3)
    kv.commit(0, 0)
    assert kv.held(0) == range(0, 1) and read(kv, 0, 247, 256) == list(range(247, 256))
    grow(kv, 0, 265)
    assert kv.held(0) == range(2, 3)


def test_a_saved_sequence_comes_back_elsewhere() -> None:
    kv = memory(2, 6, 3 * PAGE, v_type=bf16)
    grow(kv, 0, 300)
    kv.pools.array("cache_v.0")[kv.rows(0, 0, 300)] = np.arange(900, dtype=np.uint16).reshape(
        300, 1, 3
    )
    saved = kv.save(0)
    assert saved["cache_k.0"].shape == (300, 2, 1) and saved["cache_v.0"].dtype == np.uint16
    kept = {name: array.copy() for name, array in saved.items()}
    kv.remove(0, 0)
    for name in STATES:
        kv.pools.array(name)[...] = 9
    assert all((saved[name] == kept[name]).all() for name in STATES)
    kv.restore(1, 300, saved | {"another": np.zeros(3)})
    for name in STATES:
        assert (kv.pools.array(name)[kv.rows(1, 0, 300)] == kept[name]).all()
    assert kv.length(1) == 300 and kv.held(1) == range(2)
    check_pages(kv)
    kv.restore(0, 0, {name: array[:0] for name, array in saved.items()})
    assert kv.length(0) == 0 and kv.held(0) == range(0)


@pytest.mark.parametrize("window,slack", [(1, 0), (60, 0), (60, 300), (2000, 5), (0, 0)])
def test_a_window_saves_what_it_holds(window: int, slack: int) -> None:
    kv = memory(1, 8, 8 * PAGE, window=60, slack=70)
    grow(kv, 0, 1100)
    kv.remove(0, 1030)
    saved = kv.save(0)
    first = 1030 - len(saved["cache_k.0"])
    assert first == 768
    other = memory(1, 8, 8 * PAGE, window, slack)
    if window in (0, 2000):
        before = everything(other)
        with pytest.raises(
            RequestError, match=r"of 1030 tokens should be saved .* got the last 262"
        ):
            other.restore(0, 1030, saved)
        assert everything(other) == before
        return
    other.restore(0, 1030, saved)
    start = other.held(0).start * PAGE
    assert start == (1024 if window == 1 else 768)
    assert read(other, 0, start, 1030) == list(range(start, 1030))
    grow(other, 0, 5, first=5000)
    assert read(other, 0, 1024, 1035) == [*range(1024, 1030), *range(5000, 5005)]
    check_pages(other)


def test_strange_saved_arrays_are_refused() -> None:
    kv = memory(2, 4, 2 * PAGE)
    grow(kv, 0, 300)
    saved = kv.save(0)
    k, v = STATES
    strange = [
        ({k: saved[k]}, r"'cache_v.0' should be float32 \[300, 1, 3\], got none"),
        ({v: saved[v]}, r"'cache_k.0' should be float32 \[300, 2, 1\], got none"),
        (saved | {v: saved[v][1:]}, r"'cache_v.0' .* got float32 \[299, 1, 3\]"),
        (saved | {k: saved[k].astype(np.float16)}, "'cache_k.0' .* got float16"),
        (saved | {k: saved[k].reshape(300, 2)}, r"got float32 \[300, 2\]"),
        (saved | {k: np.zeros(())}, r"got float64 \[\]"),
        ({n: a[1:] for n, a in saved.items()}, "last 300 of 300 .* got the last 299"),
        ({n: np.concatenate([a, a]) for n, a in saved.items()}, r"got float32 \[600, 2, 1\]"),
    ]
    before = everything(kv)
    for arrays, message in strange:
        with pytest.raises(RequestError, match=message):
            kv.restore(1, 300, arrays)
        assert everything(kv) == before
