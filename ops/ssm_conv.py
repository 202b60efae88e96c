"""Causal depthwise convolution over ragged sequences, with its tail kept as state."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..graph.case import Case, f32, fixed, ints
from ..graph.op import Cost, register
from ..graph.spec import TensorSpec
from .ragged import (
    KeptState,
    require_batch,
    require_dense_rows,
    require_kept,
    require_plain,
    sequences,
)
from .replay import INPUTS, SITUATIONS, Recurrent, Replay, Situation, require_replay


@register
class SsmConv(Recurrent):
    """y[i, c] = sum_t w[c, t] * win[t, c], win = the W - 1 inputs before row i, then x[i]

    x: [N, C] f32, rows may have gaps; w: [C, W] f32, tap 0 is the oldest, W of at least 2;
    seq_offsets: i32 [B + 1]; state_rows: i32 [B]; tail: [R, (W-1)*C] or [R, K, (W-1)*C] f32, each
    plane the last W - 1 inputs of a sequence as [W-1, C], oldest first; start, head: i32 [B], given
    exactly when tail has planes (ops/ragged.py says which are read and written). y: [N, C], zero in
    padding rows. No bias, no activation. A fresh sequence has a tail of zeros.
    log: [R, L, C] f32, and log_head, n_replay, n_held, n_direct: i32 [B], all or none, for a tail
    without planes: tokens that are computed but not committed (ops/replay.py). An entry is the row
    of x.
    Raises BackendError for offsets, rows, planes or numbers of entries out of range and for a
    shared state row.
    Source: the short convolution of Mamba, Gu & Dao 2023."""

    name, outputs = "ssm_conv", ("y", "tail_out", "log_out?")
    inputs = ("x", "w", "seq_offsets", "state_rows", "tail", "start?", "head?", *INPUTS)
    writes = {"tail_out": "tail", "log_out": "log"}
    constants = ("w",)
    per_token = ("x",)

    def infer(
        self,
        x: TensorSpec,
        w: TensorSpec,
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        tail: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        self.require(x.rank == 2 and x.shape[1] >= 1, "x", "[N, C]", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        channels = x.shape[1]
        ok = w.rank == 2 and w.shape[0] == channels and w.shape[1] >= 2
        self.require(ok, "w", f"[{channels}, W] with W of at least 2", w.shape)
        require_plain(self, "w", w, w.shape, "f32")
        batch = require_batch(self, seq_offsets)
        width = (w.shape[1] - 1) * channels
        require_kept(self, "tail", tail, width, batch, state_rows, start, head)
        logged = require_replay(self, "tail", tail, channels, batch, replay)
        return x.like(), tail.like(), *logged

    def reference(
        self,
        x: np.ndarray,
        w: np.ndarray,
        seq_offsets: np.ndarray,
        state_rows: np.ndarray,
        tail: np.ndarray,
        start: np.ndarray | None,
        head: np.ndarray | None,
        *replay: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        rows_of = sequences(self, seq_offsets, len(x))
        passes = Replay(self, rows_of, state_rows, replay)
        kept = KeptState(self, rows_of, tail, state_rows, start, head, passes.folded)
        taps = w.T.astype(np.float64)
        y = np.zeros(x.shape, np.float32)
        for b, rows in enumerate(rows_of):
            if not passes.busy(b):
                continue
            direct, width = passes.direct[b], len(taps) - 1
            line = [*kept.read(b).reshape(width, -1), *passes.to_fold(b)]
            settled = len(line) + direct
            line += [*passes.to_hold(b), *x[rows.start : rows.stop]]
            ends = range(settled, settled - max(direct, 1), -1)
            kept.write(b, [np.vstack(line[end - width : end]) for end in ends[: kept.count]])
            first = len(line) - len(rows)
            for i, t in enumerate(rows):
                y[t] = (taps * np.vstack(line[first + i - width : first + i + 1])).sum(0)
                if i >= direct:
                    passes.write(b, i, x[t])
        return y, kept.state, *passes.outputs

    def cost(
        self,
        x: TensorSpec,
        w: TensorSpec,
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        tail: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
    ) -> Cost:
        """Bytes of the tails of B sequences, and of the planes that N / B tokens each fill.

        With a log, those of a pass that logs all its tokens and folds nothing."""
        batch = state_rows.shape[0]
        plane = 4 * tail.shape[-1] * batch
        planes = min(tail.shape[1] if tail.rank == 3 else 1, -(-x.shape[0] // batch))
        logs = bool(replay) and replay[0] is not None
        read = x.nbytes + w.nbytes + seq_offsets.nbytes + state_rows.nbytes + plane
        write = x.nbytes + (x.nbytes if logs else plane * planes)
        return Cost(2 * x.size * w.shape[1], read, write)

    @staticmethod
    def cases() -> Iterable[Case]:
        for w in (4, 2):
            for t in range(1, 6):
                yield _case(48, w, (t,))
                yield _case(48, w, (t,), keep=3)
        for c in (1, 17, 100):
            yield _case(c, 4, (3,))
        yield _case(20, 3, (4, 2))
        yield _case(64, 4, (3, 0, 5, 1), pad=2, slots=6)
        yield _case(64, 4, (3, 0, 5, 1), pad=2, slots=6, keep=4)
        yield _case(33, 4, (2, 2), gap=31)
        yield _case(33, 2, (2, 7), gap=31, keep=4)
        yield _case(32, 4, (9,), keep=1)
        yield _case(32, 4, (65,))
        yield _case(32, 4, (0, 0), pad=3, keep=2)
        yield _case(32, 4, (0,))
        for turn in range(4):
            heads = tuple((start + turn) % 4 for start in range(4))
            yield _case(19, 4, (3, 1, 4, 6), keep=4, start=(0, 1, 2, 3), head=heads)
        for situation in SITUATIONS:
            slots, pad = (7, 3) if len(situation.lengths) > 1 else (0, 0)
            yield _case(33, 4, replay=situation, slots=slots, pad=pad)
            yield _case(64, 2, replay=situation, gap=31)
        yield _case(300, 4, replay=SITUATIONS[-1])
        for t, keep in ((1, 0), (4, 0), (4, 4), (64, 0), (512, 0)):
            yield _case(6144, 4, (t,), keep=keep, tags=("perf",))
        yield _case(6144, 4, (4,) * 8, keep=4, tags=("perf",))
        for folded in (0, 4):
            replay = Situation((5,), 10, folded=folded)
            yield _case(6144, 4, replay=replay, tags=("perf",))


def _case(
    c: int,
    w: int,
    lengths: tuple[int, ...] = (),
    *,
    keep: int = 0,
    pad: int = 0,
    gap: int = 0,
    slots: int = 0,
    start: tuple[int, ...] | None = None,
    head: tuple[int, ...] | None = None,
    replay: Situation | None = None,
    tags: tuple[str, ...] = (),
) -> Case:
    """lengths: tokens per sequence, unless replay says it; keep: K, 0 for a rank-2 tail; slots: R,
    with rows permuted."""
    lengths = replay.lengths if replay else lengths
    batch, n = len(lengths), sum(lengths) + pad
    label = f"c={c},w={w},t={'+'.join(map(str, lengths))}"
    named = {
        "k": keep,
        "pad": pad,
        "gap": gap,
        "r": slots,
        "head": head and "".join(map(str, head)),
    }
    label += "".join(f",{key}={value}" for key, value in named.items() if value)
    label += replay.label if replay else ""
    plane = (w - 1) * c
    inputs = dict(
        x=f32(n, c, gap=gap),
        w=f32(c, w),
        seq_offsets=fixed(np.cumsum((0, *lengths)), "i32"),
        state_rows=ints(*((slots or batch) - 1 - b for b in range(batch))),
        tail=f32(slots or batch, keep, plane) if keep else f32(slots or batch, plane),
    )
    if keep:
        first = start or tuple(b % keep for b in range(batch))
        newest = head or tuple((s - t) % keep for s, t in zip(first, lengths, strict=True))
        inputs.update(start=ints(*first), head=ints(*newest))
    if replay:
        inputs.update(replay.inputs(slots or batch, c))
    return Case(label, tags=tags, **inputs)
