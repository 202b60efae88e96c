"""Pieces that several architectures are made of. x: [N, n_embd], the residual stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..graph import Value
from ..graph.errors import GraphError
from .architecture import Want
from .hparams import Hparams, RopeScaling
from .memories import AttentionSpec, Heads
from .step import PAGE, StepGraph

PLAIN_ROPE = RopeScaling()


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of one layer kind; factors names the tensor of frequency divisors."""

    style: str
    n_rot: int
    base: float
    scaling: RopeScaling = PLAIN_ROPE
    sections: tuple[int, ...] = ()
    factors: str = ""


@dataclass(frozen=True)
class AttentionShape:
    """Sizes and switches of one attention layer.

    gated: attn_q holds [query, gate] per head and the output is multiplied by sigmoid(gate); fused:
    attn_qkv holds queries, keys and values; sinks: the layer has attn_sinks; softcap: that of op
    `attention`."""

    n_head: int
    n_head_kv: int
    dim_k: int
    dim_v: int
    eps: float
    scale: float
    rope: Rope
    window: int = 0
    gated: bool = False
    qk_norm: bool = True
    bias: bool = False
    fused: bool = False
    sinks: bool = False
    softcap: float = 0.0

    @property
    def heads(self) -> Heads:
        """What the layer keeps of a token."""
        return Heads(self.n_head_kv, self.dim_k, self.dim_v)


def attention_shape(hp: Hparams, layer: int, rope: Rope, **switches: bool) -> AttentionShape:
    """The layer's attention sizes from the hyperparameters."""
    return AttentionShape(
        hp.n_head[layer],
        hp.n_head_kv[layer],
        hp.head_dim_k,
        hp.head_dim_v,
        hp.eps,
        hp.attention_scale,
        rope,
        **switches,
    )


def attention_memories(shapes: Mapping[int, AttentionShape]) -> tuple[AttentionSpec, ...]:
    """The memory of attention layers: of those whose queries see all, then of those with a window.

    Raises GraphError for layers with windows of several sizes."""
    found = []
    for window in sorted({a.window for a in shapes.values()}):
        found.append(
            AttentionSpec({i: a.heads for i, a in shapes.items() if a.window == window}, window)
        )
    if len([spec for spec in found if spec.window]) > 1:
        raise GraphError(
            f"attention windows should be of one size, got {[s.window for s in found]}"
        )
    return tuple(found)


def attention_wants(layer: int, n_embd: int, a: AttentionShape) -> Iterator[Want]:
    """The tensors of `attention`, its norm aside."""
    b = f"blk.{layer}."
    q_rows = a.n_head * a.dim_k
    k_rows, v_rows = a.n_head_kv * a.dim_k, a.n_head_kv * a.dim_v
    if a.fused:
        yield Want(b + "attn_qkv.weight", (q_rows + k_rows + v_rows, n_embd))
    else:
        yield Want(b + "attn_q.weight", (q_rows * (2 if a.gated else 1), n_embd))
        yield Want(b + "attn_k.weight", (k_rows, n_embd))
        yield Want(b + "attn_v.weight", (v_rows, n_embd))
    yield Want(b + "attn_output.weight", (n_embd, a.n_head * a.dim_v))
    if a.qk_norm:
        yield Want(b + "attn_q_norm.weight", (a.dim_k,))
        yield Want(b + "attn_k_norm.weight", (a.dim_k,))
    if a.bias:
        yield Want(b + "attn_q.bias", (q_rows,), optional=True)
        yield Want(b + "attn_k.bias", (k_rows,), optional=True)
        yield Want(b + "attn_v.bias", (v_rows,), optional=True)
        yield Want(b + "attn_output.bias", (n_embd,), optional=True)
    if a.sinks:
        yield Want(b + "attn_sinks.weight", (a.n_head,))


def attention(s: StepGraph, layer: int, h: Value, a: AttentionShape) -> Value:
    """Attention over the layer's paged memory. h: [N, n_embd], normalised; returns the same."""
    g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
    q, k, v = _queries_keys_values(s, b, h, a)
    gate = None
    if a.gated:
        both = g.reshape(q, shape=(n, a.n_head, 2 * a.dim_k))
        q = g.view(both, axis=2, start=0, stop=a.dim_k)
        gate = g.sigmoid(g.view(both, axis=2, start=a.dim_k, stop=2 * a.dim_k), name="gate")
    else:
        q = g.reshape(q, shape=(n, a.n_head, a.dim_k))
    k = g.reshape(k, shape=(n, a.n_head_kv, a.dim_k))
    v = g.reshape(v, shape=(n, a.n_head_kv, a.dim_v))
    if a.qk_norm:
        q = g.rms_norm(q, s.w(b + "attn_q_norm.weight"), eps=a.eps, name="q_norm")
        k = g.rms_norm(k, s.w(b + "attn_k_norm.weight"), eps=a.eps, name="k_norm")
    q, k = rope(s, q, a.rope), rope(s, k, a.rope)
    k0, v0 = s.cache(layer, a.heads, a.window)
    pages = s.pages(a.window)
    k1 = g.write_rows(k0, k, pages.kv_rows, name="k_cache")
    v1 = g.write_rows(v0, v, pages.kv_rows, name="v_cache")
    o = g.attention(
        q,
        k1,
        v1,
        s.inputs.seq_offsets,
        s.inputs.positions,
        pages.block_table,
        s.w(b + "attn_sinks.weight") if a.sinks else None,
        scale=a.scale,
        heads="grouped",
        mask="causal",
        window=a.window,
        page=PAGE,
        softcap=a.softcap,
        name="attention",
    )
    if gate is not None:
        o = g.mul(o, gate, name="gated")
    return _project(s, b + "attn_output", g.reshape(o, shape=(n, a.n_head * a.dim_v)))


def _queries_keys_values(
    s: StepGraph, b: str, h: Value, a: AttentionShape
) -> tuple[Value, Value, Value]:
    """What is computed of the layer's input: [N, heads * size] each."""
    if not a.fused:
        q, k, v = (_project(s, f"{b}attn_{name}", h) for name in "qkv")
        return q, k, v
    all_three = _project(s, b + "attn_qkv", h)
    ends = [a.n_head * a.dim_k, (a.n_head + a.n_head_kv) * a.dim_k, all_three.shape[1]]
    starts = [0, *ends]
    q, k, v = (
        s.g.view(all_three, axis=1, start=start, stop=end)
        for start, end in zip(starts, ends, strict=False)
    )
    return q, k, v


def rope(s: StepGraph, x: Value, r: Rope) -> Value:
    """Rotate queries or keys [N, heads, dim] by their positions."""
    if r.n_rot == 0:
        return x
    factors = s.w(r.factors) if r.factors and s.has(r.factors) else None
    return s.g.rope(
        x,
        s.inputs.positions,
        factors,
        style=r.style,
        n_rot=r.n_rot,
        base=r.base,
        freq_scale=r.scaling.freq_scale,
        sections=r.sections,
        ext_factor=r.scaling.ext_factor,
        attn_factor=r.scaling.attn_factor,
        beta_fast=r.scaling.beta_fast,
        beta_slow=r.scaling.beta_slow,
        n_ctx_orig=r.scaling.n_ctx_orig,
        name="rope",
    )


def _project(s: StepGraph, name: str, x: Value) -> Value:
    y = s.g.mul_mat(x, s.w(name + ".weight"), name=name.rsplit(".", 1)[-1])
    if s.has(name + ".bias"):
        y = s.g.add(y, s.w(name + ".bias"), name="bias")
    return y


def ffn_wants(layer: int, n_embd: int, n_ff: int) -> Iterator[Want]:
    """The tensors of `ffn`."""
    b = f"blk.{layer}."
    yield Want(b + "ffn_gate.weight", (n_ff, n_embd))
    yield Want(b + "ffn_up.weight", (n_ff, n_embd))
    yield Want(b + "ffn_down.weight", (n_embd, n_ff))


def ffn(s: StepGraph, layer: int, h: Value, act: str = "silu") -> Value:
    """down(act(gate(h)) * up(h)), act silu (SwiGLU) or gelu (GeGLU)."""
    g, b = s.g, f"blk.{layer}."
    gate = g.mul_mat(h, s.w(b + "ffn_gate.weight"), name="ffn_gate")
    up = g.mul_mat(h, s.w(b + "ffn_up.weight"), name="ffn_up")
    glu = g.swiglu if act == "silu" else g.geglu
    return g.mul_mat(glu(gate, up, name="ffn_act"), s.w(b + "ffn_down.weight"), name="ffn_down")


def norm(s: StepGraph, x: Value, name: str, eps: float) -> Value:
    """RMS norm with the weight of this name."""
    return s.g.rms_norm(x, s.w(name), eps=eps, name=name.rsplit(".", 2)[-2])


def scaled(s: StepGraph, x: Value, factor: float, name: str) -> Value:
    """x times a factor; x itself for 1."""
    return x if factor == 1.0 else s.g.scale(x, factor=factor, name=name)
