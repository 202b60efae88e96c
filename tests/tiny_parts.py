"""What tiny model files are made of: random weights, common keys, vocabularies, and the file, which
the gguf package writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from tokenizer_samples import spm_metadata

N_VOCAB, N_EMBD, N_FF = 288, 64, 96
SMALL_ROWS = slice(0, 8)
PLAIN = ("ssm_conv1d", "shortconv.conv", "ffn_gate_inp", "ssm_norm")
SMALLEST = {"f32": 1, "f16": 1, "bf16": 1, "q8_0": 32}


@dataclass(frozen=True)
class Typed:
    """A metadata value, or a list of them, of a kind that its Python type does not tell ("i32",
    "u64", ...)."""

    kind: str
    value: object


@dataclass
class TinyModel:
    """What a file will hold; change keys and tensors before `write` to spoil it.

    keys: names without the architecture's prefix; int is written as u32, float as f32, lists as
    i32, bool or f32 arrays. tensors: f32, numpy shapes; matrices are stored as `kind`. vocab:
    "none", "gpt2" for the 256 byte tokens, an end token and fillers, or "llama" for SPM pieces.
    extra: more bare keys."""

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
        matrix = array.ndim >= 2 and name.endswith(".weight")
        matrix = matrix and not any(part in name for part in PLAIN)
        kind = self.kind if matrix and array.shape[-1] % SMALLEST[self.kind] == 0 else "f32"
        stored = GGMLQuantizationType[kind.upper()]
        return gguf.quants.quantize(np.ascontiguousarray(array, np.float32), stored), stored


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, Typed):
        kinds = {"f32": GGUFValueType.FLOAT32, "f64": GGUFValueType.FLOAT64}
        kinds |= {f"i{n}": GGUFValueType[f"INT{n}"] for n in (8, 16, 32, 64)}
        kinds |= {f"u{n}": GGUFValueType[f"UINT{n}"] for n in (8, 16, 32, 64)}
        if isinstance(value.value, list):
            array = GGUFValueType.ARRAY
            writer.add_key_value(name, value.value, array, sub_type=kinds[value.kind])
        else:
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


def _spm() -> dict[str, Any]:
    """Pieces with scores: three control tokens, 256 bytes, letters, two words."""
    found = spm_metadata(("▁a", "he"), bos_token_id=1, eos_token_id=2, unknown_token_id=0)
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {"tokenizer.ggml.model": "none"},
    "gpt2": _gpt2,
    "llama": _spm,
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

    def experts(
        self, i: int, n: int, n_ff: int, n_shared: int, fused: bool, shared_gate: bool = True
    ) -> None:
        """A router over n experts and, unless n_shared is 0, a shared one, with a gate if told.

        Wide gaps between the router's logits, so that rounding seldom changes a choice."""
        b = f"blk.{i}."
        self.matrix(b + "ffn_gate_inp.weight", n, N_EMBD, 3.0)
        if fused:
            self.stack(b + "ffn_gate_up_exps.weight", n, 2 * n_ff, N_EMBD)
        else:
            self.stack(b + "ffn_gate_exps.weight", n, n_ff, N_EMBD, 1.5)
            self.stack(b + "ffn_up_exps.weight", n, n_ff, N_EMBD)
        self.stack(b + "ffn_down_exps.weight", n, N_EMBD, n_ff)
        if not n_shared:
            return
        if shared_gate:
            self.matrix(b + "ffn_gate_inp_shexp.weight", 1, N_EMBD, 2.0)
            self[b + "ffn_gate_inp_shexp.weight"] = self[b + "ffn_gate_inp_shexp.weight"][0]
        self.matrix(b + "ffn_gate_shexp.weight", n_shared, N_EMBD, 1.5)
        self.matrix(b + "ffn_up_shexp.weight", n_shared, N_EMBD)
        self.matrix(b + "ffn_down_shexp.weight", N_EMBD, n_shared)

    def stack(self, name: str, n: int, rows: int, columns: int, size: float = 1.0) -> None:
        """A matrix for each of n experts."""
        self.matrix(name, n * rows, columns, size)
        self[name] = self[name].reshape(n, rows, columns)


def common_keys(layers: int, heads: object, kv: object, **more: Any) -> dict[str, Any]:
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
    return keys | dotted(more)


def dotted(more: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in more.items()}
