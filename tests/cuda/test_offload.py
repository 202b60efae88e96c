"""Layers on cards and on the processor: two cards give the bits of one, a split gives what the
processor gives as near as kernels do, and with drafts what it gives without."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cli import run_cli
from cuda_rig import EMULATED, needs_cuda, scarce
from demo import PROMPTS
from paths import DEMO
from riverrun.backends import cuda
from riverrun.backends.scheduler import SplitPlan
from riverrun.engine import Session
from riverrun.engine.offload import Offload, blocks_of
from riverrun.graph.errors import BackendError
from rollback_rig import STRATEGIES, stream
from spec_rig import GREEDY, require_equal, require_sums, speculation, speculator
from tiny_models import VARIANTS

pytestmark = needs_cuda
DEVICES = "RIVERRUN_EMULATE_DEVICES"
PAIR = "cuda:0,cuda:1"
_files = tempfile.TemporaryDirectory()


@pytest.fixture(scope="module", autouse=True)
def _second() -> Iterator[None]:
    """An emulated second card is there when asked for; what is on it goes before it does."""
    with pytest.MonkeyPatch.context() as patch:
        if EMULATED:
            patch.setenv(DEVICES, "2")
        yield
        gc.collect()


@pytest.fixture
def two_cards() -> None:
    if len(cuda.cards()) < 2:
        pytest.skip("this machine has one CUDA device")


@cache
def written(variant: str) -> Path:
    source = VARIANTS[variant]()
    source.kind = "q8_0"
    return source.write(Path(_files.name, f"{variant}.gguf"))


def load(variant: str, device: str = "cuda", layers: int | str | None = None) -> rr.Model:
    return rr.load(written(variant), device, 1, offload=Offload(layers, 64, reserve=0))


def plans(model: rr.Model) -> list[SplitPlan]:
    found = [plan for plan in model.plans._plans.values() if isinstance(plan, SplitPlan)]
    assert len(found) == len(model.plans._plans) > 0
    return found


def logits(model: rr.Model, kind: str = "f16") -> np.ndarray:
    """Of a prompt and of tokens one by one; the window of gemma3 is passed."""
    ids = stream(5)[:15]
    session = model.session(n_ctx=64, n_rs_seq=2, cache_type_k=kind, cache_type_v=kind)
    rows = [np.array(session.evaluate([(0, ids[:12])], want="all").logits)]
    rows += [np.array(session.decode(token)).reshape(1, -1) for token in ids[12:]]
    return np.concatenate(rows)


@pytest.mark.parametrize("variant", ["llama,tied", "gemma3", "qwen35", "qwen35moe"])
def test_two_cards_give_the_bits_of_one(two_cards: None, variant: str) -> None:
    model = load(variant, PAIR)
    np.testing.assert_array_equal(logits(model), logits(load(variant)))
    for plan in plans(model):
        assert [segment.backend for segment in plan.segments] == [0, 1]
        assert len(plan.copies) == 1


# Choosing experts turns on the last bit, so they are left out here.
@pytest.mark.parametrize("variant", ["llama,factors", "gemma3", "qwen35,v=2k,tied"])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_split_is_near_the_processor(variant: str, layers: int) -> None:
    model = load(variant, "cuda", layers)
    assert model.device == ("cuda,cpu" if layers < _total(model) else "cuda")
    got, want = logits(model), logits(load(variant, "cpu"))
    error = np.square(got - want).sum() / np.square(want).sum()
    assert error < 1e-3
    for plan in plans(model) if layers < _total(model) else []:
        assert [segment.backend for segment in plan.segments] == [1, 0]
        assert [copy.spec.shape[1] for copy in plan.copies] == [64]


# With all experts chosen, since the choice of some turns on the last bit.
def test_experts_on_the_processor_are_near_a_card() -> None:
    variant, told = "qwen35moe,all", list[str]()
    asked = Offload(None, 64, n_cpu_moe=2, tell=told.append)
    model = rr.load(written(variant), "cuda", 1, offload=asked)
    assert model.device == "cuda,cpu" and len(told) == 1
    got, want = logits(model), logits(load(variant))
    assert np.square(got - want).sum() < 1e-3 * np.square(want).sum()
    [(_, weights)] = model.weights._loaded[0]
    experts = {name for name in model.source.specs if "_exps" in name}
    assert experts & {name for name, _ in weights._made} == {
        name for name in experts if blocks_of(model.source)[name] >= 2
    }
    drafts = speculation(("ngram-mod",), 2)
    ids = stream(5)[:15]
    plain = model.generate(ids, 8, n_ctx=64, ignore_eos=True, **GREEDY).result
    drafted = model.generate(ids, 8, n_ctx=64, ignore_eos=True, speculative=drafts, **GREEDY).result
    assert drafted.tokens == plain.tokens


def _total(model: rr.Model) -> int:
    return 2 + max(blocks_of(model.source).values())


def test_states_and_weights_lie_where_their_layers_run() -> None:
    model = load("qwen35,mtp", "cuda", 3)
    session = model.session(n_ctx=64, n_rs_seq=2)
    total, at = _total(model), blocks_of(model.source)
    for name, home in session.pools.homes.items():
        assert home == (0 if at.get(name, 0) >= total - 3 else 1), name
    on_card, on_host = session.pools.parts
    assert on_card.nbytes + on_host.nbytes == session.pools.nbytes == session.plan.bytes.device
    assert isinstance(on_card, cuda.CudaPools) and on_card.nbytes and on_host.nbytes
    [(_, weights)] = model.weights._loaded[0]
    there = {name for name, _ in weights._made}
    assert "output.weight" in there and "token_embd.weight" not in there
    assert {at[name] for name in there if name in at} == {total - 3}


def test_plans_share_the_weights_of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("qwen35,mtp", "cuda", 3)
    spec = speculator(model, speculation(("mtp",), 2))
    model.generate(stream(3)[:20], 6, speculative=spec, **GREEDY).result  # noqa: B018
    assert {key[3] for key in model.plans._plans} >= {"trunk", "mtp"}
    assert [len(model.weights._loaded[i]) for i in (0, 1)] == [1, 1]


def generated(model: rr.Model, kinds: tuple[str, ...], rollback: str, **sampling: Any) -> None:
    """With and without drafts, on the same split."""
    prompt, n = stream(4)[:6] * 3, 12
    draft = load("llama", "cpu") if "draft" in kinds else None
    spec = speculator(model, speculation(kinds, 3, draft_model=draft), rollback=rollback)
    got = model.generate(prompt, n, speculative=spec, ignore_eos=True, **sampling).result
    session = model.session(n_ctx=64)
    want = model.generate(prompt, n, session=session, ignore_eos=True, **sampling).result
    require_equal(got, want)
    require_sums(got)


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_drafts_change_nothing_on_a_split(rollback: str) -> None:
    generated(load("qwen35,mtp", "cuda", 4), ("ngram-mod", "mtp"), rollback, **GREEDY)


def test_drafts_change_nothing_on_two_cards(two_cards: None) -> None:
    model = load("qwen35,mtp", PAIR)
    generated(model, ("mtp",), "auto", temperature=0.8, top_k=40, seed=3)


def test_a_draft_model_on_another_device() -> None:
    generated(load("gemma3", "cuda", 4), ("draft",), "auto", **GREEDY)


def forgets(session: Session) -> None:
    """Take back rejected tokens; the logits after are those of decoding without them."""
    ids = stream(6)[:12]
    session.evaluate([(0, ids[:8])])
    session.verify([(0, [7, 9, 11])])
    session.commit(0, 0)
    got = np.array(session.decode(ids[8]))
    fresh = session.model.session(n_ctx=64)
    fresh.evaluate([(0, ids[:8])])
    np.testing.assert_array_equal(got, fresh.decode(ids[8]))


@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("device", ["cuda,cpu", PAIR])
def test_tokens_are_forgotten(device: str, rollback: str, request: Any) -> None:
    if device == PAIR:
        request.getfixturevalue("two_cards")
    model = load("qwen35", device, None if device == PAIR else 3)
    forgets(model.session(n_ctx=64, n_rs_seq=3, rollback=rollback))


def test_what_checkpoint_means() -> None:
    model = load("qwen35", "cuda", 3)
    plain = model.plan_session(64, n_rs_seq=2, rollback="checkpoint")
    assert plain.strategy.name == "checkpoint:device" and plain.bytes.host == 0
    host = model.plan_session(64, n_rs_seq=2, rollback="checkpoint:host")
    assert host.bytes.host > 0 and host.bytes.device == host.bytes.attention + host.bytes.recurrent
    session = model.session(64, n_rs_seq=2, rollback="checkpoint")
    assert session.pools.nbytes == plain.bytes.device


@pytest.mark.parametrize("variant", ["gemma3", "qwen35"])
def test_saved_copied_restored(variant: str) -> None:
    model = load(variant, "cuda", 3)
    ids = stream(8)[:12]
    session = model.session(n_ctx=64, n_seqs=2, n_rs_seq=1)
    session.evaluate([(0, ids)])
    saved = session.save(0)
    session.copy(0, 1)
    want = np.array(session.decode(5, 0))
    np.testing.assert_array_equal(session.decode(5, 1), want)
    other = load(variant, "cuda", 2).session(n_ctx=64)
    other.restore(saved)
    assert other.save(0) == saved
    again = model.session(n_ctx=64)
    again.restore(saved)
    np.testing.assert_array_equal(again.decode(5), want)


exactly_scarce = pytest.mark.skipif(
    not EMULATED, reason="a real card's free memory cannot be set to a few hundred KiB"
)


@exactly_scarce
def test_as_many_layers_as_fit() -> None:
    size = sum(spec.nbytes for spec in load("qwen35", "cpu").source.specs.values())
    with scarce(8 * size):
        assert load("qwen35", "cuda", "auto").device == "cuda"
    with scarce(size):
        model = load("qwen35", "cuda", "auto")
        assert model.device == "cuda,cpu"
        model.session(n_ctx=64).decode(3)
    with scarce(1000):
        assert load("qwen35", "cuda", "auto").device == "cpu"


@exactly_scarce
def test_what_does_not_fit_is_told(two_cards: None) -> None:
    model = load("qwen35", PAIR)
    with (
        scarce(300_000),
        pytest.raises(
            BackendError, match=r"memory needs [1-9]\d* MiB, and device [01] has \d+ MiB free"
        ),
    ):
        model.session(n_ctx=512, n_seqs=128)


def test_progress_reaches_the_whole() -> None:
    seen: list[tuple[int, int]] = []
    offload = Offload(2)
    rr.load(
        written("llama"), "cuda", progress=lambda *at: seen.append(at), offload=offload, threads=1
    )
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] and len(seen) > 3


def test_placement_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "3")
    model = load("llama", "cuda", 2)
    model.session(n_ctx=64).decode(3)
    shown = capsys.readouterr().err
    assert "2 segments, 1 copies of 256 bytes a run" in shown
    assert "segment 0 on cpu:" in shown and "segment 1 on cuda:" in shown
    assert ": weights" in shown and ": layer" in shown


DEMO_PROMPT = ",".join(map(str, PROMPTS["p200"]["ids"][:8]))


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    run = "run", DEMO, "--tokens", DEMO_PROMPT, "-n", 3, "--temp", 0, "-c", 64
    split = run_cli(capsys, *run, "--device", "cuda", "--gpu-layers", 1)
    assert split.code == 0 and "on cuda,cpu" in split.err, split
    assert split.out == run_cli(capsys, *run, "--device", "cpu").out
    none = run_cli(capsys, *run, "--device", "cuda", "--gpu-layers", 0)
    assert none.code == 0 and "on cpu" in none.err, none
    check = "spec", "check", written("qwen35,mtp"), "--tokens", "3,5,7", "-n", 4, "-c", 64
    checked = run_cli(capsys, *check, "--device", "cuda", "--gpu-layers", 3, "--draft-max", 2)
    assert checked.code == 0, checked
