"""Causal depthwise convolution over ragged sequences, with its tail kept as state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..graph.case import Case, f32
from ..graph.op import Cost, register
from ..graph.spec import TensorSpec
from .ragged import require_dense_rows, require_plain
from .replay import SITUATIONS, Batch, Recurrent, Situation, memory_inputs


@register
class SsmConv(Recurrent):
    """y[i, c] = sum_t w[c, t] * win[t, c], win = the W - 1 inputs before row i, then x[i]

    x: [N, C] f32, rows may have gaps; w: [C, W] f32, tap 0 is the oldest, W of at least 2; a plane
    of tail: the last W - 1 inputs of a sequence as [W-1, C], oldest first; an entry of the log: the
    row of x, [C]. y: [N, C], zero in padding rows. No bias, no activation.
    Source: the short convolution of Mamba, Gu & Dao 2023."""

    name, outputs = "ssm_conv", ("y", "tail_out", "log_out?")
    inputs = ("x", "w", *memory_inputs("tail"))
    writes = {"tail_out": "tail", "log_out": "log"}
    constants = ("w",)
    per_token = ("x",)

    def infer(
        self, x: TensorSpec, w: TensorSpec, *memory: TensorSpec | None
    ) -> tuple[TensorSpec, ...]:
        self.require(x.rank == 2 and x.shape[1] >= 1, "x", "[N, C]", x.shape)
        self.require_dtype("x", x, "f32")
        require_dense_rows(self, "x", x)
        channels = x.shape[1]
        ok = w.rank == 2 and w.shape[0] == channels and w.shape[1] >= 2
        self.require(ok, "w", f"[{channels}, W] with W of at least 2", w.shape)
        require_plain(self, "w", w, w.shape, "f32")
        width = (w.shape[1] - 1) * channels
        return x.like(), *self.memory_specs(memory, width, channels)

    def reference(
        self, x: np.ndarray, w: np.ndarray, *memory: np.ndarray | None
    ) -> tuple[np.ndarray, ...]:
        taps = w.T.astype(np.float64)
        y = np.zeros(x.shape, np.float32)

        def fold(tail: np.ndarray, entry: np.ndarray) -> np.ndarray:
            return np.vstack((tail[1:], entry))

        def token(tail: np.ndarray, t: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
            window = np.vstack((tail, x[t]))
            y[t] = (taps * window).sum(0)
            return window[1:], (x[t],)

        return y, *self.run(len(x), memory, (w.shape[1] - 1, w.shape[0]), fold, token)

    def cost(self, x: TensorSpec, w: TensorSpec, *memory: TensorSpec | None) -> Cost:
        return self.work(2 * x.size * w.shape[1], (x, w, *memory), x)

    @staticmethod
    def cases() -> Iterable[Case]:
        for w in (4, 2):
            for t in range(1, 6):
                yield conv_case(48, w, (t,))
                yield conv_case(48, w, (t,), keep=3)
        for c in (1, 17, 100):
            yield conv_case(c, 4, (3,))
        yield conv_case(20, 3, (4, 2))
        yield conv_case(64, 4, (3, 0, 5, 1), pad=2, slots=6)
        yield conv_case(64, 4, (3, 0, 5, 1), pad=2, slots=6, keep=4)
        yield conv_case(33, 4, (2, 2), gap=31)
        yield conv_case(33, 2, (2, 7), gap=31, keep=4)
        yield conv_case(32, 4, (9,), keep=1)
        yield conv_case(32, 4, (65,))
        yield conv_case(32, 4, (0, 0), pad=3, keep=2)
        yield conv_case(32, 4, (0,))
        for turn in range(4):
            heads = tuple((start + turn) % 4 for start in range(4))
            yield conv_case(19, 4, (3, 1, 4, 6), keep=4, start=(0, 1, 2, 3), head=heads)
        for situation in SITUATIONS:
            yield conv_case(33, 4, replay=situation, **situation.room)
            yield conv_case(64, 2, replay=situation, gap=31)
        yield conv_case(300, 4, replay=SITUATIONS[-1])
        for t, keep in ((1, 0), (4, 0), (4, 4), (64, 0), (512, 0)):
            yield conv_case(6144, 4, (t,), keep=keep, tags=("perf",))
        yield conv_case(6144, 4, (4,) * 8, keep=4, tags=("perf",))
        for folded in (0, 4):
            replay = Situation((5,), 10, folded=folded)
            yield conv_case(6144, 4, replay=replay, tags=("perf",))


def conv_case(
    c: int,
    w: int,
    lengths: tuple[int, ...] = (),
    *,
    gap: int = 0,
    tags: tuple[str, ...] = (),
    **given: Any,
) -> Case:
    """c channels, w taps, sequences of these lengths; given: the rest of the Batch."""
    batch = Batch.of(lengths, **given)
    named = {"k": batch.keep, "pad": batch.pad, "gap": gap, "r": batch.slots}
    return Case(
        batch.label(f"c={c},w={w}", **named),
        tags=tags,
        x=f32(batch.n, c, gap=gap),
        w=f32(c, w),
        **batch.inputs("tail", (w - 1) * c, c),
    )
