"""kimi-linear: Kimi delta attention, with latent attention in some layers, experts after most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...graph import Value
from ...graph.errors import ModelError
from ..architecture import Want, register_architecture
from ..blocks import PLAIN_ROPE, AttentionShape, Rope
from ..gguf import GgufFile
from ..memories import AttentionSpec, MemorySpec, RecurrentPart
from ..mla import mla, mla_wants, read_mla
from ..moe import DenseFirst
from ..recurrent import Hybrid, no_tokens
from ..step import StepGraph

QUERIES_KEYS_VALUES = "qkv"
NORM_EPS = 1e-6  # of queries and keys, fixed in the published code


@register_architecture
class KimiLinear(DenseFirst, Hybrid):
    """Layers without key-value heads have a delta rule whose decay is one for each key dimension.

    Source: Kimi Team 2025, "Kimi Linear", arXiv 2510.26692."""

    name = "kimi-linear"
    hybrid = True
    choice_bias = True

    def read(self, file: GgufFile) -> None:
        """Sizes of both kinds of layers, which are which, experts."""
        hp, a = self.hp, self.name
        self.recurrent = [kv == 0 for kv in hp.n_head_kv[: hp.n_layer]]
        self.mla = read_mla(file, a, hp)
        self.heads = hp.n_head[0]
        self.dim = file.get_u32(f"{a}.kda.head_dim")
        self.width = file.get_u32(f"{a}.ssm.conv_kernel")
        for key, value, low, high in (
            ("kda.head_dim", self.dim, 1, 4096),
            ("ssm.conv_kernel", self.width, 2, 64),
        ):
            if not low <= value <= high:
                raise ModelError(f"{file.path}: {a}.{key} should be {low} to {high}, got {value}")
        self.read_experts(file, hp.n_layer, file.get_u32(f"{a}.expert_shared_count"))

    def attention_shape(self, layer: int) -> AttentionShape:
        """That of one key and value for all heads."""
        m, none = self.mla, Rope("neox", 0, self.hp.rope_base, PLAIN_ROPE)
        kept = m.heads
        return AttentionShape(m.n_head, kept.n, kept.dim_k, kept.dim_v, m.eps, 1.0, none)

    def mix_wants(self, layer: int) -> Iterator[Want]:
        """Of either kind."""
        if self.is_recurrent(layer):
            return self.recurrent_wants(layer)
        return mla_wants(layer, self.hp.n_embd, self.mla)

    def mix(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Of either kind."""
        if self.is_recurrent(layer):
            return self.recurrent_layer(s, layer, h)
        return mla(s, layer, h, self.mla)

    def attention_memory(self, layers: Sequence[int]) -> tuple[MemorySpec, ...]:
        """Latents."""
        return (AttentionSpec({i: self.mla.heads for i in layers}),) if layers else ()

    def recurrent_wants(self, layer: int) -> Iterator[Want]:
        """The tensors of a delta layer. Converters write those of [heads] and of convolutions with
        axes of length 1."""
        n, b, inner = self.hp.n_embd, f"blk.{layer}.", self.heads * self.dim
        for name in QUERIES_KEYS_VALUES:
            yield Want(b + f"attn_{name}.weight", (inner, n))
            kernels = ((inner, 1, self.width), (1, inner, 1, self.width))
            yield Want(b + f"ssm_conv1d_{name}.weight", (inner, self.width), others=kernels)
        for name in ("f", "g"):
            yield Want(b + f"ssm_{name}_a.weight", (self.dim, n))
            yield Want(b + f"ssm_{name}_b.weight", (inner, self.dim))
        yield Want(b + "ssm_beta.weight", (self.heads, n))
        others = ((self.heads,), (1, 1, self.heads, 1))
        yield Want(b + "ssm_a", (self.heads, 1), others=others)
        yield Want(b + "ssm_dt.bias", (inner,))
        yield Want(b + "ssm_norm.weight", (self.dim,))
        yield Want(b + "attn_output.weight", (n, inner))

    def recurrent_layer(self, s: StepGraph, layer: int, h: Value) -> Value:
        """Convolutions, delta rule, norm, gate."""
        g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
        each = (n, self.heads, self.dim)

        def twice(name: str) -> Value:
            low = g.mul_mat(h, s.w(f"{b}ssm_{name}_a.weight"), name=f"ssm_{name}_a")
            return g.mul_mat(low, s.w(f"{b}ssm_{name}_b.weight"), name=f"ssm_{name}_b")

        inputs = [
            g.mul_mat(h, s.w(f"{b}attn_{name}.weight"), name=f"attn_{name}")
            for name in QUERIES_KEYS_VALUES
        ]
        beta = g.sigmoid(g.mul_mat(h, s.w(b + "ssm_beta.weight"), name="ssm_beta"), name="beta")
        dt = g.softplus(g.add(twice("f"), s.w(b + "ssm_dt.bias")), name="dt")
        # ssm_a holds -exp(A_log) already, so that decay is at most 0.
        rate = g.reshape(s.w(b + "ssm_a"), shape=(self.heads, 1))
        decay = g.mul(g.reshape(dt, shape=each), rate, name="decay")
        o = self._recur(s, layer, inputs, decay, beta)
        o = g.rms_norm(o, s.w(b + "ssm_norm.weight"), eps=self.hp.eps, name="ssm_norm")
        gate = g.sigmoid(g.reshape(twice("g"), shape=each), name="gate")
        o = g.reshape(g.mul(o, gate, name="gated"), shape=(n, self.heads * self.dim))
        return g.mul_mat(o, s.w(b + "attn_output.weight"), name="attn_output")

    def _recur(
        self, s: StepGraph, layer: int, inputs: Sequence[Value], decay: Value, beta: Value
    ) -> Value:
        """What has memory. inputs: of queries, keys and values, [N, heads * dim] each; decay: [N,
        heads, dim]; beta: [N, heads]; returns [N, heads, dim]."""
        g, n, inner = s.g, s.shape.n_tokens, self.heads * self.dim
        *tails, state = s.recurrent(layer, self.parts)
        where = (s.inputs.seq_offsets, s.inputs.state_rows)
        made = list[Value]()
        for name, x, tail in zip(QUERIES_KEYS_VALUES, inputs, tails, strict=True):
            kernel = s.w(f"blk.{layer}.ssm_conv1d_{name}.weight")
            kernel = g.reshape(kernel, shape=(inner, self.width))
            x = g.ssm_conv(x, kernel, *where, tail.state, **tail.where, name=f"conv_{name}")[0]
            x = g.reshape(g.silu(x, name="conv_act"), shape=(n, self.heads, self.dim))
            made.append(x if name == "v" else g.l2_norm(x, eps=NORM_EPS, form="add"))
        q, k, v = made
        return g.gated_delta_net(
            q,
            k,
            v,
            decay,
            beta,
            *where,
            state.state,
            **state.where,
            heads="tiled",
            name="gated_delta_net",
        )[0]

    @property
    def parts(self) -> tuple[RecurrentPart, ...]:
        """The last inputs of each convolution, oldest first, and the matrix of every head."""
        inner = self.heads * self.dim
        tails = (
            RecurrentPart(f"conv_{name}", (self.width - 1) * inner, inner)
            for name in QUERIES_KEYS_VALUES
        )
        return (*tails, RecurrentPart("ssm", inner * self.dim, 3 * inner))

    def fold(self, s: StepGraph, layer: int) -> Value:
        """Convolutions and delta rule."""
        inner = no_tokens(s, self.heads * self.dim)
        decay, beta = no_tokens(s, self.heads, self.dim), no_tokens(s, self.heads)
        return self._recur(s, layer, [inner] * 3, decay, beta)
