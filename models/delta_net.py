"""The gated-delta-net layer of Qwen3.5 and Qwen3-Next.

Source: Yang, Kautz & Hatamizadeh 2024, "Gated Delta Networks"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph import Value
from ..graph.errors import ModelError
from .architecture import Want
from .gguf import GgufFile
from .hparams import read_count
from .memories import RecurrentPart
from .step import StepGraph


@dataclass(frozen=True)
class DeltaNetShape:
    """k_heads and v_heads of size `dim`; convolution width; how value heads share key heads.

    joint: one tensor gives beta and alpha, for each key head those of all its value heads."""

    k_heads: int
    v_heads: int
    dim: int
    width: int
    eps: float
    heads: str
    joint: bool = False

    @property
    def key_dim(self) -> int:
        """Elements of all key heads."""
        return self.k_heads * self.dim

    @property
    def value_dim(self) -> int:
        """Elements of all value heads."""
        return self.v_heads * self.dim

    @property
    def channels(self) -> int:
        """Convolution channels: queries, keys, values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def log_entry(self) -> int:
        """Elements that gated_delta_net logs for a token: keys, written values, decays."""
        return self.key_dim + self.value_dim + self.v_heads

    @property
    def memory(self) -> tuple[RecurrentPart, RecurrentPart]:
        """What a layer keeps: the last width - 1 inputs of the convolution, oldest first, and the
        matrix of every value head."""
        return (
            RecurrentPart("conv", (self.width - 1) * self.channels, self.channels),
            RecurrentPart("ssm", self.value_dim * self.dim, self.log_entry),
        )


def read_delta_net(file: GgufFile, arch: str, eps: float, heads: str) -> DeltaNetShape:
    """The ssm.* keys. Raises ModelError when they contradict each other."""
    sizes = ("state_size", "group_count", "time_step_rank")
    dim, k_heads, v_heads = (read_count(file, f"{arch}.ssm.{name}", 1, 4096) for name in sizes)
    width = read_count(file, f"{arch}.ssm.conv_kernel", 2, 64)
    inner = file.get_u32(f"{arch}.ssm.inner_size")
    if inner != dim * v_heads or v_heads % k_heads:
        raise ModelError(
            f"{file.path}: {arch}.ssm.inner_size should be state_size * time_step_rank = "
            f"{dim * v_heads} with time_step_rank a multiple of group_count {k_heads}, got {inner}"
        )
    return DeltaNetShape(k_heads, v_heads, dim, width, eps, heads)


def delta_net_wants(
    layer: int, n_embd: int, d: DeltaNetShape, whole: bool = False
) -> Iterator[Want]:
    """The tensors of `delta_net`, its norm aside. whole: one tensor gives all of queries, keys,
    values and gates, key head by key head."""
    b = f"blk.{layer}."
    if whole:
        yield Want(b + "ssm_in.weight", (d.channels + d.value_dim, n_embd))
    else:
        yield Want(b + "attn_qkv.weight", (d.channels, n_embd))
        yield Want(b + "attn_gate.weight", (d.value_dim, n_embd))
    yield Want(b + "ssm_conv1d.weight", (d.channels, d.width))
    if d.joint:
        yield Want(b + "ssm_ba.weight", (2 * d.v_heads, n_embd))
    else:
        yield Want(b + "ssm_alpha.weight", (d.v_heads, n_embd))
        yield Want(b + "ssm_beta.weight", (d.v_heads, n_embd))
    yield Want(b + "ssm_dt.bias", (d.v_heads,))
    yield Want(b + "ssm_a", (d.v_heads,))
    yield Want(b + "ssm_norm.weight", (d.dim,))
    yield Want(b + "ssm_out.weight", (n_embd, d.value_dim))


def delta_net(s: StepGraph, layer: int, h: Value, d: DeltaNetShape) -> Value:
    """One layer over its recurrent memory. h: [N, n_embd], normalised; returns the same shape."""
    g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
    u, z = _projected(s, b, h, d)
    beta, alpha = _gates(s, b, h, d)
    beta = g.sigmoid(beta, name="beta")
    dt = g.add(alpha, s.w(b + "ssm_dt.bias"))
    # ssm_a holds -exp(A_log) already, so that decay is at most 0.
    decay = g.mul(g.softplus(dt, name="dt"), s.w(b + "ssm_a"), name="decay")
    o = recur(s, layer, u, decay, beta, d)
    o = g.rms_norm(o, s.w(b + "ssm_norm.weight"), eps=d.eps, name="ssm_norm")
    z = g.reshape(z, shape=(n, d.v_heads, d.dim))
    o = g.reshape(g.swiglu(z, o, name="gated"), shape=(n, d.value_dim))
    return g.mul_mat(o, s.w(b + "ssm_out.weight"), name="ssm_out")


def _projected(s: StepGraph, b: str, h: Value, d: DeltaNetShape) -> tuple[Value, Value]:
    """Queries, keys and values [N, channels], and the gate of the output [N, value_dim]."""
    g = s.g
    if not s.has(b + "ssm_in.weight"):
        u = g.mul_mat(h, s.w(b + "attn_qkv.weight"), name="attn_qkv")
        return u, g.mul_mat(h, s.w(b + "attn_gate.weight"), name="attn_gate")
    of_key = d.value_dim // d.k_heads
    q, k, v, z = _split(s, b + "ssm_in", h, d, (d.dim, d.dim, of_key, of_key))
    return g.concat(q, k, v, axis=1, name="qkv"), z


def _gates(s: StepGraph, b: str, h: Value, d: DeltaNetShape) -> tuple[Value, Value]:
    """beta, before the sigmoid, and alpha: [N, v_heads] each."""
    g = s.g
    if d.joint:
        of_key = d.v_heads // d.k_heads
        beta, alpha = _split(s, b + "ssm_ba", h, d, (of_key, of_key))
        return beta, alpha
    beta = g.mul_mat(h, s.w(b + "ssm_beta.weight"), name="ssm_beta")
    return beta, g.mul_mat(h, s.w(b + "ssm_alpha.weight"), name="ssm_alpha")


def _split(
    s: StepGraph, name: str, h: Value, d: DeltaNetShape, sizes: tuple[int, ...]
) -> list[Value]:
    """Rows that hold parts of these sizes for each key head, as a [N, k_heads * size] of each."""
    g, n, start = s.g, s.shape.n_tokens, 0
    y = g.mul_mat(h, s.w(name + ".weight"), name=name.rsplit(".", 1)[-1])
    y, parts = g.reshape(y, shape=(n, d.k_heads, sum(sizes))), list[Value]()
    for size in sizes:
        part = g.cont(g.view(y, axis=2, start=start, stop=start + size))
        parts.append(g.reshape(part, shape=(n, d.k_heads * size)))
        start += size
    return parts


def recur(s: StepGraph, layer: int, u: Value, decay: Value, beta: Value, d: DeltaNetShape) -> Value:
    """The part of a layer that has memory: convolution, then the delta rule.

    u: [N, channels]; decay, beta: [N, v_heads]; returns [N, v_heads, dim]."""
    g, b = s.g, f"blk.{layer}."
    tail, state = s.recurrent(layer, d.memory)
    where = (s.inputs.seq_offsets, s.inputs.state_rows)
    c = g.ssm_conv(
        u,
        s.w(b + "ssm_conv1d.weight"),
        *where,
        tail.state,
        **tail.where,
        name="ssm_conv",
    )[0]
    c = g.silu(c, name="conv_act")
    q = _heads(s, c, 0, d.k_heads, d.dim)
    k = _heads(s, c, d.key_dim, d.k_heads, d.dim)
    v = _heads(s, c, 2 * d.key_dim, d.v_heads, d.dim)
    q = g.l2_norm(q, eps=d.eps, form="add", name="q_norm")
    k = g.l2_norm(k, eps=d.eps, form="add", name="k_norm")
    return g.gated_delta_net(
        q,
        k,
        v,
        decay,
        beta,
        *where,
        state.state,
        **state.where,
        heads=d.heads,
        name="gated_delta_net",
    )[0]


def _heads(s: StepGraph, x: Value, start: int, heads: int, dim: int) -> Value:
    """Channels start .. start + heads*dim as [N, heads, dim], without a copy."""
    part = s.g.view(x, axis=1, start=start, stop=start + heads * dim)
    return s.g.reshape(part, shape=(s.shape.n_tokens, heads, dim))
