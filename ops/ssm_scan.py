"""The selective scan of Mamba-2 over ragged sequences, with its matrices kept as state."""

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
class SsmScan(Recurrent):
    """Per token and head h, with group h // (H/G) and state M [P values, S]:

    step <- softplus(dt)  |  M <- M * exp(step * a) + (step * x) b^T  |  y <- M c

    x: [N, H, P] f32; b, c: [N, G, S] f32; their leading axes may have gaps. dt: [N, H] f32; a: [H]
    f32, below 0 where the state is to fade; a plane of state: [H, P, S]; an entry of the log: b
    [G*S], step * x of all heads [H*P], and exp(step * a) [H]. y: [N, H, P] f32, zero in padding
    rows.
    step, step * a, its exponential, step * x and M are rounded to f32 at every token, so that
    passes may be split anywhere.
    Source: Dao & Gu 2024, "Transformers are SSMs"."""

    name, outputs = "ssm_scan", ("y", "state_out", "log_out?")
    inputs = ("x", "dt", "a", "b", "c", *memory_inputs("state"))
    writes = {"state_out": "state", "log_out": "log"}
    constants = ("a",)
    per_token = ("x", "dt", "b", "c")
    tolerance = 1e-9  # the state is carried through hundreds of f32 updates

    def infer(
        self,
        x: TensorSpec,
        dt: TensorSpec,
        a: TensorSpec,
        b: TensorSpec,
        c: TensorSpec,
        *memory: TensorSpec | None,
    ) -> tuple[TensorSpec, ...]:
        self.require(x.rank == 3 and 0 not in x.shape[1:], "x", "[N, H, P]", x.shape)
        n, heads, values = x.shape
        ok = b.rank == 3 and b.shape[0] == n and 0 not in b.shape[1:] and heads % b.shape[1] == 0
        self.require(ok, "b", f"({n}, G, S), G a divisor of {heads}", b.shape)
        self.require(c.shape == b.shape, "c", f"{b.shape} like b", c.shape)
        for arg, spec in (("x", x), ("b", b), ("c", c)):
            self.require_dtype(arg, spec, "f32")
            require_dense_rows(self, arg, spec)
        require_plain(self, "dt", dt, (n, heads), "f32")
        require_plain(self, "a", a, (heads,), "f32")
        groups, size = b.shape[1:]
        entry = groups * size + heads * values + heads
        return x.like(), *self.memory_specs(memory, heads * values * size, entry)

    def reference(
        self,
        x: np.ndarray,
        dt: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        *memory: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        _, heads, values = x.shape
        groups, size = b.shape[1:]
        group = np.arange(heads) // (heads // groups)
        step = np.logaddexp(0.0, dt.astype(np.float64)).astype(np.float32)
        decay = np.exp((step * a).astype(np.float64)).astype(np.float32)
        written = step[..., None] * x
        y = np.zeros(x.shape, np.float32)

        def fold(m: np.ndarray, entry: np.ndarray) -> np.ndarray:
            keys, wrote, faded = np.split(entry, [groups * size, groups * size + heads * values])
            keys, wrote = keys.reshape(groups, size), wrote.reshape(heads, values)
            return _advance(m, keys[group], wrote, faded)

        def token(m: np.ndarray, t: int) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
            m = _advance(m, b[t, group], written[t], decay[t])
            y[t] = (m * c[t, group][:, None].astype(np.float64)).sum(-1)
            return m, (b[t], written[t], decay[t])

        return y, *self.run(len(x), memory, (heads, values, size), fold, token)

    def cost(self, x: TensorSpec, *others: TensorSpec) -> Cost:
        updates = x.size * others[2].shape[-1]
        return self.work(5 * updates, (x, *others), x)

    @staticmethod
    def cases() -> Iterable[Case]:
        for t in (1, 2, 5, 33):
            yield _case(4, 16, 32, t)
        for heads, values, size in ((1, 1, 1), (3, 5, 7), (2, 20, 33), (2, 64, 128), (1, 3, 256)):
            yield _case(heads, values, size, 3)
        yield _case(6, 8, 16, 4, 2, groups=2)
        yield _case(6, 8, 16, 3, groups=6, gap=4)
        yield _case(4, 10, 24, 3, 0, 5, 1, groups=2, slots=6, pad=2, gap=3)
        for t, keep in ((1, 1), (1, 4), (3, 4), (4, 4), (9, 4)):
            yield _case(2, 12, 16, t, keep=keep)
        yield _case(2, 8, 16, 3, 0, 5, 1, keep=4, slots=6, pad=2)
        for turn in range(4):
            heads_at = tuple((start + turn) % 4 for start in range(4))
            yield _case(2, 8, 16, 3, 1, 4, 6, keep=4, start=(0, 1, 2, 3), head=heads_at)
        yield _case(2, 8, 16, 0)
        yield _case(2, 8, 16, 0, 0, keep=3, pad=3)
        for steps, rate in (((-30.0, -20.0), -1.0), ((10.0, 90.0), -16.0), ((0.0, 3.0), 0.0)):
            yield _case(2, 16, 32, 70, steps=steps, rate=rate)
        for situation in SITUATIONS:
            yield _case(4, 12, 16, groups=2, replay=situation, **situation.room)
            yield _case(3, 9, 20, replay=situation, gap=4)
        yield _case(4, 64, 128, replay=SITUATIONS[-1])
        for t, keep in ((1, 0), (4, 0), (4, 4), (64, 0), (512, 0)):
            yield _case(48, 64, 128, t, keep=keep, tags=("perf",))
        for folded in (0, 4):
            yield _case(48, 64, 128, replay=Situation((5,), 10, folded=folded), tags=("perf",))


def _advance(m: np.ndarray, b: np.ndarray, written: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """The state after a token, f32: m [H, P, S], b [H, S], written [H, P], decay [H]."""
    decayed = m * decay[:, None, None].astype(np.float64)
    return (decayed + written[:, :, None].astype(np.float64) * b[:, None]).astype(np.float32)


def _case(
    heads: int,
    values: int,
    size: int,
    *lengths: int,
    groups: int = 1,
    gap: int = 0,
    steps: tuple[float, float] = (-4.0, 2.0),
    rate: float = -1.0,
    tags: tuple[str, ...] = (),
    **given: Any,
) -> Case:
    """given: the rest of the Batch."""
    batch = Batch.of(lengths, **given)
    shape = f"h={heads},p={values},s={size},g={groups}"
    named = {"k": batch.keep, "gap": gap, "r": batch.slots, "pad": batch.pad, "head": ""}
    named["dt"] = f"{steps[0]:g}..{steps[1]:g}" if steps != (-4.0, 2.0) else ""
    n = batch.n
    return Case(
        batch.label(shape, **named),
        tags=tags,
        x=f32(n, heads, values, gap=gap),
        dt=f32(n, heads, lo=steps[0], hi=steps[1]),
        a=f32(heads, lo=1.5 * rate, hi=0.5 * rate),
        b=f32(n, groups, size, gap=gap),
        c=f32(n, groups, size, gap=gap),
        **batch.inputs("state", heads * values * size, groups * size + heads * values + heads),
    )
