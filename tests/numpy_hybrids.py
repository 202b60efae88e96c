"""Dense float64 forward passes of architectures with recurrent layers."""

from __future__ import annotations

import math

import numpy as np
from numpy_dense import Array, Dense, Llama, sigmoid, silu


class Qwen35(Dense):
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


class Mixture(Dense):
    def mixture(self, b: str, x: Array) -> Array:
        """Token by token, expert by expert."""
        chance, order = self.chances(b, x)
        out = np.zeros_like(x)
        for t in range(len(x)):
            chosen = np.argsort(-order[t])[: self.keys["expert_used_count"]]
            share = chance[t, chosen] / chance[t, chosen].sum()
            share = share * self.keys.get("expert_weights_scale", 1.0)
            for e, part in zip(chosen, share, strict=True):
                out[t] += part * self.expert(b, e, x[t])
        return out

    def chances(self, b: str, x: Array) -> tuple[Array, Array]:
        """Of every expert, and what they are ordered by."""
        score = np.exp(x @ self.w[b + "ffn_gate_inp.weight"].T)
        chance = score / score.sum(-1, keepdims=True)
        return chance, chance

    def expert(self, b: str, e: int, x: Array) -> Array:
        x = self.before(x)
        if b + "ffn_gate_up_exps.weight" in self.w:
            gate, up = np.split(self.w[b + "ffn_gate_up_exps.weight"][e] @ x, 2)
        else:
            gate = self.w[b + "ffn_gate_exps.weight"][e] @ x
            up = self.w[b + "ffn_up_exps.weight"][e] @ x
        return self.w[b + "ffn_down_exps.weight"][e] @ self.before(silu(gate) * up)


class ChosenWithBias(Mixture):
    def chances(self, b: str, x: Array) -> tuple[Array, Array]:
        chance = sigmoid(x @ self.w[b + "ffn_gate_inp.weight"].T)
        return chance, chance + self.w[b + "exp_probs_b.bias"]


class Qwen35Moe(Mixture, Qwen35):
    def feed_forward(self, b: str, x: Array) -> Array:
        out, open_ = self.mixture(b, x), self.shared_gate(b, x)
        inner = silu(self.linear(x, b + "ffn_gate_shexp")) * self.linear(x, b + "ffn_up_shexp")
        return out + open_[:, None] * self.linear(inner, b + "ffn_down_shexp")

    def shared_gate(self, b: str, x: Array) -> Array:
        return sigmoid(x @ self.w[b + "ffn_gate_inp_shexp.weight"])


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


class KimiLinear(ChosenWithBias, Qwen35Moe):
    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        h = self.norm(x, b + "attn_norm")
        attends = self.per_layer("attention.head_count_kv", i) > 0
        x = x + (self.latent_attention(b, h) if attends else self.kimi_delta(b, h))
        h = self.norm(x, b + "ffn_norm")
        dense = i < self.keys["leading_dense_block_count"]
        return x + (self.ffn(b, h, silu) if dense else self.feed_forward(b, h))

    def shared_gate(self, b: str, x: Array) -> Array:
        return np.ones(len(x))

    def latent_attention(self, b: str, x: Array) -> Array:
        """Keys and values of every head, expanded from the latent."""
        n, heads, latent = len(x), self.keys["attention.head_count"], self.w[b + "attn_k_b.weight"]
        q = self.linear(x, b + "attn_q").reshape(n, heads, -1)
        compressed, rest = np.split(self.linear(x, b + "attn_kv_a_mqa"), [latent.shape[1]], axis=1)
        compressed = self.norm(compressed, b + "attn_kv_a_norm")
        k = np.einsum("nl,hld->nhd", compressed, latent)
        k = np.concatenate([k, np.repeat(rest[:, None], heads, axis=1)], axis=2)
        v = np.einsum("nl,hdl->nhd", compressed, self.w[b + "attn_v_b.weight"])
        score = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[2])
        score = np.where(np.tri(n, dtype=bool), score, -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weight, v)
        return self.linear(out.reshape(n, -1), b + "attn_output")

    def kimi_delta(self, b: str, x: Array) -> Array:
        n, heads, dim = len(x), self.keys["attention.head_count"], self.keys["kda.head_dim"]
        q, k, v = (
            silu(
                self.convolve(
                    self.linear(x, b + f"attn_{name}"),
                    self.w[b + f"ssm_conv1d_{name}.weight"].reshape(heads * dim, -1),
                )
            ).reshape(n, heads, dim)
            for name in "qkv"
        )
        q, k = (a / np.sqrt((a**2).sum(-1, keepdims=True) + 1e-6) for a in (q, k))
        rate = self.linear(self.linear(x, b + "ssm_f_a"), b + "ssm_f_b")
        rate = np.log1p(np.exp(rate + self.w[b + "ssm_dt.bias"])).reshape(n, heads, dim)
        fade = np.exp(rate * self.w[b + "ssm_a"].reshape(heads, 1))
        beta = sigmoid(self.linear(x, b + "ssm_beta"))
        out = np.zeros((n, heads, dim))
        for h in range(heads):
            state = np.zeros((dim, dim))
            for t in range(n):
                state = state * fade[t, h]
                state = state + np.outer(beta[t, h] * (v[t, h] - state @ k[t, h]), k[t, h])
                out[t, h] = state @ q[t, h] / math.sqrt(dim)
        gate = sigmoid(self.linear(self.linear(x, b + "ssm_g_a"), b + "ssm_g_b"))
        out = self.norm(out, b + "ssm_norm").reshape(n, -1) * gate
        return self.linear(out, b + "attn_output")


class Lfm2(Dense):
    last = "token_embd_norm"

    def block(self, i: int, x: Array) -> Array:
        b = f"blk.{i}."
        h = self.norm(x, b + "attn_norm")
        attends = self.per_layer("attention.head_count_kv", i) > 0
        x = x + (self.attention(i, h) if attends else self.short_conv(b, h))
        return x + self.feed(i, self.norm(x, b + "ffn_norm"))

    def feed(self, i: int, x: Array) -> Array:
        return self.ffn(f"blk.{i}.", x, silu)

    def short_conv(self, b: str, x: Array) -> Array:
        before, after, x = np.split(self.linear(x, b + "shortconv.in_proj"), 3, axis=1)
        y = self.convolve(before * x, self.w[b + "shortconv.conv.weight"])
        return self.linear(after * y, b + "shortconv.out_proj")


class Lfm2Moe(Lfm2, ChosenWithBias):
    def feed(self, i: int, x: Array) -> Array:
        if i < self.keys["leading_dense_block_count"]:
            return super().feed(i, x)
        return self.mixture(f"blk.{i}.", x)
