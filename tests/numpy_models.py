"""Dense float64 forward passes of every architecture: the oracle of the engine's tests.

Written from the papers and the format's conventions alone; one sequence, no memory, no batching."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tiny_models import TinyModel

Array = np.ndarray


def logits(model: TinyModel, tokens: list[int], rounded: bool = False) -> Array:
    """Logits f64 [N, n_vocab] of every position of one sequence.

    rounded: what a q8_0 matrix multiplies is rounded to 8 bits in blocks of 32 first."""
    return KINDS[model.arch](model, rounded).logits(tokens)


def hidden_rows(model: TinyModel, tokens: list[int]) -> Array:
    """Rows f64 [N, n_embd] after the final norm."""
    return Qwen35.of(model).hidden(tokens)


def mtp(model: TinyModel, tokens: list[int], before: Array) -> tuple[Array, Array]:
    """The multi-token-prediction block over pairs of a token and a hidden row [N, n_embd]: logits
    f64 [N, n_vocab] and its own hidden rows."""
    return Qwen35.of(model).mtp(tokens, before)


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
        return self.before(x) @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0.0)

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


class Qwen35(Dense):
    @staticmethod
    def of(model: TinyModel) -> Qwen35:
        kind = KINDS[model.arch](model)
        assert isinstance(kind, Qwen35)
        return kind

    def mtp(self, tokens: list[int], before: Array) -> tuple[Array, Array]:
        b = f"blk.{self.blocks}."
        n = b + "nextn."
        table = self.w[self.first(n + "embed_tokens", "token_embd") + ".weight"]
        pair = [self.norm(table[tokens], n + "enorm"), self.norm(before, n + "hnorm")]
        x = self.linear(np.concatenate(pair, axis=1), n + "eh_proj")
        x = x + self.attention(self.blocks, self.norm(x, b + "attn_norm"))
        x = x + self.feed_forward(b, self.norm(x, b + "post_attention_norm"))
        x = self.norm(x, self.first(n + "shared_head_norm", "output_norm"))
        return self.linear(x, self.first(n + "shared_head_head", "output", "token_embd")), x

    def recurrent(self, i: int) -> bool:
        given = self.keys.get("attention.recurrent_layers")
        return given[i] if given else (i + 1) % self.keys.get("full_attention_interval", 4) != 0

    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        h = self.norm(x, b + "attn_norm")
        x = x + (self.delta_net(b, h) if self.recurrent(i) else self.attention(i, h))
        return x + self.feed_forward(b, self.norm(x, b + "post_attention_norm"))

    def feed_forward(self, b: str, x: Array) -> Array:
        return self.ffn(b, x, silu)

    def streams(self, pos: Array, pairs: int) -> Array:
        """Which pair follows time, height, width or the fourth stream, in turns; a text token at p
        is at (p, p, p, 0)."""
        limits = self.keys["rope.dimension_sections"]
        out = np.zeros((len(pos), pairs))
        for i in range(pairs):
            j = i % sum(limits)
            if j < 3 * limits[j % 3]:
                out[:, i] = pos
        return out

    def delta_net(self, b: str, x: Array) -> Array:
        n, dim = len(x), self.keys["ssm.state_size"]
        k_heads, v_heads = self.keys["ssm.group_count"], self.keys["ssm.time_step_rank"]
        u, gate = self.projected(b, x)
        c = silu(self.convolve(u, self.w[b + "ssm_conv1d.weight"]))
        q, k, v = np.split(c, [k_heads * dim, 2 * k_heads * dim], axis=1)
        q, k = (self.unit(a.reshape(n, k_heads, dim)) for a in (q, k))
        v = v.reshape(n, v_heads, dim)
        beta, alpha = self.gates(b, x)
        beta, rate = sigmoid(beta), np.log1p(np.exp(alpha + self.w[b + "ssm_dt.bias"]))
        decay = np.exp(rate * self.w[b + "ssm_a"])
        out = np.zeros((n, v_heads, dim))
        for h in range(v_heads):
            state = np.zeros((dim, dim))
            for t in range(n):
                key = k[t, self.key_head(h)]
                state = decay[t, h] * state
                error = beta[t, h] * (v[t, h] - state @ key)
                state = state + np.outer(error, key)
                out[t, h] = state @ q[t, self.key_head(h)] / math.sqrt(dim)
        out = self.norm(out, b + "ssm_norm") * silu(gate.reshape(out.shape))
        return self.linear(out.reshape(n, -1), b + "ssm_out")

    def projected(self, b: str, x: Array) -> tuple[Array, Array]:
        return self.linear(x, b + "attn_qkv"), self.linear(x, b + "attn_gate")

    def gates(self, b: str, x: Array) -> tuple[Array, Array]:
        return self.linear(x, b + "ssm_beta"), self.linear(x, b + "ssm_alpha")

    def key_head(self, h: int) -> int:
        return h % self.keys["ssm.group_count"]

    def unit(self, x: Array) -> Array:
        return x / np.sqrt((x**2).sum(-1, keepdims=True) + self.eps)


class Qwen35Moe(Qwen35):
    def feed_forward(self, b: str, x: Array) -> Array:
        """Token by token, expert by expert."""
        score = np.exp(x @ self.w[b + "ffn_gate_inp.weight"].T)
        chance = score / score.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for t in range(len(x)):
            chosen = np.argsort(-chance[t])[: self.keys["expert_used_count"]]
            share = chance[t, chosen] / chance[t, chosen].sum()
            share = share * self.keys.get("expert_weights_scale", 1.0)
            for e, part in zip(chosen, share, strict=True):
                out[t] += part * self.expert(b, e, x[t])
        open_ = self.shared_gate(b, x)
        inner = silu(self.linear(x, b + "ffn_gate_shexp")) * self.linear(x, b + "ffn_up_shexp")
        return out + open_[:, None] * self.linear(inner, b + "ffn_down_shexp")

    def shared_gate(self, b: str, x: Array) -> Array:
        return sigmoid(x @ self.w[b + "ffn_gate_inp_shexp.weight"])

    def expert(self, b: str, e: int, x: Array) -> Array:
        x = self.before(x)
        if b + "ffn_gate_up_exps.weight" in self.w:
            gate, up = np.split(self.w[b + "ffn_gate_up_exps.weight"][e] @ x, 2)
        else:
            gate = self.w[b + "ffn_gate_exps.weight"][e] @ x
            up = self.w[b + "ffn_up_exps.weight"][e] @ x
        return self.w[b + "ffn_down_exps.weight"][e] @ self.before(silu(gate) * up)


class Qwen3Next(Qwen35Moe):
    def streams(self, pos: Array, pairs: int) -> Array:
        return Dense.streams(self, pos, pairs)

    def projected(self, b: str, x: Array) -> tuple[Array, Array]:
        """Of the older packing: each key head's query, key, values and gates in turn."""
        if b + "ssm_in.weight" not in self.w:
            return super().projected(b, x)
        dim, groups = self.keys["ssm.state_size"], self.keys["ssm.group_count"]
        y = self.linear(x, b + "ssm_in").reshape(len(x), groups, -1)
        values = (y.shape[2] - 2 * dim) // 2
        q, k, v, z = np.split(y, [dim, 2 * dim, 2 * dim + values], axis=2)
        flat = [part.reshape(len(x), -1) for part in (q, k, v)]
        return np.concatenate(flat, axis=1), z.reshape(len(x), -1)

    def gates(self, b: str, x: Array) -> tuple[Array, Array]:
        y = self.linear(x, b + "ssm_ba").reshape(len(x), self.keys["ssm.group_count"], -1)
        beta, alpha = np.split(y, 2, axis=2)
        return beta.reshape(len(x), -1), alpha.reshape(len(x), -1)

    def key_head(self, h: int) -> int:
        return h // (self.keys["ssm.time_step_rank"] // self.keys["ssm.group_count"])


class GraniteHybrid(Qwen35Moe):
    def embed(self, tokens: list[int]) -> Array:
        return Dense.embed(self, tokens) * self.keys.get("embedding_scale", 1.0)

    def logits(self, tokens: list[int]) -> Array:
        return super().logits(tokens) / self.keys.get("logit_scale", 1.0)

    def rotate(self, x: Array, angles: Array, size: float) -> Array:
        turned = self.keys.get("rope.scaling.finetuned", True)
        return Llama.rotate(self, x, angles, size) if turned else x

    def streams(self, pos: Array, pairs: int) -> Array:
        return Dense.streams(self, pos, pairs)

    def block(self, i: int, x: Array) -> Array:
        b, scale = f"blk.{i}.", self.keys.get("residual_scale", 1.0)
        h = self.norm(x, b + "attn_norm")
        attends = self.per_layer("attention.head_count_kv", i) > 0
        x = x + scale * (self.attention(i, h) if attends else self.mamba2(b, h))
        h = self.norm(x, b + "ffn_norm")
        experts = b + "ffn_gate_inp.weight" in self.w
        return x + scale * (self.feed_forward(b, h) if experts else self.ffn(b, h, silu))

    def shared_gate(self, b: str, x: Array) -> Array:
        return np.ones(len(x))

    def mamba2(self, b: str, x: Array) -> Array:
        n, heads, groups = len(x), self.keys["ssm.time_step_rank"], self.keys["ssm.group_count"]
        inner, size = self.keys["ssm.inner_size"], self.keys["ssm.state_size"]
        channels = inner + 2 * groups * size
        z, u, dt = np.split(self.linear(x, b + "ssm_in"), [inner, inner + channels], axis=1)
        u = self.convolve(u, self.w[b + "ssm_conv1d.weight"]) + self.w[b + "ssm_conv1d.bias"]
        values, keys, queries = np.split(silu(u), [inner, inner + groups * size], axis=1)
        values = values.reshape(n, heads, -1)
        keys, queries = keys.reshape(n, groups, size), queries.reshape(n, groups, size)
        step = np.log1p(np.exp(dt + self.w[b + "ssm_dt.bias"]))
        out = np.zeros_like(values)
        for h in range(heads):
            state, group = np.zeros((values.shape[2], size)), h // (heads // groups)
            for t in range(n):
                fade = np.exp(step[t, h] * self.w[b + "ssm_a"][h, 0])
                state = fade * state + np.outer(step[t, h] * values[t, h], keys[t, group])
                skip = self.w[b + "ssm_d"][h, 0] * values[t, h]
                out[t, h] = state @ queries[t, group] + skip
        out = (out.reshape(n, -1) * silu(z)).reshape(n, groups, -1)
        return self.linear(self.norm(out, b + "ssm_norm").reshape(n, -1), b + "ssm_out")


class Lfm2(Dense):
    last = "token_embd_norm"

    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        h = self.norm(x, b + "attn_norm")
        attends = self.per_layer("attention.head_count_kv", i) > 0
        x = x + (self.attention(i, h) if attends else self.short_conv(b, h))
        return x + self.ffn(b, self.norm(x, b + "ffn_norm"), silu)

    def short_conv(self, b: str, x: Array) -> Array:
        before, after, x = np.split(self.linear(x, b + "shortconv.in_proj"), 3, axis=1)
        y = self.convolve(before * x, self.w[b + "shortconv.conv.weight"])
        return self.linear(after * y, b + "shortconv.out_proj")


KINDS: dict[str, type[Dense]] = {
    "llama": Llama,
    "qwen3": Qwen3,
    "gemma3": Gemma3,
    "qwen35": Qwen35,
    "qwen35moe": Qwen35Moe,
    "qwen3next": Qwen3Next,
    "granitehybrid": GraniteHybrid,
    "lfm2": Lfm2,
}
