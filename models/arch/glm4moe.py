"""glm4moe: dense layers first, then mixtures of experts behind a sigmoid, with a shared expert."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_memories, attention_shape
from ..gguf import GgufFile
from ..memories import MemorySpec
from ..moe import DenseFirst
from ..nextn import NextN
from ..step import StepGraph


@register_architecture
class Glm4Moe(NextN, DenseFirst):
    """GLM-4.5 and its successors; files may carry MTP blocks after the trunk.

    Source: GLM-4.5 Team 2025, arXiv 2508.06471."""

    name = "glm4moe"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """Experts, and how many layers have none; norms on heads where the file has them."""
        hp = self.hp
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)
        self.qk_norm = "blk.0.attn_q_norm.weight" in file.infos
        groups = file.get_u32("glm4moe.expert_group_count", 1)
        if groups > 1:
            raise ModelError(
                f"{file.path}: glm4moe.expert_group_count should be 1, got {groups}; experts in "
                "groups are not computed"
            )
        n_shared = file.get_u32("glm4moe.expert_shared_count", 1)
        self.read_experts(file, hp.n_layer_all, n_shared, gating="sigmoid")

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        yield from super().wants()
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            yield from self.layer_wants(i)
        yield from self.nextn_wants()

    def attention_shape(self, layer: int) -> AttentionShape:
        """Biases where the file has them."""
        return attention_shape(self.hp, layer, self.rope, qk_norm=self.qk_norm, bias=True)

    def nextn_block(self, s: StepGraph, layer: int, x: Value) -> Value:
        """As any other layer."""
        return self.layer(s, layer, x)

    def nextn_memories(self) -> tuple[MemorySpec, ...]:
        """Keys and values."""
        blocks = range(self.hp.n_layer, self.hp.n_layer_all)
        return attention_memories({i: self.attention_shape(i) for i in blocks})
