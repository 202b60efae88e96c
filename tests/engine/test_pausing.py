"""Requests that share fewer pages than all of them could fill: each gives what it gives alone,
though it may have to wait, or be paused and evaluated again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import riverrun as rr
from ahead_rig import late
from engine_rig import finish
from interrupts import lines
from riverrun.engine.request import Request
from riverrun.engine.sequences import Sequences
from riverrun.graph.errors import RequestError
from rollback_rig import STRATEGIES, stream, tiny
from spec_rig import speculation

N_CTX = 1024  # four pages
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
# Prompts and numbers of tokens: texts of one to four pages, which grow by a page or two.
ASKED: list[tuple[int, int, dict[str, Any]]] = [
    (240, 60, GREEDY),
    (600, 250, GREEDY),
    (30, 230, {"temperature": 0.9, "seed": 4, "ignore_eos": True}),
    (250, 40, GREEDY | {"repeat_penalty": 1.2}),
    (505, 30, {"temperature": 1.2, "top_k": 0, "seed": 9, "ignore_eos": True}),
    (760, 10, GREEDY),
    (100, 160, GREEDY | {"logprobs": 1}),
]


@cache
def alone(variant: str, i: int) -> rr.Result:
    n, more, options = ASKED[i]
    return tiny(variant).generate(stream(i, n), more, n_ctx=N_CTX, **options).result


def engine(variant: str, n_seqs: int = 4, pages: int = 5, **options: Any) -> rr.Engine:
    return rr.Engine(tiny(variant), n_seqs=n_seqs, n_ctx=N_CTX, n_ctx_total=256 * pages, **options)


def submit(e: rr.Engine, speculative: Any = None, only: range | None = None) -> dict[int, Request]:
    return {
        i: e.submit(stream(i, ASKED[i][0]), ASKED[i][1], speculative=speculative, **ASKED[i][2])
        for i in only or range(len(ASKED))
    }


def require_alone(variant: str, asked: dict[int, Request]) -> int:
    """All gave what they give alone; how often they were paused."""
    for i, request in asked.items():
        want = alone(variant, i)
        assert request.result is not None and request.result.error == ""
        assert request.tokens == want.tokens and request.text == want.text
        assert request.result.logprobs == want.logprobs
        assert request.result.timings.get("paused_n", 0) == request.timings.paused_n
        assert request.result.timings["prompt_n"] == len(request.prompt)
    return sum(request.timings.paused_n for request in asked.values())


def require_empty_pools(e: rr.Engine) -> None:
    for seq in range(e.session.n_seqs):
        e.sequences.clear(seq)
    for part in e.session.memory.parts:
        if hasattr(part, "pages"):
            assert part.pages.free == part.pages.n


@pytest.mark.parametrize("drafts", ["none", "ngram-mod"])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen35"])
def test_with_a_third_of_the_pages_every_answer_is_the_same(variant: str, drafts: str) -> None:
    spec = None if drafts == "none" else speculation((drafts,), 4)
    with engine(variant, draft_max=4) as e:
        asked = submit(e, spec)
        pieces = {request: "" for request in asked.values()}
        while not e.idle:
            for request, more, _ in e.step():
                pieces[request] += "".join(more)
        assert require_alone(variant, asked) > 0
        assert all(pieces[request] == request.text for request in pieces)
        require_empty_pools(e)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_every_kind_of_rollback(strategy: str) -> None:
    with engine("qwen35", rollback=strategy, draft_max=4) as e:
        asked = submit(e, speculation(("ngram-mod",), 4), range(5))
        finish(e)
        assert require_alone("qwen35", asked) > 0
        for request in asked.values():
            assert request.result is not None
            rounds = request.result.timings["draft_rounds"]
            assert request.timings.predicted_n - 1 <= rounds + request.result.timings["draft_n"]
            assert rounds >= 1


def test_with_the_models_own_drafts() -> None:
    with engine("qwen35,mtp", draft_max=3) as e:
        asked = submit(e, speculation(("mtp",), 3), range(5))
        finish(e)
        assert require_alone("qwen35,mtp", asked) > 0


@pytest.mark.parametrize("variant", ["llama", "qwen35"])
def test_passes_that_run_ahead_are_waited_for(variant: str) -> None:
    model, queue = late(tiny(variant))
    with rr.Engine(model, n_seqs=4, n_ctx=N_CTX, n_ctx_total=5 * 256) as e:
        asked = submit(e)
        finish(e)
        assert queue.most == 2
        assert require_alone(variant, asked) > 0


def test_drafts_are_shortened_before_anyone_is_paused() -> None:
    """Two texts at the ends of their pages, with one page between them for one token each."""
    with engine("llama", n_seqs=2, pages=4, draft_max=8) as e:
        asked: Any = speculation(("ngram-simple",), 8)
        loop = [7, 8, 9, 10] * 63
        one = e.submit(loop[:250], 8, speculative=asked, **GREEDY)
        two = e.submit(loop[:252], 4, speculative=asked, **GREEDY)
        finish(e)
        for request in (one, two):
            assert request.timings.paused_n == 0
            n = request.options.max_tokens
            want = tiny("llama").generate(request.prompt, n, n_ctx=N_CTX, **GREEDY).result
            assert request.tokens == want.tokens


def test_what_nobody_is_at_work_on_goes_first() -> None:
    with engine("llama", n_seqs=3, pages=5) as e:
        old = [e.submit(stream(40 + i, 300), 2, **GREEDY) for i in range(2)]
        finish(e)
        held = [e.sequences.length(seq) for seq in range(3)]
        assert sorted(held) == [0, 302, 302]
        new = e.submit(stream(0, 240), 60, **GREEDY)
        finish(e)
        assert [e.sequences.length(r.seq) for r in old] == [0, 302]
        more = e.submit(stream(50, 700), 100, **GREEDY)
        finish(e)
        assert e.sequences.length(more.seq) == 800
        assert not (new.timings.paused_n or more.timings.paused_n)
        assert new.tokens == alone("llama", 0).tokens


def test_requests_are_admitted_in_their_order_as_pages_allow() -> None:
    with engine("llama", n_seqs=3, pages=4) as e:
        first = e.submit(stream(1, 600), 4, **GREEDY)
        second = e.submit(stream(2, 600), 4, **GREEDY)
        small = e.submit(stream(3, 20), 4, **GREEDY)
        while first.result is None:
            e.step()
            assert second.seq == small.seq == -1
        finish(e)
        assert second.result is not None and small.result is not None


@pytest.mark.parametrize("steps", range(0, 480, 37))
def test_cancelling_leaves_the_others_as_they_were(steps: int) -> None:
    with engine("llama") as e:
        asked = submit(e)
        for _ in range(steps):
            e.step()
        paused = [i for i, r in asked.items() if r.timings.paused_n and r.seq < 0]
        gone = paused[0] if paused else len(ASKED) - 1
        over = asked[gone].result is not None
        asked[gone].cancel()
        finish(e)
        request = asked.pop(gone)
        assert request.result is not None
        assert over or request.result.finish_reason == "cancelled"
        assert request.tokens == alone("llama", gone).tokens[: len(request.tokens)]
        require_alone("llama", asked)


def test_a_paused_request_can_be_cancelled() -> None:
    with engine("llama", draft_max=4) as e:
        asked = submit(e, speculation(("ngram-mod",), 4))
        found: Request | None = None
        while found is None:
            e.step()
            found = next((r for r in asked.values() if r.timings.paused_n and r.seq < 0), None)
        assert found.tokens and found.result is None
        found.cancel()
        finish(e)
        assert found.result is not None and found.result.finish_reason == "cancelled"
        assert found.result.timings["paused_n"] >= 1
        assert found.result.timings["draft_rounds"] >= 1
        asked = {i: r for i, r in asked.items() if r is not found}
        require_alone("llama", asked)


def test_what_does_not_fit_alone_is_refused() -> None:
    with pytest.raises(RequestError, match=r"n_ctx_total: expected .* 1024 tokens at least"):
        tiny("llama").session(N_CTX, 2, n_ctx_total=1023)
    with engine("llama", pages=4) as e:
        one = e.submit(stream(1, 1000), 24, **GREEDY)
        two = e.submit(stream(2, 1000), 24, **GREEDY)
        finish(e)
        for request in (one, two):
            assert request.result is not None and request.result.finish_reason == "length"
            assert len(request.tokens) == 24


def test_a_plan_has_the_pages_that_were_asked_for() -> None:
    plan = tiny("gemma3").plan_session(4096, 8, n_ctx_total=8192)
    assert plan.capacity.n_pages == 32 and plan.capacity.pages_per_seq == 16
    assert plan.capacity.window_pages <= 32 and "8192 in all" in plan.summary
    whole = tiny("gemma3").plan_session(4096, 8)
    assert plan.bytes.attention < whole.bytes.attention
    assert tiny("llama").plan_session(512, 2, n_ctx_total=2049).capacity.n_pages == 9


def test_an_engine_tells_how_full_it_is() -> None:
    with engine("qwen35", n_seqs=3, pages=6) as e:
        assert e.occupancy()[:5] == (3, 0, 0, 6, 6) and e.occupancy().tokens_cached == 0
        asked = [e.submit(stream(i, 300), 9, **GREEDY) for i in range(2)]
        assert e.occupancy().queued == 2
        while not all(r.tokens for r in asked):
            e.step()
        now = e.occupancy()
        assert (now.active, now.queued, now.pages_free, now.tokens_cached) == (2, 0, 2, 0)
        assert now.state_bytes == 2 * e.session.plan.bytes.kept
        asked[0].cancel()
        finish(e)
        now = e.occupancy()
        assert (now.active, now.pages_free) == (0, 6)
        assert now.tokens_cached >= 600 and now.state_bytes > 0


def test_an_exception_at_any_line_where_requests_are_paused() -> None:
    """Those that the step leaves whole go on to the same text; the others say that they are
    lost."""
    e = rr.Engine(tiny("qwen35"), n_seqs=3, n_ctx=512, n_ctx_total=768, draft_max=3)
    kinds: list[dict[str, Any]] = [
        {"speculative": speculation(("ngram-mod",), 3)},
        {"speculative": None},
        {"speculative": None, "repeat_penalty": 1.2},
    ]

    def ask() -> list[Request]:
        return [e.submit(stream(60 + i, 250), 14, **GREEDY, **kind) for i, kind in enumerate(kinds)]

    first = ask()
    finish(e)
    assert any(r.timings.paused_n for r in first)
    wants = [r.tokens for r in first]
    asked: list[Request] = []
    steps = next(n for n in range(99) if _paused_in(e, ask, n))

    def prepare() -> Callable[[], object]:
        nonlocal asked
        finish(e)
        asked = ask()
        for _ in range(steps):
            e.step()
        return e.step

    lost = 0
    for _ in lines(prepare, step=29):
        finish(e)
        for request, want in zip(asked, wants, strict=True):
            assert request.result is not None
            if request.result.finish_reason == "error":
                assert "lost" in request.result.error
                assert request.tokens == want[: len(request.tokens)]
                lost += 1
            else:
                assert request.tokens == want
    assert lost
    assert [r.tokens for r in _finished(e, ask())] == wants
    e.close()


def _paused_in(e: rr.Engine, ask: Callable[[], list[Request]], n: int) -> bool:
    """Whether someone is paused in the step behind the first n."""
    finish(e)
    asked = ask()
    for _ in range(n):
        e.step()
    before = sum(r.timings.paused_n for r in asked)
    e.step()
    return sum(r.timings.paused_n for r in asked) > before


def _finished(e: rr.Engine, asked: list[Request]) -> list[Request]:
    finish(e)
    return asked


def test_a_step_with_room_asks_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages abound, nothing is counted for a pass."""
    with engine("llama", pages=16) as e:
        asked = submit(e, only=range(2))
        while not all(r.tokens for r in asked.values()):
            e.step()

        def never(*_: Any) -> int:
            raise AssertionError

        monkeypatch.setattr("riverrun.engine.memory.HybridMemory.lacking", never)
        monkeypatch.setattr(Sequences, "holds", never)
        for _ in range(5):
            e.step()
        assert not e.idle
