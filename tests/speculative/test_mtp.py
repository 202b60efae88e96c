"""The mtp drafter: first drafts, equality with a fresh drafter, its invariant, its draws."""

from __future__ import annotations

import random

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from golden_rig import MARGINS
from model_drafts import DRAW, Duet, fresh, same, same_as_fresh
from paths import DATA, DEMO
from riverrun.graph.errors import RequestError
from riverrun.speculative import Speculation
from riverrun.speculative.drafter import Ask, Setup
from riverrun.speculative.mtp import RECENT, Mtp

ARRAYS = np.load(DATA / "golden.npz")
IDS = PROMPTS["p200"]["ids"]
TEXT = IDS + PROMPTS["p200"]["greedy"]
UNSEEN = """import os
import sys


class Reader:
    def __init__(self, path, mode="r"):
        self.path = path
        self.mode = mode
        self._file = None

    def open(self):
        if self._file is None:
            self._file = open(self.path, self.mode)
        return self._file

    def close(self):
        if self._file is not None:
            self._file.close()
            self._file = None


def main(argv=None):
    args = parse_args(argv)
    if args.verbose:
        print("reading", args.path, file=sys.stderr)
    with Reader(args.path) as reader:
        for line in reader.open():
            sys.stdout.write(line)
    return 0
"""


def duet(n_seqs: int = 1, n_ctx: int = 512) -> Duet:
    return Duet.of(demo(), Mtp, n_seqs, n_ctx)


def check(d: Duet, newest: int, seq: int = 0) -> None:
    invariant(d)
    same_as_fresh(demo(), Mtp, d, newest, seq)


def invariant(d: Duet) -> None:
    """Block memory and backlog are the committed text; nothing is pending."""
    assert isinstance(d.drafter, Mtp)
    for seq, text in enumerate(d.text):
        session, backlog = d.drafter.session, d.drafter._backlog[seq]
        assert session.tokens(seq) + backlog.tokens == text == d.target.tokens(seq)
        assert sum(map(len, backlog.rows(len(text) + 1))) == len(backlog.tokens) + 1
        assert session.memory.pending(seq) == 0


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("kind", ["bf16", "q8_0"])
def test_first_draft_is_golden(kind: str, name: str) -> None:
    m, p = demo("cpu", kind), PROMPTS[name]
    d = Duet.of(m, Mtp)
    d.prompt(p["ids"])
    first, second = d.drafts({0: p["greedy"][0]}, 2)[0].tokens
    row = ARRAYS[f"{name}.mtp_logits"]
    # Any of those within rounding of the best, which for one prompt are two.
    assert row[first] > row.max() - MARGINS[kind]
    if first == row.argmax():
        chained = ARRAYS[f"{name}.mtp2_logits"]
        assert chained[second] > chained.max() - MARGINS[kind]


def test_agrees_with_the_target_as_often_as_trained() -> None:
    """Along text the model did not write; the chance of a first draft is 0.77 in long runs."""
    text = demo().tokenize(UNSEEN)
    hits = agreement(text, prompt=8)
    assert len(hits) > 120
    assert sum(h >= 1 for h in hits) / len(hits) > 0.6


def agreement(text: list[int], prompt: int) -> list[int]:
    """At every position of a text, how many of three drafts are the target's own choice."""
    d, hits = duet(), []
    d.prompt(text[:prompt])
    for newest in text[prompt:]:
        drafts = d.drafts({0: newest}, 3)[0].tokens
        found = d.target.verify([(0, [newest, *drafts])], sure=[1], hidden=True)
        best = found.logits.argmax(-1).tolist()
        hits.append(next((i for i in range(3) if drafts[i] != best[i]), 3))
        d.target.commit(0, 1)
        d._observe(0, [newest], found.hidden[:1].copy())
    return hits


@pytest.mark.parametrize("n", [1, 2, 31, 33, 100, 200])
def test_after_a_prompt(n: int) -> None:
    d = duet()
    check(d, d.prompt(IDS[:n]))


@pytest.mark.parametrize(
    "rounds",
    [
        [(3, 0)],
        [(3, 0)] * 5,
        [(3, 3)] * 5,
        [(1, 1), (4, 2), (3, 0), (2, 2), (4, 1)],
        [(0, 0)] * 6,
        [(3, 2), *[(0, 0)] * 40, (3, 1)],
    ],
    ids=["none", "never", "all", "some", "no drafts", "long pause"],
)
def test_after_rounds(rounds: list[tuple[int, int]]) -> None:
    """(drafts asked for, drafts kept), whatever the target thinks of them."""
    d = duet()
    newest = d.prompt(IDS[:50])
    for limit, keep in rounds:
        newest = d.round(newest, limit, keep)
        invariant(d)
    check(d, newest)


def test_without_being_asked_it_does_not_read_along() -> None:
    d = duet()
    newest = d.round(d.prompt(IDS[:50]), 3, 1)
    held = d.drafter.session.length()
    for _ in range(100):
        newest = d.round(newest, 0, 0)
        invariant(d)
    assert d.drafter.session.length() == held
    check(d, newest)


def test_long_pause_beyond_a_pass() -> None:
    """600 tokens from elsewhere, 64 a round, before the next draft."""
    d = duet(n_ctx=1024)
    newest = d.prompt(IDS[:10])
    rng = random.Random(1)
    for _ in range(10):
        guessed = [rng.randrange(6000) for _ in range(60)]
        found = d.target.evaluate([(0, [newest, *guessed])], want="all", hidden=True)
        hidden = found.hidden.copy()
        d._observe(0, [newest, *guessed], hidden)
        newest = int(found.logits[-1].argmax())
    d2 = Duet.of(demo(), Mtp, n_ctx=1024)
    d2.prompt(d.text[0])
    same(d.drafts({0: newest}, 3, DRAW)[0], d2.drafts({0: newest}, 3, DRAW)[0])
    invariant(d)


@pytest.mark.parametrize("back", ["the end", "inside the window", "an earlier chunk", "nothing"])
def test_prompt_reuse(back: str) -> None:
    d = duet(n_ctx=1200)
    first = (TEXT * 5)[:1100] if back == "an earlier chunk" else TEXT[:120]
    newest = d.prompt(first)
    for _ in range(4):
        newest = d.round(newest, 3, 3)
    text = d.text[0]
    parts = {"the end": len(text), "inside the window": len(text) - 2}
    shared = parts | {"an earlier chunk": 700, "nothing": 0}
    prompt = [*text[: shared[back]], 5, 6, *IDS[:30]]
    kept = d.target.reuse(prompt)
    assert kept == parts.get(back, 512 if back == "an earlier chunk" else 0)
    newest = d.prompt(prompt, kept=kept)
    invariant(d)
    want = Duet.of(demo(), Mtp, n_ctx=1200)
    want.prompt(prompt)
    same(d.drafts({0: newest}, 3, DRAW)[0], want.drafts({0: newest}, 3, DRAW)[0])


def test_many_turns() -> None:
    """Marks of a hundred rounds and of several prompts; each turn goes on from the one before."""
    d = duet(n_ctx=2048)
    text: list[int] = []
    for turn in range(4):
        prompt = text + IDS[turn * 20 : turn * 20 + 90]
        kept = d.target.reuse(prompt)
        assert kept == len(text)
        newest = d.prompt(prompt, kept=kept)
        for i in range(30):
            newest = d.round(newest, 3, i % 4)
        invariant(d)
        text = list(d.text[0])
    kept = d.target.reuse([*text[:95], 1, 2, 3])
    assert 80 <= kept <= 90
    newest = d.prompt([*text[:95], 1, 2, 3], kept=kept)
    check(d, newest)


def test_row_before_is_not_known() -> None:
    """Going back further than rows are kept: zeros take the row's place, and drafts go on."""
    d = duet()
    d.prompt(IDS)
    assert isinstance(d.drafter, Mtp)
    d.target.clear()
    kept = len(IDS) - RECENT - 3
    d.target.prefill(IDS[:kept])
    newest = d.prompt([*IDS[:kept], 9, 8], kept=kept)
    invariant(d)
    assert len(d.drafts({0: newest}, 3)[0].tokens) == 3


def test_target_went_on_without_the_drafter() -> None:
    d = duet()
    d.target.prefill(IDS[:40])
    newest = d.prompt(IDS[:60], kept=40)
    assert isinstance(d.drafter, Mtp)
    assert len(d.drafts({0: newest}, 3)[0].tokens) == 3
    d.clear()
    check(d, d.prompt(IDS[:60]))


def test_slot_is_used_again() -> None:
    d = duet()
    newest = d.prompt(IDS[:60])
    for _ in range(3):
        newest = d.round(newest, 4, 1)
    d.clear()
    invariant(d)
    check(d, d.prompt(IDS[20:90]))


def test_slots_alone_and_together() -> None:
    """Every slot drafts the same behind the same text, alone and beside the others."""
    texts = [IDS[:70], IDS[5:40], IDS[100:190], IDS[:70]]
    together = duet(n_seqs=4)
    newest = {seq: together.prompt(text, seq) for seq, text in enumerate(texts)}
    for _ in range(6):
        drafts = together.drafts(newest, 3)
        items = {s: [newest[s], *d.tokens] for s, d in zip(newest, drafts, strict=True)}
        best = together.verify(items, {s: (s + len(items[s])) % 4 % len(items[s]) for s in items})
        newest = dict(zip(newest, best, strict=True))
        invariant(together)
    found = together.drafts(newest, 3, DRAW)
    for seq in newest:
        same(found[seq], fresh(demo(), Mtp, together.text[seq], newest[seq]))


def test_acceptance_is_the_same_in_every_slot() -> None:
    """The same prompt in four slots, one after the other and all at once."""

    def play(d: Duet, slots: list[int]) -> list[int]:
        newest = {seq: d.prompt(IDS[:64], seq) for seq in slots}
        accepted = [0] * len(slots)
        for _ in range(25):
            drafts = {s: x.tokens for s, x in zip(newest, d.drafts(newest, 3), strict=True)}
            items = {s: [newest[s], *drafts[s]] for s in slots}
            found = d.target.verify(list(items.items()), sure=[1] * len(slots), hidden=True)
            best, hidden = found.logits.argmax(-1), found.hidden.copy()
            for i, s in enumerate(slots):
                mine = best[4 * i : 4 * i + 4].tolist()
                n = next((j for j in range(3) if drafts[s][j] != mine[j]), 3)
                accepted[i] += n
                d.target.commit(s, n + 1)
                d._observe(s, items[s][: n + 1], hidden[4 * i : 4 * i + n + 1])
                newest[s] = mine[n]
        return accepted

    d = duet(n_seqs=4)
    alone = [play(d, [seq])[0] for seq in range(4)]
    for seq in range(4):
        d.clear(seq)
    together = play(d, [0, 1, 2, 3])
    assert len(set(alone + together)) == 1
    assert alone[0] > 25


def test_unequal_limits() -> None:
    d = duet(n_seqs=3)
    newest = {seq: d.prompt(IDS[: 30 + 7 * seq], seq) for seq in range(3)}
    asks = [
        *d.drafts({0: newest[0]}, 1, DRAW),
        *d.drafts({1: newest[1]}, 5, DRAW),
        *d.drafts({2: newest[2]}, 2, DRAW),
    ]
    limits = (1, 5, 2)
    mixed = d.drafter.draft([Ask(s, [*d.text[s], newest[s]], limits[s], DRAW) for s in range(3)])
    assert [len(x.tokens) for x in mixed] == [1, 5, 2]
    for got, want in zip(mixed, asks, strict=True):
        same(got, want)
    invariant(d)


def test_500_rounds() -> None:
    rng = random.Random(5)
    d = duet(n_ctx=4096)
    newest = d.prompt(IDS[:20])
    for _ in range(500):
        limit = rng.choice((0, 1, 2, 3, 4, 6, 8))
        newest = d.round(newest, limit, rng.randint(0, limit))
        invariant(d)
    want = Duet.of(demo(), Mtp, n_ctx=4096)
    want.prompt(d.text[0])
    same(d.drafts({0: newest}, 3, DRAW)[0], want.drafts({0: newest}, 3, DRAW)[0])


@pytest.mark.parametrize("at", [0, 1, 2])
def test_failing_pass(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The at-th pass of a draft for three sequences, of which one is complete after the first."""
    d = duet(n_seqs=3)
    newest = {seq: d.prompt(IDS[: 40 + seq], seq) for seq in range(3)}
    assert isinstance(d.drafter, Mtp)
    verify, calls = d.drafter.session.verify, 0

    def failing(*args: object, **more: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise MemoryError("planted")
        return verify(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(d.drafter.session, "verify", failing)
    limits = (1, 4, 4)
    asks = [Ask(s, [*d.text[s], newest[s]], limits[s]) for s in range(3)]
    with pytest.raises(MemoryError):
        d.drafter.draft(asks)
    invariant(d)
    for seq in range(3):
        check(d, newest[seq], seq)


def test_p_min_and_draft_min() -> None:
    m = demo()
    free = Duet.of(m, Mtp)
    newest = free.prompt(IDS[:80])
    full = free.drafts({0: newest}, 6)[0].tokens
    shares = greedy_shares(full, newest)
    cut = sorted(shares)[2]
    keep = next((i for i, p in enumerate(shares) if p < cut), len(shares))
    for p_min, want in ((0.0, 6), (cut, keep), (1.0, 0)):
        d = Duet.of(m, lambda t, p=p_min: Mtp(t, p_min=p))
        assert d.prompt(IDS[:80]) == newest
        assert d.drafts({0: newest}, 6)[0].tokens == full[:want]
        invariant(d)
    for least, want in ((6, 6), (7, 0)):
        d = Duet.of(m, lambda t, n=least: Mtp(t, draft_min=n))
        d.prompt(IDS[:80])
        assert d.drafts({0: newest}, 6)[0].tokens == full[:want]
        invariant(d)
        assert d.drafts({0: newest}, 8)[0].tokens[:6] == full


def greedy_shares(tokens: list[int], newest: int) -> list[float]:
    """Each token's share among the ten likeliest, from the block's own logits."""
    d = duet()
    d.prompt(IDS[:80])
    assert isinstance(d.drafter, Mtp)
    d.drafter._catch_up(0, 0)
    session, (row,) = d.drafter.session, d.drafter._backlog[0].rows(1)
    shares = []
    for before, token in zip([newest, *tokens], tokens, strict=False):
        found = session.evaluate([(0, [before])], hidden=True, extra={"hidden_in": [row]})
        top = np.sort(found.logits[0].astype(np.float64))[-10:]
        assert int(found.logits[0].argmax()) == token
        shares.append(float(1 / np.exp(top - top[-1]).sum()))
        assert found.hidden is not None
        row = found.hidden.copy()
    return shares


@pytest.mark.parametrize("n", [1, 300, 6144])
def test_reduced_head(n: int) -> None:
    """Drafts come from the first n tokens alone, and the text stays what it was."""
    m = rr.load(DEMO, device="cpu", draft_head=n)
    d = Duet.of(m, lambda t: Mtp(t, draft_head=True))
    newest = d.prompt(IDS[:60])
    for i in range(8):
        drafts = d.drafts({0: newest}, 4, DRAW if i % 2 else None)[0].tokens
        assert max(drafts) < n
        newest = d.verify({0: [newest, *drafts]}, {0: i % 3})[0]
        invariant(d)
    plain = demo().generate(IDS[:60], 60, temperature=0, ignore_eos=True).result.tokens
    asked = Speculation(("mtp",), draft_head=True, adaptive=False)
    got = m.generate(IDS[:60], 60, temperature=0, ignore_eos=True, speculative=asked).result
    assert got.tokens == plain
    assert got.timings["draft_n"] > 0


def test_reduced_head_has_to_be_loaded() -> None:
    with pytest.raises(RequestError, match="without a draft head; load it with draft_head=N"):
        Mtp.open(Setup(demo().session(64, n_rs_seq=4).sequences, draft_head=True))
