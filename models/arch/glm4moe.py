"""glm4moe: dense layers first, then mixtures of experts behind a sigmoid, with a shared expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_memories, attention_shape
from ..gguf import GgufFile
from ..hparams import read_count
from ..memories import MemorySpec
from ..moe import read_moe
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
        self.n_dense = read_count(file, key, 0, hp.n_layer, 0)
        groups = file.get_u32("glm4moe.expert_group_count", 1)
        if groups > 1:
            raise ModelError(
                f"{file.path}: glm4moe.expert_group_count should be 1, got {groups}; experts in "
                "groups are not computed"
            )
        m = read_moe(file, self.name, hp.n_layer_all, shared=False, gating="sigmoid")
        shared = file.get_u32("glm4moe.expert_shared_count", 1) * m.n_ff[0]
        self.experts, self.n_expert = replace(m, n_ff_shared=shared, shared_gate=False), m.n_expert

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        yield from super().wants()
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            yield from self.layer_wants(i)
        yield from self.nextn_wants()

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The dense block, or experts and the bias of their choice."""
        yield from super().ffn_wants(layer)
        if layer >= self.n_dense:
            yield Want(f"blk.{layer}.exp_probs_b.bias", (self.n_expert,), optional=True)

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
