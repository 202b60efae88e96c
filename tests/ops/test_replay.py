"""Passes with a log leave what plain decoding of the committed tokens leaves, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from one_op import bits, cpu
from riverrun.backends.base import Backend, Pools
from riverrun.backends.reference import ReferenceBackend
from riverrun.graph import OPS, Graph, TensorSpec, dtype, make_op, parse, to_text, verify
from riverrun.graph.errors import BackendError, DTypeError, GraphError, ShapeError
from riverrun.graph.memory import plan_memory

Arrays = dict[str, np.ndarray]
NUMBERS = ("log_head", "n_replay", "n_held", "n_direct")
SLOTS, ENTRIES = 5, 7
BACKENDS: dict[str, Callable[[], Backend]] = {
    "reference": ReferenceBackend,
    "cpu, 1 thread": lambda: cpu(1),
    "cpu, 2 threads": lambda: cpu(2),
}


@dataclass(frozen=True)
class Kind:
    """A recurrent op of fixed sizes: floats of its state and of a log's entry, and its tokens."""

    op: str
    state: str
    width: int
    entry: int
    tokens: Callable[[np.random.Generator, int], Arrays]
    fixed: Arrays = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def net(s: int, hk: int, repeat: int, heads: str, kda: bool = False) -> Kind:
    hv = hk * repeat

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        q, k = (rng.standard_normal((n, hk, s)) for _ in range(2))
        given = {
            "q": q / np.linalg.norm(q, axis=-1, keepdims=True),
            "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
            "v": rng.standard_normal((n, hv, s)),
            "g": -rng.uniform(0, 3, (n, hv, s) if kda else (n, hv)),
            "beta": rng.uniform(0, 1, (n, hv)),
        }
        return {name: values.astype(np.float32) for name, values in given.items()}

    entry = (hk + hv) * s + hv * (s if kda else 1)
    return Kind("gated_delta_net", "state", hv * s * s, entry, tokens, {}, {"heads": heads})


def conv(channels: int, taps: int) -> Kind:
    w = np.random.default_rng(channels).standard_normal((channels, taps)).astype(np.float32)

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        return {"x": rng.standard_normal((n, channels)).astype(np.float32)}

    return Kind("ssm_conv", "tail", (taps - 1) * channels, channels, tokens, {"w": w})


def scan(heads: int, values: int, size: int, groups: int) -> Kind:
    a = -np.random.default_rng(heads).uniform(0.5, 1.5, heads).astype(np.float32)

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        shapes = {"x": (heads, values), "dt": (heads,), "b": (groups, size), "c": (groups, size)}
        return {k: rng.standard_normal((n, *s)).astype(np.float32) for k, s in shapes.items()}

    entry = groups * size + heads * values + heads
    return Kind("ssm_scan", "state", heads * values * size, entry, tokens, {"a": a})


KINDS = {
    "delta, tiled": net(20, 2, 2, "tiled"),
    "delta, grouped": net(64, 2, 2, "grouped"),
    "delta, decay by key": net(36, 2, 3, "grouped", kda=True),
    "scan": scan(4, 12, 20, 1),
    "scan, groups": scan(6, 9, 33, 3),
    "conv": conv(2100, 4),
    "conv, two taps": conv(33, 2),
    "conv, more taps than entries": conv(5, 11),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Bound:
    """A plan of one op for n token rows and some sequences, on memory that stays."""

    def __init__(self, backend: Backend, kind: Kind, n: int, batch: int, rows: int, log: bool):
        self.kind, self.n = kind, n
        sample = kind.fixed | kind.tokens(np.random.default_rng(0), n)
        sample |= {"seq_offsets": np.zeros(batch + 1, np.int32)}
        index = ("state_rows", *(NUMBERS if log else ()))
        sample |= {name: np.zeros(batch, np.int32) for name in index}
        g = Graph(kind.op)
        of = {"float32": "f32", "int32": "i32"}
        given = {name: g.input(name, a.shape, of[a.dtype.name]) for name, a in sample.items()}
        given[kind.state] = g.state(kind.state, (rows, kind.width))
        if log:
            given["log"] = g.state("log", (rows, ENTRIES, kind.entry))
        node = g.apply(
            make_op(kind.op, kind.attributes),
            tuple(given.get(name.rstrip("?")) for name in OPS[kind.op].inputs),
        )
        for i, name in enumerate(node.output_names()):
            g.output(name, node.value(i))
        plan = backend.compile(g)
        self.pools = Pools(plan.states)
        self.bound = plan.bind(plan.own_weights(), self.pools)
        self.first = node.output_names()[0]

    def run(self, **inputs: np.ndarray) -> np.ndarray:
        """The rows of the first output."""
        for name, array in (self.kind.fixed | inputs).items():
            self.bound.inputs[name][: len(array)] = array
        self.bound.run()
        return np.array(self.bound.outputs[self.first])

    @property
    def state(self) -> np.ndarray:
        return self.pools.array(self.kind.state)


class Plain:
    """Decoding token by token without a log."""

    def __init__(self, backend: Backend, kind: Kind) -> None:
        self.bound = Bound(backend, kind, 1, 1, 1, log=False)

    def step(self, state: np.ndarray, token: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """The output of one token and the state after it."""
        self.bound.state[0] = state
        out = self.bound.run(**token, seq_offsets=i32(0, 1), state_rows=i32(0))
        return out[0], self.bound.state[0].copy()


class Sequence:
    """What a caller knows of a sequence, with the states that plain decoding has."""

    def __init__(self, state: np.ndarray) -> None:
        self.settled = state
        self.live: list[np.ndarray] = []  # plain states after each live entry
        self.committed, self.head = 0, 0

    def choose(self, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """Numbers of a pass: folded, held, direct and all tokens, none of them beyond its limit."""
        folded = self.committed if rng.random() < 0.7 else int(rng.integers(0, self.committed + 1))
        held = int(rng.integers(self.committed - folded, len(self.live) - folded + 1))
        direct = int(rng.integers(0, 4)) if held == 0 and rng.random() < 0.4 else 0
        most = ENTRIES - folded - held
        logged = min(most, int(rng.choice([0, 1, 1, 2, 4, ENTRIES])))
        return folded, held, direct, direct + logged

    def follow(
        self, plain: Plain, tokens: list[Arrays], folded: int, held: int, direct: int
    ) -> list[np.ndarray]:
        """The outputs that a pass should have; notes what it leaves."""
        if folded:
            self.settled = self.live[folded - 1]
        self.head = (self.head + folded) % ENTRIES
        self.committed -= folded
        if tokens:
            self.live = self.live[folded : folded + held]
        else:
            self.live = self.live[folded:]
        state, outputs = self.live[-1] if self.live else self.settled, []
        for i, token in enumerate(tokens):
            out, state = plain.step(state, token)
            outputs.append(out)
            if i < direct:
                self.settled = state
            else:
                self.live.append(state)
        return outputs

    def commit(self, rng: np.random.Generator) -> None:
        """Accept some of the entries, perhaps none."""
        self.committed = int(rng.integers(self.committed, len(self.live) + 1))


@every_backend
@every_kind
def test_rounds_follow_plain_decoding(kind: Kind, backend: Callable[[], Backend]) -> None:
    """Three sequences in rows of their own, of which any may fold, hold, run directly and log."""
    device, rng, n = backend(), np.random.default_rng(7), 3 * (ENTRIES + 3) + 1
    plain, replay = Plain(device, kind), Bound(device, kind, n, 3, SLOTS, log=True)
    replay.state[...] = rng.uniform(-1, 1, replay.state.shape)
    replay.pools.array("log")[...] = np.nan
    rows = (3, 0, 4)
    sequences = [Sequence(replay.state[row].copy()) for row in rows]
    expected = replay.state.copy()
    for _ in range(25):
        chosen = [s.choose(rng) for s in sequences]
        folded, held, direct, counts = zip(*chosen, strict=True)
        tokens = kind.tokens(rng, sum(counts))
        numbers = ([s.head for s in sequences], folded, held, direct)
        log = replay.pools.array("log").copy()
        unlogged = np.ones((SLOTS, ENTRIES), bool)
        for s, row, (f, h, d, count) in zip(sequences, rows, chosen, strict=True):
            unlogged[row, [(s.head + f + h + i) % ENTRIES for i in range(count - d)]] = False
        out = replay.run(
            **tokens,
            seq_offsets=np.cumsum([0, *counts]).astype(np.int32),
            state_rows=i32(*rows),
            **{name: i32(*given) for name, given in zip(NUMBERS, numbers, strict=True)},
        )
        at, want = 0, []
        for s, row, (f, h, d, count) in zip(sequences, rows, chosen, strict=True):
            own = [{k: v[t : t + 1] for k, v in tokens.items()} for t in range(at, at + count)]
            want += s.follow(plain, own, f, h, d)
            expected[row] = s.settled
            at += count
        for i, row in enumerate(want):
            assert np.array_equal(bits(out[i]), bits(row)), f"token {i}"
        assert not out[at:].any()
        assert np.array_equal(bits(replay.state), bits(expected))
        after = replay.pools.array("log")
        assert np.array_equal(bits(after[unlogged]), bits(log[unlogged]))
        assert np.isfinite(after[~unlogged]).all()
        for s in sequences:
            s.commit(rng)
    settle(replay, kind, sequences, rows)
    for s, row in zip(sequences, rows, strict=True):
        expected[row] = s.live[s.committed - 1] if s.committed else s.settled
    assert np.array_equal(bits(replay.state), bits(expected))


LONG = {
    "128": net(128, 1, 2, "tiled"),
    "64, decay by key": net(64, 2, 1, "grouped", kda=True),
    "40": net(40, 1, 3, "grouped"),
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", LONG.values(), ids=LONG)
def test_long_passes_follow_plain_decoding(kind: Kind, threads: int) -> None:
    """Passes that fold entries and then run many tokens directly, with and without logging more;
    another sequence takes fewer of them."""
    device, rng = cpu(threads), np.random.default_rng(9)
    plain, replay = Plain(device, kind), Bound(device, kind, 150, 2, SLOTS, log=True)
    replay.state[...] = rng.uniform(-1, 1, replay.state.shape)
    expected, rows = replay.state.copy(), (3, 1)
    sequences = [Sequence(expected[row].copy()) for row in rows]
    # Folded, held, direct and all tokens of each sequence.
    for chosen in [
        ((0, 0, 0, 5), (0, 0, 33, 34)),
        ((4, 0, 70, 72), (1, 0, 40, 40)),
        ((2, 0, 33, 38), (0, 0, 9, 12)),
        ((0, 5, 0, 1), (2, 0, 100, 105)),
    ]:
        for s, (folded, *_) in zip(sequences, chosen, strict=True):
            s.committed = folded
        numbers = ([s.head for s in sequences], *list(zip(*chosen, strict=True))[:3])
        counts = [c[3] for c in chosen]
        tokens = kind.tokens(rng, sum(counts))
        out = replay.run(
            **tokens,
            seq_offsets=np.cumsum([0, *counts]).astype(np.int32),
            state_rows=i32(*rows),
            **{name: i32(*given) for name, given in zip(NUMBERS, numbers, strict=True)},
        )
        at = 0
        for s, row, (folded, held, direct, count) in zip(sequences, rows, chosen, strict=True):
            own = [{k: v[t : t + 1] for k, v in tokens.items()} for t in range(at, at + count)]
            want = s.follow(plain, own, folded, held, direct)
            assert not want or np.array_equal(bits(out[at : at + count]), bits(np.stack(want)))
            expected[row] = s.settled
            at += count
        assert np.array_equal(bits(replay.state), bits(expected))


def settle(replay: Bound, kind: Kind, sequences: list[Sequence], rows: tuple[int, ...]) -> None:
    """A pass without tokens that folds what is committed."""
    none = i32(*(0 for _ in rows))
    replay.run(
        seq_offsets=np.zeros(len(rows) + 1, np.int32),
        state_rows=i32(*rows),
        log_head=i32(*(s.head for s in sequences)),
        n_replay=i32(*(s.committed for s in sequences)),
        n_held=none,
        n_direct=none,
    )


@every_backend
@every_kind
@pytest.mark.parametrize("accepted", range(ENTRIES + 1))
def test_any_prefix_of_a_pass_can_be_kept(
    kind: Kind, backend: Callable[[], Backend], accepted: int
) -> None:
    """One pass that fills the log, or as many passes of one token, then a fold of some."""
    device, rng = backend(), np.random.default_rng(accepted)
    tokens = kind.tokens(rng, ENTRIES)
    each = [{k: v[i : i + 1] for k, v in tokens.items()} for i in range(ENTRIES)]
    state = rng.uniform(-1, 1, kind.width).astype(np.float32)
    sequence, plain = Sequence(state), Plain(device, kind)
    want = sequence.follow(plain, each, 0, 0, 0)
    sequence.head, sequence.committed = 5, accepted
    for passes in (1, ENTRIES):
        n = ENTRIES // passes
        replay = Bound(device, kind, n, 1, 1, log=True)
        replay.state[0], out = state, []
        for done in range(0, ENTRIES, n):
            given = {k: v[done : done + n] for k, v in tokens.items()}
            numbers = zip(NUMBERS, (5, 0, done, 0), strict=True)
            index = {name: i32(value) for name, value in numbers}
            out += [*replay.run(**given, seq_offsets=i32(0, n), state_rows=i32(0), **index)]
            assert np.array_equal(bits(replay.state[0]), bits(state))
        assert np.array_equal(bits(np.stack(out)), bits(np.stack(want)))
        settle(replay, kind, [sequence], (0,))
        kept = sequence.live[accepted - 1] if accepted else state
        assert np.array_equal(bits(replay.state[0]), bits(kept))


GOOD = {
    "seq_offsets": i32(0, 3, 3, 5),
    "state_rows": i32(2, 0, 4),
    "log_head": i32(6, 0, 3),
    "n_replay": i32(2, 1, 0),
    "n_held": i32(1, 0, 0),
    "n_direct": i32(0, 0, 1),
}
BAD = [
    ("log_head", 0, 7, "'log_head' should be in [0, 7), got 7 at [0]"),
    ("log_head", 1, -1, "'log_head' should be in [0, 7), got -1 at [1]"),
    ("n_replay", 1, 8, "'n_replay' should be in [0, 7], got 8 at [1]"),
    ("n_replay", 2, -1, "'n_replay' should be in [0, 7], got -1 at [2]"),
    ("n_held", 0, -2, "'n_held' should be in [0, 7], got -2 at [0]"),
    ("n_held", 0, 2147483647, "'n_held' should be in [0, 7], got 2147483647 at [0]"),
    ("n_direct", 2, 3, "'n_direct' should be in [0, 2], got 3 at [2]"),
    ("n_direct", 1, -1, "'n_direct' should be in [0, 0], got -1 at [1]"),
    ("n_direct", 0, 1, "'n_direct' should be 0 where entries are held, got 1 at [0]"),
    ("n_held", 0, 3, "'log' should be long enough for the 8 entries of sequence 0, got 7"),
    ("n_replay", 2, 7, "'log' should be long enough for the 8 entries of sequence 2, got 7"),
    ("state_rows", 1, 5, "'state_rows' should be in [0, 5), got 5 at [1]"),
    ("state_rows", 1, 4, "a row of its own for each sequence, got 4 for sequences 1 and 2"),
    ("seq_offsets", 3, 6, "ascending and at most 5, the number of rows, got 3, 6"),
]


@every_backend
@pytest.mark.parametrize("kind", [KINDS["delta, grouped"], KINDS["conv"]], ids=["delta", "conv"])
def test_numbers_out_of_range_write_nothing(kind: Kind, backend: Callable[[], Backend]) -> None:
    rng = np.random.default_rng(3)
    replay = Bound(backend(), kind, 5, 3, SLOTS, log=True)
    replay.state[...] = rng.uniform(-1, 1, replay.state.shape)
    replay.pools.array("log")[...] = rng.uniform(-1, 1, replay.pools.array("log").shape)
    before = {name: raw.copy() for name, raw in replay.pools.states.items()}
    tokens = kind.tokens(rng, 5)
    for arg, place, value, message in BAD:
        index = {name: values.copy() for name, values in GOOD.items()}
        index[arg][place] = value
        with pytest.raises(BackendError) as error:
            replay.run(**tokens, **index)
        assert message in str(error.value)
        for name, raw in replay.pools.states.items():
            assert np.array_equal(raw, before[name]), (name, message)
    replay.run(**tokens, **GOOD)
    for name, raw in replay.pools.states.items():
        assert not np.array_equal(raw, before[name])


def infer(kind: Kind, **changed: TensorSpec | None) -> tuple[TensorSpec, ...]:
    """Output specs of a pass of three sequences, some inputs being others."""
    arrays = kind.fixed | kind.tokens(np.random.default_rng(0), 5) | GOOD
    of = {"float32": "f32", "int32": "i32"}
    made: dict[str, TensorSpec | None] = {
        name: TensorSpec(a.shape, dtype(of[a.dtype.name])) for name, a in arrays.items()
    }
    made[kind.state] = TensorSpec((SLOTS, kind.width))
    made["log"] = TensorSpec((SLOTS, ENTRIES, kind.entry))
    names = [name.rstrip("?") for name in OPS[kind.op].inputs]
    given = [(made | changed).get(name) for name in names]
    outs: tuple[TensorSpec, ...] = make_op(kind.op, kind.attributes).infer(*given)
    return outs


@every_kind
def test_a_log_is_given_whole_and_for_a_state_without_planes(kind: Kind) -> None:
    log, index = TensorSpec((SLOTS, ENTRIES, kind.entry)), TensorSpec((3,), dtype("i32"))
    none = dict.fromkeys(("log", *NUMBERS))
    assert infer(kind)[2] == log and len(infer(kind, **none)) == 2
    planes = {kind.state: TensorSpec((SLOTS, 2, kind.width)), "start": index, "head": index}
    assert len(infer(kind, **none, **planes)) == 2
    refused: list[tuple[dict[str, TensorSpec | None], type[GraphError], str]] = [
        (planes, ShapeError, "of rank 2 with a log"),
        (dict(log=None), ShapeError, "'log_head' should be absent without a log"),
        *(({name: None}, ShapeError, f"'{name}' should be .* for a log") for name in NUMBERS),
        (dict(n_held=TensorSpec((4,), dtype("i32"))), ShapeError, "'n_held' should be"),
        (dict(n_direct=TensorSpec((3,))), DTypeError, "'n_direct' should be i32"),
        (dict(log=TensorSpec(log.shape, dtype("f16"))), DTypeError, "'log' should be f32"),
    ]
    for wrong in ((SLOTS - 1, 7, kind.entry), (SLOTS, 0, kind.entry), (SLOTS, 7, kind.entry + 1)):
        refused.append((dict(log=TensorSpec(wrong)), ShapeError, "'log' should be"))
    for changed, error, message in refused:
        with pytest.raises(error, match=message):
            infer(kind, **changed)


def test_the_log_is_a_state_with_versions() -> None:
    g = Graph()
    index = {name: g.input(name, (1,), "i32") for name in ("rows", *NUMBERS)}
    x, w = g.input("x", (3, 4)), g.weight("w", TensorSpec((4, 2)))
    offsets, tail = g.input("offsets", (2,), "i32"), g.state("tail", (2, 4))
    log0, numbers = g.state("log", (2, 6, 4)), [index[name] for name in NUMBERS]
    head, n_replay, n_held, n_direct = numbers
    y, tail1, log1 = g.ssm_conv(
        *(x, w, offsets, index["rows"], tail),
        log=log0,
        log_head=head,
        n_replay=n_replay,
        n_held=n_held,
        n_direct=n_direct,
    )
    g.output("y", y)
    verify(g)
    places = plan_memory(g).places
    assert places[log1] == places[log0] and places[tail1] == places[tail]
    assert to_text(parse(to_text(g))) == to_text(g)
    g.output("old log", log0)
    with pytest.raises(GraphError, match="overwritten later"):
        verify(g)
