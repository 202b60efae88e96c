"""Random acts on an attention memory always leave what a naive model of it says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from paged_rig import check_pages, everything, memory, read, total_pages, write
from riverrun.engine.memory import PagedKV, Reservation
from riverrun.engine.memory.pages import window_pages
from riverrun.graph.errors import RequestError
from riverrun.models.step import PAGE

SIZES = (1, 1, 2, 5, 100, 255, 256, 257, 400)


@dataclass
class Naive:
    """A sequence as plain lists of the values written, and the greatest length it had."""

    kept: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    longest: int = 0


class Walk:
    """Random acts on a memory and on naive lists, compared after each."""

    def __init__(self, kv: PagedKV, seed: str) -> None:
        self.kv, self.chance, self.value = kv, random.Random(seed), 0
        self.naive = [Naive() for _ in range(kv.n_seqs)]
        self.done: set[str] = set()

    def step(self) -> None:
        acts = ("reserve", "reserve", "commit", "commit", "remove", "copy", "copy", "clear", "move")
        getattr(self, self.chance.choice(acts))()

    def does(self, name: str, act: Callable[[], object]) -> bool:
        """Whether the act is done; a refused one leaves everything as it was."""
        before = everything(self.kv)
        try:
            act()
        except RequestError:
            assert everything(self.kv) == before
            name += " refused"
        self.done.add(name)
        return not name.endswith("refused")

    def one(self) -> int:
        return self.chance.randrange(self.kv.n_seqs)

    def compare(self) -> None:
        kv = self.kv
        check_pages(kv)
        for seq, naive in enumerate(self.naive):
            assert (kv.length(seq), kv.pending(seq)) == (len(naive.kept), len(naive.pending))
            first = kv.held(seq).start * PAGE
            assert first <= self.needed(naive.longest - kv.slack)
            values = naive.kept + naive.pending
            assert read(kv, seq, first, len(values)) == values[first:]

    def needed(self, position: int) -> int:
        """The first position that a query at this one sees."""
        return max(0, position - self.kv.window + 1) if self.kv.window else 0

    def reserve(self) -> None:
        seqs = self.chance.sample(range(self.kv.n_seqs), self.chance.randint(1, 3))
        batch = [Reservation(seq, self.chance.choice(SIZES)) for seq in seqs]
        no_room = self.no_room(batch)
        assert self.does("reserve", lambda: self.kv.reserve(batch)) != no_room
        if no_room:
            return
        for seq, n, *_ in batch:
            naive = self.naive[seq]
            values = list(range(self.value + 1, self.value + n + 1))
            self.value += n
            write(self.kv, seq, len(naive.kept) + len(naive.pending), values)
            naive.pending += values
        self.compare()

    def no_room(self, batch: list[Reservation]) -> bool:
        """Pages after the pass: those held, new ones, one for each writer of a page but one whom
        nobody else is left to share it with."""
        owners: dict[int, set[int]] = {}
        writers: dict[int, set[int]] = {}
        new = 0
        for seq in range(self.kv.n_seqs):
            for at in self.kv.held(seq):
                owners.setdefault(self.kv.block_table.item(seq, at), set()).add(seq)
        for seq, n, *_ in batch:
            start = len(self.naive[seq].kept) + len(self.naive[seq].pending)
            if start + n > self.kv.n_ctx:
                return True
            new += len({p // PAGE for p in range(start, start + n)} - set(self.kv.held(seq)))
            if start % PAGE:
                page = self.kv.block_table.item(seq, start // PAGE)
                writers.setdefault(page, set()).add(seq)
        for page, who in owners.items():
            wrote = writers.get(page, set())
            new += len(wrote) + (1 if who - wrote else 0)
        return new > total_pages(self.kv)

    def commit(self) -> None:
        seq = self.one()
        naive = self.naive[seq]
        n = self.chance.choice([0, len(naive.pending), self.chance.randint(0, len(naive.pending))])
        assert self.does("commit", lambda: self.kv.commit(seq, n))
        naive.kept, naive.pending = naive.kept + naive.pending[:n], []
        naive.longest = max(naive.longest, len(naive.kept))
        self.compare()

    def remove(self) -> None:
        seq = self.one()
        naive = self.naive[seq]
        start = max(0, len(naive.kept) - self.chance.choice([0, 1, 3, 17, 300]))
        can = self.kv.can_remove(seq, start)
        assert self.does("remove", lambda: self.kv.remove(seq, start)) == can
        if naive.pending:
            assert not can
        elif start == 0 or start >= naive.longest - self.kv.slack:
            assert can
        if can:
            del naive.kept[start:]
            naive.longest = naive.longest if start else 0
            self.compare()

    def clear(self, seq: int | None = None) -> None:
        seq = self.one() if seq is None else seq
        done = self.does("clear", lambda: self.kv.remove(seq, 0))
        assert done == (not self.naive[seq].pending)
        if done:
            self.naive[seq] = Naive()
            self.compare()

    def copy(self) -> None:
        src, dst = self.one(), self.one()
        if src != dst and self.chance.random() < 0.5:
            self.clear(dst)
        to_empty = src != dst and not self.naive[dst].kept and not self.naive[dst].pending
        done = self.does("copy", lambda: self.kv.copy(src, dst))
        assert done == (to_empty and not self.naive[src].pending)
        if done:
            self.naive[dst] = Naive(list(self.naive[src].kept), longest=self.naive[src].longest)
            self.compare()

    def move(self) -> None:
        """Save a sequence, clear it, restore it into another or the same one."""
        src, dst = self.one(), self.one()
        if self.naive[src].pending:
            return
        saved, naive = self.kv.save(src), self.naive[src]
        self.clear(src)
        fits = not self.naive[dst].kept and not self.naive[dst].pending
        done = self.does("move", lambda: self.kv.restore(dst, len(naive.kept), saved))
        assert fits or not done
        if done:
            self.naive[dst] = naive
            self.compare()


KINDS = {
    "roomy": (24, 0, 0),
    "tight": (7, 0, 0),
    "window": (4 * window_pages(100, 20, 1500, 1500), 100, 20),
    "tight-window": (6, 300, 3),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_random_acts_agree_with_a_naive_model(kind: str, seed: int) -> None:
    n_pages, window, slack = KINDS[kind]
    kv = memory(4, n_pages, 1500, window, slack)
    walk = Walk(kv, f"{kind}-{seed}")
    for _ in range(600):
        walk.step()
    acts = {"reserve", "commit", "remove", "copy", "clear", "move"}
    assert acts | {"reserve refused", "copy refused"} <= walk.done
    for seq in range(4):
        kv.commit(seq, 0)
        kv.remove(seq, 0)
    assert kv.pages.free == n_pages
