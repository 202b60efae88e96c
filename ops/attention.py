"""Attention over paged key and value pools."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.case import Case, f32, fixed, rand
from ..graph.op import Cost, Op, register
from ..graph.spec import TensorSpec
from .ragged import (
    data_error,
    require_batch,
    require_dense_rows,
    require_plain,
    require_pool,
    sequences,
)


@register
class Attention(Op):
    """o[i, h] = sum_j p[j] * v[j, m(h)] with p = softmax_j(scale * q[i, h] . k[j, m(h)]), j visible


    q: [N, H, D] f32, its leading axes may have gaps; k: [R, Hkv, D] and v: [R, Hkv, Dv] pools of
    R / page pages, each f32, f16, bf16, q8_0 or q4_0, the last two with D or Dv a multiple of 32;
    seq_offsets: i32 [B + 1]; positions: i32 [N], the position of each query in its own sequence;
    block_table: i32 [B, P], the page that holds positions [p*page, (p+1)*page) of a sequence.
    o: [N, H, Dv] f32, zero in padding rows.
    heads: "grouped" m(h) = h // (H/Hkv), "tiled" m(h) = h mod Hkv. mask: "causal" shows a query at
    position p the keys 0..p, "full" those up to the last query of its sequence; a window w > 0
    also hides keys with p - j >= w. A query that sees nothing gives zeros.
    softcap c > 0 takes c * tanh(s / c) for s = scale * q . k. sinks: optional, f32 [H], one more s
    of each head, whose share of p goes to no value.
    Raises BackendError for offsets out of range, a position outside the block table, and a table
    entry outside the pool if a visible key lies in that page; other entries are never read.
    Source: Vaswani et al. 2017; paging, Kwon et al. 2023; softcap, Gemma Team 2024; sinks, OpenAI
    2025, arXiv 2508.10925."""

    name, outputs = "attention", ("o",)
    inputs = ("q", "k", "v", "seq_offsets", "positions", "block_table", "sinks?")
    per_token, per_sequence = ("q", "positions"), ("block_table",)
    by_place = ("positions",)
    tolerance = 1e-9  # exponentials of f32 scores of magnitude up to 110
    scale: float
    heads: str
    mask: str
    window: int = 0
    page: int = 256
    softcap: float = 0.0

    def infer(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        seq_offsets: TensorSpec,
        positions: TensorSpec,
        block_table: TensorSpec,
        sinks: TensorSpec | None = None,
    ) -> TensorSpec:
        self.require_attr(math.isfinite(self.scale), "scale", "finite")
        self.require_attr(self.heads in ("grouped", "tiled"), "heads", "'grouped' or 'tiled'")
        self.require_attr(self.mask in ("causal", "full"), "mask", "'causal' or 'full'")
        self.require_attr(self.window >= 0, "window", "0 (none) or positive")
        self.require_attr(self.page >= 1, "page", "positive")
        capped = math.isfinite(self.softcap) and self.softcap >= 0
        self.require_attr(capped, "softcap", "0 (none) or positive")
        self.require(q.rank == 3 and 0 not in q.shape[1:], "q", "[N, H, D]", q.shape)
        self.require_dtype("q", q, "f32")
        require_dense_rows(self, "q", q)
        n, heads, d = q.shape
        for arg, pool in (("k", k), ("v", v)):
            self.require(pool.rank == 3 and 0 not in pool.shape, arg, "[R, Hkv, D]", pool.shape)
            require_pool(self, arg, pool)
        self.require(k.shape[2] == d, "k", f"[R, Hkv, {d}] like q", k.shape)
        self.require(v.shape[:2] == k.shape[:2], "v", f"{k.shape[:2]} + (Dv,) like k", v.shape)
        whole = k.shape[0] % self.page == 0
        self.require(whole, "k", f"whole pages of {self.page} rows", k.shape)
        shared = heads % k.shape[1] == 0
        self.require(shared, "q", f"a multiple of k's {k.shape[1]} heads", q.shape)
        batch = require_batch(self, seq_offsets)
        require_plain(self, "positions", positions, (n,), "i32")
        paged = block_table.rank == 2 and block_table.shape[1] >= 1
        self.require(paged, "block_table", f"[{batch}, P]", block_table.shape)
        require_plain(self, "block_table", block_table, (batch, block_table.shape[1]), "i32")
        if sinks is not None:
            require_plain(self, "sinks", sinks, (heads,), "f32")
        return q.like((n, heads, v.shape[2]))

    def reference(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        seq_offsets: np.ndarray,
        positions: np.ndarray,
        block_table: np.ndarray,
        sinks: np.ndarray | None = None,
    ) -> np.ndarray:
        o = np.zeros((*q.shape[:2], v.shape[2]), np.float32)
        n_heads, n_shared = q.shape[1], k.shape[1]
        for b, rows in enumerate(sequences(self, seq_offsets, len(q))):
            for i in rows:
                visible = self._visible(positions, i, rows, self.page * block_table.shape[1])
                at = self._pool_rows(block_table, b, visible, len(k))
                if not at.size:
                    continue
                keys, values = k[at].astype(np.float64), v[at].astype(np.float64)
                for h in range(n_heads):
                    m = h // (n_heads // n_shared) if self.heads == "grouped" else h % n_shared
                    score = self.scale * (keys[:, m] * q[i, h]).sum(-1)
                    if self.softcap:
                        score = self.softcap * np.tanh(score / self.softcap)
                    most = score.max() if sinks is None else max(score.max(), sinks[h])
                    weight = np.exp(score - most)
                    total = weight.sum() + (0 if sinks is None else np.exp(sinks[h] - most))
                    o[i, h] = (weight[:, None] * values[:, m]).sum(0) / total
        return o

    def _visible(self, positions: np.ndarray, i: int, rows: range, limit: int) -> np.ndarray:
        """The key positions that query i sees, ascending."""
        last = positions[i if self.mask == "causal" else rows[-1]]
        for row in (i, rows[-1]):
            if not 0 <= positions[row] < limit:
                got = f"{positions[row]} at [{row}]"
                raise data_error(self, "positions", f"in [0, {limit}), the block table", got)
        first = max(0, positions[i] - self.window + 1) if self.window else 0
        return np.arange(first, last + 1)

    def _pool_rows(
        self, block_table: np.ndarray, b: int, visible: np.ndarray, n_rows: int
    ) -> np.ndarray:
        """The pool rows that hold these positions of sequence b."""
        pages = n_rows // self.page
        for p in np.unique(visible // self.page):
            if not 0 <= block_table[b, p] < pages:
                got = f"{block_table[b, p]} at [{b}, {p}]"
                raise data_error(self, "block_table", f"in [0, {pages}), pages of the pool", got)
        return block_table[b, visible // self.page] * self.page + visible % self.page

    def split(self, *given: Any) -> dict[str, int] | None:
        """With a full mask, a query sees the keys of tokens behind it."""
        return {} if self.mask == "causal" else None

    def cost(
        self,
        q: TensorSpec,
        k: TensorSpec,
        v: TensorSpec,
        seq_offsets: TensorSpec,
        positions: TensorSpec,
        block_table: TensorSpec,
        sinks: TensorSpec | None = None,
    ) -> Cost:
        """An upper bound: every query sees all keys of its block table, whose length is data."""
        n, heads, d = q.shape
        batch, pages = block_table.shape
        keys = pages * self.page
        row = (k.nbytes + v.nbytes) // k.shape[0]
        read = q.nbytes + positions.nbytes + block_table.nbytes + batch * keys * row
        return Cost(2 * n * heads * keys * (d + v.shape[2]), read, 4 * n * heads * v.shape[2])

    @staticmethod
    def cases() -> Iterable[Case]:
        for d in (16, 64, 128, 256):
            for group in (1, 2, 4, 8):
                yield _case(d, 8 // group, group, (0, 5), (300, 2))
        for of in ("f32", "f16", "bf16"):
            for first in (0, 1, 254, 255, 256, 257, 600):
                yield _case(64, 2, 2, (first, 1), of=of)
            yield _case(128, 2, 4, (250, 9), (0, 5), (600, 1), of=of)
        for of in ("q8_0", "q4_0"):
            for d in (32, 64, 96, 256):
                yield _case(d, 2, 2, (250, 9), (0, 5), (600, 1), of=of)
            for first in (0, 255, 256, 257):
                yield _case(64, 2, 2, (first, 1), of=of)
            for group in (1, 4, 8):
                yield _case(128, 8 // group, group, (0, 5), (300, 2), of=of)
            yield _case(64, 2, 4, (30, 40), (100, 1), page=16, window=20, heads="tiled", of=of)
            yield _case(64, 2, 2, (0, 9), (250, 9), (3, 1), mask="full", of=of)
            yield _case(128, 2, 4, (0, 33), (511, 4), (7, 0), (256, 1), pad=3, gap=64, of=of)
            yield _case(96, 2, 2, (20, 2), dv=32, of=of)
            yield _case(64, 2, 2, (300, 3), q_size=100.0, note="sharp", of=of)
        mixed = [("f16", "f32"), ("q8_0", "f16"), ("f32", "q8_0"), ("q8_0", "q4_0")]
        for of, of_v in [*mixed, ("q4_0", "bf16")]:
            yield _case(64, 2, 2, (255, 3), of=of, of_v=of_v)
        yield _case(64, 2, 2, (20, 2), dv=40, of="q4_0", of_v="f16")
        yield _case(64, 2, 2, (20, 2), dv=32)
        yield _case(80, 1, 3, (20, 2), dv=100)
        yield _case(64, 2, 4, (300, 2), heads="tiled")
        yield _case(128, 2, 4, (0, 33), (511, 4), (7, 0), (256, 1), pad=3, gap=64)
        yield _case(64, 1, 2, (0, 0), (0, 0), pad=2)
        yield _case(64, 1, 2, (0, 70))
        for mask in ("causal", "full"):
            for window in (1, 5, 64, 300):
                yield _case(64, 2, 2, (0, 7), (598, 4), mask=mask, window=window)
        yield _case(64, 2, 2, (0, 9), (250, 9), (3, 1), mask="full")
        yield _case(64, 2, 2, (30, 40), (100, 1), page=16)
        yield _case(64, 2, 2, (30, 40), (100, 1), page=16, window=20, of="f16")
        yield _case(64, 2, 2, (300, 3), q_size=100.0, note="sharp")
        yield _case(64, 2, 2, (300, 3), q_size=0.0, note="uniform")
        for of in ("f32", "f16", "q8_0"):
            yield _case(64, 2, 4, (0, 33), (511, 4), softcap=2.0, q_size=8.0, of=of)
            yield _case(64, 2, 4, (0, 33), (511, 4), sinks=3.0, of=of)
        yield _case(64, 2, 2, (300, 3), softcap=50.0, q_size=100.0, window=20)
        yield _case(64, 2, 2, (30, 40), (100, 1), page=16, heads="tiled", sinks=3.0, window=20)
        yield _case(64, 1, 8, (1000, 2), (0, 0), pad=2, sinks=40.0)
        yield _case(64, 2, 2, (0, 9), (250, 9), mask="full", sinks=3.0, softcap=4.0)
        for of in ("f32", "f16", "q8_0"):
            # Latents of keys with their positions' part, and the values among them.
            yield _case(576, 1, 3, (0, 3), (127, 2), page=64, dv=512, of=of)
        yield _case(576, 1, 8, (254, 3), (0, 0), (30, 5), pad=1, dv=512, of="f16")
        yield _case(576, 1, 2, (5, 70), dv=512, page=32, window=30, of="bf16", of_v="q4_0")
        yield _case(512, 2, 2, (3, 2), page=16, softcap=2.0, sinks=3.0)
        yield _case(520, 1, 1, (3, 2), page=16, dv=300, mask="full")
        for seqs in ([(2047, 1)], [(2044, 4)], [(0, 512)], [(1023, 1)] * 8, [(8191, 1)]):
            yield _case(256, 2, 4, *seqs, of="f16", tags=("perf",))
        for of in ("f16", "q8_0", "q4_0"):
            for seqs in ([(4095, 1)], [(4032, 64)]):
                yield _case(256, 2, 4, *seqs, of=of, tags=("perf",))
        for seqs in ([(4095, 1)], [(1024, 16)]):
            yield _case(576, 1, 32, *seqs, dv=512, of="f16", tags=("perf",))


def _case(
    d: int,
    kv_heads: int,
    group: int,
    *seqs: tuple[int, int],
    of: str = "f32",
    of_v: str = "",
    dv: int = 0,
    heads: str = "grouped",
    mask: str = "causal",
    window: int = 0,
    page: int = 256,
    pad: int = 0,
    gap: int = 0,
    q_size: float = 1.0,
    softcap: float = 0.0,
    sinks: float = 0.0,
    note: str = "",
    tags: tuple[str, ...] = (),
) -> Case:
    """seqs: first position and number of queries of each sequence; sinks: their size, 0 for none.

    Pages are scattered over a pool with two to spare; the table is -1 where no key is visible,
    as it is behind a window whose pages were freed."""
    used = [-(-(first + count) // page) if count else 0 for first, count in seqs]
    n_pages = sum(used) + 2
    free = list(np.random.default_rng(n_pages).permutation(n_pages))
    table = np.full((len(seqs), max(*used, 1) + 1), -1)
    for b, (first, _) in enumerate(seqs):
        behind = max(0, first - window + 1) // page if window else 0
        for p in range(behind, used[b]):
            table[b, p] = free.pop()
    positions = [first + i for first, count in seqs for i in range(count)] + [-1] * pad
    named = {"dv": dv, "v": of_v, "window": window, "pad": pad, "gap": gap}
    named["page"] = page if page != 256 else 0
    named |= {"softcap": softcap, "sinks": sinks}
    more = {"sinks": f32(kv_heads * group, lo=-sinks, hi=sinks)} if sinks else {}
    label = f"d={d},hkv={kv_heads},h={kv_heads * group},{of},{heads},{mask},"
    label += "t=" + "+".join(f"{count}@{first}" for first, count in seqs)
    label += "".join(f",{key}={value}" for key, value in named.items() if value)
    return Case(
        f"{label},{note}" if note else label,
        q=f32(len(positions), kv_heads * group, d, lo=-q_size, hi=q_size, gap=gap),
        k=rand(of, n_pages * page, kv_heads, d),
        v=rand(of_v or of, n_pages * page, kv_heads, dv or d),
        seq_offsets=fixed(np.cumsum([0, *(count for _, count in seqs)]), "i32"),
        positions=fixed(np.array(positions, np.int32), "i32"),
        block_table=fixed(table, "i32"),
        scale=1.0 / math.sqrt(d),
        heads=heads,
        mask=mask,
        window=window,
        page=page,
        softcap=softcap,
        tags=tags,
        **more,
    )
