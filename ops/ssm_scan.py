"""The selective scan of Mamba-2 over ragged sequences, with its matrices kept as state."""

from __future__ import annotations

from collections import deque
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
class SsmScan(Recurrent):
    """Per token and head h, with group h // (H/G) and state M [P values, S]:

    step <- softplus(dt)  |  M <- M * exp(step * a) + (step * x) b^T  |  y <- M c

    x: [N, H, P] f32; b, c: [N, G, S] f32; their leading axes may have gaps. dt: [N, H] f32; a: [H]
    f32, below 0 where the state is to fade; seq_offsets: i32 [B + 1]; state_rows: i32 [B]; state:
    [R, H*P*S] or [R, K, H*P*S] f32, a plane being [H, P, S]; start, head: i32 [B], given exactly
    when state has planes (ops/ragged.py says which are read and written). y: [N, H, P] f32, zero
    in padding rows. A fresh sequence has a state of zeros.
    log: [R, L, E] f32, and log_head, n_replay, n_held, n_direct: i32 [B], all or none, for a state
    without planes: tokens that are computed but not committed (ops/replay.py). An entry is b
    [G*S], step * x of all heads [H*P], and exp(step * a) [H].
    step, step * a, its exponential, step * x and M are rounded to f32 at every token, so that
    passes may be split anywhere.
    Raises BackendError for offsets, rows, planes or numbers of entries out of range and for a
    shared state row.
    Source: Dao & Gu 2024, "Transformers are SSMs"."""

    name, outputs = "ssm_scan", ("y", "state_out", "log_out?")
    inputs = (
        *("x", "dt", "a", "b", "c", "seq_offsets", "state_rows", "state", "start?", "head?"),
        *INPUTS,
    )
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
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        state: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
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
        batch = require_batch(self, seq_offsets)
        groups, size = b.shape[1:]
        width = heads * values * size
        require_kept(self, "state", state, width, batch, state_rows, start, head)
        entry = groups * size + heads * values + heads
        logged = require_replay(self, "state", state, entry, batch, replay)
        return x.like(), state.like(), *logged

    def reference(
        self,
        x: np.ndarray,
        dt: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        seq_offsets: np.ndarray,
        state_rows: np.ndarray,
        state: np.ndarray,
        start: np.ndarray | None,
        head: np.ndarray | None,
        *replay: np.ndarray | None,
    ) -> tuple[np.ndarray, ...]:
        rows_of = sequences(self, seq_offsets, len(x))
        passes = Replay(self, rows_of, state_rows, replay)
        kept = KeptState(self, rows_of, state, state_rows, start, head, passes.folded)
        _, heads, values = x.shape
        groups, size = b.shape[1:]
        group = np.arange(heads) // (heads // groups)
        step = np.logaddexp(0.0, dt.astype(np.float64)).astype(np.float32)
        decay = np.exp((step * a).astype(np.float64)).astype(np.float32)
        written = step[..., None] * x

        def logged(entry: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            keys, wrote, faded = np.split(entry, [groups * size, groups * size + heads * values])
            return keys.reshape(groups, size)[group], wrote.reshape(heads, values), faded

        y = np.zeros(x.shape, np.float32)
        for seq, rows in enumerate(rows_of):
            if not passes.busy(seq):
                continue
            m = kept.read(seq).reshape(heads, values, size)
            newest: deque[np.ndarray] = deque(maxlen=kept.count)
            for entry in passes.to_fold(seq):
                m = _advance(m, *logged(entry))
                newest.append(m)
            for i, t in enumerate(rows):
                if i == passes.direct[seq]:
                    for entry in passes.to_hold(seq):
                        m = _advance(m, *logged(entry))
                m = _advance(m, b[t, group], written[t], decay[t])
                y[t] = (m * c[t, group][:, None].astype(np.float64)).sum(-1)
                if i < passes.direct[seq]:
                    newest.appendleft(m)
                else:
                    passes.write(seq, i, b[t], written[t], decay[t])
            kept.write(seq, newest)
        return y, kept.state, *passes.outputs

    def cost(
        self,
        x: TensorSpec,
        dt: TensorSpec,
        a: TensorSpec,
        b: TensorSpec,
        c: TensorSpec,
        seq_offsets: TensorSpec,
        state_rows: TensorSpec,
        state: TensorSpec,
        start: TensorSpec | None,
        head: TensorSpec | None,
        *replay: TensorSpec | None,
    ) -> Cost:
        """Bytes of the states of B sequences, and of the planes that N / B tokens each fill.

        With a log, those of a pass that logs all its tokens and folds nothing."""
        n, batch = x.shape[0], state_rows.shape[0]
        plane = 4 * state.shape[-1] * batch
        planes = min(state.shape[1] if state.rank == 3 else 1, -(-n // batch))
        read = sum(part.nbytes for part in (x, dt, a, b, c, seq_offsets, state_rows)) + plane
        log = replay[0] if replay else None
        kept = plane * planes if log is None else 4 * n * log.shape[2]
        return Cost(5 * n * state.shape[-1], read, x.nbytes + kept)

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
            slots, pad = (7, 3) if len(situation.lengths) > 1 else (0, 0)
            yield _case(4, 12, 16, groups=2, replay=situation, slots=slots, pad=pad)
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
    keep: int = 0,
    gap: int = 0,
    pad: int = 0,
    slots: int = 0,
    start: tuple[int, ...] | None = None,
    head: tuple[int, ...] | None = None,
    steps: tuple[float, float] = (-4.0, 2.0),
    rate: float = -1.0,
    replay: Situation | None = None,
    tags: tuple[str, ...] = (),
) -> Case:
    """lengths: tokens per sequence, unless replay says it; keep: K, 0 for a rank-2 state; slots: R,
    with rows permuted."""
    lengths = replay.lengths if replay else lengths
    batch, n = len(lengths), sum(lengths) + pad
    label = f"h={heads},p={values},s={size},g={groups},t={'+'.join(map(str, lengths))}"
    named: dict[str, object] = {"k": keep, "gap": gap, "r": slots, "pad": pad}
    named["head"] = head and "".join(map(str, head))
    named["dt"] = f"{steps[0]:g}..{steps[1]:g}" if steps != (-4.0, 2.0) else ""
    label += "".join(f",{key}={value}" for key, value in named.items() if value)
    label += replay.label if replay else ""
    plane, rows = heads * values * size, slots or batch
    inputs = dict(
        x=f32(n, heads, values, gap=gap),
        dt=f32(n, heads, lo=steps[0], hi=steps[1]),
        a=f32(heads, lo=1.5 * rate, hi=0.5 * rate),
        b=f32(n, groups, size, gap=gap),
        c=f32(n, groups, size, gap=gap),
        seq_offsets=fixed(np.cumsum((0, *lengths)), "i32"),
        state_rows=ints(*(rows - 1 - seq for seq in range(batch))),
        state=f32(rows, keep, plane) if keep else f32(rows, plane),
    )
    if keep:
        first = start or tuple(seq % keep for seq in range(batch))
        newest = head or tuple((f - t) % keep for f, t in zip(first, lengths, strict=True))
        inputs.update(start=ints(*first), head=ints(*newest))
    if replay:
        inputs.update(replay.inputs(rows, groups * size + heads * values + heads))
    return Case(label, tags=tags, **inputs)
