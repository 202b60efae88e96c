"""Model files that cannot be run: one clear error, naming the file and the key or tensor."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from riverrun.graph.errors import GgufError, ModelError
from riverrun.models import load_file
from riverrun.models.architecture import Architecture
from tiny_models import N_EMBD, N_VOCAB, VARIANTS, TinyModel, Typed

NAN, INF = math.nan, math.inf
HEADS, KV = "attention.head_count", "attention.head_count_kv"
SCALING, EPS = "rope.scaling", "attention.layer_norm_rms_epsilon"
ABSENT = ...


def refusal(model: TinyModel, folder: Path, error: type[ModelError] = ModelError) -> str:
    """The message of the error that loading the file raises."""
    path = model.write(folder / "model.gguf")
    with warnings.catch_warnings(), pytest.raises(error) as caught:
        warnings.simplefilter("error")
        rr.load(path, device="reference")
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    return str(caught.value)


def changed(variant: str, changes: dict[str, Any]) -> TinyModel:
    """A variant with other keys; ABSENT drops one."""
    model = VARIANTS[variant]()
    model.keys.update(changes)
    model.keys = {key: value for key, value in model.keys.items() if value is not ABSENT}
    return model


# variant, key, value, what the message should hold beside the key
VALUES: list[tuple[str, str, Any, str]] = [
    ("llama", "block_count", 0, "1 to 512, got 0"),
    ("llama", "block_count", 513, "1 to 512, got 513"),
    ("qwen35,mtp", "nextn_predict_layers", 5, "0 to 4, got 5"),
    ("qwen35,mtp", "nextn_predict_layers", 6, "0 to 4, got 6"),
    ("llama", "embedding_length", 0, "got 0"),
    ("llama", "embedding_length", 1 << 31, "got 2147483648"),
    ("llama", HEADS, 0, "1 to 4096, got 0"),
    ("llama", HEADS, 5000, "1 to 4096, got 5000"),
    ("llama", HEADS, [4, 0], "1 to 4096, got 0"),
    ("llama", KV, 0, "divide head_count 4, got 0"),
    ("llama", KV, 3, "divide head_count 4, got 3"),
    ("llama", KV, 8, "divide head_count 4, got 8"),
    ("llama", KV, [2, 3], "divide head_count 4, got 3"),
    ("llama", "rope.dimension_count", 18, "1 to 16, got 18"),
    ("llama", "rope.dimension_count", 7, "even, got 7"),
    ("llama", "attention.key_length", 0, "1 to 4096, got 0"),
    ("llama", "attention.value_length", 4097, "1 to 4096, got 4097"),
    ("llama", "attention.scale", NAN, "got nan"),
    ("llama", "attention.scale", -1.0, "got -1.0"),
    *(("llama", EPS, v, f"above 0, got {v}") for v in (0.0, -0.0, -1.0, NAN, INF)),
    ("llama", EPS, 2.0, "0 to 1, got 2.0"),
    ("llama", "context_length", 0, "1 to 4294967295, got 0"),
    ("llama", "rope.dimension_count", 0, "1 to 16, got 0"),
    ("llama", "feed_forward_length", 0, "should be 1 or more): blk.0.ffn_gate.weight (0, 64)"),
    ("llama", "feed_forward_length", [96, 0], "should be 1 or more): blk.1.ffn_gate.weight"),
    ("llama", "attention.value_length", 0, "1 to 4096, got 0"),
    ("qwen35", EPS, 0.0, "above 0, got 0.0"),
    ("gemma3", EPS, NAN, "above 0, got nan"),
    ("llama", "attention.sliding_window", 1 << 31, "0 to 2147483647, got 2147483648"),
    ("gemma3", "attention.sliding_window", 0, "1 to 2147483647, got 0"),
    ("gemma3", "attention.sliding_window", 1 << 31, "got 2147483648"),
    *(("qwen35moe", f"expert_{k}", 0, "got 0") for k in ("count", "used_count")),
    *(("qwen35moe", f"expert_{k}feed_forward_length", 0, "got 0") for k in ("", "shared_")),
    *(("qwen35moe", "expert_weights_scale", v, f"got {v}") for v in (-1.0, NAN, INF)),
    *(("llama", "rope.freq_base", v, f"above 1, got {v}") for v in (0.0, 1.0, -5.0, NAN, INF)),
    ("llama", "expert_count", 2000, "1 to 1024, got 2000"),
    ("qwen35moe", "expert_gating_func", 3, "1 (softmax) or 2 (sigmoid), got 3"),
    *(("llama,yarn", f"{SCALING}.yarn_ext_factor", v, f"0 to 1, got {v}") for v in (-1.0, NAN)),
    *(
        ("llama,yarn", f"{SCALING}.yarn_{name}", v, f"above 0, got {v}")
        for name in ("attn_factor", "log_multiplier", "beta_fast", "beta_slow")
        for v in (-1.0, INF)
    ),
    ("llama", f"{SCALING}.type", "longrope", "none, linear or yarn, got 'longrope'"),
    *(("llama", f"{SCALING}.factor", v, f"above 0, got {v}") for v in (-2.0, NAN, INF)),
    ("llama", f"{SCALING}.factor", 2.0**-140, "finite inverse, got 7.17"),
    *(("llama,yarn", f"{SCALING}.factor", v, "0.001 to 1000000.0, got") for v in (1e-30, 1e30)),
    ("llama", "rope.scale_linear", -1.0, "above 0, got -1.0"),
    *(("llama,yarn", f"{SCALING}.attn_factor", v, f"above 0, got {v}") for v in (0.0, NAN, INF)),
    ("llama,yarn", f"{SCALING}.original_context_length", 0, "got 0"),
    *(("gemma3", "final_logit_softcapping", v, f"above 0, got {v}") for v in (-1.0, NAN, INF)),
    ("gemma3", "rope.freq_base_swa", 0.5, "above 1, got 0.5"),
    ("gemma3", "attention.sliding_window_pattern", 0, "1 to 2147483647, got 0"),
    ("qwen35", "rope.dimension_sections", [0, 0, 0, 0], "not all 0, got [0, 0, 0, 0]"),
    ("qwen35", "rope.dimension_sections", [9, 1, 1, 0], "dimension_count 8, not all 0, got [9, "),
    ("qwen35", "rope.dimension_sections", [2, -1, 1, 0], "got [2, -1, 1, 0]"),
    ("qwen35", "full_attention_interval", 0, "1 to 2147483647, got 0"),
    ("qwen35", "attention.value_length", 16, "key_length 32, got 16"),
    ("qwen35", "ssm.state_size", 0, "1 to 4096, got 0"),
    ("qwen35", "ssm.group_count", 0, "1 to 4096, got 0"),
    ("qwen35", "ssm.time_step_rank", 5000, "1 to 4096, got 5000"),
    ("qwen35", "ssm.conv_kernel", 1, "2 to 64, got 1"),
    ("qwen35", "ssm.conv_kernel", 65, "2 to 64, got 65"),
    ("qwen35", "ssm.inner_size", 48, "state_size * time_step_rank = 32"),
    ("granitehybrid", "ssm.state_size", 0, "1 to 4096, got 0"),
    ("granitehybrid", "ssm.conv_kernel", 1, "2 to 64, got 1"),
    ("granitehybrid", "ssm.time_step_rank", 5, "divide inner_size 96"),
    ("granitehybrid", "residual_scale", -1.0, "above 0, got -1.0"),
    ("kimi-linear", "kda.head_dim", 0, "1 to 4096, got 0"),
    ("kimi-linear", "ssm.conv_kernel", 1, "2 to 64, got 1"),
    ("kimi-linear", "attention.kv_lora_rank", 0, "1 to 4096, got 0"),
    ("kimi-linear", "attention.key_length_mla", 8, "above rope.dimension_count 8, got 8"),
    ("kimi-linear", "attention.key_length", 40, "rope.dimension_count = 32, got 40"),
    ("lfm2", "shortconv.l_cache", 1, "2 to 64, got 1"),
    ("lfm2", "attention.causal", False, "true, got false"),
    ("lfm2", "attention.sliding_window", 8, "absent or 0, got 8"),
    ("lfm2", KV, [0, 0, 3, 0], "divide head_count 4, got 3"),
    ("lfm2moe", "leading_dense_block_count", 5, "0 to 4, got 5"),
    ("lfm2moe", "expert_gating_func", 3, "1 (softmax) or 2 (sigmoid), got 3"),
]


@pytest.mark.parametrize(
    "variant,key,value,part", VALUES, ids=[f"{v}-{k}={x}" for v, k, x, _ in VALUES]
)
def test_values_out_of_range(tmp_path: Path, variant: str, key: str, value: Any, part: str) -> None:
    message = refusal(changed(variant, {key: value}), tmp_path)
    assert key in message and part in message


@pytest.mark.parametrize(
    "changes",
    [
        {"ssm.state_size": 32},
        {"ssm.time_step_rank": 4},
        {"ssm.group_count": 3},
        {"ssm.time_step_rank": 3, "ssm.inner_size": 48},
    ],
    ids=str,
)
def test_delta_net_sizes_that_contradict(tmp_path: Path, changes: dict[str, int]) -> None:
    message = refusal(changed("qwen35", changes), tmp_path)
    assert "qwen35.ssm.inner_size should be state_size * time_step_rank" in message


WRONG_TYPES: list[tuple[str, str, Any]] = [
    ("llama", "block_count", Typed("i32", 2)),
    ("llama", "embedding_length", float(N_EMBD)),
    ("llama", "context_length", Typed("u64", 512)),
    ("llama", HEADS, "4"),
    ("llama", HEADS, [4]),
    ("llama", HEADS, 4.0),
    ("llama", KV, [2.0, 2.0]),
    ("llama", "feed_forward_length", [96]),
    ("llama", EPS, Typed("f64", 1e-5)),
    ("llama", "rope.freq_base", 10000),
    ("llama", "rope.dimension_count", Typed("i32", 16)),
    ("llama", f"{SCALING}.type", 1),
    ("llama", f"{SCALING}.factor", Typed("f64", 4.0)),
    ("llama", "expert_count", Typed("i32", 0)),
    ("gemma3", "attention.sliding_window", Typed("i32", 8)),
    ("gemma3", "attention.sliding_window_pattern", [True] * 6),
    ("gemma3", "attention.sliding_window_pattern", Typed("i32", 6)),
    ("gemma3", "final_logit_softcapping", 30),
    ("qwen35", "rope.dimension_sections", [2, 1]),
    ("qwen35", "rope.dimension_sections", [1] * 5),
    ("qwen35", "rope.dimension_sections", [2.0, 1.0, 1.0]),
    ("qwen35", "rope.dimension_sections", 4),
    ("qwen35", "attention.recurrent_layers", True),
    ("qwen35", "attention.recurrent_layers", [True] * 3),
    ("qwen35", "attention.recurrent_layers", [True] * 5),
    ("qwen35", "ssm.state_size", Typed("i32", 16)),
    ("qwen35,mtp", "nextn_predict_layers", Typed("i32", 1)),
]


@pytest.mark.parametrize(
    "variant,key,value", WRONG_TYPES, ids=[f"{v}-{k}={x}" for v, k, x in WRONG_TYPES]
)
def test_keys_of_the_wrong_type(tmp_path: Path, variant: str, key: str, value: Any) -> None:
    message = refusal(changed(variant, {key: value}), tmp_path, GgufError)
    assert f"{variant.split(',')[0]}.{key}" in message and "must have" in message


@pytest.mark.parametrize(
    "variant,key",
    [
        *(("llama", k) for k in ("block_count", "embedding_length", "context_length", HEADS, EPS)),
        ("gemma3", "attention.sliding_window"),
        ("lfm2", "shortconv.l_cache"),
        ("qwen35", "rope.dimension_sections"),
        *(("qwen35", f"ssm.{k}") for k in ("state_size", "group_count", "time_step_rank")),
        *(("qwen35", f"ssm.{k}") for k in ("conv_kernel", "inner_size")),
    ],
)
def test_keys_that_are_missing(tmp_path: Path, variant: str, key: str) -> None:
    message = refusal(changed(variant, {key: ABSENT}), tmp_path, GgufError)
    assert f"'{variant}.{key}' is missing" in message


def test_unknown_architecture(tmp_path: Path) -> None:
    model = VARIANTS["llama"]()
    model.arch = "gptj"
    message = refusal(model, tmp_path)
    assert "'gptj'" in message
    assert all(name in message for name in ("gemma3", "llama", "qwen3", "qwen35"))


def test_all_wrong_tensors_in_one_error(tmp_path: Path) -> None:
    model = VARIANTS["llama"]()
    tensors = model.tensors
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_norm.weight", "output_norm.weight"):
        del tensors[name]
    tensors["blk.0.attn_q_norm.weight"] = np.ones(16, np.float32)
    tensors["blk.2.attn_norm.weight"] = np.ones(N_EMBD, np.float32)
    tensors["blk.1.attn_k.weight"] = np.zeros((64, N_EMBD), np.float32)
    tensors["blk.1.ffn_down.weight"] = np.zeros((96, N_EMBD), np.float32)
    tensors["output.weight"] = np.zeros((N_VOCAB - 1, N_EMBD), np.float32)
    _stored_as(model, "blk.0.attn_norm.weight", "f16")
    _stored_as(model, "blk.0.ffn_up.weight", "i8")
    head, *parts = refusal(model, tmp_path).split("; ")
    assert "architecture 'llama'" in head
    assert head.endswith(
        "of a type that is not read: blk.0.ffn_up.weight is i8, a type of tables, which no "
        "product reads (convert the model again, to f32, f16 or bf16)"
    )
    assert parts == [
        "missing: output_norm.weight, blk.0.attn_q.weight, blk.1.ffn_norm.weight",
        "unexpected: blk.0.attn_q_norm.weight, blk.2.attn_norm.weight",
        "misshapen: output.weight has shape (287, 64), expected (288, 64), "
        "blk.1.attn_k.weight has shape (64, 64), expected (32, 64), "
        "blk.1.ffn_down.weight has shape (96, 64), expected (64, 96)",
        "of unsupported type (requantise the model): blk.0.attn_norm.weight is f16, expected f32",
        "blocks: llama.block_count, 2 here, counts all of them",
    ]


def _stored_as(model: TinyModel, name: str, kind: str) -> None:
    types = {"f16": np.float16, "i8": np.int8, "i32": np.int32}
    model.raw[name] = (kind, model.tensors.pop(name).astype(types[kind]))


def _iq1_s(model: TinyModel) -> None:
    """A head of one 256-element block a row."""
    wide = np.zeros((N_VOCAB, 50), np.uint8)
    del model.tensors["output.weight"]
    model.raw["output.weight"] = ("iq1_s", wide)


SPOILS: dict[str, tuple[str, Callable[[TinyModel], object], str]] = {
    "iq1_s": ("llama", _iq1_s, "output.weight is iq1_s, its grid of 2048 points has no decoder"),
    "integers": (
        "llama",
        lambda m: _stored_as(m, "blk.0.attn_q.weight", "i32"),
        "blk.0.attn_q.weight is i32, a type of tables, which no product reads (convert",
    ),
    "convolution": (
        "qwen35",
        lambda m: _stored_as(m, "blk.0.ssm_conv1d.weight", "f16"),
        "blk.0.ssm_conv1d.weight is f16, expected f32",
    ),
    "decay": ("qwen35", lambda m: _stored_as(m, "blk.1.ssm_a", "f16"), "blk.1.ssm_a is f16"),
    "bias": (
        "llama,bias",
        lambda m: _stored_as(m, "blk.0.attn_q.bias", "f16"),
        "blk.0.attn_q.bias is f16",
    ),
    "no tensors": (
        "llama",
        lambda m: m.tensors.clear(),
        "'token_embd.weight' [n_vocab, n_embd] is missing",
    ),
    "flat embedding": (
        "llama",
        lambda m: m.tensors.update({"token_embd.weight": m.tensors["token_embd.weight"].ravel()}),
        "'token_embd.weight' [n_vocab, n_embd] is missing",
    ),
    "a recurrent layer as attention": (
        "qwen35",
        lambda m: m.keys.update({"attention.recurrent_layers": [True, False, True, False]}),
        "unexpected: blk.1.attn_qkv.weight, blk.1.attn_gate.weight",
    ),
    "experts": (
        "qwen3",
        lambda m: m.tensors.update({"blk.0.ffn_gate_inp.weight": np.zeros((4, 64), np.float32)}),
        "unexpected: blk.0.ffn_gate_inp.weight",
    ),
    "long rope factors": (
        "llama",
        lambda m: m.tensors.update({"rope_factors_long.weight": np.ones(8, np.float32)}),
        "unexpected: rope_factors_long.weight",
    ),
    "MTP block without its projection": (
        "qwen35,mtp",
        lambda m: m.tensors.pop("blk.4.nextn.eh_proj.weight"),
        "missing: blk.4.nextn.eh_proj.weight",
    ),
    "MTP block not declared": (
        "qwen35,mtp",
        lambda m: m.keys.pop("nextn_predict_layers"),
        "unexpected: blk.4.attn_q.weight",
    ),
    "MTP block not counted": (
        "qwen35,mtp",
        lambda m: m.keys.pop("nextn_predict_layers"),
        "qwen35.nextn_predict_layers, 0 here, counts those with nextn tensors",
    ),
    "MTP block not counted among experts": (
        "qwen35moe,mtp",
        lambda m: m.keys.update({"nextn_predict_layers": 0}),
        "qwen35moe.nextn_predict_layers, 0 here",
    ),
    "MTP block in neither count": (
        "qwen35,mtp",
        lambda m: (m.keys.pop("nextn_predict_layers"), m.keys.update(block_count=4)),
        "qwen35.nextn_predict_layers, 0 here, counts those with nextn tensors (multi-token "
        "prediction), qwen35.block_count, 4 here, counts all of them",
    ),
    "MTP block counted and not there": (
        "qwen35",
        lambda m: m.keys.update(nextn_predict_layers=1),
        "qwen35.nextn_predict_layers, 1 here",
    ),
    "MTP tensors of a model without such blocks": (
        "llama",
        lambda m: m.tensors.update({"blk.1.nextn.enorm.weight": np.ones(64, np.float32)}),
        "llama.nextn_predict_layers, 0 here",
    ),
    "a block too many": (
        "llama",
        lambda m: m.keys.update(block_count=1),
        "llama.block_count, 1 here, counts all of them",
    ),
    "a tensor of a type that is not known": (
        "llama",
        lambda m: _retyped(m, "blk.0.attn_q.weight"),
        "blk.0.attn_q.weight is type 99",
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_tensors_that_do_not_fit(tmp_path: Path, spoil: str) -> None:
    variant, change, part = SPOILS[spoil]
    model = VARIANTS[variant]()
    change(model)
    assert part in refusal(model, tmp_path)


def test_embedding_smaller_than_the_vocabulary(tmp_path: Path) -> None:
    model = VARIANTS["llama"]()
    model.vocab = "gpt2"
    model.tensors["token_embd.weight"] = model.tensors["token_embd.weight"][:200]
    assert "a row for each of 288 tokens, got 200" in refusal(model, tmp_path)
    model = changed("llama", {"vocab_size": N_VOCAB + 1})
    assert "a row for each of 289 tokens, got 288" in refusal(model, tmp_path)


def _retyped(model: TinyModel, name: str) -> None:
    """Let the row of a tensor in the file have a type id that nobody knows."""
    write = model.write

    def spoiled(path: Path) -> Path:
        raw = write(path).read_bytes()
        row = raw.index(name.encode()) + len(name) + 4 + 2 * 8
        path.write_bytes(raw[:row] + (99).to_bytes(4, "little") + raw[row + 4 :])
        return path

    model.write = spoiled  # type: ignore[method-assign]


PER_LAYER: dict[str, tuple[str, list[int]]] = {
    HEADS: ("llama,per layer", [4, 2]),
    KV: ("llama,per layer", [2, 1]),
    "feed_forward_length": ("llama,per layer", [96, 64]),
    "attention.sliding_window_pattern": ("gemma3,pattern", [1, 0, 1, 1, 0, 0, 1]),
    "attention.recurrent_layers": ("qwen35,recurrent", [0, 1, 1, 0]),
    "rope.dimension_sections": ("qwen35", [2, 1, 1, 0]),
    "expert_feed_forward_length": ("qwen35moe", [32] * 4),
}


@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"])
def test_arrays_of_any_integers_mean_the_same(tmp_path: Path, kind: str) -> None:
    for key, (variant, values) in PER_LAYER.items():
        plain = load_file(VARIANTS[variant]().write(tmp_path / "plain.gguf"))
        model = changed(variant, {key: Typed(kind, values)})
        typed = load_file(model.write(tmp_path / "typed.gguf"))
        assert _read(typed.arch) == _read(plain.arch), key


def _read(arch: Architecture) -> dict[str, Any]:
    """What an architecture has read from its file."""
    return {name: value for name, value in vars(arch).items() if name != "_trunks"}


def test_optional_keys_may_be_absent_or_zero(tmp_path: Path) -> None:
    """Zero means none for these, as in files that write every key."""
    zeros = {f"{SCALING}.factor": 0.0, "attention.scale": 0.0, "nextn_predict_layers": 0}
    rows = []
    for name, changes in (("absent", {}), ("zero", zeros)):
        model = rr.load(changed("llama", changes).write(tmp_path / f"{name}.gguf"), "reference")
        rows.append(model.session(64).evaluate([(0, [1, 20, 3])]).logits.copy())
    np.testing.assert_array_equal(rows[0], rows[1])


def test_heads_of_their_own_by_default(tmp_path: Path) -> None:
    """Without head_count_kv every query head has its key and value head."""
    model = changed("llama", {KV: ABSENT})
    for name in ("blk.0.attn_k", "blk.0.attn_v", "blk.1.attn_k", "blk.1.attn_v"):
        model.tensors[f"{name}.weight"] = np.ones((64, N_EMBD), np.float32)
    loaded = rr.load(model.write(tmp_path / "a.gguf"), "reference")
    assert loaded.source.arch.hp.n_head_kv == [4, 4]
