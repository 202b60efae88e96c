"""glm4moe: dense layers first, then mixtures of experts behind a sigmoid, with a shared expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_memories, attention_shape
from ..gguf import GgufFile
from ..memories import MemorySpec
from ..moe import MoeShape, moe, moe_wants, read_moe
from ..nextn import NextN
from ..pre_norm import PreNorm
from ..step import StepGraph


@register_architecture
class Glm4Moe(NextN, PreNorm):
    """GLM-4.5 and its successors; files may carry MTP blocks after the trunk.

    Source: GLM-4.5 Team 2025, arXiv 2508.06471."""

    name = "glm4moe"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """Experts, and how many layers have none; norms on heads where the file has them."""
        hp = self.hp
        self.rope = Rope("neox", hp.n_rot, hp.rope_base, hp.rope_scaling)
        self.qk_norm = "blk.0.attn_q_norm.weight" in file.infos
        key = "glm4moe.leading_dense_block_count"
        self.n_dense = file.get_u32(key, 0)
        if self.n_dense > hp.n_layer:
            raise ModelError(f"{file.path}: {key} should be 0 to {hp.n_layer}, got {self.n_dense}")
        groups = file.get_u32("glm4moe.expert_group_count", 1)
        if groups > 1:
            raise ModelError(
                f"{file.path}: glm4moe.expert_group_count should be 1, got {groups}; experts in "
                "groups are not computed"
            )
        m = read_moe(file, self.name, hp.n_layer_all, shared=False, gating="sigmoid")
        shared = file.get_u32("glm4moe.expert_shared_count", 1) * m.n_ff[0]
        self.experts: MoeShape = replace(m, n_ff_shared=shared, shared_gate=False)

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        yield from super().wants()
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            yield from self.layer_wants(i)
        yield from self.nextn_wants()

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The dense block, or experts."""
        if layer < self.n_dense:
            yield from super().ffn_wants(layer)
            return
        yield from moe_wants(layer, self.hp.n_embd, self.experts, fused=False)
        yield Want(f"blk.{layer}.exp_probs_b.bias", (self.experts.n_expert,), optional=True)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The dense block, or experts."""
        return super().ffn(s, layer, h) if layer < self.n_dense else moe(s, layer, h, self.experts)

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
