"""Checkpoints of every family through the converter, against transformers over the same files."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import riverrun as rr
from checkpoint_cases import CASES, N_VOCAB
from checkpoints import WITH_MTP, logits, mtp_logits, save, save_with_mtp
from oracles import cases_of
from riverrun.graph.errors import ModelError
from riverrun.models.convert import convert
from riverrun.models.gguf import open_gguf
from riverrun.tools.main import main
from rollback_rig import STRATEGIES

N_TOKENS = 40
# Relative to the largest logit. Either side computes in f32, and may be off by the 5e-5 that the
# cpu is allowed against float64. A head in another place, a norm off by its 1 or a frequency left
# unscaled moves logits by more than a hundred times as much.
LIMIT = 1e-4


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], rr.Model]:
    """The model of a case, converted once."""

    @cache
    def get(name: str) -> rr.Model:
        folder = tmp_path_factory.mktemp("checkpoint")
        out = convert(save(name, folder), folder / "model.gguf", "f32", tokenizer=False)
        return rr.load(out, "cpu")

    return get


def prompt(n: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(0).integers(0, N_VOCAB, n).tolist())


@pytest.mark.parametrize("name", cases_of(__file__))
def test_logits(load: Callable[[str], rr.Model], name: str) -> None:
    session = load(name).session(N_TOKENS, cache_type_k="f32", cache_type_v="f32")
    got = session.evaluate([(0, list(prompt(N_TOKENS)))], want="all").logits
    want = logits(name, prompt(N_TOKENS))
    assert got.shape == want.shape == (N_TOKENS, N_VOCAB)
    assert np.abs(got - want).max() <= LIMIT * np.abs(want).max()


@pytest.mark.parametrize("name", WITH_MTP)
def test_the_block_that_predicts_further_tokens(tmp_path: Path, name: str) -> None:
    """Its logits, and greedy text with its drafts, of which some are taken, and without."""
    folder = save_with_mtp(name, tmp_path)
    model = rr.load(convert(folder, tmp_path / "model.gguf", "f32", tokenizer=False), "cpu")
    before = np.random.default_rng(1).standard_normal((N_TOKENS, 64)).astype(np.float32)
    kinds = dict(cache_type_k="f32", cache_type_v="f32")
    session = model.session(N_TOKENS, program="mtp", **kinds)
    passes = [(0, list(prompt(N_TOKENS)))]
    got = session.evaluate(passes, want="all", hidden=True, extra={"hidden_in": [before]}).logits
    want = mtp_logits(name, prompt(N_TOKENS), before)
    assert np.abs(got - want).max() <= LIMIT * np.abs(want).max()
    check_drafts(model, ("mtp",), "auto")


@pytest.mark.parametrize("name", WITH_MTP)
def test_a_file_without_the_block(tmp_path: Path, name: str) -> None:
    """As a checkpoint gives that never had it, which may still count it."""
    bare = save(name, tmp_path / "bare")
    config = json.loads((bare / "config.json").read_text())
    counts = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
    (bare / "config.json").write_text(json.dumps(config | dict.fromkeys(counts, 1)))
    folder = save_with_mtp(name, tmp_path / "whole")
    options: dict[str, Any] = dict(outtype="f32", name="x", tokenizer=False)
    files = [
        convert(bare, tmp_path / "bare.gguf", **options),
        convert(folder, tmp_path / "left-out.gguf", **options, mtp=False),
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    files.append(tmp_path / "command.gguf")
    assert main(["convert", str(folder), str(files[-1]), "--no-mtp", "--no-tokenizer"]) == 0
    assert not [tensor for f in files for tensor in open_gguf(f).tensors if "nextn" in tensor]
    with pytest.raises(ModelError, match="no multi-token-prediction block"):
        rr.load(files[1], "cpu").generate([1], max_tokens=2, speculative="mtp")


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("glm4moe", "glm4moe.leading_dense_block_count", 9, "should be 0 to 3, got 9"),
        ("glm4moe", "glm4moe.expert_gating_func", 4, "1 (softmax) or 2 (sigmoid), got 4"),
        ("gptoss", "gpt-oss.attention.sliding_window", 0, "should be 1 to 2147483647, got 0"),
        ("gptoss", "gpt-oss.expert_used_count", 7, "should be 1 to 6, got 7"),
    ],
)
def test_values_out_of_range(tmp_path: Path, name: str, key: str, value: int, words: str) -> None:
    out = convert(save(name, tmp_path), tmp_path / "model.gguf", "f32", tokenizer=False)
    gguf.GGUFReader(out, "r+").fields[key].parts[-1][0] = value
    with pytest.raises(ModelError) as caught:
        rr.load(out, "cpu")
    assert key in str(caught.value) and words in str(caught.value)


# One of each kind of memory and of attention; the others take longer than they tell.
DRAFTED = ("mistral", "gemma2", "gptoss", "qwen35moe")
PLAIN = [
    name if name in DRAFTED else pytest.param(name, marks=pytest.mark.full)
    for name in CASES
    if "," not in name
]


@pytest.mark.parametrize("name", PLAIN)
def test_drafts_change_no_token(load: Callable[[str], rr.Model], name: str) -> None:
    """Three tokens alone are allowed, so that the text repeats itself."""
    check_drafts(load(name), ("ngram-cache",), "auto")


HYBRID = ("lfm2", "lfm2moe", "qwen3next", "granitehybrid,experts", "kimi-linear")


@pytest.mark.parametrize("rollback", STRATEGIES)
@pytest.mark.parametrize("name", HYBRID)
def test_drafts_change_no_token_of_recurrent_layers(
    load: Callable[[str], rr.Model], name: str, rollback: str
) -> None:
    check_drafts(load(name), ("ngram-mod", "ngram-simple", "ngram-cache"), rollback)


def check_drafts(model: rr.Model, kinds: tuple[str, ...], rollback: str) -> None:
    """The same text with drafts, of which there are some."""
    options: dict[str, Any] = dict(max_tokens=40, temperature=0)
    options["logit_bias"] = dict.fromkeys(range(3), 1e3)
    start = [0, 1, 2, 0, 0, 2, 1] * 4
    plain = model.generate(start, **options).result
    speculation = rr.Speculation(kinds, draft_max=4, adaptive=False)
    session = model.session(128, rollback=rollback, n_rs_seq=4)
    drafted = model.generate(start, **options, session=session, speculative=speculation).result
    assert drafted.tokens == plain.tokens
    assert len(plain.tokens) == 40
    assert drafted.timings["draft_n"] > 0
