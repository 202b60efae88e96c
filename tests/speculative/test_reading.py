"""Drafters that read prompts along: which rows go with which tokens, in passes of which sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from model_drafts import DRAW, Duet, same, same_as_fresh
from pass_rig import N_CTX, card
from riverrun.engine.prompts import pass_kind
from riverrun.engine.sequences import Sequences
from riverrun.models.step import StepShape
from riverrun.speculative.chain import PUT_OFF, Reader
from riverrun.speculative.draft import DraftModel
from riverrun.speculative.mtp import MARKS, RECENT, Backlog, Mtp
from rollback_rig import stream

WIDTH = 3
IDS = PROMPTS["p200"]["ids"]


@pytest.fixture(autouse=True)
def long_contexts() -> Iterator[None]:
    """Contexts may be longer than the model was trained for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@contextmanager
def long_passes(monkeypatch: pytest.MonkeyPatch, grid: int) -> Iterator[rr.Model]:
    """The demo model as if on a card, with its passes over prompts."""
    with card(monkeypatch, demo(), grid, prompt_chunk=2048):
        yield demo()


def rows(start: int, stop: int) -> np.ndarray:
    """Hidden rows of the tokens at these positions, which tell the position."""
    values = np.arange(start + 1, stop + 1, dtype=np.float32)
    return np.repeat(values[:, None], WIDTH, 1)


class Text:
    """A backlog, and beside it what it should hold, row by row."""

    def __init__(self, prompt: int = 0) -> None:
        self.backlog = Backlog(WIDTH)
        self.backlog.prompt = prompt
        self.end = self.seen = 0

    def add(self, n: int, take: Sequence[int] = ()) -> None:
        """n tokens more, of which pieces are taken before their rows are kept."""
        given = rows(self.end, self.end + n)
        self.backlog.add(range(self.end, self.end + n), given, self.end + n)
        self.end += n
        for piece in take:
            self.take(piece)
        self.backlog.keep()
        given[:] = -1  # a later pass of the target
        self.check()

    def take(self, n: int) -> None:
        """The block sees the first n that wait."""
        self._same(n)
        del self.backlog.tokens[:n]
        self.seen += n

    def check(self) -> None:
        """Each token that waits, and the next one, goes with the row of the one before it."""
        assert self.backlog.tokens == list(range(self.seen, self.end))
        self._same(self.end - self.seen + 1)

    def _same(self, n: int) -> None:
        got = np.concatenate(self.backlog.rows(n))
        np.testing.assert_array_equal(got, rows(self.seen - 1, self.seen - 1 + n))

    def go_back(self, end: int, known: bool = True) -> None:
        self.backlog.go_back(end)
        self.end = self.seen = end
        if known:
            self.check()
        else:
            np.testing.assert_array_equal(self.backlog.rows(1), np.zeros((1, 1, WIDTH)))


def test_tokens_go_with_the_row_before_them() -> None:
    text = Text()
    for n, take in ((2048, [2048]), (900, [512, 384]), (1, []), (3, [8]), (5, []), (600, [593])):
        text.add(n, take)
    rng = np.random.default_rng(3)
    for _ in range(300):
        n = int(rng.integers(1, 40))
        waiting = text.end - text.seen + n
        text.add(n, [int(rng.integers(1, waiting + 1))] if rng.random() < 0.6 else [])


@pytest.mark.parametrize("sizes", [[1] * 200, [200], [150, 3, 1, 46], [60, 2, 2, 2, 134]])
def test_going_back_within_what_is_kept(sizes: list[int]) -> None:
    """Whatever the passes were: as far as RECENT rows, and again from there."""
    for back in (0, 1, 2, RECENT - 2, RECENT - 1):
        text = Text()
        for n in sizes:
            text.add(n, [n])
        text.go_back(200 - back)
        text.add(5)
        text.take(5)
        text.go_back(202 - back)
    text = Text()
    for n in sizes:
        text.add(n, [n])
    text.go_back(200 - RECENT, known=False)


def test_rows_that_went_are_not_counted_again() -> None:
    text = Text()
    text.add(300, [300])
    text.go_back(300 - RECENT + 10)
    text.go_back(300 - RECENT + 1)
    text.go_back(300 - RECENT, known=False)


def test_going_back_to_the_end_of_a_pass_of_the_prompt() -> None:
    text = Text(prompt=3000)
    for n in (1000, 1000, 1000):
        text.add(n, [n])
    text.go_back(2000)
    text.go_back(1000)
    text.add(7)
    text.take(7)
    text.go_back(1000)
    text.go_back(999, known=False)
    text.go_back(0)


def test_marks_are_few() -> None:
    text = Text(prompt=10_000)
    for _ in range(MARKS + 40):
        text.add(20, [20])
    text.go_back(20 * 41)
    text.go_back(20 * 40, known=False)


@pytest.mark.parametrize("grid", [0, 1, 64])
def test_no_plan_is_compiled_later(monkeypatch: pytest.MonkeyPatch, grid: int) -> None:
    with long_passes(monkeypatch, grid) as model:
        d = Duet.of(model, Mtp, n_ctx=N_CTX)
        assert isinstance(d.drafter, Mtp)
        there = d.drafter.session.runner.bound_plans
        prompt = stream(5, 2900)
        for n in (1, 15, 16, 17, 100, 513, 1000, 2900):
            d.clear()
            newest = d.prompt(prompt[:n])
            d.round(newest, 3, 1)
        kept = d.target.reuse([*d.text[0], 7, 8])
        d.prompt([*d.text[0], 7, 8], kept=kept)
        assert d.drafter.session.runner.bound_plans == there


@pytest.mark.parametrize(
    ("grid", "n", "want"),
    [
        (64, 2048, [2048]),
        (64, 896, [512, 128, 128, 128]),
        (64, 1888, [1888]),
        (64, 57, [48]),
        (64, 3001, [2048, 512, 432]),
        (0, 2048, [512] * 4),
        (1, 2048, [2048]),
        (1, 500, [496]),
        (1, 57, [16, 16, 16]),
        (1, 16, []),
    ],
)
def test_sizes_of_passes(
    monkeypatch: pytest.MonkeyPatch, grid: int, n: int, want: list[int]
) -> None:
    with long_passes(monkeypatch, grid) as model:
        session = Sequences(model, model.plan_session(N_CTX, program="mtp"))
        reader = Reader(session, True, model.n_vocab, 1)
        found, left = [], n
        while left > PUT_OFF:
            found.append(reader.piece(left, PUT_OFF))
            left -= found[-1]
        assert found == want
        assert reader.piece(PUT_OFF - 1, 0) == PUT_OFF - 1


def test_a_short_context() -> None:
    d = Duet.of(demo(), Mtp, n_ctx=8)
    same_as_fresh(demo(), Mtp, d, d.prompt(IDS[:4]))


def test_a_pass_that_gives_nothing_fills_memory_like_any_other() -> None:
    model = demo()
    width, tokens = model.source.arch.hp.n_embd, IDS[:40]
    before = np.random.default_rng(2).standard_normal((40, width)).astype(np.float32)
    found = []
    for want, hidden in (("none", False), ("last", True)):
        session = Sequences(model, model.plan_session(64, program="mtp"))
        given = {"hidden_in": [before[:1], before[1:30], before[30:]]}
        session.evaluate([(0, tokens)], want, hidden, kind=pass_kind(40), extra=given)
        found.append({name: session.pools.raw(name) for name in session.pools.specs})
    assert found[0] and found[0].keys() == found[1].keys()
    for name, raw in found[0].items():
        assert raw.any()
        np.testing.assert_array_equal(raw, found[1][name])
    plans = [
        model.plan(StepShape(64, 1, 0, hidden), session.plan.capacity, "prefill", "mtp")
        for hidden in (False, True)
    ]
    less, more = (sum(not n.is_leaf for n in plan.graph.nodes) for plan in plans)
    assert not plans[0].graph.outputs and less < more


@pytest.mark.parametrize("kind", ["mtp", "draft"])
@pytest.mark.parametrize("grid", [1, 64])
def test_drafts_do_not_depend_on_the_sizes_of_passes(
    monkeypatch: pytest.MonkeyPatch, kind: str, grid: int
) -> None:
    """A prompt of a card's long passes, and the same in passes of 512."""
    prompt = stream(9, 2500)

    def drafted(model: rr.Model) -> Any:
        make = Mtp if kind == "mtp" else lambda target: DraftModel(target, model)
        d = Duet.of(model, make, n_ctx=N_CTX)
        return d.prompt(prompt), d.drafts({0: 5}, 3, DRAW)[0]

    newest, want = drafted(demo())
    with long_passes(monkeypatch, grid) as model:
        found, got = drafted(model)
    assert found == newest
    same(got, want)


@pytest.mark.parametrize("at", [0, 1])
def test_a_pass_over_a_prompt_is_interrupted(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Rows of the target's pass are kept, and read by the next draft."""
    d = Duet.of(demo(), Mtp, n_ctx=1024)
    assert isinstance(d.drafter, Mtp)
    session, calls = d.drafter.session, 0
    evaluate = session.evaluate

    def failing(*of: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise MemoryError("planted")
        return evaluate(*of, **more)

    found = d.target.evaluate([(0, IDS[:150])], hidden=True, kind="prefill")
    d.drafter.begin(0, IDS[:150])
    d.text[0] = list(IDS[:150])
    with monkeypatch.context() as within:
        within.setattr(session, "evaluate", failing)
        with pytest.raises(MemoryError):
            d.drafter.observe(0, IDS[:150], found.hidden, IDS[:150])
    assert session.tokens() + d.drafter._backlog[0].tokens == IDS[:150]
    newest = int(found.logits[0].argmax())
    found.hidden[:] = 0
    same_as_fresh(demo(), Mtp, d, newest)
