"""Rounds without drafts on a device that runs by itself: their passes overlap, as those of requests
without drafters do, and the text is the same."""

from __future__ import annotations

from typing import Any

import pytest
import riverrun as rr
from ahead_rig import late
from demo import demo
from engine_rig import finish, solo
from riverrun.engine.buckets import MAX_TOKENS
from riverrun.engine.portions import Portions
from riverrun.speculative import Speculator
from riverrun.speculative.adaptive import Times
from rollback_rig import STRATEGIES
from spec_rig import GREEDY, KINDS, TEXTS, plain, right, scripted, speculation

N = 60


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take as long as they have tokens, so that no draft pays, and rounds nothing beside."""
    note = Times.note
    monkeypatch.setattr(Times, "note", lambda self, n, _, k=1: note(self, n, float(n), k))
    monkeypatch.setattr(Times, "note_beside", lambda *_: None)


ROLLS = [s for s in STRATEGIES if not s.startswith("checkpoint")]


def engine(asked: Any, **more: Any) -> tuple[rr.Engine, Any]:
    model, queue = late(demo())
    return rr.Engine(model, draft_max=4, spec=asked, **({"n_ctx": 512} | more)), queue


def arguments(name: str, i: int) -> dict[str, Any]:
    how = {"temperature": 0.8, "seed": 5 + i} if i % 2 else GREEDY
    return {"prompt": TEXTS[name], "max_tokens": N + 7 * i, "ignore_eos": True, **how}


def require_solo(requests: list[rr.Request], names: tuple[str, ...]) -> None:
    for i, (name, request) in enumerate(zip(names, requests, strict=True)):
        assert request.error is None
        assert request.tokens == solo(demo(), arguments(name, i)).tokens, name


@pytest.mark.parametrize("rollback", ROLLS)
@pytest.mark.parametrize("right_at_all", [False, True])
def test_passes_of_rests_overlap(rollback: str, right_at_all: bool) -> None:
    """Wrong drafts are given up, and looked at again now and then."""
    want = plain(demo(), TEXTS["p17"], N, **GREEDY).tokens
    wrong_at = None if right_at_all else 0
    with scripted(right([*TEXTS["p17"], *want], wrong_at)):
        e, queue = engine(speculation(("scripted",), 4, adaptive=True), rollback=rollback)
        with e:
            request = e.submit(**arguments("p17", 0))
            finish(e)
        assert request.tokens == want
        timings = request.result.timings if request.result else {}
        assert timings["draft_skipped"] > 3 and queue.most == 2
        assert timings["draft_n"] > 0


@pytest.mark.parametrize("kind", ["mtp", "draft", "ngram-mod", "mod,mtp"])
def test_requests_that_join_and_leave(kind: str) -> None:
    """Every other one draws with a seed."""
    names = ("p17", "p64", "p3", "p17")
    e, queue = engine(speculation(KINDS[kind], 4, adaptive=True), n_seqs=3)
    with e:
        requests: list[rr.Request] = []
        for i, name in enumerate(names):
            requests.append(e.submit(**arguments(name, i), speculative=i != 2))
            while i < 2 and len(requests[-1].tokens) < 8:
                e.step()
        finish(e)
    require_solo(requests, names)
    assert queue.most == 2


def test_who_is_in_company_that_drafts_ends_what_is_under_way() -> None:
    """One rests, the other begins to draft: both see the right texts."""
    names = ("p17", "p64")
    with scripted(lambda seq, context, limit: [1] * limit):
        e, queue = engine(speculation(("scripted",), 4, adaptive=True), n_seqs=2)
        with e:
            first = e.submit(**arguments("p17", 0))
            while len(first.tokens) < 20:
                e.step()
            other = speculation(KINDS["mtp"], 4)
            second = e.submit(**arguments("p64", 1), speculative=other)
            finish(e)
        require_solo([first, second], names)
        assert queue.most == 2


def test_times_of_passes_that_others_disturb_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[bool] = []
    note = Speculator.note_rest

    def noting(self: Speculator, seqs: Any, company: int, times: Any) -> None:
        noted.append(times is not None)
        note(self, seqs, company, times)

    monkeypatch.setattr(Speculator, "note_rest", noting)
    monkeypatch.setattr(Portions, "tokens", lambda self: MAX_TOKENS)
    with scripted(lambda seq, context, limit: [1] * limit):
        e, queue = engine(speculation(("scripted",), 4, adaptive=True), n_seqs=2, n_ctx=1024)
        with e:
            e.submit(**arguments("p17", 0))
            finish(e)
            assert len(noted) > N / 2 and all(noted)
            first = e.submit(**arguments("p17", 0))
            while len(first.tokens) < 10 or not queue.waiting:
                assert not e.idle
                e.step()
            e.submit(TEXTS["p200"] * 4, 1, speculative=False)
            finish(e)
    # Of a prompt's three passes the first two run behind one that is under way.
    assert noted.count(False) == 2 and len(first.tokens) == N
