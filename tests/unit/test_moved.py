"""Weights apart from their layers: which they are, what is said of them, and that nothing but the
device changes. Processors stand for cards."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import run_cli
from paths import DEMO
from riverrun.backends import SplitBackend, open_backend
from riverrun.backends.scheduler import SplitPlan
from riverrun.engine import Model, offload
from riverrun.engine.moved import moved_weights
from riverrun.engine.offload import Offload, layers_of
from riverrun.graph.errors import BackendError, RequestError
from riverrun.models import ModelFile, load_file
from riverrun.models.step import Capacity, StepShape
from tiny_models import VARIANTS

MOE = ("qwen35moe,mtp", "qwen35moe,fused", "qwen35moe,all")
EXPERTS = r"_exps\."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFile]:
    folder = tmp_path_factory.mktemp("moved")
    names = (*MOE, "qwen3,untied", "llama,tied")
    return {v: load_file(VARIANTS[v]().write(folder / f"{v}.gguf")) for v in names}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices cuda and cuda:1 that are processors with 1 GiB free; names that were opened."""
    opened: list[str] = []

    def pretend(name: str, threads: int | None = None) -> Any:
        opened.append(name)
        return open_backend("cpu" if name.startswith("cuda") else name, threads)

    monkeypatch.setattr(offload, "open_backend", pretend)
    monkeypatch.setattr(offload, "free_bytes", lambda name: 1 << 30)
    return opened


def experts_of(source: ModelFile, layers: range) -> set[str]:
    pattern = re.compile(rf"blk\.({'|'.join(map(str, layers))})\.ffn_\w+_exps\.weight")
    return {name for name in source.specs if pattern.fullmatch(name)}


def logits(model: Model) -> np.ndarray:
    ids = list(range(3, 19))
    session = model.session(n_ctx=64, n_rs_seq=2)
    rows = [np.array(session.evaluate([(0, ids[:12])], want="all").logits)]
    rows += [np.array(session.decode(token))[None] for token in ids[12:]]
    return np.concatenate(rows)


@pytest.mark.parametrize("variant", MOE)
@pytest.mark.parametrize("n", [1, 3, 99])
def test_experts_of_the_first_layers(files: dict[str, ModelFile], variant: str, n: int) -> None:
    source = files[variant]
    found = moved_weights(source, n, ())
    assert found == dict.fromkeys(experts_of(source, range(n)), "cpu") and found


def test_the_first_expression_counts_and_goes_before_the_number(
    files: dict[str, ModelFile],
) -> None:
    source = files["qwen35moe,mtp"]
    found = moved_weights(
        source, 2, [(r"blk\.1\..*down_exps", "reference"), (EXPERTS, "cuda"), ("output", "cpu")]
    )
    assert found["blk.1.ffn_down_exps.weight"] == "reference"
    assert found["blk.0.ffn_down_exps.weight"] == found["blk.3.ffn_up_exps.weight"] == "cuda"
    assert found["output_norm.weight"] == "cpu"


@pytest.mark.parametrize("variant", MOE)
@pytest.mark.parametrize(
    ("device", "asked", "devices"),
    [
        ("cuda", {"n_cpu_moe": 2}, "cuda,cpu"),
        ("cuda", {"n_cpu_moe": 2, "gpu_layers": 2}, "cuda,cpu"),
        ("cuda:0,cuda:1", {"n_cpu_moe": 3}, "cuda,cuda:1,cpu"),
        ("cuda", {"override_tensor": ((EXPERTS, "cuda:1"),)}, "cuda,cuda:1"),
        ("cuda", {"override_tensor": (("ffn_down_exps", "cpu"),)}, "cuda,cpu"),
        ("cuda", {"override_tensor": (("attn_q|ssm_out|output", "cpu"),)}, "cuda,cpu"),
    ],
    ids=str,
)
def test_only_the_place_changes(
    files: dict[str, ModelFile],
    cards: list[str],
    variant: str,
    device: str,
    asked: dict[str, Any],
    devices: str,
) -> None:
    source = files[variant]
    want = logits(Model(source, "cpu", 1))
    cards.clear()
    model = Model(source, device, 1, Offload(n_ctx=64, **asked))
    assert ",".join(cards) == devices and isinstance(model.backend, SplitBackend)
    np.testing.assert_array_equal(logits(model), want)


def test_products_run_where_their_experts_are(
    files: dict[str, ModelFile], cards: list[str]
) -> None:
    source = files["qwen35moe,mtp"]
    model = Model(source, "cuda", 1, Offload(n_ctx=64, n_cpu_moe=2))
    plan = model.plan(StepShape(4, 1, 1), Capacity(1, 1, 1), "step")
    assert isinstance(plan, SplitPlan)
    on_host = [s for s in plan.segments if s.backend == 1]
    assert len(on_host) == 2, "one for each layer, and the shared experts stay on the card"
    constants = {
        name
        for part, s in zip(plan.plans, plan.segments, strict=True)
        if s.backend == 1
        for name in part.constants
    }
    assert constants == experts_of(source, range(2))
    # To the processor rows and the choice of experts, with their weights; back one set of rows.
    back = [copy for copy in plan.copies if copy.source in map(plan.segments.index, on_host)]
    assert len(back) == 2 and all(copy.spec.shape == (4, 64) for copy in back)
    there = [copy for copy in plan.copies if copy.target in map(plan.segments.index, on_host)]
    assert len(there) == 2 * 3


def test_states_stay_with_their_layers(files: dict[str, ModelFile], cards: list[str]) -> None:
    model = Model(files["qwen35moe,mtp"], "cuda", 1, Offload(4, n_ctx=64, n_cpu_moe=99))
    plain = Model(files["qwen35moe,mtp"], "cuda", 1, Offload(4, n_ctx=64))
    states = model.session(n_ctx=64, n_rs_seq=2).plan.states
    assert isinstance(model.backend, SplitBackend) and isinstance(plain.backend, SplitBackend)
    homes = {name: model.backend.lives_on[name] for name in states}
    assert homes == {name: plain.backend.lives_on[name] for name in states}
    assert set(homes.values()) == {0, 1}


def test_what_is_moved_leaves_room_for_layers(
    files: dict[str, ModelFile], cards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, asked = files["qwen35moe,all"], Offload("auto", n_ctx=64, reserve=0)
    small = Offload(n_ctx=64)
    whole = layers_of(source, small)
    rest = layers_of(source, small, 1, moved_weights(source, 99, ()))
    experts = sum(source.specs[n].nbytes for n in experts_of(source, range(99)))
    assert sum(whole.sizes) - sum(rest.sizes) == experts > 0
    room = sum(rest.sizes)
    assert sum(whole.counts([room], asked)) < whole.total == sum(rest.counts([room], asked))


def test_what_lies_where_is_told_before_anything_is_loaded(
    files: dict[str, ModelFile], cards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, told = files["qwen35moe,mtp"], list[str]()
    monkeypatch.setattr(SplitBackend, "load_weights", lambda *_: told.append("loading"))
    Model(source, "cuda", 1, Offload(n_ctx=64, n_cpu_moe=3, tell=told.append))
    there = sum(source.specs[name].nbytes for name in experts_of(source, range(3)))
    here = source.nbytes - there
    assert told == [
        f"weights: {here / 2**20:.1f} MiB on cuda, {there / 2**20:.1f} MiB on cpu "
        "(ffn_down_exps, ffn_gate_exps, ffn_up_exps of blk.0-2)",
        "loading",
    ]
    told.clear()
    named = (("^output|blk.[02].ssm_a", "cpu"),)
    Model(source, "cuda", 1, Offload(n_ctx=64, override_tensor=named, tell=told.append))
    assert told[0].endswith(
        "on cpu (ssm_a, ssm_alpha of blk.0,2; output_norm.weight; output.weight)"
    )


def test_nothing_is_told_that_nobody_asked_for(
    files: dict[str, ModelFile], cards: list[str]
) -> None:
    told: list[str] = []
    Model(files["qwen35moe,mtp"], "cuda", 1, Offload(2, n_ctx=64, tell=told.append))
    assert told == []


def test_without_a_card_experts_are_where_they_should_be(files: dict[str, ModelFile]) -> None:
    told: list[str] = []
    model = Model(files["qwen35moe,mtp"], "cpu", 1, Offload(n_cpu_moe=2, tell=told.append))
    assert model.device == "cpu" and len(told) == 1
    with pytest.raises(BackendError, match="'cpu' has none"):
        Model(files["qwen35moe,mtp"], "cpu", 1, Offload(3, n_cpu_moe=2))


def test_devices_other_than_cards_can_be_named(files: dict[str, ModelFile]) -> None:
    source = files["qwen35moe,all"]
    asked = Offload(override_tensor=((r"blk\.0\..*_exps", "reference"),))
    model = Model(source, "cpu", 1, asked)
    assert model.device == "cpu,reference"
    want = logits(Model(source, "cpu", 1))
    np.testing.assert_allclose(logits(model), want, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"n_cpu_moe": -1}, "n_cpu_moe should be 0 or more"),
        ({"n_cpu_moe": True}, "n_cpu_moe should be 0 or more"),
        ({"override_tensor": (("(", "cpu"),)}, "is no regular expression"),
        ({"override_tensor": ("a=cpu",)}, "should be pairs"),
        ({"override_tensor": (("", "cpu"),)}, "should be pairs"),
    ],
    ids=str,
)
def test_offloads_that_are_none(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Offload(**asked)


def test_what_finds_nothing_is_refused(files: dict[str, ModelFile], cards: list[str]) -> None:
    dense = files["qwen3,untied"]
    with pytest.raises(RequestError, match=r"n_cpu_moe=4 .*this model \(qwen3\) has none"):
        Model(dense, "cuda", 1, Offload(n_cpu_moe=4))
    with pytest.raises(RequestError, match="override_tensor='_exps' is found in none"):
        Model(dense, "cuda", 1, Offload(override_tensor=(("_exps", "cpu"),)))
    with pytest.raises(BackendError, match="'gpu9' is not in this build"):
        Model(dense, "cuda", 1, Offload(override_tensor=(("attn", "gpu9"),)))


COMMANDS = {
    "run": ("run", DEMO, "-p", "x"),
    "bench": ("bench", DEMO),
    "embed": ("embed", DEMO, "-p", "x"),
    "perplexity": ("perplexity", DEMO, Path(__file__)),
}
WRONG = {
    "negative": ("--n-cpu-moe", "-1"),
    "regex": ("--override-tensor", "(=cpu"),
    "device": ("--override-tensor", "exps=gpu9"),
    "no device": ("--override-tensor", "exps"),
    "no regex": ("--override-tensor", "=cpu"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_usage(command: str, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *COMMANDS[command], *WRONG[wrong])
    assert outcome.is_short_error(2) and WRONG[wrong][0] in outcome.err, outcome


def test_the_command_says_what_lies_where(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("-n", 1, "--device", "cpu", "--temp", 0)
    plain = run_cli(capsys, *COMMANDS["run"], *asked)
    moved = run_cli(capsys, *COMMANDS["run"], *asked, "--override-tensor", "ffn_down=CPU")
    assert moved.code == 0 and moved.out == plain.out
    assert re.match(r"weights: \d+\.\d MiB on cpu \(ffn_down of blk\.0-\d+\)\n", moved.err), moved
    dense = run_cli(capsys, *COMMANDS["run"], *asked, "--n-cpu-moe", 2)
    assert dense.is_short_error(1) and "--n-cpu-moe 2 keeps experts" in dense.err
