"""Texts that have given up their pages lie in host memory: prompts go on from there, with what a
cold run gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import riverrun as rr
from engine_rig import finish
from parked_rig import GREEDY, Agent, ask, break_off, check, require_cold
from riverrun.engine import parked
from riverrun.engine.memory import PagedKV
from riverrun.engine.parked import Parked
from riverrun.engine.prompts import WORTH_KEEPING
from riverrun.engine.session_memory import Reuse
from riverrun.graph.errors import BackendError
from rollback_rig import STRATEGIES, stream, tiny

N_CTX, PLENTY = 1024, 1 << 30
# By variant, how many tokens before its end a prompt that goes on from another begins.
VARIANTS = {"llama": 0, "qwen35": 4, "gemma3": 0}


def engine(variant: str = "qwen35", host: int = PLENTY, **more: Any) -> rr.Engine:
    """Pages for one text."""
    return rr.Engine(tiny(variant), n_ctx=N_CTX, host_cache_bytes=host, **more)


def run(e: rr.Engine, prompt: list[int], n: int = 4, **more: Any) -> Any:
    request = ask(e, prompt, n, **more)
    finish(e)
    check(e)
    return request


@pytest.mark.parametrize("variant", VARIANTS)
def test_prompts_go_on_from_host_memory(variant: str) -> None:
    prompts = [stream(174 + i, 600 + 40 * i) for i in range(3)]
    with engine(variant) as e:
        for prompt in prompts:
            assert run(e, prompt).timings.cache_n == 0
        assert e.occupancy().host_bytes > 0
        for prompt in prompts:
            longer = run(e, [*prompt, *stream(179, 20)])
            assert longer.timings.cache_n == len(prompt) - VARIANTS[variant]
            why = f"{len(prompt) - 4} of {len(prompt)} common tokens" if VARIANTS[variant] else ""
            assert longer.timings.cache_note.startswith(why)
            require_cold(longer, variant)


def test_windows_come_back_with_the_states_that_were_kept() -> None:
    prompts = [stream(240 + i, 1500) for i in range(2)]
    with rr.Engine(tiny("gemma3"), n_ctx=2048, host_cache_bytes=PLENTY) as e:
        assert e.session.memory.reach is not None
        for prompt in prompts:
            run(e, prompt)
        longer = run(e, [*prompts[0], *stream(242, 20)])
        assert longer.timings.cache_n == 1024
        assert "in host memory are states at 512, 1024, 1503" in longer.timings.cache_note
        require_cold(longer, "gemma3")


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_host_memory_nothing_stays(variant: str) -> None:
    first, second = stream(181, 600), stream(182, 600)
    with engine(variant, host=0) as e:
        for prompt in (first, second):
            run(e, prompt)
        again = run(e, first)
        assert again.timings.cache_n == e.occupancy().host_bytes == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_with_every_kind_of_rollback(strategy: str) -> None:
    with engine(rollback=strategy, draft_max=3) as e:
        first, second = stream(183, 600), stream(184, 600)
        for prompt in (first, second):
            run(e, prompt, 12, speculative="ngram-mod")
        again = run(e, [*first, *stream(185, 20)], 12, speculative="ngram-mod")
        assert again.timings.cache_n >= 596
        require_cold(again, "qwen35")


@pytest.mark.parametrize("variant", ["llama", "qwen35"])
def test_a_conversation_goes_on_from_its_very_end(variant: str) -> None:
    with engine(variant) as e:
        first = run(e, stream(186, 300), 40)
        run(e, stream(187, 900))
        text = [*first.prompt, *first.tokens]
        again = run(e, [*text, *stream(188, 20)])
        # The last token has been chosen, and not evaluated.
        assert again.timings.cache_n == len(text) - 1
        require_cold(again, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_text_unused_for_longest_goes(variant: str) -> None:
    prompts = [stream(190 + i, 600) for i in range(4)]
    with engine(variant) as e:
        for prompt in prompts[:2]:
            run(e, prompt)
        one = e.occupancy().host_bytes
    with engine(variant, host=2 * one) as e:
        for prompt in prompts:
            run(e, prompt)
            assert e.occupancy().host_bytes <= 2 * one
        again = [run(e, prompts[i]).timings.cache_n for i in (1, 0)]
        assert again[0] > 0 and again[1] == 0
    with engine(variant, host=one - 1) as e:
        for prompt in prompts[:2]:
            run(e, prompt)
        assert e.occupancy().host_bytes == 0


def test_common_beginnings_are_copied_once() -> None:
    system = stream(200, 768)
    with engine("llama") as e:
        for i in range(3):
            run(e, stream(201, 900))
            longer = run(e, system + stream(202 + i, 100))
            assert longer.timings.cache_n == (768 if i else 0)
        run(e, stream(201, 900))
        page = e.session.memory.page_bytes
        held = e.occupancy().host_bytes / page
        # 4 pages of 900 tokens, the last part of one; 3 of the beginning, and each one's end.
        assert 3 + 3 + 3 * 0.25 < held < 4 + 3 + 3 * 0.5
        require_cold(longer, "llama")


def test_what_a_longer_text_holds_is_not_kept_twice() -> None:
    first = stream(205, 500)
    with engine("llama") as e:
        for prompt in (first, stream(206, 900), first + stream(207, 300), stream(206, 900)):
            run(e, prompt)
        assert e.occupancy().host_bytes <= 8 * e.session.memory.page_bytes


@pytest.mark.parametrize("variant", VARIANTS)
def test_who_is_paused_does_not_evaluate_its_prompt_again(
    monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    kept: list[int] = []
    begin = Parked.open

    def opened(parked: Parked, prompt: list[int], seq: int) -> Reuse:
        found = begin(parked, prompt, seq)
        kept.append(found.kept)
        return found

    monkeypatch.setattr(Parked, "open", opened)
    memory = {"n_seqs": 2, "n_ctx": N_CTX, "n_ctx_total": 1280, "host_cache_bytes": PLENTY}
    with rr.Engine(tiny(variant), **memory) as e:
        asked = [ask(e, stream(210 + i, 500), 200) for i in range(2)]
        finish(e)
        check(e)
        assert asked[1].timings.paused_n == 1
        assert kept == [0, 0, 499 - max(0, VARIANTS[variant] - 1)]
        for request in asked:
            require_cold(request, variant)


def test_two_agents_in_turn_evaluate_what_changed() -> None:
    with rr.Engine(tiny(), n_ctx=2048, host_cache_bytes=PLENTY) as e:
        agents, changed = [Agent(3000), Agent(4000)], [130, 130]
        for _ in range(6):
            for i, agent in enumerate(agents):
                prompt = agent.prompt()
                request = run(e, prompt, 32)
                assert request.timings.prompt_n <= changed[i] + WORTH_KEEPING
                changed[i] = agent.hear(prompt, request.tokens)
        plain = e.model.generate(request.prompt, 32, n_ctx=2048, **GREEDY).result
        assert request.tokens == plain.tokens


@pytest.mark.parametrize("variant", ["llama", "qwen35"])
def test_an_exception_at_any_line(variant: str) -> None:
    e = engine(variant)
    prompts = [stream(220 + i, 600) for i in range(2)]

    def prepare() -> Any:
        finish(e)
        for prompt in prompts:
            ask(e, prompt)
            finish(e)
        ask(e, prompts[0][:590] + stream(222, 30))
        return e.step

    break_off(e, prepare, prompts, variant, step=67)
    e.close()


def test_saved_texts_go_to_host_memory_too() -> None:
    with engine() as e:
        first = run(e, stream(230, 300), 5)
        data, text = e.save(first.seq), [*first.prompt, *first.tokens]
        e.erase(0)
        e.restore(0, data)
        run(e, stream(231, 900))
        again = run(e, [*text, *stream(232, 30)], 6)
        assert again.timings.cache_n == len(text)
        require_cold(again, "qwen35")


@pytest.mark.parametrize("variant", VARIANTS)
def test_others_decode_while_a_text_goes_page_by_page(
    monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Whoever decodes waits for a page or a state in each step; the text is whole in the end."""
    monkeypatch.setattr(parked, "STEP_BYTES", 1)
    memory = {"n_seqs": 2, "n_ctx": N_CTX, "n_ctx_total": 1536, "host_cache_bytes": PLENTY}
    with rr.Engine(tiny(variant), **memory) as e:
        first = run(e, stream(250, 900))
        busy = ask(e, stream(251, 20), 60)
        while len(busy.tokens) < 3:
            e.step()
        late = ask(e, stream(252, 800), 4)
        copied, most = [e.occupancy().host_copied], max(e.session.memory.page_bytes, state(e))
        tokens = [len(busy.tokens)]
        while not late.tokens:
            e.step()
            copied.append(e.occupancy().host_copied)
            tokens.append(len(busy.tokens))
        # A pass over a prompt at most lies between two of its tokens.
        assert all(b > a for a, b in zip(tokens, tokens[2:], strict=False))
        steps = [b - a for a, b in itertools.pairwise(copied)]
        assert max(steps) <= most and sum(n > 0 for n in steps) >= 3
        finish(e)
        check(e)
        for request in (busy, late):
            require_cold(request, variant)
        again = run(e, [*first.prompt, *stream(253, 20)])
        assert again.timings.cache_n >= 900 - VARIANTS[variant]
        require_cold(again, variant)


def state(e: rr.Engine) -> int:
    """Bytes of a state along a prompt."""
    return int(e.session.plan.bytes.kept)


def test_a_pass_without_pages_waits_while_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two that decode, the one that needs a page waits until a text has gone."""
    monkeypatch.setattr(parked, "STEP_BYTES", 1)
    memory = {"n_seqs": 3, "n_ctx": N_CTX, "n_ctx_total": 1536, "host_cache_bytes": PLENTY}
    with rr.Engine(tiny("llama"), **memory) as e:
        first = run(e, stream(254, 1000))
        short, long = ask(e, stream(255, 10), 80), ask(e, stream(256, 250), 80)
        waited = 0
        while not e.idle:
            before = len(short.tokens), len(long.tokens)
            e.step()
            after = len(short.tokens), len(long.tokens)
            waited += after[0] > before[0] > 0 and after[1] == before[1] > 0 and not long.result
        check(e)
        assert waited >= 3 and long.timings.paused_n == 0
        for request in (short, long):
            require_cold(request, "llama")
        assert run(e, [*first.prompt, *stream(257, 20)]).timings.cache_n >= 1000


@pytest.mark.parametrize("error", [MemoryError(), BackendError("cuda: no pinned memory")])
def test_texts_go_where_there_is_no_memory_for_their_copies(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read, left = PagedKV.read_page, [2]

    def reading(kv: PagedKV, *of: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise error
        return read(kv, *of)

    monkeypatch.setattr(PagedKV, "read_page", reading)
    with engine("llama") as e:
        first, second = stream(258, 900), stream(259, 900)
        for prompt in (first, second):
            assert run(e, prompt).result.error == ""
        now = e.occupancy()
        assert now.host_bytes == 0 and now.host_copied == 2 * e.session.memory.page_bytes
        again = run(e, first)
        assert again.timings.cache_n == 0
        require_cold(again, "llama")


def test_what_is_copied_is_counted() -> None:
    with engine("llama") as e:
        for i in range(3):
            run(e, stream(260 + i, 768))
        # Their answers, of four tokens, take a page more, of which they are copied.
        page = e.session.memory.page_bytes
        assert 2 * 3 * page < e.occupancy().host_copied < 2 * 4 * page
