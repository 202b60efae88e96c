"""Several requests with drafts at once: each gives what it gives alone and without drafts, whoever
drafts, however drafts are rolled back, and whoever joins meanwhile."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from engine_rig import finish, solo
from rollback_rig import STRATEGIES
from spec_rig import GREEDY, KINDS, TEXTS, plain, right, scripted, speculation

N = 24
NAMES = ("p17", "p64", "p3", "p200")
SEEDED: dict[str, Any] = {"temperature": 0.8, "seed": 5, "ignore_eos": True}


def arguments(name: str, i: int) -> dict[str, Any]:
    """Every other request draws with a seed; lengths differ."""
    how = SEEDED if i % 2 else {**GREEDY, "ignore_eos": True}
    return {"prompt": TEXTS[name], "max_tokens": N + 5 * i, **how}


def joining(engine: rr.Engine, asked: list[Any]) -> list[rr.Request]:
    """Requests that are begun while those before them are in the middle of their texts."""
    requests: list[rr.Request] = []
    for i, (name, spec) in enumerate(zip(NAMES, asked, strict=True)):
        requests.append(engine.submit(**arguments(name, i), speculative=spec))
        while len(requests[-1].tokens) < 3:
            engine.step()
    finish(engine)
    return requests


def require_solo(requests: list[rr.Request]) -> None:
    for i, (name, request) in enumerate(zip(NAMES, requests, strict=True)):
        assert request.result is not None and request.result.finish_reason == "length"
        assert request.tokens == solo(demo(), arguments(name, i)).tokens, name


# N-gram drafters know nothing of rollback, so one strategy each is enough.
NGRAMS = [name for name in KINDS if name.startswith("ngram")]
OTHERS = [name for name in KINDS if name not in NGRAMS]


@pytest.mark.parametrize(
    ("name", "rollback"), [*product(OTHERS, STRATEGIES), *zip(NGRAMS, cycle(STRATEGIES))]
)
def test_every_drafter_serves_requests_that_join(name: str, rollback: str) -> None:
    asked = speculation(KINDS[name], 4)
    with rr.Engine(demo(), n_seqs=4, n_ctx=512, draft_max=4, rollback=rollback) as engine:
        requests = joining(engine, [asked] * 4)
        require_solo(requests)
        times = [r.result.timings for r in requests if r.result]
        assert all(t["draft_rounds"] > 0 for t in times)
        if not name.startswith("ngram"):
            assert all(t["draft_n_accepted"] > 0 for t in times)


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_requests_with_drafters_of_their_own_share_passes(rollback: str) -> None:
    """Drafts of 1, 6, 3 and no tokens in one pass."""
    kinds = [("mtp", 1), ("draft", 6), ("ngram-mod", 3)]
    asked: list[Any] = [speculation(KINDS[name], most) for name, most in kinds]
    with rr.Engine(demo(), n_seqs=4, n_ctx=512, draft_max=6, rollback=rollback) as engine:
        requests = joining(engine, [*asked, None])
        require_solo(requests)
        longest = [len(r.result.timings["draft_accepted_per_position"]) for r in requests[:2]]
        assert longest[0] == 1 and longest[1] == 6


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_drafts_of_unequal_length_and_worth_in_one_pass(rollback: str) -> None:
    """One drafter, that drafts 6, 3, 1 and 5 tokens, of which all, 2, none and 4 are right."""
    texts = {
        i: [*TEXTS[name], *solo(demo(), arguments(name, i)).tokens] for i, name in enumerate(NAMES)
    }

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        limit, wrong_at = min(limit, (6, 3, 1, 5)[seq]), (None, 2, 0, 4)[seq]
        return right(texts[seq], wrong_at)(seq, context, limit)

    with scripted(script):
        asked = speculation(("scripted",), 6)
        with rr.Engine(demo(), n_seqs=4, n_ctx=512, draft_max=6, rollback=rollback) as engine:
            requests = joining(engine, [asked] * 4)
            require_solo(requests)
    rejected = [r.result.timings["draft_rejected"] for r in requests if r.result]
    assert rejected[0] == 0 and rejected[2] > 20


@pytest.mark.parametrize("share", [False, True])
def test_a_text_is_drafted_for_another_request_only_where_that_is_asked_for(share: bool) -> None:
    """The second request repeats the first; its own text repeats nothing."""
    asked = speculation(("ngram-mod",), 3, share_ngrams=share)
    prompt = TEXTS["p64"]
    common = {"ignore_eos": True, **GREEDY}
    want = plain(demo(), prompt, 40, temperature=0.0).tokens
    with rr.Engine(demo(), n_seqs=2, n_ctx=256, spec=asked) as engine:
        first = engine.submit(prompt, 40, **common)
        while len(first.tokens) < 40:
            engine.step()
        second = engine.submit(prompt, 40, **common)
        finish(engine)
        alone = engine.submit(TEXTS["p17"], 40, **common)
        finish(engine)
    assert first.tokens == second.tokens == want
    assert alone.tokens == plain(demo(), TEXTS["p17"], 40, temperature=0.0).tokens
    drafted = [r.result.timings["draft_n_accepted"] for r in (first, second) if r.result]
    assert drafted[1] > drafted[0] if share else drafted[1] == drafted[0]
