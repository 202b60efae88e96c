"""What every n-gram drafter keeps apart and forgets: slots, reuse, rollback, limits, arguments."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace

import pytest
from ngram_rounds import ask, judge, play, text_of
from riverrun.graph.errors import RequestError
from riverrun.speculative.drafter import Ask, Setup, find_drafter
from riverrun.speculative.ngram_cache import NgramCache
from riverrun.speculative.ngram_map_k import NgramMapK
from riverrun.speculative.ngram_map_k4v import NgramMapK4V
from riverrun.speculative.ngram_mod import NgramMod
from riverrun.speculative.ngram_simple import NgramSimple


def mod(share=False):
    return NgramMod(n=4, n_max=6, n_min=2, pool_size=1 << 14, share=share)


MAKERS = {
    "ngram-simple": lambda: NgramSimple(n=3, m=4),
    "ngram-map-k": lambda: NgramMapK(n=3, m=4),
    "ngram-map-k4v": lambda: NgramMapK4V(n=4, m=2),
    "ngram-mod": mod,
    "ngram-cache": lambda: NgramCache(m=4),
}
SHARED = {"shared ngram-mod": lambda: mod(share=True)}
every_unshared = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
both = MAKERS | SHARED
every = pytest.mark.parametrize("make", both.values(), ids=both)


def test_names_and_order():
    found = [find_drafter(name) for name in MAKERS]
    assert [cls.name for cls in found] == list(MAKERS)
    assert [cls.priority for cls in found] == [10, 20, 30, 40, 50]
    assert [cls.default_max for cls in found] == [48, 48, 48, 64, 8]


@pytest.mark.parametrize("name", MAKERS)
def test_a_session_opens_them_with_its_bounds(name):
    model = SimpleNamespace(tokenizer=SimpleNamespace(n_vocab=0), n_vocab=1000)
    bounds = {"target": SimpleNamespace(model=model, n_ctx=2048), "draft_max": 5}
    text = [*range(1000), *range(700, 760)]
    for draft_min, expected in ((5, list(range(760, 765))), (6, [])):
        drafter = find_drafter(name).open(Setup(**bounds, draft_min=draft_min))
        drafter.begin(0, text)
        assert ask(drafter, text) == expected
    drafter = find_drafter(name).open(Setup(**bounds, draft_min=3))
    drafter.begin(0, text, kept=20)
    assert ask(drafter, text, limit=3) == [760, 761, 762]
    assert ask(drafter, text, limit=2) == []


@every
def test_slots_draft_alike_alone_and_together(make):
    text, prompt = text_of(1, 300), 60
    alone = [play(make(), text, prompt, limit=4, seq=seq) for seq in range(4)]
    together, drafter, at = [[] for _ in range(4)], make(), prompt
    for seq in range(4):
        drafter.begin(seq, text[:at])
        drafter.observe(seq, text[:at], None, text[:at])
    while at + 1 < len(text):
        drafts = drafter.draft([Ask(seq, text[: at + 1], 4) for seq in range(4)])
        ends = set()
        for seq, draft in enumerate(drafts):
            together[seq].append(draft.tokens)
            ends.add(judge(drafter, draft.tokens, text, at, seq))
        (at,) = ends
    assert any(alone[0])
    assert all(drafts == alone[0] for drafts in [*alone, *together])


@every_unshared
def test_other_sequences_change_nothing(make):
    texts = [text_of(seed, 250, alphabet=2 + seed) for seed in range(4)]
    alone = [play(make(), text, 40, limit=4) for text in texts]
    together, drafter, at = [[] for _ in texts], make(), [40] * 4
    rng = random.Random(0)
    for seq, text in enumerate(texts):
        drafter.begin(seq, text[:40])
        drafter.observe(seq, text[:40], None, text[:40])
    while live := [s for s in range(4) if at[s] + 1 < len(texts[s])]:
        seq = rng.choice(live)
        draft = ask(drafter, texts[seq][: at[seq] + 1], 4, seq)
        together[seq].append(draft)
        at[seq] = judge(drafter, draft, texts[seq], at[seq], seq)
    assert together == alone


@every
@pytest.mark.parametrize("how", ["begin", "clear"])
def test_a_reused_slot_is_a_fresh_one(make, how):
    old, new = text_of(1, 200), text_of(1, 100) + text_of(2, 150)
    drafter, fresh = make(), make()
    play(drafter, old, 50, limit=4)
    if make is SHARED["shared ngram-mod"]:
        drafter.forget()
    if how == "clear":
        drafter.clear(0)
        fresh.observe(0, new[:120], None, new[:120])
        drafter.observe(0, new[:120], None, new[:120])
        assert ask(drafter, new[:121]) == ask(fresh, new[:121])
    assert play(drafter, new, 120, limit=4) == play(fresh, new, 120, limit=4)


@every_unshared
@pytest.mark.parametrize("seed", range(5))
def test_after_a_rollback_the_draft_is_a_fresh_drafter_s(make, seed):
    rng = random.Random(seed)
    drafter, text, p, found = make(), text_of(seed, 400), 100, 0
    for _ in range(60):
        p = judge(drafter, ask(drafter, text[: p + 1], 4), text, p)
        p -= rng.randrange(1, p // 2)
        text = text[:p] + text_of(rng.randrange(9), 400 - p)
        again = ask(drafter, text[: p + 1], 4)
        assert again == ask(make(), text[: p + 1], 4)
        found += bool(again)
        p = min(p + rng.randrange(100), 350)
    assert found


@every
def test_a_prompt_observed_in_pieces_is_the_same_as_whole(make):
    text = text_of(5, 300)
    whole, pieces = make(), make()
    for drafter, step in ((whole, 300), (pieces, 37)):
        drafter.begin(0, text)
        for at in range(0, 300, step):
            drafter.observe(0, text[at : at + step], None, text[: at + step])
    for newest in range(3):
        assert ask(whole, [*text, newest]) == ask(pieces, [*text, newest])


@every
def test_rejected_drafts_leave_no_trace(make):
    text = text_of(3, 260)
    asked, quiet = make(), make()
    for drafter in (asked, quiet):
        drafter.begin(0, text[:50])
    for p in range(50, 259):
        if p > 200:
            assert ask(asked, text[: p + 1], 4) == ask(quiet, text[: p + 1], 4)
        else:
            ask(asked, text[: p + 1], 4)
            ask(asked, text[: p + 1], 2)
        for drafter in (asked, quiet):
            drafter.observe(0, text[p : p + 1], None, text[: p + 1])


@every
def test_drafts_keep_to_the_limit_and_are_cut_not_changed(make):
    text, cut = text_of(7, 300), 0
    drafter = make()
    for p in range(100, 299):
        full = ask(drafter, text[: p + 1], 64)
        for limit in (1, 2, 3, 5):
            assert ask(drafter, text[: p + 1], limit) == full[:limit]
            cut += len(full) > limit
    assert cut


@every
def test_contexts_are_not_kept(make):
    class Context(list):
        pass

    text = text_of(4, 200)
    drafter = make()
    drafter.begin(0, prompt := Context(text[:150]))
    drafter.observe(0, [], None, committed := Context(text[:150]))
    drafter.draft([Ask(0, asked := Context(text[:151]), 4)])
    kept = [weakref.ref(c) for c in (prompt, committed, asked)]
    del prompt, committed, asked
    gc.collect()
    assert [r() for r in kept] == [None] * 3


@every
def test_short_contexts_are_fine(make):
    drafter = make()
    for n in range(1, 30):
        ask(drafter, list(range(n)), 4)
        assert ask(make(), list(range(n)), 4) == []
    drafter.observe(0, [], None, [])
    drafter.accept(1, 3, 0)
    drafter.clear(5)
    assert drafter.draft([]) == []


@every
def test_forget_leaves_a_fresh_drafter(make):
    text = text_of(1, 200)
    drafter = make()
    first = play(drafter, text, 50)
    drafter.forget()
    assert play(drafter, text, 50) == first
    assert any(first)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (NgramSimple, ["n", "m", "draft_max"]),
        (NgramMapK, ["n", "m", "draft_max"]),
        (NgramMapK4V, ["n", "m", "min_hits", "draft_max"]),
        (NgramMod, ["n", "n_max", "pool_size", "draft_max"]),
        (NgramCache, ["m", "n_vocab", "draft_max"]),
    ],
)
def test_arguments_out_of_range(cls, names, value):
    for name in names:
        more = {"n_min": 0} if name == "n_max" else {}
        with pytest.raises(RequestError, match=f"{name} .*at least 1, got {value!r}"):
            cls(**more, **{name: value})
    if value != 0:
        with pytest.raises(RequestError, match=f"draft_min .*at least 0, got {value!r}"):
            cls(draft_min=value)
