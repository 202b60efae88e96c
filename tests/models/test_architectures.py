"""Every architecture through the engine against dense float64 forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from numpy_models import logits as oracle
from oracles import cases_of
from riverrun.models.step import Capacity, StepShape
from tiny_models import N_VOCAB, VARIANTS, WINDOW, TinyModel

DEVICES = ("reference", "cpu")
ARCHITECTURES = tuple(variant for variant in VARIANTS if "," not in variant)
# Limits are relative to the largest logit.
EXACT = {"reference": 1e-5, "cpu": 5e-5}
STORED = ("f16", "bf16")
EXPANDED = ("reference", "q8_0")  # weights are decoded, and activations stay as they are
PAGED = [("reference", "llama"), *(("cpu", name) for name in ARCHITECTURES)]

Load = Callable[..., rr.Model]


def prompt(n: int, seed: int = 0) -> list[int]:
    """Random tokens, the third of them one of the tiny embeddings."""
    tokens = np.random.default_rng(seed).integers(0, N_VOCAB, n)
    tokens[2:3] = 5
    return [int(t) for t in tokens]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Load a variant on a device, once."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def get(variant: str, device: str, kind: str = "f32") -> rr.Model:
        path: Path = folder / f"{variant}.{kind}.gguf"
        if not path.exists():
            tiny(variant, kind).write(path)
        return rr.load(path, device=device)

    yield get


def tiny(variant: str, kind: str = "f32") -> TinyModel:
    model = VARIANTS[variant]()
    model.kind = kind
    return model


@cache
def expected(
    variant: str, n: int = 40, seed: int = 0, kind: str = "f32", rounded: bool = False
) -> np.ndarray:
    return oracle(tiny(variant, kind), prompt(n, seed), rounded)


def session(model: rr.Model, n_seqs: int = 1, cache_type: str = "f32") -> rr.Session:
    return model.session(512, n_seqs, cache_type_k=cache_type, cache_type_v=cache_type)


def evaluate(s: rr.Session, tokens: Sequence[int], cuts: Sequence[int] = ()) -> np.ndarray:
    """Logits of every position, evaluated in passes that end at the cuts."""
    edges = [0, *cuts, len(tokens)]
    parts = [tokens[a:b] for a, b in pairwise(edges)]
    return np.concatenate([s.evaluate([(0, part)], want="all").logits.copy() for part in parts])


def check(got: np.ndarray, want: np.ndarray, limit: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("variant", cases_of(__file__))
@pytest.mark.parametrize("device", DEVICES)
def test_every_row(load: Load, device: str, variant: str, n: int) -> None:
    got = evaluate(session(load(variant, device)), prompt(40)[:n])
    check(got, expected(variant)[:n], EXACT[device])


@pytest.mark.parametrize("cuts", [(1,), (7,), (3, 4, 20), (39,)], ids=str)
@pytest.mark.parametrize("variant", [*ARCHITECTURES, "llama,yarn", "qwen35,v=2k,tied"])
@pytest.mark.parametrize("device", DEVICES)
def test_split_prompt(load: Load, device: str, variant: str, cuts: tuple[int, ...]) -> None:
    got = evaluate(session(load(variant, device)), prompt(40), cuts)
    check(got, expected(variant), EXACT[device])


@pytest.mark.parametrize("variant", ARCHITECTURES)
@pytest.mark.parametrize("device", DEVICES)
def test_prefill_then_decode(load: Load, device: str, variant: str) -> None:
    s, tokens = session(load(variant, device)), prompt(40)
    rows = [s.prefill(tokens[:30]).copy()] + [s.decode(t).copy() for t in tokens[30:]]
    check(np.stack(rows), expected(variant)[29:], EXACT[device])


@pytest.mark.parametrize("variant", ARCHITECTURES)
@pytest.mark.parametrize("device", DEVICES)
def test_sequences_in_one_pass(load: Load, device: str, variant: str) -> None:
    s, first, second = session(load(variant, device), n_seqs=3), prompt(40), prompt(25, seed=1)
    a = s.evaluate([(2, first[:13]), (0, second[:20])], want="all").logits.copy()
    b = s.evaluate([(0, second[20:]), (2, first[13:])], want="all").logits.copy()
    check(np.concatenate([a[:13], b[5:]]), expected(variant), EXACT[device])
    check(np.concatenate([a[13:], b[:5]]), expected(variant, 25, 1), EXACT[device])


@pytest.mark.parametrize("device,variant", PAGED)
def test_beyond_a_page_of_memory(load: Load, device: str, variant: str) -> None:
    got = evaluate(session(load(variant, device)), prompt(290), (250, 260))
    check(got, expected(variant, 290), EXACT[device])


@pytest.mark.parametrize("device,kind", [*((d, k) for d in DEVICES for k in STORED), EXPANDED])
@pytest.mark.parametrize("variant", ARCHITECTURES)
def test_stored_types(load: Load, device: str, variant: str, kind: str) -> None:
    got = evaluate(session(load(variant, device, kind)), prompt(40))
    check(got, expected(variant, kind=kind), EXACT[device])


@pytest.mark.parametrize("variant", ARCHITECTURES)
def test_products_in_integers(load: Load, variant: str) -> None:
    """The CPU multiplies q8_0 rows in integers, with the activations rounded to 8 bits.

    A last bit may send an activation to the next of its 255 levels, or a token to another expert,
    and nothing bounds what follows. Where that happens depends on the processor, but few prompts of
    a dozen tokens have such a place: most agree as closely as with floats."""
    model, near = load(variant, "cpu", "q8_0"), 0
    for seed in range(7):
        got = evaluate(session(model), prompt(12, seed))
        want = expected(variant, 12, seed, kind="q8_0", rounded=True)
        near += bool(np.abs(got - want).max() <= EXACT["cpu"] * np.abs(want).max())
    assert near >= 4


@pytest.mark.parametrize("variant", ARCHITECTURES)
@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_memory(load: Load, device: str, variant: str) -> None:
    got = evaluate(session(load(variant, device), cache_type="f16"), prompt(40))
    check(got, expected(variant), 1e-2)


@pytest.mark.parametrize("variant", ARCHITECTURES)
@pytest.mark.parametrize("device", DEVICES)
def test_greedy_text(tmp_path: Path, device: str, variant: str) -> None:
    """From text to text, with the default memory: each token is the oracle's best."""
    source = tiny(variant)
    source.vocab = "gpt2"
    model = rr.load(source.write(tmp_path / "model.gguf"), device=device)
    tokens = model.tokenize("the other")
    got = model.generate("the other", max_tokens=6, temperature=0, ignore_eos=True).result.tokens
    assert len(got) == 6
    rows = oracle(source, tokens + got)[len(tokens) - 1 : -1]
    assert rows.argmax(-1).tolist() == got


def _without(*names: str) -> Callable[[TinyModel], None]:
    def spoil(model: TinyModel) -> None:
        for name in names:
            (model.tensors if name.startswith(("blk.", "rope_freqs")) else model.keys).pop(name)

    return spoil


def _with(key: str, value: object) -> Callable[[TinyModel], None]:
    return lambda model: model.keys.update({key: value})


SETTINGS: dict[str, tuple[str, Callable[[TinyModel], None]]] = {
    "factors": ("llama,factors", _without("rope_freqs.weight")),
    "q bias": ("llama,bias", _without("blk.1.attn_q.bias")),
    "k bias": ("llama,bias", _without("blk.1.attn_k.bias")),
    "v bias": ("llama,bias", _without("blk.1.attn_v.bias")),
    "output bias": ("llama,bias", _without("blk.1.attn_output.bias")),
    "linear": ("llama,linear", _without("rope.scaling.factor")),
    "old linear": ("llama,old linear", _without("rope.scale_linear")),
    "yarn": ("llama,yarn", _with("rope.scaling.type", "linear")),
    "yarn context": ("llama,yarn", _without("rope.scaling.original_context_length")),
    "yarn factor": ("llama,yarn", _with("rope.scaling.factor", 3.0)),
    "yarn size": ("llama,yarn,sized", _without("rope.scaling.attn_factor")),
    "linear size": ("llama,linear,sized", _without("rope.scaling.attn_factor")),
    "eps": ("llama", _with("attention.layer_norm_rms_epsilon", 1e-6)),
    "partial rotary": ("qwen3,partial", _without("rope.dimension_count")),
    "scale": ("qwen3,scale", _without("attention.scale")),
    "window": ("gemma3", _with("attention.sliding_window", WINDOW + 1)),
    "base": ("llama", _with("rope.freq_base", 9e3)),
    "cap": ("gemma3,cap", _without("final_logit_softcapping")),
    "global base": ("gemma3", _with("rope.freq_base", 1e5)),
    "window base": ("gemma3,base", _without("rope.freq_base_swa")),
    "global scaling": ("gemma3,linear", _without("rope.scaling.factor")),
    "pattern": ("gemma3,pattern", _without("attention.sliding_window_pattern")),
    "sections": ("qwen35,sections", _with("rope.dimension_sections", [2, 1, 1, 0])),
    "scale of embeddings": ("granitehybrid", _without("embedding_scale")),
    "scale of residuals": ("granitehybrid", _without("residual_scale")),
    "scale of logits": ("granitehybrid", _without("logit_scale")),
    "scale of scores": ("granitehybrid", _without("attention.scale")),
    "no rotation": ("granitehybrid", _without("rope.scaling.finetuned")),
    "experts": ("qwen35moe", _with("expert_used_count", 3)),
    "experts' scale": ("qwen35moe,scale", _without("expert_weights_scale")),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_oracle_feels_every_setting(setting: str) -> None:
    """What a file says must show in the logits, else the tests above could not see it ignored."""
    variant, change = SETTINGS[setting]
    model = tiny(variant)
    change(model)
    want = expected(variant)
    assert np.abs(oracle(model, prompt(40)) - want).max() > 1e-3 * np.abs(want).max()


def test_a_decode_step_needs_little_more_memory_than_is_alive() -> None:
    plan = rr.load(rr.DEMO_MODEL).plan(StepShape(1, 1, 1), Capacity(16, 16, 1), "step")
    assert 0 < plan.memory.arena_bytes <= 1.1 * plan.memory.peak_bytes
