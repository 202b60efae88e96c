"""Drafts that are far: passes give no hidden rows then, the block goes on behind what it has not
seen, and what pays is looked at early enough that a device does not wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from ahead_rig import LatePools, late
from demo import demo
from engine_rig import finish
from model_drafts import DRAW, Duet, same
from riverrun.engine.ahead import Ahead
from riverrun.engine.sequences import Sequences
from riverrun.models.step import NEXT_TOKEN
from riverrun.speculative.adaptive import Budget, Length, Times
from riverrun.speculative.drafter import Ask
from riverrun.speculative.mtp import Mtp
from riverrun.speculative.resting import ROWS_BEFORE
from spec_rig import GREEDY, TEXTS, plain, right, scripted, speculation

N = 120
IDS = TEXTS["p200"]


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes take as long as they have tokens, so that no draft pays, and rounds nothing beside."""
    note = Times.note
    monkeypatch.setattr(Times, "note", lambda self, n, _, k=1: note(self, n, float(n), k))
    monkeypatch.setattr(Times, "note_beside", lambda *_: None)


def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Of each pass that chooses tokens: its sequences, and whether it gives hidden rows."""
    found: list[tuple[int, bool]] = []
    start = Ahead._start

    def noting(self: Ahead, requests: Any) -> None:
        start(self, requests)
        found.append((len(requests), "hidden" in self._flying[-1].plan.bound.outputs))

    monkeypatch.setattr(Ahead, "_start", noting)
    return found


@pytest.mark.parametrize("n_seqs", [1, 3])
@pytest.mark.parametrize("device", ["processor", "late"])
def test_rows_are_given_while_drafts_are_near(
    monkeypatch: pytest.MonkeyPatch, costly: None, n_seqs: int, device: str
) -> None:
    """Between tries that do not pay; each try finds rows, and the text is that without drafts."""
    model = demo() if device == "processor" else late(demo())[0]
    found = passes(monkeypatch)
    names = ("p17", "p64", "p3")[:n_seqs]
    asked = speculation(("mtp",), 4, adaptive=True)
    with rr.Engine(model, n_seqs=n_seqs, n_ctx=512, spec=asked) as engine:
        requests = [engine.submit(TEXTS[n], N, ignore_eos=True, **GREEDY) for n in names]
        finish(engine)
        again = engine.submit(TEXTS[names[0]], N, ignore_eos=True, **GREEDY)
        finish(engine)
    for name, request in zip((*names, names[0]), (*requests, again), strict=True):
        assert request.tokens == plain(demo(), TEXTS[name], N, **GREEDY).tokens
    drafted = sum(r.result.timings["draft_n"] for r in (*requests, again) if r.result)
    assert drafted > 0
    rows = [given for n, given in found if n == n_seqs]
    assert rows.count(False) > len(rows) / 4 and rows.count(True) > ROWS_BEFORE


def test_a_prompt_is_not_read_along_while_drafts_are_far(
    monkeypatch: pytest.MonkeyPatch, costly: None
) -> None:
    """A drafter that wakes drafts all the same, from what it sees from then on."""
    asked = speculation(("mtp",), 4, adaptive=True)
    monkeypatch.setattr(Length, "far", lambda self, n: 99)
    with rr.Engine(demo(), n_seqs=1, n_ctx=512, spec=asked) as engine:
        request = engine.submit(TEXTS["p64"], N, ignore_eos=True, **GREEDY)
        while len(request.tokens) < 9:
            engine.step()
        (mtp,) = request.drafting.drafters  # type: ignore[union-attr]
        assert mtp.session.length() == 0
        monkeypatch.setattr(Length, "far", lambda self, n: 0)
        monkeypatch.setattr(Length, "choose", lambda self, n=1: 2)
        finish(engine)
    assert request.tokens == plain(demo(), TEXTS["p64"], N, **GREEDY).tokens
    assert request.result is not None
    timings = request.result.timings
    # In the first round it is asked for drafts without a row to start from.
    assert timings["draft_empty"] == 1 and timings["draft_n_accepted"] > 10


def observe(drafter: Mtp, parts: Sequence[tuple[range, np.ndarray | None]]) -> None:
    seen: list[int] = []
    for tokens, rows in parts:
        seen += [IDS[i] for i in tokens]
        drafter.observe(0, [IDS[i] for i in tokens], rows, seen)


@pytest.mark.parametrize("waiting", [0, 5])
def test_the_block_goes_on_behind_a_gap(waiting: int) -> None:
    """As if what nobody kept rows of, and the first token behind it, were not there."""
    rows = np.random.default_rng(3).normal(size=(60, demo().source.arch.hp.n_embd))
    rows = rows.astype(np.float32)
    target = Duet.of(demo(), Mtp).target
    gap, whole = Mtp(target), Mtp(target)
    for drafter in (gap, whole):
        drafter.begin(0, IDS[:60])
    # What waits for a draft when the gap begins is left out, too.
    first = range(30)
    observe(gap, [(first, rows[:30])])
    gap._catch_up(0, 0)
    gap_parts = [(range(30, 30 + waiting), rows[30 : 30 + waiting])] if waiting else []
    observe(gap, [*gap_parts, (range(30 + waiting, 50), None)])
    newest = IDS[60]
    assert gap.draft([Ask(0, [*IDS[:50], newest], 3)])[0].tokens == []
    observe(gap, [(range(50, 60), rows[50:60])])

    observe(whole, [(first, np.concatenate([rows[:29], rows[50:51]]))])
    observe(whole, [(range(51, 60), rows[51:60])])
    got, want = (d.draft([Ask(0, [*IDS[:60], newest], 3, DRAW)])[0] for d in (gap, whole))
    same(got, want)
    assert gap.session.tokens()[:39] == [*IDS[:30], *IDS[51:60]]


def test_going_back_over_a_gap() -> None:
    """To where the block knows the text, and to where it does not."""
    d = Duet.of(demo(), Mtp)
    newest = d.prompt(IDS[:40])
    d.drafter._catch_up(0, 0)  # type: ignore[attr-defined]
    d.target.evaluate([(0, [newest, *IDS[40:60]])])
    d.drafter.observe(0, IDS[40:61], None, [*d.text[0], newest, *IDS[40:60]])
    for kept, held in ((35, 35), (0, 0)):
        d.drafter.begin(0, IDS[:70], kept)
        assert d.drafter.session.length() == held  # type: ignore[attr-defined]
        assert len(d.drafter.draft([Ask(0, [*IDS[:kept], 5], 3)])[0].tokens) == 3


def test_backlogs_are_read_in_shared_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of prompts' ends that nobody has read; drafts are those that each sequence has alone."""
    n_seqs, length = 4, 40
    d = Duet.of(demo(), Mtp, n_seqs)
    prompts = [IDS[9 * seq : 9 * seq + length] for seq in range(n_seqs)]
    newest = {seq: d.prompt(prompts[seq], seq) for seq in range(n_seqs)}
    assert [d.drafter.session.length(seq) for seq in newest] == [0] * n_seqs  # type: ignore[attr-defined]
    made: list[int] = []
    run = Sequences._run
    monkeypatch.setattr(
        Sequences, "_run", lambda self, *a, **k: (made.append(a[3]), run(self, *a, **k))[1]
    )
    drafts = d.drafts(newest, 3, DRAW)
    # At most 15 pairs of each go along in the first pass of the drafts.
    assert made == [n_seqs * 16, n_seqs * 9, n_seqs * 16, n_seqs, n_seqs]
    for seq, draft in enumerate(drafts):
        alone = Duet.of(demo(), Mtp)
        alone.prompt(prompts[seq])
        same(draft, alone.drafts({0: newest[seq]}, 3, DRAW)[0])


def test_newest_tokens_go_to_the_device_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = LatePools.write

    def noting(self: LatePools, name: str, at: Any, values: Any) -> None:
        if name == NEXT_TOKEN:
            written.append(len(values))
        write(self, name, at, values)

    monkeypatch.setattr(LatePools, "write", noting)
    texts = [IDS[at : at + 9] for at in (0, 20, 40)]
    with scripted(lambda seq, context, limit: [1] * (len(context) % 8 == 0)):
        spec = speculation(("scripted",), 4)
        with rr.Engine(late(demo())[0], n_seqs=4, n_ctx=256, draft_max=4, spec=spec) as engine:
            requests = [engine.submit(text, 30, ignore_eos=True, **GREEDY) for text in texts]
            finish(engine)
    for text, request in zip(texts, requests, strict=True):
        assert request.tokens == plain(demo(), text, 30, **GREEDY).tokens
    # Behind a round of the host's, and as each begins to decode.
    assert written.count(3) >= 2 and len(written) < 30


def test_looks_keep_a_device_busy(monkeypatch: pytest.MonkeyPatch, costly: None) -> None:
    """Only rounds with drafts begin with nothing under way."""
    model, _ = late(demo())
    idle: list[bool] = []
    start = Ahead._start
    monkeypatch.setattr(
        Ahead,
        "_start",
        lambda self, requests: (idle.append(not self._flying), start(self, requests)),
    )
    looks: list[int] = []
    look = Length._look
    monkeypatch.setattr(Length, "_look", lambda self, n: (looks.append(n), look(self, n))[1])
    want = plain(demo(), TEXTS["p17"], N, **GREEDY).tokens
    with scripted(right([*TEXTS["p17"], *want], 0)):
        asked = speculation(("scripted",), 4, adaptive=True)
        with rr.Engine(model, n_seqs=1, n_ctx=512, draft_max=4, spec=asked) as engine:
            request = engine.submit(TEXTS["p17"], N, ignore_eos=True, **GREEDY)
            finish(engine)
    assert request.tokens == want and request.result is not None
    timings = request.result.timings
    tries = timings["draft_rounds"] - timings["draft_skipped"]
    assert 0 < tries < 8 and len(looks) > 8 + tries
    assert idle.count(True) <= 1 + tries


def test_distance_of_drafts() -> None:
    times, budget = Times(), Budget()
    length = Length(times, budget, 3)
    assert length.far(8) == 0  # nothing is known
    for n in (8, 16, 32):
        for _ in range(4):
            times.note(n, n**0.5)
    budget.spend(2)
    far = length.far(8)
    assert far >= 50
    budget.earn(10)
    assert length.far(8) == far - 10
    assert length.far(1) == 0 and length.far(64) > 0
    budget.earn(200)
    assert length.far(8) == 0
