"""Dense float64 forward passes: what all architectures share, and those that attend in all layers.

Written from the papers and the format's conventions alone; one sequence, no memory, no batching."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tiny_models import TinyModel

Array = np.ndarray


def to_8_bits(x: Array) -> Array:
    """The nearest of 255 levels between plus and minus the largest of each block of 32."""
    blocks = x.reshape(-1, 32)
    step = np.abs(blocks).max(1, keepdims=True) / 127
    levels = np.round(np.divide(blocks, step, out=np.zeros_like(blocks), where=step > 0))
    return (levels * step).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh approximation."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Dense:
    """What the architectures share: keys by name, weights, and the pieces of a block."""

    last = "output_norm"

    def __init__(self, model: TinyModel, rounded: bool = False) -> None:
        self.keys: dict[str, Any] = model.keys
        self.before = to_8_bits if rounded and model.kind == "q8_0" else np.asarray
        self.w = model.stored()
        self.n_embd: int = self.keys["embedding_length"]
        self.eps = float(np.float32(self.keys["attention.layer_norm_rms_epsilon"]))
        self.blocks = self.keys["block_count"] - self.keys.get("nextn_predict_layers", 0)

    def logits(self, tokens: list[int]) -> Array:
        return self.linear(self.hidden(tokens), self.first("output", "token_embd"))

    def hidden(self, tokens: list[int]) -> Array:
        x = self.embed(tokens)
        for i in range(self.blocks):
            x = self.block(i, x)
        return self.norm(x, self.last)

    def first(self, *names: str) -> str:
        """The first of these tensors that the file has."""
        return next(name for name in names if name + ".weight" in self.w)

    def embed(self, tokens: list[int]) -> Array:
        return self.w["token_embd.weight"][tokens]

    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        x = x + self.attention(i, self.norm(x, b + "attn_norm"))
        return x + self.ffn(b, self.norm(x, b + "ffn_norm"), silu)

    def norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt((x**2).mean(-1, keepdims=True) + self.eps)
        return x / scale * self.w[name + ".weight"]

    def linear(self, x: Array, name: str) -> Array:
        w = self.w[name + ".weight"]
        return self.in_blocks(x) @ w.T + self.w.get(name + ".bias", 0.0)

    def in_blocks(self, x: Array) -> Array:
        """Rounded where a matrix is in blocks, which its rows divide into."""
        return self.before(x) if x.shape[-1] % 32 == 0 else x

    def ffn(self, b: str, x: Array, act: Any) -> Array:
        inner = act(self.linear(x, b + "ffn_gate")) * self.linear(x, b + "ffn_up")
        return self.linear(inner, b + "ffn_down")

    def convolve(self, x: Array, taps: Array) -> Array:
        """Each channel with its taps, the last of which meets the row itself."""
        n, width = len(x), taps.shape[1]
        padded = np.concatenate([np.zeros((width - 1, x.shape[1])), x])
        return np.stack([(padded[t : t + width].T * taps).sum(1) for t in range(n)])

    def per_layer(self, key: str, i: int) -> int:
        value = self.keys[key]
        return value[i] if isinstance(value, list) else value

    def attention(self, i: int, x: Array) -> Array:
        b, n = f"blk.{i}.", len(x)
        heads = self.per_layer("attention.head_count", i)
        shared = self.per_layer("attention.head_count_kv", i)
        q = self.linear(x, b + "attn_q").reshape(n, heads, -1)
        k = self.linear(x, b + "attn_k").reshape(n, shared, -1)
        v = self.linear(x, b + "attn_v").reshape(n, shared, -1)
        gate = None
        if q.shape[2] == 2 * k.shape[2]:
            q, gate = np.split(q, 2, axis=2)
        if b + "attn_q_norm.weight" in self.w:
            q, k = self.norm(q, b + "attn_q_norm"), self.norm(k, b + "attn_k_norm")
        angles, size = self.angles(i, np.arange(n), q.shape[2])
        q, k = self.rotate(q, angles, size), self.rotate(k, angles, size)
        k, v = (np.repeat(a, heads // shared, axis=1) for a in (k, v))
        score = np.einsum("qhd,khd->hqk", q, k) * self.scale(i, q.shape[2])
        past = np.arange(n)[:, None] - np.arange(n)[None, :]
        window = self.window(i)
        hidden = (past < 0) | ((past >= window) if window else False)
        score = np.where(hidden, -np.inf, score)
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weight, v)
        if gate is not None:
            out = out * sigmoid(gate)
        return self.linear(out.reshape(n, -1), b + "attn_output")

    def scale(self, i: int, dim: int) -> float:
        return self.keys.get("attention.scale", 1 / math.sqrt(dim))

    def window(self, i: int) -> int:
        return 0

    def base(self, i: int) -> float:
        return self.keys.get("rope.freq_base", 10000.0)

    def scaled(self, i: int) -> bool:
        return True

    def angles(self, i: int, pos: Array, dim: int) -> tuple[Array, float]:
        """Angles [N, pairs] of positions, and the factor on what they rotate."""
        n_rot = self.keys.get("rope.dimension_count", dim)
        base = self.base(i)
        pair = np.arange(n_rot // 2)
        freq = base ** (-2.0 * pair / n_rot)
        if "rope_freqs.weight" in self.w:
            freq = freq / self.w["rope_freqs.weight"]
        size = self.keys.get("rope.scaling.attn_factor", 1.0)
        factor = self.keys.get("rope.scaling.factor", self.keys.get("rope.scale_linear", 0.0))
        kind = self.keys.get("rope.scaling.type", "linear")
        if factor and kind == "yarn":
            length = self.keys.get(
                "rope.scaling.original_context_length", self.keys["context_length"]
            )
            # A pair keeps its frequency if it turns 32 times or more in the old context and is
            # slowed by the whole factor if it turns once or less.
            edge = [
                n_rot * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
                for turns in (32, 1)
            ]
            low, high = max(0, math.floor(edge[0])), min(n_rot - 1, math.ceil(edge[1]))
            slowed = np.clip((pair - low) / max(0.001, high - low), 0, 1)
            freq = freq * (1 - slowed) + freq / factor * slowed
            size *= 1 + 0.1 * math.log(factor)
        elif factor and kind == "linear" and self.scaled(i):
            freq = freq / factor
        return self.streams(pos, len(pair)) * freq, size

    def streams(self, pos: Array, pairs: int) -> Array:
        return np.repeat(pos[:, None], pairs, axis=1)

    def rotate(self, x: Array, angles: Array, size: float) -> Array:
        """Pairs (i, i + n_rot/2); the axes behind them stay."""
        half = angles.shape[1]
        a, b, rest = np.split(x, [half, 2 * half], axis=2)
        return np.concatenate([*self.turn(a, b, angles, size), rest], axis=2)

    def turn(self, a: Array, b: Array, angles: Array, size: float) -> tuple[Array, Array]:
        c, s = size * np.cos(angles)[:, None], size * np.sin(angles)[:, None]
        return a * c - b * s, a * s + b * c


class Llama(Dense):
    def rotate(self, x: Array, angles: Array, size: float) -> Array:
        """Pairs (2i, 2i + 1)."""
        y, n_rot = x.copy(), 2 * angles.shape[1]
        even, odd = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
        y[..., 0:n_rot:2], y[..., 1:n_rot:2] = self.turn(even, odd, angles, size)
        return y


class Qwen3(Dense):
    """Norms of query and key heads come with their weights."""


class Gemma3(Dense):
    def embed(self, tokens: list[int]) -> Array:
        return super().embed(tokens) * math.sqrt(self.n_embd)

    def logits(self, tokens: list[int]) -> Array:
        out = super().logits(tokens)
        cap = self.keys.get("final_logit_softcapping", 0.0)
        return cap * np.tanh(out / cap) if cap else out

    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        mixed = self.attention(i, self.norm(x, b + "attn_norm"))
        x = x + self.norm(mixed, b + "post_attention_norm")
        out = self.ffn(b, self.norm(x, b + "ffn_norm"), gelu)
        return x + self.norm(out, b + "post_ffw_norm")

    def sliding(self, i: int) -> bool:
        pattern = self.keys.get("attention.sliding_window_pattern", 6)
        if isinstance(pattern, list):
            return bool(pattern[i])
        return i % pattern < pattern - 1

    def window(self, i: int) -> int:
        return self.keys["attention.sliding_window"] if self.sliding(i) else 0

    def base(self, i: int) -> float:
        return self.keys.get("rope.freq_base_swa", 1e4) if self.sliding(i) else super().base(i)

    def scaled(self, i: int) -> bool:
        return not self.sliding(i)
