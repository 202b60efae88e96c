"""Multi-head latent attention, in its absorbed form: all heads read one key and one value a token,
the latent and what is left of the key beside it.

Source: DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..graph import Value
from ..graph.errors import ModelError
from .architecture import Want
from .gguf import GgufFile
from .hparams import Hparams, read_count
from .memories import Heads
from .step import PAGE, StepGraph


@dataclass(frozen=True)
class MlaShape:
    """n_head queries of dim_nope + dim_rope elements over latents of n_latent; values of dim_v."""

    n_head: int
    dim_nope: int
    dim_rope: int
    n_latent: int
    dim_v: int
    eps: float

    @property
    def heads(self) -> Heads:
        """What a layer keeps of a token: the latent and dim_rope elements, and the latent."""
        return Heads(1, self.n_latent + self.dim_rope, self.n_latent)


def read_mla(file: GgufFile, arch: str, hp: Hparams) -> MlaShape:
    """The keys of latent attention. Raises ModelError for those that contradict each other."""
    sizes = ("kv_lora_rank", "key_length_mla", "value_length_mla")
    latent, whole, dim_v = (read_count(file, f"{arch}.attention.{name}", 1, 4096) for name in sizes)
    if hp.n_rot >= whole:
        raise ModelError(
            f"{file.path}: {arch}.attention.key_length_mla should be above rope.dimension_count "
            f"{hp.n_rot}, got {whole}"
        )
    if hp.head_dim_k != latent + hp.n_rot:
        raise ModelError(
            f"{file.path}: {arch}.attention.key_length should be kv_lora_rank + "
            f"rope.dimension_count = {latent + hp.n_rot}, got {hp.head_dim_k}"
        )
    return MlaShape(hp.n_head[0], whole - hp.n_rot, hp.n_rot, latent, dim_v, hp.eps)


def mla_wants(layer: int, n_embd: int, m: MlaShape) -> Iterator[Want]:
    """The tensors of `mla`, its norm aside."""
    b = f"blk.{layer}."
    yield Want(b + "attn_q.weight", (m.n_head * (m.dim_nope + m.dim_rope), n_embd))
    yield Want(b + "attn_kv_a_mqa.weight", (m.n_latent + m.dim_rope, n_embd))
    yield Want(b + "attn_kv_a_norm.weight", (m.n_latent,))
    yield Want(b + "attn_k_b.weight", (m.n_head, m.n_latent, m.dim_nope))
    yield Want(b + "attn_v_b.weight", (m.n_head, m.dim_v, m.n_latent))
    yield Want(b + "attn_output.weight", (n_embd, m.n_head * m.dim_v))


def mla(s: StepGraph, layer: int, h: Value, m: MlaShape) -> Value:
    """Attention without rotation. h: [N, n_embd], normalised; returns the same.

    A head's score of a key is q . (k_b latent) = (k_b^T q) . latent, so that keys stay latent."""
    g, b, n = s.g, f"blk.{layer}.", s.shape.n_tokens
    # Each head has a matrix of its own, as experts have.
    own = g.constant(np.tile(np.arange(m.n_head, dtype=np.int32), (n, 1)))
    q = g.mul_mat(h, s.w(b + "attn_q.weight"), name="attn_q")
    q = g.reshape(q, shape=(n, m.n_head, m.dim_nope + m.dim_rope))
    plain = g.cont(g.view(q, axis=2, start=0, stop=m.dim_nope))
    shared = g.view(q, axis=2, start=m.dim_nope, stop=m.dim_nope + m.dim_rope)
    absorbed = g.mul_mat_id(plain, s.w(b + "attn_k_b.weight"), own, name="attn_k_b")
    q = g.concat(absorbed, shared, axis=2, name="q")
    kv = g.mul_mat(h, s.w(b + "attn_kv_a_mqa.weight"), name="attn_kv_a_mqa")
    latent = g.view(kv, axis=1, start=0, stop=m.n_latent)
    latent = g.rms_norm(latent, s.w(b + "attn_kv_a_norm.weight"), eps=m.eps, name="attn_kv_a_norm")
    rest = g.view(kv, axis=1, start=m.n_latent, stop=m.n_latent + m.dim_rope)
    k = g.reshape(g.concat(latent, rest, axis=1, name="k"), shape=(n, 1, m.heads.dim_k))
    o = _attend(s, layer, q, k, g.reshape(latent, shape=(n, 1, m.n_latent)), m)
    o = g.mul_mat_id(o, s.w(b + "attn_v_b.weight"), own, name="attn_v_b")
    o = g.reshape(o, shape=(n, m.n_head * m.dim_v))
    return g.mul_mat(o, s.w(b + "attn_output.weight"), name="attn_output")


def _attend(s: StepGraph, layer: int, q: Value, k: Value, v: Value, m: MlaShape) -> Value:
    """Over the layer's paged memory: [N, n_head, n_latent]."""
    g, pages = s.g, s.pages(0)
    k0, v0 = s.cache(layer, m.heads)
    return g.attention(
        q,
        g.write_rows(k0, k, pages.kv_rows, name="k_cache"),
        g.write_rows(v0, v, pages.kv_rows, name="v_cache"),
        s.inputs.seq_offsets,
        s.inputs.positions,
        pages.block_table,
        scale=(m.dim_nope + m.dim_rope) ** -0.5,
        heads="grouped",
        mask="causal",
        window=0,
        page=PAGE,
        name="attention",
    )
