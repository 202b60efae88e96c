"""qwen35: three gated-delta-net layers for each gated full-attention layer, SwiGLU after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...graph import Graph, TensorSpec, Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import AttentionShape, Rope, attention_shape
from ..delta_net import DeltaNetShape, delta_net, delta_net_wants, read_delta_net, recur
from ..gguf import INT_KINDS, GgufFile
from ..memories import Program, RecurrentPart
from ..recurrent import Hybrid, no_tokens
from ..step import DRAFT_HEAD, Capacity, StepGraph, StepShape


@register_architecture
class Qwen35(Hybrid):
    """Dense Qwen3.5 / 3.6. Files may carry MTP blocks after the trunk."""

    name = "qwen35"
    ffn_norm = "post_attention_norm.weight"

    def read(self, file: GgufFile) -> None:
        """Delta-net sizes, rotary sections, which layers are recurrent."""
        hp = self.hp
        self.delta: DeltaNetShape = read_delta_net(file, self.name, hp.eps, heads="tiled")
        if hp.head_dim_v != hp.head_dim_k:
            raise ModelError(
                f"{file.path}: {self.name}.attention.value_length should be key_length "
                f"{hp.head_dim_k}, got {hp.head_dim_v}"
            )
        self.rope = self.read_rope(file)
        self.recurrent = self._recurrent_layers(file)

    def read_rope(self, file: GgufFile) -> Rope:
        """Sections of positions in time and in images."""
        hp = self.hp
        key = f"{self.name}.rope.dimension_sections"
        sections = file.get_array(key, INT_KINDS, min_len=3, max_len=4)
        if min(sections) < 0 or not any(sections):
            raise ModelError(
                f"{file.path}: {key} should be counts, not all 0, got {sections.tolist()}"
            )
        return Rope(
            "imrope",
            hp.n_rot,
            hp.rope_base,
            hp.rope_scaling,
            sections=tuple(int(n) for n in sections) + (0,) * (4 - len(sections)),
        )

    def _recurrent_layers(self, file: GgufFile) -> list[bool]:
        key, n = f"{self.name}.attention.recurrent_layers", self.hp.n_layer
        if key in file.metadata:
            flags = file.get_array(key, INT_KINDS, min_len=n, max_len=self.hp.n_layer_all)
            return [bool(f) for f in flags[:n]]
        key = f"{self.name}.full_attention_interval"
        interval = file.get_u32(key, 4)
        if interval < 1:
            raise ModelError(f"{file.path}: {key} should be 1 or more, got 0")
        return [(i + 1) % interval != 0 for i in range(n)]

    def wants(self) -> Iterator[Want]:
        """Tensor names and shapes, MTP blocks included."""
        yield from super().wants()
        for i in range(self.hp.n_layer, self.hp.n_layer_all):
            yield from self.layer_wants(i)
            yield from self._mtp_wants(f"blk.{i}.nextn.")

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a delta-net layer."""
        return delta_net_wants(layer, self.hp.n_embd, self.delta)

    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The delta net."""
        return delta_net(s, layer, h, self.delta)

    def attention_shape(self, layer: int) -> AttentionShape:
        """Behind a gate."""
        return attention_shape(self.hp, layer, self.rope, gated=True)

    def _mtp_wants(self, b: str) -> Iterator[Want]:
        n, v = self.hp.n_embd, self.hp.n_vocab
        yield Want(b + "eh_proj.weight", (n, 2 * n))
        yield Want(b + "enorm.weight", (n,))
        yield Want(b + "hnorm.weight", (n,))
        yield Want(b + "embed_tokens.weight", (v, n), optional=True)
        yield Want(b + "shared_head_head.weight", (v, n), optional=True)
        yield Want(b + "shared_head_norm.weight", (n,), optional=True)

    @property
    def parts(self) -> tuple[RecurrentPart, ...]:
        """Those of delta-net layers."""
        return self.delta.memory

    def programs(self) -> dict[str, Program]:
        """Also the block that predicts further tokens."""
        found = super().programs()
        blocks = range(self.hp.n_layer, self.hp.n_layer_all)
        found["mtp"] = Program(self.mtp, self.attention_memory(blocks))
        return found

    def fold(self, s: StepGraph, layer: int) -> Value:
        """Convolution and delta rule."""
        gates = no_tokens(s, self.delta.v_heads)
        return recur(s, layer, no_tokens(s, self.delta.channels), gates, gates, self.delta)

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
        x = self.layer(s, i, x)
        last = b + "shared_head_norm.weight"
        self.finish(s, x, last if s.has(last) else "output_norm.weight", self._mtp_head)
        return g

    def draft_head_weight(self, has: Callable[[str], bool]) -> str:
        """The tensor that the multi-token-prediction block's head multiplies with."""
        own = f"blk.{self.hp.n_layer}.nextn.shared_head_head.weight"
        return own if has(own) else self.head_weight(has)

    def _mtp_head(self, s: StepGraph, h: Value) -> Value:
        name = DRAFT_HEAD if s.shape.head else self.draft_head_weight(s.has)
        return s.g.mul_mat(h, s.w(name), name="output")
