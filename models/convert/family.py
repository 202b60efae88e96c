"""The base class of families and their registry: one file each in arch/.

A family says which keys and tensors a GGUF file gets from a checkpoint's."""

from __future__ import annotations

import importlib
import pkgutil
import re
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ...graph.errors import GraphError, ModelError
from .config import Config
from .rotary import rope_keys
from .transforms import SAME, Rows, Stack, Transform

Keys = dict[str, Any]
Has = Callable[[str], bool]


@dataclass(frozen=True)
class To:
    """Where a tensor of a checkpoint goes. name: in the file, behind `blk.N.` for one of a block;
    kind: the type that it is stored in whatever else is, with a transform that yields such blocks
    as bytes if that is a block type; optional: checkpoints may lack it."""

    name: str
    how: Transform = SAME
    kind: str = ""
    optional: bool = False


Table = dict[str, "To | tuple[To, ...]"]


class Place(NamedTuple):
    """Whose a tensor of a checkpoint is: the block, None for none; the rest of its name, with
    experts' numbers as *; that number."""

    block: int | None
    part: str
    expert: int = 0


# Before `layers.N.` and before the names of what lies in no block.
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.")
# Parts of models that see and hear, and buffers that follow from the configuration.
_LEFT_OUT = re.compile(
    r"(^|\.)(visual|vision_tower|vision_model|audio_tower|multi_modal_projector|mm_projector"
    r"|embed_vision)\.|rotary_emb\.inv_freq$|\.masked_bias$"
)
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"\bexperts\.(\d+)\.")

NUMBERED = ("w1", "w3", "w2")  # gate, up and down as Mixtral calls them

ENDS: Table = {
    "embed_tokens.weight": To("token_embd.weight"),
    "norm.weight": To("output_norm.weight"),
    "lm_head.weight": To("output.weight", optional=True),
}
LAYERS, SIZES = range(1, 1 << 14), range(1, 1 << 20)  # that counts and sizes lie within


def linear(part: str, name: str, how: Transform = SAME) -> Table:
    """The rows of a linear layer: its weight, and its bias where there is one."""
    return {
        f"{part}.weight": To(f"{name}.weight", how),
        f"{part}.bias": To(f"{name}.bias", how, optional=True),
    }


ATTENTION: Table = {
    **linear("self_attn.q_proj", "attn_q"),
    **linear("self_attn.k_proj", "attn_k"),
    **linear("self_attn.v_proj", "attn_v"),
    **linear("self_attn.o_proj", "attn_output"),
}
QK_NORMS: Table = {
    "self_attn.q_norm.weight": To("attn_q_norm.weight"),
    "self_attn.k_norm.weight": To("attn_k_norm.weight"),
}
FFN: Table = {
    "mlp.gate_proj.weight": To("ffn_gate.weight"),
    "mlp.up_proj.weight": To("ffn_up.weight"),
    "mlp.down_proj.weight": To("ffn_down.weight"),
}
PRE_NORMS: Table = {
    "input_layernorm.weight": To("attn_norm.weight"),
    "post_attention_layernorm.weight": To("ffn_norm.weight"),
}


def experts(
    has: Has,
    prefix: str = "mlp.",
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> Table:
    """The router and the experts, which checkpoints hold one by one, or all in a tensor with gate
    and up of an expert one below the other. parts: the names of an expert's gate, up and down."""
    router: Table = {f"{prefix}gate.weight": To("ffn_gate_inp.weight")}
    each, both = f"{prefix}experts.*.", f"{prefix}experts.gate_up_proj"
    if has(both):
        return router | {
            both: (
                To("ffn_gate_exps.weight", Rows(0, 2, axis=1)),
                To("ffn_up_exps.weight", Rows(1, 2, axis=1)),
            ),
            f"{prefix}experts.down_proj": To("ffn_down_exps.weight"),
        }
    return router | {
        f"{each}{part}.weight": To(f"ffn_{name}_exps.weight", Stack())
        for part, name in zip(parts, ("gate", "up", "down"), strict=True)
    }


class Family(ABC):
    """Checkpoints of one kind. arch: the file's general.architecture; hf: names that the
    checkpoints' `architectures` have; model_types: their `model_type`, where a checkpoint has no
    architecture of these names; eps, context: what their norms' eps and their context's length are
    called; mixture: all blocks have experts, so that intermediate_size may be absent; defaults:
    what config.json leaves out where it is this; nextn: checkpoints may have blocks behind the
    layers that predict further tokens (MTP)."""

    arch: ClassVar[str]
    hf: ClassVar[tuple[str, ...]]
    model_types: ClassVar[tuple[str, ...]] = ()
    eps: ClassVar[str] = "rms_norm_eps"
    context: ClassVar[str] = "max_position_embeddings"
    mixture: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {}
    nextn: ClassVar[bool] = False

    def __init__(self, config: Config, names: Iterable[str] = (), mtp: bool = True) -> None:
        """names: of the checkpoint's tensors; mtp: whether the file gets its MTP blocks. The
        tensors tell how many there are: configurations of some do not count them, and others
        keep the count where saving left the tensors out."""
        self.c = config.completed(self.defaults)
        self.n_layer: int = config.integer("num_hidden_layers", within=LAYERS)
        self.mtp = mtp
        self.n_mtp = max((self._behind(self.kept(name)) for name in names), default=0)

    @property
    def n_block(self) -> int:
        """Blocks of the file: layers, and those that predict further tokens."""
        return self.n_layer + self.n_mtp

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        c = self.c
        given = c.integer("head_dim", default=None, within=SIZES)
        return given or c.integer("hidden_size") // c.integer("num_attention_heads", within=SIZES)

    def keys(self) -> Keys:
        """Metadata without the architecture's prefix; int is written as u32, float as f32."""
        c = self.c
        heads = c.integer("num_attention_heads", within=SIZES)
        groups = c.integer("num_key_value_heads", default=heads, within=SIZES)
        found: Keys = {
            "block_count": self.n_block,
            "context_length": c.integer(self.context),
            "embedding_length": c.integer("hidden_size"),
            "attention.head_count": heads,
            "attention.head_count_kv": groups,
            "attention.layer_norm_rms_epsilon": c.number(self.eps),
            **rope_keys(c),
        }
        if self.n_mtp:
            found["nextn_predict_layers"] = self.n_mtp
        if not self.mixture or c.get("intermediate_size") is not None:
            found["feed_forward_length"] = c.integer("intermediate_size")
        if c.get("head_dim") is not None:
            found["attention.key_length"] = found["attention.value_length"] = self.head_dim
        n_expert = c.integer("num_local_experts", "num_experts", "n_routed_experts", default=0)
        if n_expert:
            found["expert_count"] = n_expert
            found["expert_used_count"] = c.integer("num_experts_per_tok", "num_experts_per_token")
        return found

    def ends(self) -> Table:
        """Tensors that lie in no block, by their names behind `model.`."""
        return ENDS

    def block(self, i: int, has: Has) -> Table:
        """Tensors of block i, by their names behind `layers.i.`, experts' numbers as *. has:
        whether the checkpoint has one of this block."""
        return PRE_NORMS | ATTENTION | FFN

    def extra(self) -> Iterator[tuple[str, np.ndarray]]:
        """Tensors f32 that follow from the configuration, by their names in the file."""
        return iter(())

    def kept(self, name: str) -> Place | None:
        """The place of a tensor, None for one that the file does without."""
        place = self.place(name)
        return None if self._behind(place) and not self.mtp else place

    def _behind(self, place: Place | None) -> int:
        """Which of the MTP blocks it lies in, from 1 on; 0 for none."""
        if not self.nextn or place is None or place.block is None:
            return 0
        return max(0, place.block - self.n_layer + 1)

    def place(self, name: str) -> Place | None:
        """Whose a tensor is, None for one that the file does without."""
        if _LEFT_OUT.search(name):
            return None
        prefix = next((p for p in _PREFIXES if name.startswith(p)), "")
        rest = name[len(prefix) :]
        layer = _LAYER.match(rest)
        return self.within(int(layer[1]), layer[2]) if layer else Place(None, rest)

    def within(self, block: int, part: str) -> Place:
        """The place of a tensor of a block."""
        expert = _EXPERT.search(part)
        if expert is None:
            return Place(block, part)
        return Place(block, _EXPERT.sub("experts.*.", part), int(expert[1]))


FAMILIES: dict[str, type[Family]] = {}
F = TypeVar("F", bound=type[Family])


def register_family(cls: F) -> F:
    """Class decorator: add a family under its names. Raises GraphError when one is taken."""
    for name in (*cls.hf, *cls.model_types):
        if name in FAMILIES:
            raise GraphError(f"checkpoints of {name!r} have two families")
        FAMILIES[name] = cls
    return cls


def families() -> dict[str, type[Family]]:
    """All that are there, by the names that checkpoints have."""
    from . import arch

    for info in sorted(pkgutil.iter_modules(arch.__path__), key=lambda m: m.name):
        importlib.import_module(f"{arch.__name__}.{info.name}")
    return FAMILIES


def find_family(config: Config) -> type[Family]:
    """The family of a checkpoint. Raises ModelError, listing the known ones."""
    there = families()
    for name in (*config.architectures, config.model_type):
        if name in there:
            return there[name]
    got = ", ".join(config.architectures) or config.model_type or "none"
    known = ", ".join(sorted({name for cls in there.values() for name in cls.hf}))
    raise ModelError(f"{config.path}: architectures should be one of {known}; got {got}")
