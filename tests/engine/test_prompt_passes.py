"""Passes over prompts: where they end, how long they are beside decoding, several in one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from demo import demo
from engine_rig import finish
from pass_rig import N_CTX, Watched, card, watched
from riverrun.backends.base import Capabilities
from riverrun.engine.memory import PagedKV
from riverrun.engine.prompts import cuts, prompt_grid
from riverrun.graph.errors import RequestError
from riverrun.speculative import Speculator
from rollback_rig import stream, tiny

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def long_contexts() -> Iterator[None]:
    """Contexts may be longer than tiny models were trained for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize(
    ("length", "n", "chunk", "early", "grid", "want"),
    [
        (0, 1200, 512, False, 1, [512, 512, 176]),
        (500, 600, 512, False, 1, [12, 512, 76]),
        (0, 1200, 512, True, 1, [512, 512, 172, 4]),
        (0, 63, 512, True, 1, [63]),
        (0, 64, 512, True, 1, [60, 4]),
        (0, 5000, 2048, True, 64, [2048, 2048, 896, 8]),
        (0, 5060, 2048, True, 64, [2048, 2048, 960, 4]),
        (0, 500, 2048, True, 64, [500]),
        (70, 1000, 2048, False, 64, [58, 942]),
        (70, 1000, 2048, True, 64, [58, 896, 46]),
        (70, 20, 2048, True, 64, [20]),
        (64, 1984, 2048, False, 64, [1984]),
    ],
)
def test_where_prompts_are_cut(
    length: int, n: int, chunk: int, early: bool, grid: int, want: list[int]
) -> None:
    assert list(cuts(length, n, chunk, early, grid)) == want


def test_short_passes_beside_decoding_and_long_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = tiny(), stream(700, 3000)
    with card(monkeypatch, model, 64, prompt_chunk=2048), watched(model, n_seqs=2) as e:
        alone = e.submit(prompt, 4, **GREEDY)
        finish(e)
        assert Watched.seen == [[2048], [896], [56]]
        busy = e.submit(stream(701, 5), 40, **GREEDY)
        while not busy.tokens:
            e.step()
        Watched.seen.clear()
        beside = e.submit(prompt, 4, **GREEDY)
        e.step()
        while not beside.tokens:
            before = len(busy.tokens)
            e.step()  # a pass over the prompt, and then a round of decoding
            e.step()
            assert len(busy.tokens) > before or beside.tokens
        assert Watched.seen == [[512]] * 5 + [[384], [56]]
        finish(e)
        assert beside.tokens == alone.tokens


def test_chunks_are_short_where_cuts_change_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else requests that decode would wait for long ones."""
    model = tiny()
    with card(monkeypatch, model, 0, prompt_chunk=2048), watched(model) as e:
        e.submit(stream(702, 1300), 1, **GREEDY)
        finish(e)
        assert Watched.seen == [[512], [512], [276]]


@pytest.mark.parametrize("variant", ["llama", "qwen35", "gemma3"])
@pytest.mark.parametrize("grid", [1, 64])
def test_prompts_of_several_requests_share_passes(
    monkeypatch: pytest.MonkeyPatch, variant: str, grid: int
) -> None:
    model = tiny(variant)
    lengths = (100, 90, 1, 300, 64, 33, 1700, 100)
    prompts = [stream(710 + i, n) for i, n in enumerate(lengths)]
    alone = [model.generate(p, 3, n_ctx=N_CTX, **GREEDY).result.tokens for p in prompts]
    with card(monkeypatch, model, grid, prompt_chunk=2048), watched(model, n_seqs=8) as e:
        asked = [e.submit(p, 3, logprobs=1, **GREEDY) for p in prompts]
        finish(e)
        assert [request.tokens for request in asked] == alone
        assert sum(map(sum, Watched.seen)) >= sum(lengths) - 1
        assert max(map(len, Watched.seen)) >= 5 and len(Watched.seen) <= 6
        assert all(sum(sizes) <= 2048 for sizes in Watched.seen)


def test_thirty_two_prompts_of_a_hundred_tokens_take_two_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny("llama")
    with card(monkeypatch, model, 64, prompt_chunk=2048), watched(model, n_seqs=32) as e:
        asked = [e.submit(stream(730 + i, 100), 1, **GREEDY) for i in range(32)]
        finish(e)
        assert Watched.seen == [[100] * 20, [100] * 12]
        assert all(request.result and not request.result.error for request in asked)


def test_one_sequence_a_pass_where_company_changes_values(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    with card(monkeypatch, model, 0), watched(model, n_seqs=3) as e:
        for i in range(3):
            e.submit(stream(740 + i, 50), 1, **GREEDY)
        finish(e)
        assert Watched.seen == [[50]] * 3


def test_where_a_pass_of_several_fails_each_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    prompts = [stream(750 + i, 80) for i in range(3)]
    alone = [model.generate(p, 3, n_ctx=N_CTX, **GREEDY).result.tokens for p in prompts]
    with card(monkeypatch, model, 64), watched(model, n_seqs=3) as e:
        monkeypatch.setattr(Watched, "fails", 1)
        asked = [e.submit(p, 3, **GREEDY) for p in prompts]
        with pytest.warns(RuntimeWarning, match="a pass over 3 prompts failed.*no such pass"):
            finish(e)
        assert Watched.seen == [[80, 80, 80], [80], [80], [80]]
        assert [request.tokens for request in asked] == alone


def test_drafters_see_the_rows_of_their_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = demo(), Speculator.watch
    prompts = [stream(760 + i, n) for i, n in enumerate((90, 40, 130))]
    seen: dict[tuple[int, ...], np.ndarray] = {}

    def watching(self: Any, seq: int, tokens: Any, hidden: Any) -> None:
        if len(tokens) > 1:
            rows = np.array(hidden)
            np.testing.assert_array_equal(rows, seen.setdefault(tuple(tokens), rows))
            counts.append(len(tokens))
        watch(self, seq, tokens, hidden)

    monkeypatch.setattr(Speculator, "watch", watching)
    found = []
    for grid in (0, 64):
        counts: list[int] = []
        with card(monkeypatch, model, grid), watched(model, n_seqs=3, spec="mtp") as e:
            asked = [e.submit(p, 4, speculative=True, **GREEDY) for p in prompts]
            finish(e)
            assert len(Watched.seen) == (1 if grid else 3) and set(counts) >= {90, 40, 130}
        found.append([request.tokens for request in asked])
    assert found[0] == found[1]


def test_states_lie_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near a prompt's end, so that another one with the same beginning goes on from there."""
    model, prompt = tiny(), stream(770, 1000)
    with card(monkeypatch, model, 64, prompt_chunk=2048):
        session = model.session(N_CTX)
        assert session.sequences.cuts(0, 1000) == [960, 40]
        cold = np.array(session.prefill(prompt))
        assert session.sequences.storage.prompt_states.positions(0) == [960]
        other = prompt[:990] + stream(771, 20)
        assert session.reuse(other) == 960
        warm = np.array(session.prefill(other[960:]))
        session.clear()
        np.testing.assert_array_equal(warm, session.prefill(other))
        session.clear()
        np.testing.assert_array_equal(cold, session.prefill(prompt))


def test_windows_hold_a_long_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = tiny("gemma3"), stream(780, 3500)
    want = np.array(model.session(N_CTX).prefill(prompt))
    with card(monkeypatch, model, 1, prompt_chunk=2048):
        session = model.session(N_CTX)
        np.testing.assert_array_equal(session.prefill(prompt), want)
        assert session.plan.bytes.attention > model.session(N_CTX, cache_bytes=0).plan.bytes.kept
    windows = [p for p in session.memory.parts if isinstance(p, PagedKV) and p.window]
    assert windows and all(part.most == 2048 for part in windows)


def test_a_pass_holds_as_much_as_its_kind_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny("llama"), stream(790, 2049)
    with card(monkeypatch, model, 1, prompt_chunk=2048):
        session = model.session(N_CTX)
        for kind, most in (("step", 512), ("prefill", 2048)):
            with pytest.raises(RequestError, match=f"1 to {most} tokens, got {most + 1}"):
                session.evaluate([(0, ids[: most + 1])], kind=kind)
            session.evaluate([(0, ids[:most])], kind=kind)
            session.clear()
    with card(monkeypatch, model, 1, prompt_chunk=1 << 20):
        assert model.session(N_CTX).plan.chunk == 2048
    assert Capabilities().prompt_chunk == 512


@pytest.mark.parametrize(
    ("few", "many", "promised", "want"),
    [
        ((1, "a"), (1, "a"), True, 1),
        ((64, "a"), (64, "a"), True, 64),
        ((1, "a"), (64, "b"), True, 0),
        ((64, "a"), (0, "b"), True, 0),
        ((64, "a"), (64, "a"), False, 0),
    ],
)
def test_cuts_are_free_where_passes_of_all_sizes_run_the_same_kernels(
    few: tuple[int, str], many: tuple[int, str], promised: bool, want: int
) -> None:
    plans = {128: few, 2048: many}
    kernels = [{"row_exact": False, "prompt_exact": promised}]
    backend = SimpleNamespace(capabilities=Capabilities(prompt_exact=False), kernels=kernels)

    def plan(shape: Any, *_: Any) -> Any:
        grid, kernel = plans[shape.n_tokens]
        return SimpleNamespace(prompt_grid=grid, chosen=[("mul_mat", kernel)])

    model: Any = SimpleNamespace(backend=backend, plan=plan)
    options = SimpleNamespace(program="trunk")
    asked: Any = SimpleNamespace(capacity=None, options=options, chunk=2048)
    assert prompt_grid(model, asked) == want
    backend.capabilities = Capabilities(prompt_exact=True)
    assert prompt_grid(model, asked) == 1
