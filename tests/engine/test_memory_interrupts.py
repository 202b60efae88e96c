"""An exception at any line of any call on a memory: the other sequences stay right, and `reset`
makes the one concerned usable again, with no page lost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from paged_rig import check_pages, memory, read, write
from riverrun.backends import Pools
from riverrun.engine.memory import HybridMemory, Memory, PagedKV, RecurrentMemory, Reservation
from riverrun.engine.memory.checkpoint import DeviceCheckpoint, HostCheckpoint
from riverrun.engine.memory.replay import Replay
from riverrun.engine.memory.snapshots import Snapshots
from riverrun.graph import TensorSpec
from riverrun.models.step import PAGE

N_SEQS, N_CTX, N_PAGES = 4, 5 * PAGE, 16
A, B, C, D = range(N_SEQS)
LENGTH, PENDING, WINDOW = 2 * PAGE + 50, 3, 4
STATE, WIDTH = "ssm_state.0", 3
TRACED = ("/engine/memory/", "/backends/base.py")
STRATEGIES: tuple[type[RecurrentMemory], ...] = (
    RecurrentMemory,
    Replay,
    Snapshots,
    HostCheckpoint,
    DeviceCheckpoint,
)


class Broken(BaseException):
    """What an interrupted call raises; like KeyboardInterrupt, no Exception."""


def broken_off(act: Callable[[], object], line: int, error: type[BaseException] = Broken) -> bool:
    """Run an act until this line, counted over all that run in memories and their pools; whether
    the error raised there ended it."""
    left = line

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        if not any(part in frame.f_code.co_filename for part in TRACED):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise error
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except error:
        return True
    finally:
        sys.settrace(before)
    return False


def paged(window: int = 0) -> PagedKV:
    return memory(N_SEQS, N_PAGES, N_CTX, window, 20, layer=1 if window else 0)


def recurrent(kind: type[RecurrentMemory]) -> RecurrentMemory:
    layout = kind.layout(WINDOW)
    planes = (layout.planes,) if layout.planes else ()
    pools = Pools({STATE: TensorSpec((N_SEQS * layout.rows, *planes, WIDTH))})
    return kind(N_SEQS, pools, [STATE], WINDOW)


KINDS: dict[str, Callable[[], Memory]] = {"pages": paged, "window": lambda: paged(100)}
KINDS |= {
    f"hybrid {kind.name}": lambda kind=kind: HybridMemory(  # type: ignore[misc]
        [paged(), paged(100), recurrent(kind)]
    )
    for kind in STRATEGIES
}


class Sequences:
    """A memory whose sequences A and B share their start, C has tokens of its own and D is empty.
    Tokens are numbers, each position's in its pages; a recurrent state is their sum."""

    def __init__(self, kind: str) -> None:
        self.memory = KINDS[kind]()
        self.parts = list(getattr(self.memory, "parts", [self.memory]))
        self.tokens: list[list[int]] = [[] for _ in range(N_SEQS)]
        self.pristine = self.books(D)
        self.grow(A, LENGTH)
        self.saved = self.memory.save(A)
        self.memory.copy(A, B)
        self.tokens[B] = list(self.tokens[A])
        self.grow(C, 20)

    def verify(self, seq: int, n: int, sure: int = 0) -> list[int]:
        """A pass of n tokens, which are pending then."""
        known = len(self.tokens[seq])
        new = [1 + (seq * 31 + at) % 97 for at in range(known, known + n)]
        self.memory.reserve([Reservation(seq, n, sure, self.memory.rerun(seq))])
        for part in self.parts:
            if isinstance(part, PagedKV):
                write(part, seq, known, new)
            else:
                value = np.full(WIDTH, sum(self.tokens[seq]) + sum(new), np.float32)
                part.pools.write(STATE, part._place(seq), value)
        return new

    def grow(self, seq: int, n: int) -> None:
        """A pass whose tokens stay."""
        self.tokens[seq] += self.verify(seq, n, sure=n)
        self.memory.commit(seq, n)

    def books(self, seq: int) -> list[object]:
        """All that the memory knows of a sequence, and what it saves of it."""
        found: list[object] = []
        for part in {id(p): p for p in (self.memory, *self.parts)}.values():
            lists = {k: v for k, v in vars(part).items() if isinstance(v, list)}
            found += [(k, str(v[seq])) for k, v in lists.items() if k not in ("states", "parts")]
            if isinstance(part, PagedKV):
                found.append(part.block_table[seq].tolist())
        return [*found, *((k, v.tobytes()) for k, v in self.memory.save(seq).items())]

    def require(self, seq: int) -> None:
        """Every part holds the sequence's tokens."""
        tokens = self.tokens[seq]
        for part in (self.memory, *self.parts):
            assert (part.length(seq), part.pending(seq)) == (len(tokens), 0)
            if isinstance(part, PagedKV):
                first = part.held(seq).start * PAGE
                assert first <= (max(0, len(tokens) - part.window) if part.window else 0)
                assert read(part, seq, first, len(tokens)) == tokens[first:]
            elif isinstance(part, RecurrentMemory):
                assert (part.save(seq)[STATE] == sum(tokens)).all()


class Act(NamedTuple):
    """A call, the sequences it concerns, and what comes before it."""

    call: Callable[[Sequences], object]
    concerns: tuple[int, ...] = (A,)
    before: Callable[[Sequences], object] = lambda s: None


def drafts(s: Sequences) -> None:
    s.verify(A, PENDING)


def keep_one(s: Sequences) -> None:
    s.memory.commit(A, 1 if s.memory.can_commit(A, 1) else PENDING)


def two_more(s: Sequences) -> None:
    s.tokens[A] += s.verify(A, 2)
    s.memory.commit(A, 2)


def go_back(s: Sequences) -> None:
    s.memory.remove(A, LENGTH if s.memory.can_remove(A, LENGTH) else 0)


ACTS = {
    "reserve": Act(lambda s: s.memory.reserve([Reservation(A, 300)])),
    "reserve two": Act(
        lambda s: s.memory.reserve([Reservation(A, PENDING), Reservation(C, 300, 2)]), (A, C)
    ),
    "reserve into a page of its own": Act(
        lambda s: s.memory.reserve([Reservation(C, PENDING)]), (C,)
    ),
    "commit all": Act(lambda s: s.memory.commit(A, PENDING), before=drafts),
    "commit some": Act(keep_one, before=drafts),
    "lose": Act(lambda s: s.memory.lose(A), before=drafts),
    "lose after sure ones": Act(lambda s: s.memory.lose(A), before=lambda s: s.verify(A, 9, 9)),
    "lose_last": Act(lambda s: s.memory.lose_last(A, 2)),
    "remove": Act(go_back, before=two_more),
    "remove all": Act(lambda s: s.memory.remove(A, 0)),
    "copy": Act(lambda s: s.memory.copy(A, D), (D,)),
    "restore": Act(lambda s: s.memory.restore(D, LENGTH, s.saved), (D,)),
    "save": Act(lambda s: s.memory.save(A), ()),
    "reset": Act(lambda s: s.memory.reset(A)),
    "reset amid drafts": Act(lambda s: s.memory.reset(A), before=drafts),
}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_at_any_line(kind: str, name: str) -> None:
    """Of hybrid memories, which run the same lines around those of their own kind of recurrent
    memory, one of two takes the lines between those of the other."""
    act, line, step = ACTS[name], 0, 1
    if kind.startswith("hybrid"):
        line, step = list(KINDS).index(kind) % 2, 2
    while True:
        s = Sequences(kind)
        act.before(s)
        others = [seq for seq in range(N_SEQS) if seq not in act.concerns]
        idle = [seq for seq in others if not s.memory.pending(seq)]
        books = [s.books(seq) for seq in idle]
        if not broken_off(lambda s=s: act.call(s), line):  # type: ignore[misc]
            break
        assert [s.books(seq) for seq in idle] == books
        for seq in others:
            s.grow(seq, 5)
        for seq in act.concerns:
            s.memory.reset(seq)
            s.tokens[seq] = []
            assert s.books(seq) == s.pristine
        for part in s.parts:
            if isinstance(part, PagedKV):
                check_pages(part)
        for seq in (A, B, C, D):
            s.grow(seq, PAGE - 20)
        for seq in range(N_SEQS):
            s.require(seq)
        line += step
    assert line > 3


# What a failing call of these leaves is what was there before.
UNDONE = ("reserve", "reserve two", "copy", "restore")


@pytest.mark.parametrize("name", UNDONE)
@pytest.mark.parametrize("kind", KINDS)
def test_out_of_memory_changes_nothing(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the k-th access to pools, for every k."""
    act, at = ACTS[name], 0
    while True:
        s = Sequences(kind)
        act.before(s)
        books = [s.books(seq) for seq in range(N_SEQS)]
        free = [part.pages.free for part in s.parts if isinstance(part, PagedKV)]
        with monkeypatch.context() as patch:
            failed = fail_at(patch, at, lambda s=s: act.call(s))  # type: ignore[misc]
        if not failed:
            break
        for seq in range(N_SEQS):
            assert relevant(s.books(seq)) == relevant(books[seq])
        assert free == [part.pages.free for part in s.parts if isinstance(part, PagedKV)]
        act.call(s)
        at += 1
    # Pages are copied by reference.
    assert at > 0 or (name == "copy" and len(s.parts) == 1)


def relevant(books: list[object]) -> list[object]:
    """Without the position of an older copy on the device, which a new one replaces."""
    return [x for x in books if not (isinstance(x, tuple) and x[0] == "_saved_at")]


def fail_at(patch: pytest.MonkeyPatch, at: int, call: Callable[[], object]) -> bool:
    """Whether a call ends with MemoryError when the at-th access to pools raises one."""
    left = at

    def failing(act: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise MemoryError
            return act(*args)

        return run

    for method in ("read", "write", "copy"):
        patch.setattr(Pools, method, failing(getattr(Pools, method)))
    try:
        call()
    except MemoryError:
        return True
    return False
