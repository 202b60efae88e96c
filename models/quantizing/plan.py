"""Which type each tensor of a file gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...graph.dtype import BY_NAME, DType, dtype
from ...graph.errors import RequestError
from ..gguf import GgufFile, GgufTensor, stored_bytes
from .mix import FALLBACK, Facts, Mix, Place

# Matrices that stay as they are: small, and every error in them counts.
_KEPT = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
)
_KEPT_NAMES = ("position_embd.weight", "token_types.weight")
_BLOCK = re.compile(r"blk\.(\d+)\.")
_VALUES = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


@dataclass(frozen=True)
class Step:
    """A tensor of the source and the type that it gets. note: why it is not the one that the mix
    has for it, "" where it is. odd: its rows are no whole blocks of that one."""

    tensor: GgufTensor
    to: DType
    note: str = ""
    odd: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes in the new file."""
        return stored_bytes(self.tensor.shape, self.to)


def order(name: str) -> tuple[int, str]:
    """The order of tensors in a file: those outside of blocks, then block by block, by name."""
    found = _BLOCK.match(name)
    return (int(found[1]) if found else -1, name)


def plan(
    file: GgufFile,
    mix: Mix,
    overrides: Iterable[tuple[str, str]] = (),
    importance: bool = False,
) -> list[Step]:
    """Every tensor of a file with its type, in the order of the new file.

    overrides: (regular expression, type), the first that is found in a name decides, whatever the
    mix. Raises RequestError for expressions and types that are none."""
    tensors = sorted(file.tensors.values(), key=lambda t: order(t.name))
    patterns = [_override(expression, kind) for expression, kind in overrides]
    chooser = Chooser(file, mix, [t.name for t in tensors], importance)
    return [_step(tensor, chooser, patterns) for tensor in tensors]


def is_quantized(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is one of those that a mix is about."""
    kept = name in _KEPT_NAMES or any(part in name for part in _KEPT)
    n_dims = next((i for i in range(len(shape)) if shape[i] > 1), len(shape) - 1)
    return len(shape) - n_dims >= 2 and name.endswith("weight") and not kept


class Chooser:
    """The types of a mix for tensors in the order of the new file."""

    def __init__(self, file: GgufFile, mix: Mix, names: Sequence[str], importance: bool) -> None:
        self.mix = mix
        self.facts = _facts(file, importance)
        self._tied = "output.weight" not in names
        self._n_values = sum(any(part in name for part in _VALUES) for name in names)
        self._values = self._downs = 0

    def choose(self, name: str, shape: Sequence[int]) -> str:
        """The type's name, before rows that it does not divide. Called once for each tensor that
        is quantised, in order."""
        mix, facts = self.mix, self.facts
        if not dtype(mix.base).quantized:
            return mix.base
        if name == "output.weight" or (self._tied and name in _EMBEDDINGS):
            odd = shape[-1] % dtype(mix.base).block
            return "q8_0" if odd else mix.head
        if mix.experts:
            return mix.experts if len(shape) > 2 and shape[0] > 1 else mix.base
        if name in _EMBEDDINGS:
            return mix.base
        if any(part in name for part in _VALUES):
            return self._of_values()
        if "attn_k.weight" in name:
            return "q8_0" if facts.n_expert == 8 else mix.base
        if "attn_q.weight" in name:
            return mix.base
        if "attn_output.weight" in name:
            return (mix.eight if facts.n_expert == 8 else mix.output) or mix.base
        if "ffn_down" in name and "ffn_up" not in name and "ffn_gate" not in name:
            return self._of_down(name)
        return mix.base

    def _of_values(self) -> str:
        mix, facts = self.mix, self.facts
        place = Place(self._values, self._n_values)
        self._values += 1
        if facts.n_expert == 8:
            return "q8_0"
        kind = (mix.values(place, facts) if mix.values else None) or mix.base
        return "q5_k" if facts.is_70b and kind in ("q3_k", "q4_k") else kind

    def _of_down(self, name: str) -> str:
        layer = order(name)[0] if self.facts.n_expert > 1 else self._downs
        self._downs += 1
        rule = self.mix.down
        found = rule(Place(layer, self.facts.n_layer), self.facts) if rule else None
        return found or self.mix.base


def _facts(file: GgufFile, importance: bool) -> Facts:
    arch = file.get_str("general.architecture")

    def first(key: str) -> int:
        if f"{arch}.{key}" not in file.metadata:
            return 0
        value = file.metadata[f"{arch}.{key}"]
        values = value if hasattr(value, "__len__") else [value]
        return int(values[0]) if len(values) else 0  # type: ignore[index]

    n_layer, heads = first("block_count"), first("attention.head_count")
    kv = first("attention.head_count_kv") or heads
    large = {"llama": n_layer == 80 and heads != kv, "qwen2": n_layer == 80}
    return Facts(
        n_layer=n_layer,
        n_gqa=heads // kv if kv else 0,
        n_expert=max(1, first("expert_count")),
        is_70b=large.get(arch, False),
        importance=importance,
    )


def _override(expression: str, kind: str) -> tuple[re.Pattern[str], str]:
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise RequestError(
            f"tensor type: expected a regular expression, got {expression!r}: {error}"
        ) from None
    if kind.lower() not in BY_NAME:
        raise RequestError(
            f"tensor type: expected a type such as q8_0 for {expression!r}, got {kind!r}"
        )
    return pattern, kind.lower()


def _step(
    tensor: GgufTensor, chooser: Chooser, patterns: Sequence[tuple[re.Pattern[str], str]]
) -> Step:
    if not is_quantized(tensor.name, tensor.shape):
        return Step(tensor, tensor.dtype)
    given = next((kind for pattern, kind in patterns if pattern.search(tensor.name)), None)
    kind, note = chooser.choose(tensor.name, tensor.shape), ""
    if given is not None:
        kind, note = given, "as asked for"
    fitting = fit_rows(kind, tensor.shape[-1])
    if fitting != kind:
        note = f"rows of {tensor.shape[-1]} are no blocks of {kind}"
    return Step(tensor, dtype(fitting), note, fitting != kind)


def fit_rows(kind: str, n: int) -> str:
    """The type that takes the place of another for rows of n values: itself where n divides."""
    if n % dtype(kind).block == 0:
        return kind
    other = FALLBACK.get(kind, "f16")
    return other if n % dtype(other).block == 0 else "f16"
