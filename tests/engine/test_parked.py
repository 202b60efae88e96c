"""Prompts whose beginning any sequence holds, at work or not, or a text that has left its own:
only the rest is evaluated, and what comes out is what a cold run gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from engine_rig import finish
from parked_rig import GREEDY, N_CTX, Agent, ask, break_off, check, require_cold
from riverrun.engine.memory import PagedKV
from riverrun.graph.errors import RequestError
from rollback_rig import STRATEGIES, stream, tiny


@pytest.mark.parametrize("variant", ["llama", "qwen35", "gemma3"])
def test_a_prompt_goes_on_from_a_sequence_at_work(variant: str) -> None:
    with rr.Engine(tiny(variant), n_seqs=2, n_ctx=N_CTX) as e:
        prompt = stream(70, 700)
        busy = ask(e, prompt, 30)
        while len(busy.tokens) < 3:
            e.step()
        other = ask(e, prompt[:650] + stream(71, 40), 12)
        finish(e)
        assert other.seq != busy.seq
        assert other.timings.cache_n == {"llama": 650, "qwen35": 512, "gemma3": 512}[variant]
        require_cold(busy, variant)
        require_cold(other, variant)
        check(e)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_every_kind_of_rollback(strategy: str) -> None:
    with rr.Engine(tiny(), n_seqs=2, n_ctx=N_CTX, rollback=strategy, draft_max=3) as e:
        prompt = stream(72, 600)
        first = ask(e, prompt, 30, speculative="ngram-mod")
        while len(first.tokens) < 3:
            e.step()
        second = ask(e, prompt[:550] + stream(73, 40), 12, speculative="ngram-mod")
        finish(e)
        assert second.timings.cache_n == 512
        for request in (first, second):
            require_cold(request, "qwen35")


@pytest.mark.parametrize("variant", ["llama", "qwen35", "gemma3"])
def test_texts_that_leave_their_sequence_stay(variant: str) -> None:
    """Three texts in turn over one sequence, with pages for all of them."""
    with rr.Engine(tiny(variant), n_ctx=N_CTX, n_ctx_total=4 * N_CTX) as e:
        prompts = [stream(74 + i, 700 + 40 * i) for i in range(3)]
        for prompt in prompts:
            request = ask(e, prompt)
            finish(e)
            assert request.timings.cache_n == 0
            require_cold(request, variant)
        assert e.occupancy().tokens_cached > 2100
        for prompt in prompts:
            request = ask(e, [*prompt, *stream(79, 20)])
            finish(e)
            least = len(prompt) if variant == "llama" else len(prompt) - 4
            assert request.timings.cache_n == (512 if variant == "gemma3" else least)
            require_cold(request, variant)
            check(e)


def test_common_beginnings_are_held_once() -> None:
    system = stream(80, 1024)
    with rr.Engine(tiny("llama"), n_seqs=4, n_ctx=1536, n_ctx_total=9 * 256) as e:
        ask(e, system + stream(81, 100))
        finish(e)
        asked = [ask(e, system + stream(82 + i, 100), 8) for i in range(4)]
        finish(e)
        for request in asked:
            assert request.timings.cache_n >= 1024 and request.timings.paused_n == 0
            require_cold(request, "llama")
        pages = e.session.memory.parts[0]
        assert isinstance(pages, PagedKV)
        assert pages.pages.n - pages.pages.free <= 4 + 5
        check(e)


def test_parked_texts_give_way() -> None:
    """With pages for two texts, the one used last stays; and the last state of a text that is
    returned to is not lost to a text that is not."""
    with rr.Engine(tiny("llama"), n_ctx=1024, n_ctx_total=2048) as e:
        prompts = [stream(90 + i, 900) for i in range(3)]
        for prompt in (prompts[0], prompts[1], prompts[2]):
            request = ask(e, prompt)
            finish(e)
            require_cold(request, "llama")
        assert e.occupancy().pages_free == 8
        again = ask(e, prompts[1])
        finish(e)
        assert again.timings.cache_n == 899
        again = ask(e, prompts[0])
        finish(e)
        assert again.timings.cache_n == 0
        require_cold(again, "llama")
        check(e)


@pytest.mark.parametrize("exact", [False, True])
def test_two_agents_in_turn_evaluate_what_changed(
    monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """One sequence, pages for two texts, thirteen states in all."""
    model, chunk = tiny(), 64
    if not exact:
        able = replace(model.backend.capabilities, prompt_chunk=chunk, prompt_exact=False)
        monkeypatch.setattr(model.backend, "capabilities", able)
    one = model.plan_session(N_CTX).bytes.kept
    with rr.Engine(model, n_ctx=N_CTX, n_ctx_total=2 * N_CTX, cache_bytes=13 * one) as e:
        agents = [Agent(1000), Agent(2000)]
        changed = [len(agent.prompt()) for agent in agents]
        for _ in range(20):
            for i, agent in enumerate(agents):
                prompt = agent.prompt()
                request = ask(e, prompt, 32)
                finish(e)
                assert request.result is not None and request.result.error == ""
                assert request.timings.prompt_n <= changed[i] + chunk
                changed[i] = agent.hear(prompt, request.tokens)
        assert min(len(agent.said) for agent in agents) > 1000
        assert e.occupancy().state_bytes <= 13 * one
        # It equals a cold run of the same prompt.
        plain = model.generate(request.prompt, 32, n_ctx=N_CTX, **GREEDY).result
        assert request.tokens == plain.tokens


def test_an_exception_at_any_line_where_texts_are_parked() -> None:
    e = rr.Engine(tiny(), n_ctx=1024, n_ctx_total=3 * 1024)
    prompts = [stream(95 + i, 600) for i in range(2)]

    def prepare() -> Any:
        finish(e)
        ask(e, prompts[0])
        finish(e)
        ask(e, prompts[1][:550] + stream(99, 30))
        return e.step

    prepare()
    finish(e)
    break_off(e, prepare, prompts, "qwen35", step=23)
    assert np.isfinite(e.occupancy().state_bytes)
    e.close()


@pytest.mark.parametrize("variant", ["llama", "qwen35"])
def test_sequences_are_saved_and_restored_between_steps(variant: str) -> None:
    with rr.Engine(tiny(variant), n_seqs=2, n_ctx=1024, n_ctx_total=1536) as e:
        first = ask(e, stream(60, 300), 5)
        finish(e)
        data, text = e.save(first.seq), [*first.prompt, *first.tokens]
        assert e.erase(first.seq) == len(text) and e.erase(first.seq) == 0
        busy = ask(e, stream(61, 300), 200)
        while not busy.tokens:
            e.step()
        for refused in (e.save, e.erase, lambda seq: e.restore(seq, data)):
            with pytest.raises(RequestError, match="belongs to a request"):
                refused(busy.seq)
        free = 1 - busy.seq
        with pytest.raises(RequestError, match="sequences are from 0 to 1"):
            e.save(2)
        with pytest.raises(RequestError, match="saved sequence"):
            e.restore(free, data[:-1])
        assert e.restore(free, data) == len(text)
        again = ask(e, [*text, *stream(62, 30)], 6)
        finish(e)
        assert again.seq == free and again.timings.cache_n == len(text)
        require_cold(again, variant)
        require_cold(busy, variant)
        check(e)


def test_restored_texts_are_shared() -> None:
    with rr.Engine(tiny(), n_seqs=2, n_ctx=1024, n_ctx_total=3072) as e:
        first = ask(e, stream(63, 300), 5)
        finish(e)
        data, text = e.save(first.seq), [*first.prompt, *first.tokens]
        for seq in range(2):
            e.erase(seq)
        e.restore(0, data)
        asked = [ask(e, [*text, *stream(64 + i, 30)], 6) for i in range(2)]
        finish(e)
        for request in asked:
            assert request.timings.cache_n == len(text)
            require_cold(request, "qwen35")
