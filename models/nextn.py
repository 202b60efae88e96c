"""Blocks behind the trunk that predict further tokens (multi-token prediction, MTP).

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report"."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

from ..graph import Graph, TensorSpec, Value
from ..graph.errors import ModelError
from .architecture import Architecture, Want
from .memories import MemorySpec, Program
from .step import DRAFT_HEAD, Capacity, StepGraph, StepShape


class NextN(Architecture):
    """Files may carry such blocks: layers n_layer .. n_layer_all - 1."""

    @abstractmethod
    def nextn_block(self, s: StepGraph, layer: int, x: Value) -> Value:
        """The transformer layer of such a block. x: [N, n_embd]; returns the same."""

    @abstractmethod
    def nextn_memories(self) -> tuple[MemorySpec, ...]:
        """What `mtp` reads and writes between passes."""

    def nextn_wants(self) -> Iterator[Want]:
        """The tensors of the blocks beside those of their layers."""
        n, v = self.hp.n_embd, self.hp.n_vocab
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            b = f"blk.{i}.nextn."
            yield Want(b + "eh_proj.weight", (n, 2 * n))
            yield Want(b + "enorm.weight", (n,))
            yield Want(b + "hnorm.weight", (n,))
            yield Want(b + "embed_tokens.weight", (v, n), optional=True)
            yield Want(b + "shared_head_head.weight", (v, n), optional=True)
            yield Want(b + "shared_head_norm.weight", (n,), optional=True)

    def programs(self) -> dict[str, Program]:
        """Also the block that predicts further tokens."""
        return super().programs() | {"mtp": Program(self.mtp, self.nextn_memories())}

    def mtp(self, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]) -> Graph:
        """The block after the trunk, fed with the embedding of a token and the row before it.

        Its own row after the norm takes that row's place when it goes on by itself."""
        hp = self.hp
        if hp.n_layer_all == hp.n_layer:
            raise ModelError(
                f"this {self.name} model has no multi-token-prediction block "
                f"({self.name}.nextn_predict_layers is 0); use another drafter"
            )
        s = StepGraph(f"{self.name} mtp n={shape.n_tokens}", shape, capacity, weights)
        g, i = s.g, hp.n_layer
        b = f"blk.{i}.nextn."
        own = b + "embed_tokens.weight"
        table = s.w(own if s.has(own) else "token_embd.weight")
        with g.scope("nextn"):
            e = g.get_rows(table, s.inputs.tokens, name="embed")
            r = g.input("hidden_in", (shape.n_tokens, hp.n_embd))
            e = g.rms_norm(e, s.w(b + "enorm.weight"), eps=hp.eps, name="enorm")
            r = g.rms_norm(r, s.w(b + "hnorm.weight"), eps=hp.eps, name="hnorm")
            both = g.concat(e, r, axis=1, name="e_h")
            x = g.mul_mat(both, s.w(b + "eh_proj.weight"), name="eh_proj")
        x = self.nextn_block(s, i, x)
        last = b + "shared_head_norm.weight"
        self.finish(s, x, last if s.has(last) else "output_norm.weight", self._mtp_head)
        return g

    def draft_head_weight(self, has: Callable[[str], bool]) -> str:
        """The tensor that the block's head multiplies with."""
        own = f"blk.{self.hp.n_layer}.nextn.shared_head_head.weight"
        return own if has(own) else self.head_weight(has)

    def _mtp_head(self, s: StepGraph, h: Value) -> Value:
        name = DRAFT_HEAD if s.shape.head else self.draft_head_weight(s.has)
        return s.g.mul_mat(h, s.w(name), name="output")
