"""granitehybrid: Mamba-2 layers, with attention in some, SwiGLU or experts after each, scaled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape, scaled
from ..gguf import GgufFile
from ..hparams import read_optional
from ..mamba2 import mamba2, mamba2_fold, mamba2_wants, read_mamba2
from ..memories import RecurrentPart
from ..moe import Mixture, read_moe
from ..recurrent import Hybrid
from ..step import StepGraph


@register_architecture
class GraniteHybrid(Mixture, Hybrid):
    """Granite 4. Layers without key-value heads scan. Embeddings, what layers add, scores of
    attention and logits are scaled; positions are rotated where rope.scaling.finetuned says so,
    which those of published files do not."""

    name = "granitehybrid"
    hybrid = True

    def read(self, file: GgufFile) -> None:
        """Sizes of the scan, multipliers, which layers attend, experts."""
        hp, a = self.hp, self.name
        self.mamba = read_mamba2(file, a, hp.eps)
        self.embedding_scale = read_optional(file, f"{a}.embedding_scale") or 1.0
        self.residual_scale = read_optional(file, f"{a}.residual_scale") or 1.0
        self.logit_scale = read_optional(file, f"{a}.logit_scale") or 1.0
        turns = file.get_bool(f"{a}.rope.scaling.finetuned", True)
        self.rope = Rope("norm", hp.n_rot if turns else 0, hp.rope_base, hp.rope_scaling)
        self.recurrent = [kv == 0 for kv in hp.n_head_kv[: hp.n_layer]]
        if file.get_u32(f"{a}.expert_count", 0):
            shared = file.get_u32(f"{a}.expert_shared_feed_forward_length", 0) > 0
            found = read_moe(file, a, hp.n_layer, shared, dense=hp.n_ff)
            self.experts = replace(found, shared_gate=False)

    def embed(self, s: StepGraph) -> Value:
        """Scaled."""
        return scaled(s, super().embed(s), self.embedding_scale, "embedding_scale")

    def head(self, s: StepGraph, h: Value) -> Value:
        """Divided by the scale of logits."""
        return scaled(s, super().head(s, h), 1.0 / self.logit_scale, "logit_scale")

    def attention_shape(self, layer: int) -> AttentionShape:
        """Biases where the file has them."""
        return attention_shape(self.hp, layer, self.rope, qk_norm=False, bias=True)

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a Mamba-2 layer."""
        return mamba2_wants(layer, self.hp.n_embd, self.mamba)

    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Mamba-2."""
        return mamba2(s, layer, h, self.mamba)

    @property
    def parts(self) -> tuple[RecurrentPart, ...]:
        """Those of Mamba-2 layers."""
        return self.mamba.memory

    def fold(self, s: StepGraph, layer: int) -> Value:
        """Convolution and scan."""
        return mamba2_fold(s, layer, self.mamba)
