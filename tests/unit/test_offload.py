"""Which layers go where: sizes, shares of cards, places of weights and states, and that a cut costs
one copy of the rows that pass it. No card is needed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli import run_cli
from paths import DEMO
from riverrun.backends import SplitBackend, cuda, open_backend
from riverrun.backends.scheduler import SplitPlan, SplitPools
from riverrun.engine import Model, offload
from riverrun.engine.offload import (
    Layers,
    Offload,
    blocks_of,
    filled,
    fits,
    layers_of,
    open_for,
    shares,
    state_bytes,
)
from riverrun.engine.session_plan import KEPT_STATES
from riverrun.graph import TensorSpec
from riverrun.graph.errors import BackendError, RequestError
from riverrun.models import ModelFile, load_file
from riverrun.models.architecture import Want
from riverrun.models.step import Capacity, StepShape
from riverrun.speculative import Speculation
from tiny_models import N_EMBD, VARIANTS

MIXED = ("llama,tied", "llama,factors", "qwen3,untied", "gemma3", "qwen35,mtp", "qwen35moe,mtp")
CAPACITIES = {
    "plain": Capacity(2, 2, 1),
    "replay": Capacity(2, 2, 1, log=6),
    "snapshots": Capacity(2, 2, 1, planes=3),
    "windowed": Capacity(2, 2, 1, window_pages=1),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFile]:
    folder = tmp_path_factory.mktemp("offload")
    return {v: load_file(VARIANTS[v]().write(folder / f"{v}.gguf"), 64) for v in MIXED}


SMALL = Offload(n_ctx=64)


def splits(total: int) -> list[list[int]]:
    """Layers of each card; what is missing is elsewhere."""
    return [[1], [2], [total - 1], [2, total - 2], [1, 1]]


def across(source: ModelFile, counts: list[int]) -> SplitBackend:
    """CPU backends that stand for the cards and for the processor."""
    layers = layers_of(source, SMALL, len(counts))
    n = len(counts) + (sum(counts) < layers.total)
    return SplitBackend([open_backend("cpu", 1) for _ in range(n)], layers.homes(counts))


@pytest.mark.parametrize(
    ("variant", "layers"),
    [
        ("qwen35,mtp", {"blk.0.ssm_a": 0, "cache_k.3": 3, "ssm_log.2": 2, "conv_state.1": 1}),
        ("qwen35moe,mtp", {"blk.4.nextn.eh_proj.weight": 4, "blk.1.ffn_up_exps.weight": 1}),
        ("llama,factors", {"blk.1.attn_q.weight": 1, "cache_v.0": 0}),
    ],
)
def test_layers_are_those_declared(
    files: dict[str, ModelFile], variant: str, layers: dict[str, int]
) -> None:
    found = blocks_of(files[variant])
    assert layers.items() <= found.items()
    for name in ("token_embd.weight", "output.weight", "rope_freqs.weight", "draft_head.weight"):
        assert name not in found


@pytest.mark.filterwarnings("ignore:a context of 4000 tokens")
@pytest.mark.parametrize("n_rs_seq", [0, 4])
@pytest.mark.parametrize("variant", MIXED)
def test_states_are_counted_as_sessions_have_them(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, ModelFile], variant: str, n_rs_seq: int
) -> None:
    """With those kept along prompts; of a context in which a window of 8 tokens needs fewer pages
    than the whole, beside the long passes of cards."""
    model, n_ctx = Model(files[variant], "cpu", 1), 4000
    able = replace(model.backend.capabilities, prompt_chunk=2048)
    monkeypatch.setattr(model.backend, "capabilities", able)
    want = {}
    for program in ("trunk", "mtp") if "mtp" in variant else ("trunk",):
        plan = model.plan_session(n_ctx, n_rs_seq=max(1, n_rs_seq), program=program)
        want |= {name: spec.nbytes for name, spec in plan.states.items()}
        for name, spec in plan.states.items():
            if "_state." in name:
                want[name] += KEPT_STATES * 4 * spec.shape[-1]
    assert state_bytes(files[variant], Offload(n_ctx=n_ctx, n_rs_seq=n_rs_seq)) == want
    whole = files[variant].arch.hp.n_head_kv[0] * files[variant].arch.hp.head_dim_k * 2 * 4096
    assert (want.get("cache_k.0", whole) < whole) == (variant == "gemma3")


def test_a_name_with_a_block_inside_belongs_to_none() -> None:
    assert Want("v.blk.3.weight", ()).layer is None and Want("blk.x.weight", ()).layer is None


def test_shares_are_in_proportion() -> None:
    assert shares([1] * 8, [1, 1]) == [4, 4]
    assert shares([1] * 8, [3, 1]) == [6, 2]
    assert shares([1] * 8, [1, 1, 2]) == [2, 2, 4]
    assert shares([4, 1, 1, 1, 1], [1, 1]) == [1, 4]
    assert shares([5], [1, 1]) == [0, 1] and shares([], [1, 1]) == [0, 0]


def test_cards_are_filled_in_turn() -> None:
    assert filled([2, 8, 9], [10, 10]) == [2, 1] and fits([2, 8, 9], [10, 10], [2, 1])
    assert shares([2, 8, 9], [10, 10]) == [1, 2] and not fits([2, 8, 9], [10, 10], [1, 2])
    assert filled([9, 9], [1, 10]) == [0, 2] and not fits([9, 9], [1, 10], [0, 2])


def made(
    specs: dict[str, TensorSpec], states: dict[str, int], n_cards: int = 1, moved: Any = ()
) -> Layers:
    """The layers of weights blk.N.w.weight and states NAME.N."""
    blocks = {n: int(n.split(".")[1]) for n in specs if n.startswith("blk.")}
    blocks |= {n: int(n.split(".")[1]) for n in states}
    return Layers(specs, states, blocks, n_cards, moved)


def weights(sizes: list[int], **ends: int) -> dict[str, TensorSpec]:
    """A weight of so many bytes in each layer, and others by name."""
    named = {f"blk.{i}.w.weight": n for i, n in enumerate(sizes)}
    named |= {f"{name}.weight": n for name, n in ends.items()}
    return {name: TensorSpec((n // 4,)) for name, n in named.items()}


def counts(layers: Layers, free: list[int], asked: int | str | None, reserve: int = 0) -> list[int]:
    return layers.counts(free, Offload(asked, reserve=reserve))


def test_as_many_as_fit() -> None:
    layers = made(weights([400] * 4, token_embd=800, output=800), {"cache_k.3": 100})
    assert layers.total == 5 and layers.sizes == [1200, 400, 400, 500, 800]
    for free, n in {3300: 5, 3299: 4, 2099: 3, 1300: 2, 1299: 1, 800: 1, 799: 0, 0: 0}.items():
        assert counts(layers, [free], "auto") == [n], free
    assert counts(layers, [1299 + 64], "auto", reserve=64) == [1]
    assert counts(layers, [0], None) == [5] and counts(layers, [0], 99) == [5]
    assert counts(layers, [0], 2) == [2] and counts(layers, [0], 0) == [0]


def test_several_cards_take_what_fits_on_them() -> None:
    layers = made(weights([200, 800, 900], token_embd=0, output=0), {}, 2)
    assert counts(layers, [1000, 1000], "auto") == [2, 2]
    assert counts(layers, [900, 1000], "auto") == [1, 2], "the first layer stays behind"
    assert sum(counts(layers, [1000, 10], None)) == 4
    assert counts(layers, [0, 0], None, reserve=512) != [0, 4], "none has room: by halves"


def test_tied_weights_count_as_the_head() -> None:
    specs = weights([400] * 2, token_embd=800)
    assert made(specs, {}).sizes == [400, 400, 800]
    two = made(specs, {}, 2)
    assert two.homes([2, 1]) == {"blk.0.w.weight": 0, "blk.1.w.weight": 0}
    # The first card may need the embedding as well.
    assert counts(two, [1599, 800], "auto") == [1, 1] and counts(two, [1600, 800], "auto") == [2, 1]


@pytest.mark.parametrize("asked", [-1, "many", 2.5, ""])
def test_what_is_no_number_of_layers(asked: Any) -> None:
    with pytest.raises(RequestError, match="gpu_layers should be 0 or more, or 'auto'"):
        Offload(asked)


def test_homes(files: dict[str, ModelFile]) -> None:
    source = files["qwen35,mtp"]
    layers = layers_of(source, SMALL, 2)
    block = layers.total - 2
    homes = layers.homes([1, 2])
    assert homes["output.weight"] == homes["output_norm.weight"] == homes["draft_head.weight"] == 1
    assert homes[f"blk.{block}.nextn.eh_proj.weight"] == homes[f"cache_k.{block}"] == 1
    assert homes[f"cache_k.{block - 1}"] == homes[f"blk.{block - 1}.attn_q.weight"] == 0
    assert homes["token_embd.weight"] == homes["ssm_state.0"] == homes["conv_log.0"] == 2


@pytest.mark.parametrize("variant", MIXED)
@pytest.mark.parametrize("kind", ["step", "prefill"])
def test_a_cut_costs_one_copy(files: dict[str, ModelFile], variant: str, kind: str) -> None:
    source = files[variant]
    for split in splits(layers_of(source, SMALL).total):
        backend = across(source, split)
        for shape in (StepShape(1, 1, 1), StepShape(8, 2, 2), StepShape(4, 1, 4, hidden=True)):
            graph = source.arch.build(shape, CAPACITIES["replay"], source.specs)
            plan = backend.compile(graph, kind)
            order = [segment.backend for segment in plan.segments]
            # A card that only has the block for further tokens has no part in this.
            homes = {backend.lives_on[n] for n in plan.constants if n in backend.lives_on}
            assert len(order) == len(homes) and set(order) == homes, (split, order)
            rows = [(c.spec.nbytes, c.source, c.target) for c in plan.copies]
            step = 4 * N_EMBD * shape.n_tokens
            # The head's card gets the rows that want logits; they may be fewer.
            assert all(n <= step for n, _, _ in rows), (split, plan.copies)
            assert [(a, b) for _, a, b in rows] == [(i, i + 1) for i in range(len(order) - 1)]


@pytest.mark.parametrize("variant", MIXED)
@pytest.mark.parametrize("memory", CAPACITIES)
def test_states_are_where_their_layers_are(
    files: dict[str, ModelFile], variant: str, memory: str
) -> None:
    source, capacity = files[variant], CAPACITIES[memory]
    programs = [source.arch.build]
    if "mtp" in variant:
        programs.append(source.arch.mtp)
    if "qwen35" in variant and memory == "replay":
        programs.append(source.arch.folds)
    for split in splits(layers_of(source, SMALL).total):
        backend = across(source, split)
        for build in programs:
            for shape in (StepShape(1, 1, 1), StepShape(16, 2, 1)):
                graph = build(shape, capacity, source.specs)
                for kind in ("step", "prefill"):
                    plan = backend.compile(graph, kind)
                    require_homes(plan, backend)


def require_homes(plan: SplitPlan, backend: SplitBackend) -> None:
    pools = SplitPools(plan.states, backend.backends, backend.lives_on)
    assert plan.placement.homes == pools.homes
    for name in plan.states:
        assert name in backend.lives_on, name
    for segment, part in zip(plan.segments, plan.plans, strict=True):
        pools.on(segment.backend, part.states)
        for name in part.constants:
            assert backend.lives_on.get(name, segment.backend) == segment.backend, name


def logits(model: Model, ids: list[int]) -> np.ndarray:
    session = model.session(n_ctx=64, n_rs_seq=2)
    found = [session.evaluate([(0, ids[:12])], want="all").logits]
    found += [session.decode(token)[None] for token in ids[12:]]
    return np.concatenate([np.array(rows).reshape(-1, rows.shape[-1]) for rows in found])


@pytest.mark.parametrize("variant", MIXED)
def test_a_split_computes_the_same_bits(files: dict[str, ModelFile], variant: str) -> None:
    source = files[variant]
    whole, ids = Model(source, "cpu", 1), list(range(3, 19))
    want = logits(whole, ids)
    for split in splits(layers_of(source, SMALL).total):
        model = Model(source, "cpu", 1)
        model.backend = across(source, split)
        model.weights = model.backend.load_weights(source.weights)
        np.testing.assert_array_equal(logits(model, ids), want, str(split))


def test_what_a_session_adds_has_a_place() -> None:
    parts = [open_backend("cpu", 1), open_backend("cpu", 1)]
    pools = SplitPools({"a.1": TensorSpec((4,))}, parts, {"a.1": 1, "b.1": 1})
    pools.add({"b.1": TensorSpec((2,)), "c": TensorSpec((1,))})
    pools.write("b.1", 0, 3)
    assert pools.parts[1].array("b.1").tolist() == [3, 0] and pools.nbytes == 28
    assert pools.homes == {"a.1": 1, "b.1": 1, "c": 0}


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Devices cuda and cuda:1 that are processors with 1 MiB free; names that were opened."""
    opened: list[str] = []

    def pretend(name: str, threads: int | None = None) -> Any:
        opened.append(name)
        return open_backend(name.replace("cuda:1", "cpu").replace("cuda", "cpu"), threads)

    monkeypatch.setattr(offload, "open_backend", pretend)
    monkeypatch.setattr(offload, "free_bytes", lambda name: 1 << 20)
    return opened


@pytest.mark.parametrize(
    ("device", "asked", "opened"),
    [
        ("cpu", None, ["cpu"]),
        ("cuda", None, ["cuda"]),
        ("cuda,cpu", None, ["cuda,cpu"]),
        ("cuda", 0, ["cpu"]),
        ("cuda,reference", 0, ["reference"]),
        ("cuda", 99, ["cuda"]),
        ("cuda,reference", 99, ["cuda,reference"]),
        ("cuda", 2, ["cuda", "cpu"]),
        ("cpu,cuda", 2, ["cuda", "cpu"]),
        ("cuda,reference", 2, ["cuda", "reference"]),
        ("cuda, cuda:1", None, ["cuda", "cuda:1"]),
        ("cuda,cuda:1,cpu", None, ["cuda", "cuda:1", "cpu"]),
        ("cuda,cuda:1", 2, ["cuda", "cuda:1", "cpu"]),
        ("cuda", "auto", ["cpu"]),
    ],
)
def test_devices_that_are_opened(
    files: dict[str, ModelFile],
    two_cards: list[str],
    device: str,
    asked: int | str | None,
    opened: list[str],
) -> None:
    open_for(files["qwen35,mtp"], device, 1, Offload(asked))
    assert two_cards == opened


@pytest.mark.parametrize("device", ["cpu", "reference", "cpu,reference"])
def test_layers_without_cards_are_refused(files: dict[str, ModelFile], device: str) -> None:
    with pytest.raises(BackendError, match=rf"gpu_layers=3 puts .*'{device}' has none"):
        open_for(files["qwen3,untied"], device, 1, Offload(3))


def test_a_device_that_is_none_is_told_first(files: dict[str, ModelFile]) -> None:
    with pytest.raises(BackendError, match="'cudax' is not in this build"):
        open_for(files["qwen3,untied"], "cudax", 1, Offload(3))


def test_layers_without_kernels_for_cards(
    files: dict[str, ModelFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_cuda", None)
    monkeypatch.setattr(cuda, "_MISSING", "cannot import name '_cuda'", raising=False)
    for device, asked in (("cuda", 3), ("cuda,cuda:1", None), ("cuda", "auto")):
        with pytest.raises(BackendError, match="this build of riverrun has no CUDA kernels; ins"):
            open_for(files["qwen3,untied"], device, 1, Offload(asked))


COMMANDS = {
    "run": ("run", DEMO, "-p", "x"),
    "bench": ("bench", DEMO),
    "bench spec": ("bench", "spec", DEMO),
    "spec check": ("spec", "check", DEMO, "-p", "x"),
    "perplexity": ("perplexity", DEMO, Path(__file__)),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["-1", "x", "3,4", "1.5", ""])
def test_usage(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *COMMANDS[command], "--gpu-layers", value)
    assert outcome.is_short_error(2) and "--gpu-layers" in outcome.err, outcome


@pytest.mark.parametrize("command", COMMANDS)
def test_layers_for_cards_that_are_not_there(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, *COMMANDS[command], "--gpu-layers", "3", "--device", "cpu")
    assert outcome.is_short_error(1) and "device 'cpu' has none" in outcome.err, outcome


@pytest.mark.parametrize("device", ["cpu", "reference", "cpu,reference"])
def test_as_many_layers_as_fit_without_a_card_are_none(
    files: dict[str, ModelFile], device: str
) -> None:
    with pytest.warns(UserWarning, match=rf"device '{device}' has no card, 0 layers are on one"):
        assert open_for(files["llama,tied"], device, 1, Offload("auto")).name == device
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_for(files["llama,tied"], device, 1, Offload(0)).name == device


def test_a_command_says_so_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--gpu-layers", "auto", "--device", "cpu", "-n", "1")
    outcome = run_cli(capsys, *COMMANDS["run"], *asked)
    assert outcome.code == 0 and outcome.err.splitlines()[0] == (
        "riverrun: warning: --gpu-layers auto: device 'cpu' has no card, 0 layers are on one"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpu_layers": True},
        {"gpu_layers": 1.0},
        {"gpu_layers": "all"},
        {"n_ctx": 0},
        {"n_ctx": "64"},
        {"n_rs_seq": -1},
        {"reserve": None},
    ],
    ids=str,
)
def test_offloads_that_are_none(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    with pytest.raises(RequestError, match=rf"^{name} should be [01] or more.*, got "):
        Offload(**wrong)


def test_a_device_that_is_no_text(files: dict[str, ModelFile]) -> None:
    device: Any = 3
    with pytest.raises(RequestError, match=r"device should be a name .*, got int; devices: auto, "):
        open_for(files["llama,tied"], device, 1, Offload())


def test_room_for_a_draft_model(tmp_path: Path) -> None:
    from riverrun.engine.session_options import SessionOptions
    from riverrun.tools.loading import Loading
    from riverrun.tools.parameters import Chosen
    from riverrun.tools.speculation import Drafting

    draft = tmp_path / "draft.gguf"
    draft.write_bytes(bytes(1000))
    drafts = Chosen(Speculation, {"kinds": ("draft",), "draft_model": draft})
    session = Chosen(SessionOptions, {"n_rs_seq": 4})

    def offload(layers: int | str) -> Offload:
        return Drafting(drafts, session, Loading(gpu_layers=layers)).offload(64)

    plain = offload(7)
    assert plain == Offload(7, 64, 4)
    assert offload("auto") == replace(plain, gpu_layers="auto", reserve=plain.reserve + 1000)
