"""Where decoding with drafts leaves plain decoding: the tensor, round and node.

Recorded passes are made again in fresh sessions, so that nothing of what is looked at was touched
by an earlier look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..engine.captured import Captured, CapturingRunner
from ..engine.sequences import Sequences
from ..engine.session_plan import SessionPlan
from ..graph import DType
from ..graph.codec import decode
from .check import Check, Parting, Recorded, play


@dataclass(frozen=True)
class StateDifference:
    """A state tensor that differs after `round` (0: the prompt) and did not after the one before.

    row: for attention memory the position whose key or value it holds, for recurrent memory the
    sequence; differing: how many of its `values` do; largest: the largest difference."""

    tensor: str
    layer: int
    row: int
    differing: int
    values: int
    largest: float
    round: int
    verified: int
    committed: int


@dataclass(frozen=True)
class NodeDifference:
    """The first node, in order of evaluation, that differs in a pass of so many tokens, and the
    first row in which it does; those of committed tokens that ran again before have row < 0.
    round: of the pass, 0 for the prompt's last."""

    op: str
    name: str
    output: str
    round: int
    tokens: int
    row: int
    position: int
    largest: float


@dataclass(frozen=True)
class Cause:
    """kind: "choice" (equal logits, another token), "tokens" (the session holds another text after
    `round`), "state", "node", or "unknown" (nothing of it when the passes are made again; repeats:
    whether the logits of the pass still come out as they did)."""

    kind: str
    round: int
    state: StateDifference | None = None
    node: NodeDifference | None = None
    repeats: bool = True


def locate(check: Check, tolerance: float = 0.0) -> Cause:
    """The cause of a check's parting. tolerance: the largest difference that counts as none, in
    terms of the root mean square of a row; 0: bits have to be equal."""
    assert check.parting is not None
    return _Search(check, check.parting, tolerance).run()


@dataclass
class _Search:
    check: Check
    parting: Parting
    tolerance: float
    _compared: dict[int, StateDifference | None] = field(default_factory=dict)

    def run(self) -> Cause:
        rounds = self.check.rounds
        last = len(rounds)
        if self.parting.largest == 0:
            return Cause("choice", last)
        wrong = [i for i, r in enumerate(rounds[:-1], 1) if not r.held]
        if wrong:
            return Cause("tokens", wrong[0])
        state = self._first_state(max(last - 1, 0)) if last else None
        if state is not None:
            return Cause("state", state.round, state, self._node(state.round, state.committed - 1))
        node = self._node(last, self.parting.row)
        if node is not None:
            return Cause("node", last, None, node)
        return Cause("unknown", last, repeats=self._repeats(last))

    def _first_state(self, end: int) -> StateDifference | None:
        """By halving: equal after some round, different after the next."""
        low, high = -1, end
        if self._state(end) is None:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._state(middle) is None else (low, middle)
        return self._state(high)

    def _state(self, round_: int) -> StateDifference | None:
        """The first tensor, by layer, that differs after a round."""
        if round_ not in self._compared:
            self._compared[round_] = self._compare_states(round_)
        return self._compared[round_]

    def _compare_states(self, round_: int) -> StateDifference | None:
        drafted = Sequences(self.check.model, self.check.asked.drafted)
        passes = self.check.drafted.passes[: self.check.drafted.prompt + round_]
        _replay(drafted, passes)
        drafted.settle()
        plain = Sequences(self.check.model, self.check.asked.plain)
        _replay(plain, self.check.plain.passes[: self._plain_pass(drafted.length())])
        ours, theirs = plain.memory.save(0), drafted.memory.save(0)
        for name in sorted(ours.keys() & theirs.keys(), key=_order):
            spec = plain.pools.specs[name]
            a, b, first = _rows(name, ours[name], theirs[name], plain.length())
            shape = spec.shape[-1:] if ours[name].ndim == 1 else spec.shape[1:]
            for i in range(len(a)):
                found = _unlike(a[i], b[i], spec.dtype, shape, self.tolerance)
                if found:
                    verified = len(passes[-1].tokens)
                    count, values, largest = found
                    return StateDifference(
                        name,
                        _order(name)[0],
                        first + i,
                        count,
                        values,
                        largest,
                        round_,
                        verified,
                        passes[-1].committed,
                    )
        return None

    def _node(self, round_: int, row: int) -> NodeDifference | None:
        """The first node that differs in a round's pass, in rows up to this one; of the prompt's
        last pass only the last row is looked at."""
        drafted = self._capturing(self.check.asked.drafted)
        recorded = _replay(drafted, self.check.drafted.passes, self.check.drafted.prompt + round_)
        length, n = drafted.length(), len(recorded.tokens)
        if round_ == 0:
            found = _capture(drafted, recorded, n - 1, 1)
            plain = self._capturing(self.check.asked.plain)
            same = _replay(plain, self.check.plain.passes, self.check.plain.prompt)
            wanted = [_capture(plain, same, n - 1, 1)]
            return self._first_node(found, wanted, 0, n, n - 1, length + n - 1)
        found = _capture(drafted, recorded, row)
        again = found.total - n
        wanted = list(self._plain_rows(length - again, length + row + 1))
        return self._first_node(found, wanted, round_, n, -again, length - again)

    def _capturing(self, plan: SessionPlan) -> Sequences:
        return Sequences(self.check.model, plan, CapturingRunner)

    def _plain_rows(self, start: int, stop: int) -> Iterator[Captured]:
        """Plain passes of the tokens at these positions, which are behind the prompt."""
        passes = self.check.plain.passes
        session = self._capturing(self.check.asked.plain)
        _replay(session, passes[: self._plain_pass(start)])
        for position in range(start, stop):
            yield _capture(session, passes[self._plain_pass(position)], 0)

    def _first_node(
        self,
        found: Captured,
        wanted: Sequence[Captured],
        round_: int,
        tokens: int,
        row: int,
        position: int,
    ) -> NodeDifference | None:
        """row, position: of the first row at hand."""
        for key, node in found.nodes.items():
            for i, plain in enumerate(wanted):
                like = plain.nodes.get(key)
                if like is None or (like.shape, like.dtype) != (node.shape, node.dtype):
                    continue
                a, b = like.stored[0], node.stored[i]
                differing = _unlike(a, b, node.dtype, node.shape, self.tolerance)
                if differing:
                    where = (round_, tokens, row + i, position + i)
                    return NodeDifference(node.op, node.name, node.output, *where, differing[2])
        return None

    def _repeats(self, round_: int) -> bool:
        """Whether the pass gives the logits once more that it gave."""
        session = Sequences(self.check.model, self.check.asked.drafted)
        recorded = _replay(session, self.check.drafted.passes, self.check.drafted.prompt + round_)
        items, row = [(0, recorded.tokens)], self.parting.row
        if recorded.verified:
            logits = session.verify(items, **recorded.arguments).logits[row]
        else:
            logits = session.evaluate(items, **recorded.arguments).logits[-1]
        want = self.parting.logits[1]
        return logits[: len(want)].tobytes() == want.tobytes()

    def _plain_pass(self, position: int) -> int:
        """The plain run's pass of the token at a position behind the prompt."""
        return self.check.plain.prompt + position - len(self.check.asked.prompt)


def _replay(session: Sequences, passes: Sequence[Recorded], stop: int | None = None) -> Recorded:
    """Make passes again; with stop, those before the stop-th, which is returned."""
    for recorded in passes if stop is None else passes[: stop - 1]:
        play(session, recorded)
    return passes[-1 if stop is None else stop - 1]


def _capture(session: Sequences, recorded: Recorded, row: int, most: int = 0) -> Captured:
    """A recorded pass, looked at in its rows up to this one; of those the last `most`, 0: all."""
    behind = len(recorded.tokens) - 1 - row

    def rows(total: int) -> slice:
        stop = total - behind
        return slice(stop - most if most else 0, stop)

    assert isinstance(session.runner, CapturingRunner)
    return session.runner.capture(lambda: play(session, recorded, commit=False), rows)


def _order(name: str) -> tuple[int, str]:
    """By layer."""
    kind, layer = name.rsplit(".", 1)
    return int(layer), kind


def _rows(
    name: str, a: np.ndarray, b: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows that both hold, and the number of the first."""
    if a.ndim == 1:  # a sequence's one state, not a row for each token
        return a[None], b[None], 0
    n = min(len(a), len(b))
    return a[len(a) - n :], b[len(b) - n :], length - n


def _unlike(
    a: np.ndarray, b: np.ndarray, dtype: DType, shape: tuple[int, ...], tolerance: float
) -> tuple[int, int, float] | None:
    """How many values of two stored rows differ, of how many, and by how much at most."""
    if a.tobytes() == b.tobytes():
        return None
    x, y = (decode(dtype, np.ascontiguousarray(r), shape).astype(np.float64) for r in (a, b))
    with np.errstate(invalid="ignore"):
        apart = np.abs(x - y)
    # The same infinity on both sides is no difference; what is not a number is beyond all bounds.
    apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(apart, nan=np.inf))
    largest = float(apart.max())
    if tolerance and largest <= tolerance * float(np.sqrt(np.mean(x * x))):
        return None
    return int((apart > 0).sum()), x.size, largest
