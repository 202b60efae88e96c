"""Tiny model files with random weights, of every architecture, written by the gguf package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

N_VOCAB, N_EMBD, N_FF = 288, 64, 96
WINDOW = 8
SMALL_ROWS = slice(0, 8)
PLAIN = ("ssm_conv1d", "shortconv.conv", "ffn_gate_inp")
SMALLEST = {"f32": 1, "f16": 1, "bf16": 1, "q8_0": 32}


@dataclass(frozen=True)
class Typed:
    """A metadata value of a kind that its Python type does not tell ("i32", "u64", ...)."""

    kind: str
    value: object


@dataclass
class TinyModel:
    """What a file will hold; change keys and tensors before `write` to spoil it.

    keys: names without the architecture's prefix; int is written as u32, float as f32, lists as
    i32, bool or f32 arrays. tensors: f32, numpy shapes; matrices are stored as `kind`. vocab:
    "none", or "gpt2" for the 256 byte tokens, an end token and fillers. extra: more bare keys."""

    arch: str
    keys: dict[str, Any]
    tensors: dict[str, np.ndarray]
    kind: str = "f32"
    vocab: str = "none"
    extra: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, tuple[str, np.ndarray]] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        """Write the file and give its path back. raw: tensors of a named type, as bytes."""
        writer = GGUFWriter(path, self.arch)
        for name, value in self.keys.items():
            _add(writer, f"{self.arch}.{name}", value)
        for name, value in (VOCABULARIES[self.vocab]() | self.extra).items():
            _add(writer, name, value)
        for name, array in self.tensors.items():
            data, stored = self._encode(name, array)
            writer.add_tensor(name, data, raw_dtype=stored)
        for name, (kind, data) in self.raw.items():
            writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind.upper()])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def stored(self) -> dict[str, np.ndarray]:
        """The weights as a reader sees them: f64, after rounding to the file's types."""
        out = {}
        for name, array in self.tensors.items():
            data, kind = self._encode(name, array)
            out[name] = gguf.quants.dequantize(data, kind).astype(np.float64)
        return out

    def _encode(self, name: str, array: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
        matrix = array.ndim >= 2 and not any(part in name for part in PLAIN)
        kind = self.kind if matrix and array.shape[-1] % SMALLEST[self.kind] == 0 else "f32"
        stored = GGMLQuantizationType[kind.upper()]
        return gguf.quants.quantize(np.ascontiguousarray(array, np.float32), stored), stored


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, Typed):
        kinds = {"f32": GGUFValueType.FLOAT32, "f64": GGUFValueType.FLOAT64}
        kinds |= {f"i{n}": GGUFValueType[f"INT{n}"] for n in (8, 16, 32, 64)}
        kinds |= {f"u{n}": GGUFValueType[f"UINT{n}"] for n in (8, 16, 32, 64)}
        writer.add_key_value(name, value.value, kinds[value.kind])
    elif isinstance(value, list):
        writer.add_array(name, value)
    else:
        adders: dict[type, Callable[[str, Any], None]] = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        adders[type(value)](name, value)


def _gpt2() -> dict[str, Any]:
    """Byte-level BPE: 256 bytes in GPT-2's alphabet, one merge, an end token, fillers."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    alphabet = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [alphabet[b] for b in range(256)] + ["th", "<|endoftext|>"]
    types = [1] * 257 + [3] + [5] * (N_VOCAB - 258)
    tokens += [f"<|filler_{i}|>" for i in range(N_VOCAB - 258)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.eos_token_id": 257,
    }


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {"tokenizer.ggml.model": "none"},
    "gpt2": _gpt2,
}


class Weights(dict[str, np.ndarray]):
    """Random tensors of a size that keeps activations and logits near 1."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int, size: float = 1.0) -> None:
        """Normal, scaled by 1/sqrt(columns)."""
        scale = size / np.sqrt(columns)
        self[name] = (self.rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    def vector(self, name: str, n: int, low: float, high: float) -> None:
        """Uniform."""
        self[name] = self.rng.uniform(low, high, n).astype(np.float32)

    def norm(self, name: str, n: int) -> None:
        """Positive, around 1."""
        self.vector(name, n, 0.5, 1.5)

    def ends(self, tied: bool, embedding: float = 1.0, norm: str = "output_norm") -> None:
        """Embedding, with rows so small that a norm's eps shows; final norm, head."""
        self.matrix("token_embd.weight", N_VOCAB, N_EMBD, embedding * np.sqrt(N_EMBD))
        self["token_embd.weight"][SMALL_ROWS] *= 3e-3
        self.norm(f"{norm}.weight", N_EMBD)
        if not tied:
            self.matrix("output.weight", N_VOCAB, N_EMBD, 2.0)

    def attention(
        self, i: int, heads: int, kv: int, dim: int, qk_norm: bool = False, gated: bool = False
    ) -> None:
        """One attention layer, its norms aside."""
        b = f"blk.{i}."
        self.matrix(b + "attn_q.weight", heads * dim * (2 if gated else 1), N_EMBD, 1.5)
        self.matrix(b + "attn_k.weight", kv * dim, N_EMBD, 1.5)
        self.matrix(b + "attn_v.weight", kv * dim, N_EMBD)
        self.matrix(b + "attn_output.weight", N_EMBD, heads * dim)
        if qk_norm:
            self.norm(b + "attn_q_norm.weight", dim)
            self.norm(b + "attn_k_norm.weight", dim)

    def ffn(self, i: int, n_ff: int = N_FF) -> None:
        """One feed-forward block."""
        self.matrix(f"blk.{i}.ffn_gate.weight", n_ff, N_EMBD, 1.5)
        self.matrix(f"blk.{i}.ffn_up.weight", n_ff, N_EMBD)
        self.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, n_ff)

    def experts(self, i: int, n: int, n_ff: int, n_shared: int, fused: bool) -> None:
        """A router over n experts and a shared expert with its gate.

        Wide gaps between the router's logits, so that rounding seldom changes a choice."""
        b = f"blk.{i}."
        self.matrix(b + "ffn_gate_inp.weight", n, N_EMBD, 3.0)
        if fused:
            self.stack(b + "ffn_gate_up_exps.weight", n, 2 * n_ff, N_EMBD)
        else:
            self.stack(b + "ffn_gate_exps.weight", n, n_ff, N_EMBD, 1.5)
            self.stack(b + "ffn_up_exps.weight", n, n_ff, N_EMBD)
        self.stack(b + "ffn_down_exps.weight", n, N_EMBD, n_ff)
        self.matrix(b + "ffn_gate_inp_shexp.weight", 1, N_EMBD, 2.0)
        self[b + "ffn_gate_inp_shexp.weight"] = self[b + "ffn_gate_inp_shexp.weight"][0]
        self.matrix(b + "ffn_gate_shexp.weight", n_shared, N_EMBD, 1.5)
        self.matrix(b + "ffn_up_shexp.weight", n_shared, N_EMBD)
        self.matrix(b + "ffn_down_shexp.weight", N_EMBD, n_shared)

    def stack(self, name: str, n: int, rows: int, columns: int, size: float = 1.0) -> None:
        """A matrix for each of n experts."""
        self.matrix(name, n * rows, columns, size)
        self[name] = self[name].reshape(n, rows, columns)


def _keys(layers: int, heads: object, kv: object, **more: Any) -> dict[str, Any]:
    """Common keys and more; dots in names are written as double underscores."""
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": 512,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": N_VOCAB,
    }
    return keys | _dotted(more)


def _dotted(more: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in more.items()}


def llama(
    tied: bool = False, factors: bool = False, bias: bool = False, layers: int = 2, **more: Any
) -> TinyModel:
    """Four heads of 16 over two; optional rope_freqs.weight and biases. more: further keys."""
    w = Weights(1)
    w.ends(tied)
    if factors:
        w.vector("rope_freqs.weight", 8, 1.0, 8.0)
    for i in range(layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.attention(i, 4, 2, 16)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        w.ffn(i)
        for name, n in (("q", 64), ("k", 32), ("v", 32), ("output", 64)):
            if bias:
                w.vector(f"{b}attn_{name}.bias", n, -1.0, 1.0)
    return TinyModel("llama", _keys(layers, 4, 2, rope__dimension_count=16, **more), w)


def llama_per_layer() -> TinyModel:
    """Head counts and widths that differ between layers."""
    w = Weights(2)
    w.ends(tied=False)
    heads, kv, n_ff = [4, 2], [2, 1], [96, 64]
    for i in range(2):
        w.norm(f"blk.{i}.attn_norm.weight", N_EMBD)
        w.attention(i, heads[i], kv[i], 16)
        w.norm(f"blk.{i}.ffn_norm.weight", N_EMBD)
        w.ffn(i, n_ff[i])
    more = {"attention.key_length": 16, "attention.value_length": 16, "feed_forward_length": n_ff}
    return TinyModel("llama", _keys(2, heads, kv) | more, w)


def qwen3(tied: bool = True, **more: Any) -> TinyModel:
    """Four heads of 32 over two, so that all heads are twice the embedding."""
    w = Weights(3)
    w.ends(tied)
    for i in range(2):
        w.norm(f"blk.{i}.attn_norm.weight", N_EMBD)
        w.attention(i, 4, 2, 32, qk_norm=True)
        w.norm(f"blk.{i}.ffn_norm.weight", N_EMBD)
        w.ffn(i)
    keys = _keys(2, 4, 2, attention__key_length=32, attention__value_length=32)
    keys["rope.freq_base"] = 1e6
    return TinyModel("qwen3", keys | _dotted(more), w)


def gemma3(cap: float = 0.0, pattern: list[bool] | None = None, **more: Any) -> TinyModel:
    """Seven layers, the sixth of them global, the others with a window of 8."""
    w = Weights(4)
    w.ends(tied=True, embedding=1 / np.sqrt(N_EMBD))
    for i in range(7):
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            w.norm(f"blk.{i}.{name}.weight", N_EMBD)
        w.attention(i, 4, 1, 32, qk_norm=True)
        w.ffn(i)
    keys = _keys(7, 4, 1, attention__key_length=32, attention__value_length=32, **more)
    keys |= {"attention.sliding_window": WINDOW, "rope.freq_base": 1e6}
    if cap:
        keys["final_logit_softcapping"] = cap
    if pattern:
        keys["attention.sliding_window_pattern"] = pattern
    return TinyModel("gemma3", keys, w)


def qwen35(
    v_heads: int = 2,
    tied: bool = False,
    mtp: int = 0,
    recurrent: list[bool] | None = None,
    sections: tuple[int, ...] = (2, 1, 1, 0),
    linear: list[bool] | None = None,
    arch: str = "qwen35",
    feed_forward: Callable[[Weights, int], None] = Weights.ffn,
    **more: Any,
) -> TinyModel:
    """Four trunk layers, the last with attention unless told; two key heads of 16.

    linear: which layers get delta-net tensors; recurrent: the same, and written as a key.
    feed_forward adds a block's feed-forward tensors."""
    w, dim, k_heads, n = Weights(5), 16, 2, 4
    w.ends(tied)
    linear = recurrent or linear or [True, True, True, False]
    for i in range(n + mtp):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "post_attention_norm.weight", N_EMBD)
        feed_forward(w, i)
        if i < n and linear[i]:
            _delta_net(w, b, k_heads, v_heads, dim)
        else:
            w.attention(i, 4, 2, 32, qk_norm=True, gated=True)
        if i >= n:
            w.matrix(b + "nextn.eh_proj.weight", N_EMBD, 2 * N_EMBD)
            w.norm(b + "nextn.enorm.weight", N_EMBD)
            w.norm(b + "nextn.hnorm.weight", N_EMBD)
            w.norm(b + "nextn.shared_head_norm.weight", N_EMBD)
    keys = _keys(n + mtp, 4, 2, attention__key_length=32, attention__value_length=32)
    keys |= {"rope.dimension_count": 8, "rope.dimension_sections": list(sections)}
    keys |= {"rope.freq_base": 1e7, "ssm.conv_kernel": 4, "ssm.state_size": dim}
    keys |= {"ssm.group_count": k_heads, "ssm.time_step_rank": v_heads}
    keys |= {"ssm.inner_size": dim * v_heads}
    if mtp:
        keys["nextn_predict_layers"] = mtp
    if recurrent:
        keys["attention.recurrent_layers"] = recurrent
    return TinyModel(arch, keys | _dotted(more), w)


def qwen35moe(
    n_used: int = 2, fused: bool = False, mtp: int = 0, v_heads: int = 2, **more: Any
) -> TinyModel:
    """qwen35 with six experts of width 32 in every block, and a shared one of width 96."""
    keys: dict[str, Any] = {"expert_count": 6, "expert_used_count": n_used}
    keys |= {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 96}

    def experts(w: Weights, i: int) -> None:
        w.experts(i, 6, 32, 96, fused)

    return qwen35(v_heads, mtp=mtp, arch="qwen35moe", feed_forward=experts, **(keys | more))


def qwen3next(v_heads: int = 2, whole: bool = False, mtp: int = 0) -> TinyModel:
    """qwen35moe with two key heads' projections packed as the published ones. whole: in one."""
    model = qwen35moe(v_heads=v_heads, mtp=mtp)
    del model.keys["rope.dimension_sections"]
    model.arch, w = "qwen3next", model.tensors
    for b in [name.removesuffix("ssm_a") for name in w if name.endswith("ssm_a")]:
        parts = [w.pop(f"{b}ssm_{name}.weight") for name in ("beta", "alpha")]
        w[b + "ssm_ba.weight"] = np.concatenate(parts)
        if whole:
            parts = [w.pop(f"{b}attn_{name}.weight") for name in ("qkv", "gate")]
            w[b + "ssm_in.weight"] = np.concatenate(parts)
    return model


def lfm2(
    width: int = 3, attends: Sequence[int] = (2,), tied: bool = True, **more: Any
) -> TinyModel:
    """Four layers; those named have four heads of 16 over two, the others convolve."""
    w, layers = Weights(7), 4
    w.ends(tied, norm="token_embd_norm")
    for i in range(layers):
        b = f"blk.{i}."
        w.norm(b + "attn_norm.weight", N_EMBD)
        w.norm(b + "ffn_norm.weight", N_EMBD)
        w.ffn(i)
        if i in attends:
            w.attention(i, 4, 2, 16, qk_norm=True)
            continue
        w.matrix(b + "shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD, 1.5)
        w.matrix(b + "shortconv.conv.weight", N_EMBD, width, 1.5)
        w.matrix(b + "shortconv.out_proj.weight", N_EMBD, N_EMBD)
    kv = [2 if i in attends else 0 for i in range(layers)]
    keys = _keys(layers, 4, kv, shortconv__l_cache=width, rope__freq_base=1e6)
    return TinyModel("lfm2", keys | _dotted(more), w)


def _delta_net(w: Weights, b: str, k_heads: int, v_heads: int, dim: int) -> None:
    values, channels = v_heads * dim, (2 * k_heads + v_heads) * dim
    w.matrix(b + "attn_qkv.weight", channels, N_EMBD, 1.5)
    w.matrix(b + "attn_gate.weight", values, N_EMBD, 1.5)
    w.matrix(b + "ssm_conv1d.weight", channels, 4, 1.5)
    w.matrix(b + "ssm_alpha.weight", v_heads, N_EMBD)
    w.matrix(b + "ssm_beta.weight", v_heads, N_EMBD)
    w.vector(b + "ssm_dt.bias", v_heads, -2.0, 1.0)
    w.vector(b + "ssm_a", v_heads, -0.5, -0.02)
    w.norm(b + "ssm_norm.weight", dim)
    w.matrix(b + "ssm_out.weight", N_EMBD, values)


_YARN: dict[str, Any] = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
_LONG: dict[str, Any] = _YARN | {"rope__scaling__original_context_length": 4096}
_LINEAR: dict[str, Any] = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}

VARIANTS: dict[str, Callable[[], TinyModel]] = {
    "llama": llama,
    "llama,tied": lambda: llama(tied=True),
    "llama,factors": lambda: llama(factors=True),
    "llama,bias": lambda: llama(bias=True),
    "llama,linear": lambda: llama(**_LINEAR),
    "llama,old linear": lambda: llama(rope__scale_linear=8.0),
    "llama,yarn": lambda: llama(**_LONG),
    "llama,yarn,short": lambda: llama(**_YARN),
    "llama,yarn,sized": lambda: llama(**_LONG, rope__scaling__attn_factor=1.3),
    "llama,linear,sized": lambda: llama(**_LINEAR, rope__scaling__attn_factor=1.3),
    "llama,no scaling": lambda: llama(rope__scaling__type="none", rope__scaling__factor=8.0),
    "llama,per layer": llama_per_layer,
    "qwen3": qwen3,
    "qwen3,untied": lambda: qwen3(tied=False),
    "qwen3,partial": lambda: qwen3(rope__dimension_count=16),
    "qwen3,scale": lambda: qwen3(attention__scale=0.3),
    "gemma3": gemma3,
    "gemma3,cap": lambda: gemma3(cap=2.0),
    "gemma3,base": lambda: gemma3(rope__freq_base_swa=100.0),
    "gemma3,linear": lambda: gemma3(**_LINEAR),
    "gemma3,pattern": lambda: gemma3(pattern=[True, False, True, True, False, False, True]),
    "qwen35": qwen35,
    "qwen35,v=2k,tied": lambda: qwen35(v_heads=4, tied=True),
    "qwen35,v=3k": lambda: qwen35(v_heads=6),
    "qwen35,eps": lambda: qwen35(attention__layer_norm_rms_epsilon=1e-2),
    "qwen35,mtp": lambda: qwen35(mtp=1),
    "qwen35,recurrent": lambda: qwen35(recurrent=[False, True, True, False]),
    "qwen35,all recurrent": lambda: qwen35(recurrent=[True] * 4),
    "qwen35,none recurrent": lambda: qwen35(recurrent=[False] * 4),
    "qwen35,interval": lambda: qwen35(full_attention_interval=2, linear=[True, False] * 2),
    "qwen35,sections": lambda: qwen35(sections=(1, 1, 1, 1), rope__freq_base=1e3),
    "qwen3next": qwen3next,
    "qwen3next,v=2k": lambda: qwen3next(v_heads=4),
    "qwen3next,whole": lambda: qwen3next(v_heads=4, whole=True),
    "qwen3next,mtp": lambda: qwen3next(mtp=1),
    "lfm2": lfm2,
    "lfm2,wide,untied": lambda: lfm2(width=5, tied=False),
    "lfm2,none attend": lambda: lfm2(attends=()),
    "qwen35moe": qwen35moe,
    "qwen35moe,fused": lambda: qwen35moe(fused=True),
    "qwen35moe,one": lambda: qwen35moe(n_used=1),
    "qwen35moe,all": lambda: qwen35moe(n_used=6),
    "qwen35moe,scale": lambda: qwen35moe(expert_weights_scale=2.5),
    "qwen35moe,mtp": lambda: qwen35moe(mtp=1),
}
