"""The Mamba-2 layer.

Source: Dao & Gu 2024, "Transformers are SSMs"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..graph import Value
from ..graph.errors import ModelError
from .architecture import Want
from .gguf import GgufFile
from .hparams import read_count
from .memories import RecurrentPart
from .recurrent import no_tokens
from .step import StepGraph


@dataclass(frozen=True)
class Mamba2Shape:
    """heads of `dim` values, each with a state of `size` for every value; how many groups of heads
    share their b and c; convolution width."""

    heads: int
    dim: int
    groups: int
    size: int
    width: int
    eps: float

    @property
    def inner(self) -> int:
        """Values of all heads."""
        return self.heads * self.dim

    @property
    def channels(self) -> int:
        """Convolution channels: values, b, c."""
        return self.inner + 2 * self.groups * self.size

    @property
    def memory(self) -> tuple[RecurrentPart, RecurrentPart]:
        """What a layer keeps: the last width - 1 inputs of the convolution, oldest first, and the
        matrix of every head."""
        entry = self.groups * self.size + self.inner + self.heads
        return (
            RecurrentPart("conv", (self.width - 1) * self.channels, self.channels),
            RecurrentPart("ssm", self.inner * self.size, entry),
        )


def read_mamba2(file: GgufFile, arch: str, eps: float) -> Mamba2Shape:
    """The ssm.* keys. Raises ModelError when they contradict each other."""
    sizes = ("state_size", "group_count", "time_step_rank")
    size, groups, heads = (read_count(file, f"{arch}.ssm.{name}", 1, 4096) for name in sizes)
    inner = read_count(file, f"{arch}.ssm.inner_size", 1, 1 << 20)
    width = read_count(file, f"{arch}.ssm.conv_kernel", 2, 64)
    if inner % heads or heads % groups:
        raise ModelError(
            f"{file.path}: {arch}.ssm.time_step_rank should divide inner_size {inner} and be a "
            f"multiple of group_count {groups}, got {heads}"
        )
    return Mamba2Shape(heads, inner // heads, groups, size, width, eps)


def mamba2_wants(layer: int, n_embd: int, m: Mamba2Shape) -> Iterator[Want]:
    """The tensors of `mamba2`, its norm aside."""
    b = f"blk.{layer}."
    yield Want(b + "ssm_in.weight", (m.inner + m.channels + m.heads, n_embd))
    yield Want(b + "ssm_conv1d.weight", (m.channels, m.width))
    yield Want(b + "ssm_conv1d.bias", (m.channels,), optional=True)
    yield Want(b + "ssm_dt.bias", (m.heads,))
    yield Want(b + "ssm_a", (m.heads, 1))
    yield Want(b + "ssm_d", (m.heads, 1))
    yield Want(b + "ssm_norm.weight", (m.groups, m.inner // m.groups))
    yield Want(b + "ssm_out.weight", (n_embd, m.inner))


def mamba2(s: StepGraph, layer: int, h: Value, m: Mamba2Shape) -> Value:
    """One layer over its recurrent memory. h: [N, n_embd], normalised; returns the same shape."""
    g, b = s.g, f"blk.{layer}."
    both = g.mul_mat(h, s.w(b + "ssm_in.weight"), name="ssm_in")
    ends = (0, m.inner, m.inner + m.channels, m.inner + m.channels + m.heads)
    z, u, dt = (g.view(both, axis=1, start=ends[i], stop=ends[i + 1]) for i in range(len(ends) - 1))
    x, y = _scan(s, layer, u, g.add(dt, s.w(b + "ssm_dt.bias"), name="dt"), m)
    y = g.add(y, g.mul(x, s.w(b + "ssm_d"), name="skip"), name="ssm_y")
    y = g.swiglu(z, g.reshape(y, shape=(s.shape.n_tokens, m.inner)), name="gated")
    return g.mul_mat(_norm(s, b, y, m), s.w(b + "ssm_out.weight"), name="ssm_out")


def mamba2_fold(s: StepGraph, layer: int, m: Mamba2Shape) -> Value:
    """The ops with memory without tokens."""
    return _scan(s, layer, no_tokens(s, m.channels), no_tokens(s, m.heads), m)[1]


def _scan(s: StepGraph, layer: int, u: Value, dt: Value, m: Mamba2Shape) -> tuple[Value, Value]:
    """Convolution, then the scan. u: [N, channels]; dt: [N, heads]; returns the values that go
    into the scan and its results, [N, heads, dim] each."""
    g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
    tail, state = s.recurrent(layer, m.memory)
    where = (s.inputs.seq_offsets, s.inputs.state_rows)
    w = s.w(b + "ssm_conv1d.weight")
    y = g.ssm_conv(u, w, *where, tail.state, **tail.where, name="ssm_conv")[0]
    if s.has(b + "ssm_conv1d.bias"):
        y = g.add(y, s.w(b + "ssm_conv1d.bias"), name="bias")
    y = g.silu(y, name="conv_act")
    x = g.reshape(g.view(y, axis=1, start=0, stop=m.inner), shape=(n, m.heads, m.dim))
    width = m.groups * m.size
    keys, queries = (
        g.reshape(g.view(y, axis=1, start=at, stop=at + width), shape=(n, m.groups, m.size))
        for at in (m.inner, m.inner + width)
    )
    a = g.reshape(s.w(b + "ssm_a"), shape=(m.heads,))
    scanned = g.ssm_scan(
        x, dt, a, keys, queries, *where, state.state, **state.where, name="ssm_scan"
    )
    return x, scanned[0]


def _norm(s: StepGraph, b: str, y: Value, m: Mamba2Shape) -> Value:
    """Each group of heads by itself. y: [N, inner]; returns the same."""
    g, n, each = s.g, s.shape.n_tokens, m.inner // m.groups
    w = s.w(b + "ssm_norm.weight")
    if m.groups == 1:
        return g.rms_norm(y, g.reshape(w, shape=(each,)), eps=m.eps, name="ssm_norm")
    y = g.rms_norm(g.reshape(y, shape=(n, m.groups, each)), None, eps=m.eps, name="ssm_norm")
    return g.reshape(g.mul(y, w, name="ssm_norm_w"), shape=(n, m.inner))
