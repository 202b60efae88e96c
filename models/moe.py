"""A mixture of experts in place of the feed-forward block, with or without a shared expert.

Source: Shazeer et al. 2017, "Outrageously Large Neural Networks"; the shared expert and its gate
are Qwen's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..graph import Graph, Value
from ..graph.errors import ModelError
from .architecture import Want
from .gguf import GgufFile
from .hparams import read_optional
from .pre_norm import PreNorm
from .step import StepGraph

MAX_EXPERTS = 1024


@dataclass(frozen=True)
class MoeShape:
    """n_used of n_expert experts a token; widths of each expert by layer and of the shared one,
    0 without; scale multiplies the weights, normalised where `normalize` says so, which `gating`
    makes of the router's logits ("softmax", "sigmoid"); shared_gate: the shared expert has one;
    bias: router and experts have biases; act: "silu" for SwiGLU, or "oai", see `glu_oai`."""

    n_expert: int
    n_used: int
    n_ff: tuple[int, ...]
    n_ff_shared: int
    scale: float = 1.0
    normalize: bool = True
    gating: str = "softmax"
    shared_gate: bool = True
    bias: bool = False
    act: str = "silu"


SOFTMAX, SIGMOID = 1, 2  # values of expert_gating_func
GATINGS = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}


def read_moe(
    file: GgufFile,
    arch: str,
    n_layers: int,
    shared: bool,
    dense: list[int] | None = None,
    gating: str = "softmax",
) -> MoeShape:
    """The expert_* keys. shared: whether the architecture has a shared expert; dense: widths that
    experts have in files that do not tell theirs; gating: what files mean that do not tell it.

    Raises GgufError for absent or mistyped keys, ModelError for values out of range."""

    def count(name: str, value: int, high: int) -> int:
        if not 1 <= value <= high:
            raise ModelError(f"{file.path}: {arch}.{name} should be 1 to {high}, got {value}")
        return value

    key = f"{arch}.expert_count"
    experts = count("expert_count", file.get_u32(key), MAX_EXPERTS)
    used = count("expert_used_count", file.get_u32(f"{arch}.expert_used_count"), experts)
    name = "expert_feed_forward_length"
    widths = dense if dense and f"{arch}.{name}" not in file.metadata else None
    widths = widths or file.get_per_layer(f"{arch}.{name}", n_layers)
    n_ff = [count(name, n, 1 << 20) for n in widths]
    name, n_ff_shared = "expert_shared_feed_forward_length", 0
    if shared:
        n_ff_shared = count(name, file.get_u32(f"{arch}.{name}"), 1 << 20)
    scale = read_optional(file, f"{arch}.expert_weights_scale") or 1.0
    normalize = file.get_bool(f"{arch}.expert_weights_norm", True)
    key = f"{arch}.expert_gating_func"
    if key in file.metadata:
        told = file.get_u32(key)
        if told not in GATINGS:
            raise ModelError(f"{file.path}: {key} should be 1 (softmax) or 2 (sigmoid), got {told}")
        gating = GATINGS[told]
    return MoeShape(experts, used, tuple(n_ff), n_ff_shared, scale, normalize, gating)


def moe_wants(layer: int, n_embd: int, m: MoeShape, fused: bool) -> Iterator[Want]:
    """The tensors of `moe`. fused: gate and up of an expert lie in one tensor, [gate rows, up
    rows]."""
    b, n_ff = f"blk.{layer}.", m.n_ff[layer]
    yield Want(b + "ffn_gate_inp.weight", (m.n_expert, n_embd))
    if m.bias:
        yield Want(b + "ffn_gate_inp.bias", (m.n_expert,))
        yield Want(b + "ffn_gate_exps.bias", (m.n_expert, n_ff), experts=True)
        yield Want(b + "ffn_up_exps.bias", (m.n_expert, n_ff), experts=True)
        yield Want(b + "ffn_down_exps.bias", (m.n_expert, n_embd), experts=True)
    if fused:
        yield Want(b + "ffn_gate_up_exps.weight", (m.n_expert, 2 * n_ff, n_embd), experts=True)
    else:
        yield Want(b + "ffn_gate_exps.weight", (m.n_expert, n_ff, n_embd), experts=True)
        yield Want(b + "ffn_up_exps.weight", (m.n_expert, n_ff, n_embd), experts=True)
    yield Want(b + "ffn_down_exps.weight", (m.n_expert, n_embd, n_ff), experts=True)
    if m.n_ff_shared:
        if m.shared_gate:
            yield Want(b + "ffn_gate_inp_shexp.weight", (n_embd,))
        yield Want(b + "ffn_gate_shexp.weight", (m.n_ff_shared, n_embd))
        yield Want(b + "ffn_up_shexp.weight", (m.n_ff_shared, n_embd))
        yield Want(b + "ffn_down_shexp.weight", (n_embd, m.n_ff_shared))


def moe(s: StepGraph, layer: int, h: Value, m: MoeShape) -> Value:
    """The chosen experts' SwiGLU blocks, weighted by what the router makes of all experts; plus
    the shared expert's, times sigmoid(gate . h) where it has a gate. A bias of the router's
    results counts for the choice alone.

    h: [N, n_embd], normalised; returns the same shape."""
    g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
    logits = g.mul_mat(h, s.w(b + "ffn_gate_inp.weight"), name="ffn_gate_inp")
    if m.bias:
        logits = g.add(logits, s.w(b + "ffn_gate_inp.bias"), name="bias")
    weights, ids = g.topk_moe(
        logits,
        s.w(b + "exp_probs_b.bias") if s.has(b + "exp_probs_b.bias") else None,
        k=m.n_used,
        normalize=m.normalize,
        gating=m.gating,
        scale=m.scale,
        name="route",
    )
    gate, up = _gate_up(s, b, h, ids, m.n_ff[layer])
    act = g.swiglu if m.act == "silu" else partial(glu_oai, g)
    inner = act(gate, up, name="ffn_act_exps")
    each = _chosen(s, b + "ffn_down_exps", inner, ids)
    each = g.mul(each, g.reshape(weights, shape=(n, m.n_used, 1)), name="weighted")
    y = g.sum(each, axis=1, keepdims=False, name="ffn_moe")
    return g.add(y, _shared(s, b, h, m), name="ffn_out") if m.n_ff_shared else y


def _gate_up(s: StepGraph, b: str, h: Value, ids: Value, n_ff: int) -> tuple[Value, Value]:
    """Gate and up of the chosen experts: [N, n_used, n_ff] each."""
    g = s.g
    if s.has(b + "ffn_gate_up_exps.weight"):
        w = s.w(b + "ffn_gate_up_exps.weight")
        both = g.mul_mat_id(h, w, ids, name="ffn_gate_up_exps")
        return (
            g.view(both, axis=2, start=0, stop=n_ff),
            g.view(both, axis=2, start=n_ff, stop=2 * n_ff),
        )
    return _chosen(s, b + "ffn_gate_exps", h, ids), _chosen(s, b + "ffn_up_exps", h, ids)


def _chosen(s: StepGraph, name: str, x: Value, ids: Value) -> Value:
    """The product with the chosen experts' matrices, and their biases where there are any."""
    g, short = s.g, name.rsplit(".", 1)[-1]
    y = g.mul_mat_id(x, s.w(name + ".weight"), ids, name=short)
    if not s.has(name + ".bias"):
        return y
    bias = s.w(name + ".bias")
    # A product with a column of ones picks the experts' rows.
    ones = g.constant(np.ones((s.shape.n_tokens, 1), np.float32))
    rows = g.reshape(bias, shape=(*bias.shape, 1))
    return g.add(y, g.mul_mat_id(ones, rows, ids, name="chosen_bias"), name="bias")


def glu_oai(g: Graph, gate: Value, up: Value, name: str) -> Value:
    """c * sigmoid(1.702 c) * (1 + u), c the gate up to 7 and u the other half within -7 .. 7.

    Source: OpenAI 2025, arXiv 2508.10925."""
    c = g.clamp(gate, min=-math.inf, max=7.0)
    u = g.scale(g.clamp(up, min=-7.0, max=7.0), factor=1.0, bias=1.0)
    return g.mul(g.mul(c, g.sigmoid(g.scale(c, factor=1.702))), u, name=name)


def _shared(s: StepGraph, b: str, h: Value, m: MoeShape) -> Value:
    g = s.g
    gate = g.mul_mat(h, s.w(b + "ffn_gate_shexp.weight"), name="ffn_gate_shexp")
    up = g.mul_mat(h, s.w(b + "ffn_up_shexp.weight"), name="ffn_up_shexp")
    inner = g.swiglu(gate, up, name="ffn_act_shexp")
    y = g.mul_mat(inner, s.w(b + "ffn_down_shexp.weight"), name="ffn_down_shexp")
    if not m.shared_gate:
        return y
    row = g.reshape(s.w(b + "ffn_gate_inp_shexp.weight"), shape=(1, h.shape[1]))
    open_ = g.sigmoid(g.mul_mat(h, row, name="ffn_gate_inp_shexp"), name="gate_shexp")
    return g.mul(y, open_, name="ffn_shexp")


class DenseFirst(PreNorm):
    """The first n_dense layers have the dense block, the others experts, with a bias that counts
    for their choice.

    choice_bias: whether files must have it."""

    choice_bias = False
    n_dense: int
    experts: MoeShape

    def read_experts(
        self, file: GgufFile, n_layers: int, n_shared: int = 0, gating: str = "softmax"
    ) -> None:
        """How many layers are dense, and the others' experts. n_shared: how many times as wide as
        an expert the shared one is; gating: as for `read_moe`."""
        key = f"{self.name}.leading_dense_block_count"
        self.n_dense = file.get_u32(key, 0)
        if self.n_dense > self.hp.n_layer:
            raise ModelError(
                f"{file.path}: {key} should be 0 to {self.hp.n_layer}, got {self.n_dense}"
            )
        m = read_moe(file, self.name, n_layers, shared=False, gating=gating)
        self.experts = replace(m, n_ff_shared=n_shared * m.n_ff[0], shared_gate=False)

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The dense block, or experts."""
        if layer < self.n_dense:
            yield from super().ffn_wants(layer)
            return
        m = self.experts
        yield from moe_wants(layer, self.hp.n_embd, m, fused=False)
        bias = f"blk.{layer}.exp_probs_b.bias"
        yield Want(bias, (m.n_expert,), optional=not self.choice_bias)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The dense block, or experts."""
        return super().ffn(s, layer, h) if layer < self.n_dense else moe(s, layer, h, self.experts)


class Mixture(PreNorm):
    """Every layer has experts, where `read` sets them; the dense block without any."""

    experts: MoeShape | None = None

    def ffn_wants(self, layer: int) -> Iterator[Want]:
        """The dense block, or experts, gate and up of each apart."""
        if self.experts is None:
            return super().ffn_wants(layer)
        return moe_wants(layer, self.hp.n_embd, self.experts, fused=False)

    def ffn(self, s: StepGraph, layer: int, h: Value) -> Value:
        """The dense block, or experts."""
        return super().ffn(s, layer, h) if self.experts is None else moe(s, layer, h, self.experts)
