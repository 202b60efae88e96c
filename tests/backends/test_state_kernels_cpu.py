"""CPU kernels that keep state: rows without company, passes split anywhere, rings, bad data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from lower_levels import check_at, integers_only
from one_op import bits
from rig import Rig
from riverrun.backends.cpu import instruction_sets
from riverrun.graph.errors import BackendError

COUNTS = [*range(1, 18), 33, 65, 260]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Kind:
    """A recurrent op of fixed sizes: the width of its state, and inputs of n random tokens."""

    op: str
    state: str
    width: int
    tokens: Callable[[np.random.Generator, int], Arrays]
    fixed: Arrays = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    def rig(self, arrays: Arrays, kept: np.ndarray, threads: int = 1) -> Rig:
        """The op on these tokens and indices, from this state."""
        return Rig(
            self.op, {**self.fixed, **arrays}, {self.state: kept}, threads, **self.attributes
        )


def net(s: int, *, hk: int = 2, repeat: int = 2, kda: bool = False, heads: str = "tiled") -> Kind:
    """A gated delta net."""
    hv = hk * repeat

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        def unit() -> np.ndarray:
            x = rng.standard_normal((n, hk, s))
            return (x / np.sqrt((x * x).sum(-1, keepdims=True))).astype(np.float32)

        return {
            "q": unit(),
            "k": unit(),
            "v": rng.standard_normal((n, hv, s)).astype(np.float32),
            "g": -rng.uniform(0, 3, (n, hv, s) if kda else (n, hv)).astype(np.float32),
            "beta": rng.uniform(0, 1, (n, hv)).astype(np.float32),
        }

    return Kind("gated_delta_net", "state", hv * s * s, tokens, {}, {"heads": heads})


def conv(channels: int, taps: int) -> Kind:
    """A short convolution."""
    w = np.random.default_rng(channels).standard_normal((channels, taps)).astype(np.float32)

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        return {"x": rng.standard_normal((n, channels)).astype(np.float32)}

    return Kind("ssm_conv", "tail", (taps - 1) * channels, tokens, {"w": w})


def scan(heads: int, values: int, size: int, groups: int = 1, steps: float = 0.0) -> Kind:
    """Mamba-2's scan; steps: what dt is about."""
    a = -np.random.default_rng(heads).uniform(0.5, 1.5, heads).astype(np.float32)

    def tokens(rng: np.random.Generator, n: int) -> Arrays:
        shapes = {"x": (heads, values), "dt": (heads,), "b": (groups, size), "c": (groups, size)}
        found = {k: rng.standard_normal((n, *s)).astype(np.float32) for k, s in shapes.items()}
        return found | {"dt": found["dt"] + np.float32(steps)}

    return Kind("ssm_scan", "state", heads * values * size, tokens, {"a": a})


KINDS = {
    "scan": scan(3, 16, 128),
    "scan, groups": scan(4, 6, 33, groups=2),
    "scan, one value": scan(2, 1, 7),
    "delta": net(32),
    "delta, grouped": net(64, heads="grouped"),
    "delta, one key head": net(16, hk=1, repeat=3),
    "delta, odd size": net(20, repeat=1),
    "delta, vector gate": net(32, kda=True),
    "delta, vector gate, odd size": net(7, kda=True),
    "delta, 128": net(128, repeat=1),
    "conv": conv(300, 4),
    "conv, two taps": conv(48, 2),
    "conv, seven taps": conv(17, 7),
}
MIXED = ["delta, grouped", "delta, vector gate", "conv", "scan"]
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def take(tokens: Arrays, rows: slice) -> Arrays:
    return {k: v[rows] for k, v in tokens.items()}


def random_state(kind: Kind, *shape: int) -> np.ndarray:
    return np.random.default_rng(kind.width).uniform(-1, 1, (*shape, kind.width)).astype(np.float32)


def one_by_one(kind: Kind, tokens: Arrays, kept: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The outputs of passes of one token each, and the states before the first and after each."""
    indices = {"seq_offsets": i32(0, 1), "state_rows": i32(0)}
    rig = kind.rig({**take(tokens, slice(0, 1)), **indices}, kept[None])
    outputs, states = [], [kept]
    for i in range(len(next(iter(tokens.values())))):
        outputs.append(rig.run(**take(tokens, slice(i, i + 1))))
        states.append(rig.state(kind.state)[0])
    return np.concatenate(outputs), states


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(bits(a), bits(b))


@every_kind
@pytest.mark.parametrize("planes", [0, 1, 3, 30])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_pass_of_many_tokens_is_the_passes_of_one(kind: Kind, planes: int, threads: int) -> None:
    n = 19
    tokens = kind.tokens(np.random.default_rng(1), n)
    before = random_state(kind, 2, planes) if planes else random_state(kind, 2)
    start = planes // 2
    want, states = one_by_one(kind, tokens, before[1, start] if planes else before[1])

    indices = {"seq_offsets": i32(0, n), "state_rows": i32(1)}
    if planes:
        indices.update(start=i32(start), head=i32(planes - 1))
    rig = kind.rig({**tokens, **indices}, before, threads)
    assert same(rig.run(), want)
    expected = before.copy()
    if planes:
        for age in range(min(n, planes)):
            expected[1, (planes - 1 + age) % planes] = states[n - age]
    else:
        expected[1] = states[n]
    assert same(rig.state(kind.state), expected)


LONG = {
    "128": net(128, hk=1),
    "128, grouped": net(128, repeat=1, heads="grouped"),
    "128, vector gate": net(128, hk=1, repeat=1, kda=True),
    "64": net(64, repeat=3),
    "64, vector gate": net(64, hk=1, kda=True),
    "40": net(40, heads="grouped"),
    "40, vector gate": net(40, kda=True),
    "less than a vector": net(7),
}


@pytest.mark.parametrize("kind", LONG.values(), ids=LONG)
@pytest.mark.parametrize("planes", [0, 1, 3])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_passes_are_the_passes_of_one(kind: Kind, planes: int, threads: int) -> None:
    """Sequences of lengths about those from which rows are turned, and which end anywhere in a
    chunk; planes and rows that the pass does not own stay as they are."""
    lengths, rows = (100, 1, 31, 32, 35), (4, 0, 1, 5, 2)
    tokens = kind.tokens(np.random.default_rng(1), sum(lengths) + 2)
    before = random_state(kind, 6, planes) if planes else random_state(kind, 6)
    start, head = [b % max(planes, 1) for b in range(5)], max(planes, 1) - 1
    offsets = i32(0, *np.cumsum(lengths))
    indices = {"seq_offsets": offsets, "state_rows": i32(*rows)}
    if planes:
        indices.update(start=i32(*start), head=i32(*[head] * 5))
    rig = kind.rig({**tokens, **indices}, before, threads)
    y, expected = rig.run(), before.copy()
    for b, (length, row) in enumerate(zip(lengths, rows, strict=True)):
        at = slice(offsets[b], offsets[b + 1])
        kept = before[row, start[b]] if planes else before[row]
        want, states = one_by_one(kind, take(tokens, at), kept)
        assert same(y[at], want), f"sequence {b}"
        if not planes:
            expected[row] = states[length]
        for age in range(min(length, planes)):
            expected[row, (head + age) % planes] = states[length - age]
    assert not y[offsets[-1] :].any()
    assert same(rig.state(kind.state), expected)


LOWER = [isa for isa in instruction_sets()[:-1] if not integers_only(isa)]


@pytest.mark.parametrize("isa", LOWER)
def test_long_passes_at_lower_instruction_sets(isa: str) -> None:
    check_at(isa, __file__, "passes_of_one")


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65])
@pytest.mark.parametrize("steps", [-5.0, 0.0, 27.6], ids=["keeps", "fades", "1e-12 a token"])
def test_a_scan_split_anywhere(n: int, steps: float) -> None:
    """Two passes for each place to split at, and one of all tokens."""
    kind = scan(2, 6, 40, steps=steps)
    tokens = kind.tokens(np.random.default_rng(n), n)
    before = random_state(kind, 1)
    want, states = one_by_one(kind, tokens, before[0])
    indices = {"seq_offsets": i32(0, n), "state_rows": i32(0)}
    whole = kind.rig({**tokens, **indices}, before)
    for at in range(n):
        first = whole.run(**pad(take(tokens, slice(0, at)), n), seq_offsets=i32(0, at))[:at]
        rest = whole.run(**pad(take(tokens, slice(at, n)), n), seq_offsets=i32(0, n - at))
        assert same(np.concatenate([first, rest[: n - at]]), want)
        assert same(whole.state(kind.state)[0], states[n])
        whole.pools.load(kind.state, before.reshape(-1).view(np.uint8))


def pad(tokens: Arrays, n: int) -> Arrays:
    """With zeros up to n rows."""
    return {
        k: np.concatenate([v, np.zeros((n - len(v), *v.shape[1:]), v.dtype)])
        for k, v in tokens.items()
    }


@every_kind
@pytest.mark.parametrize("threads", [1, 2])
def test_rings_over_passes_with_rollback(kind: Kind, threads: int) -> None:
    """Two sequences: each pass goes on from where some tokens of the one before were dropped.

    The pool is compared whole, so that planes and rows which a pass does not own stay as they
    are."""
    planes, room, rows = 4, 8, i32(2, 0)
    rng = np.random.default_rng(7)
    expected = random_state(kind, 3, planes)
    indices = {"seq_offsets": i32(0, 0, 0), "state_rows": rows, "start": i32(0, 0)}
    rig = kind.rig({**kind.tokens(rng, room), **indices, "head": i32(0, 0)}, expected, threads)
    current = [1, 3]
    for lengths, kept in [
        ((3, 1), (1, 1)),
        ((1, 5), (0, 2)),
        ((0, 4), (0, 4)),
        ((6, 2), (5, 0)),
        ((2, 0), (2, 0)),
        ((4, 4), (1, 4)),
    ]:
        tokens = kind.tokens(rng, room)
        head = [(c - t) % planes for c, t in zip(current, lengths, strict=True)]
        offsets = i32(0, lengths[0], sum(lengths))
        y = rig.run(**tokens, seq_offsets=offsets, start=i32(*current), head=i32(*head))
        for b in range(2):
            at = slice(offsets[b], offsets[b + 1])
            row, length = expected[rows[b]], lengths[b]
            if length == 0:
                continue
            want, states = one_by_one(kind, take(tokens, at), row[current[b]].copy())
            assert same(y[at], want)
            for age in range(min(length, planes)):
                row[(head[b] + age) % planes] = states[length - age]
            if length - kept[b] < min(length, planes):
                current[b] = (head[b] + length - kept[b]) % planes
        assert not y[offsets[2] :].any()
        assert same(rig.state(kind.state), expected)


@pytest.mark.parametrize("kind", [KINDS[k] for k in MIXED], ids=MIXED)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sequence_is_alone_in_any_company(kind: Kind, threads: int) -> None:
    """Three tokens between companions that fill a pass up to n tokens."""
    mine = kind.tokens(np.random.default_rng(2), 3)
    kept = random_state(kind, 3)
    for n in COUNTS:
        length = min(n, 3)
        want, states = one_by_one(kind, take(mine, slice(0, length)), kept[1])
        others = kind.tokens(np.random.default_rng(n), n)
        first = (n - length) // 2
        for name, array in others.items():
            array[first : first + length] = mine[name][:length]
        indices = {"seq_offsets": i32(0, first, first + length, n), "state_rows": i32(0, 1, 2)}
        rig = kind.rig({**others, **indices}, kept, threads)
        assert same(rig.run()[first : first + length], want)
        assert same(rig.state(kind.state)[1], states[-1])


@pytest.mark.parametrize("gate", [-np.inf, -1e30, -104.0, -90.0])
@pytest.mark.parametrize("kda", [False, True])
def test_a_decay_to_nothing_forgets(gate: float, kda: bool) -> None:
    kind = net(16, kda=kda)
    tokens = kind.tokens(np.random.default_rng(3), 2)
    tokens["g"][0] = gate
    tokens["beta"][0] = 0
    indices = {"seq_offsets": i32(0, 1), "state_rows": i32(0)}
    rig = kind.rig({**take(tokens, slice(0, 1)), **indices}, 100 * random_state(kind, 1))
    assert not rig.run().any()
    assert not rig.state("state").any()
    rig = kind.rig({**tokens, **indices, "seq_offsets": i32(0, 2)}, random_state(kind, 1))
    fresh = kind.rig(
        {**take(tokens, slice(1, 2)), **indices}, np.zeros((1, kind.width), np.float32)
    )
    assert same(rig.run()[1:], fresh.run())
    assert same(rig.state("state"), fresh.state("state"))


def test_no_decay_and_no_update_keep_the_state() -> None:
    kind = net(32)
    tokens = kind.tokens(np.random.default_rng(3), 5)
    tokens["g"][:] = 0
    tokens["beta"][:] = 0
    kept = random_state(kind, 1)
    rig = kind.rig({**tokens, "seq_offsets": i32(0, 5), "state_rows": i32(0)}, kept)
    rig.run()
    assert np.array_equal(rig.state("state"), kept)


BAD = [
    ({"seq_offsets": i32(1, 2, 4)}, r"'seq_offsets' should be 0 at \[0\], got 1"),
    ({"seq_offsets": i32(0, 3, 2)}, r"'seq_offsets' .*ascending.* got 3, 2 at \[2\]"),
    ({"seq_offsets": i32(0, -1, 4)}, r"'seq_offsets' .*got 0, -1 at \[1\]"),
    ({"seq_offsets": i32(0, 2, 9)}, r"'seq_offsets' .*at most 5.* got 2, 9 at \[2\]"),
    ({"state_rows": i32(0, 3)}, r"'state_rows' should be in \[0, 3\), got 3 at \[1\]"),
    ({"state_rows": i32(-1, 1)}, r"'state_rows' should be in \[0, 3\), got -1 at \[0\]"),
    ({"state_rows": i32(1, 1)}, r"'state_rows' .*own.*got 1 for sequences 0 and 1"),
    ({"start": i32(0, 2)}, r"'start' should be in \[0, 2\), got 2 at \[1\]"),
    ({"head": i32(-2, 0)}, r"'head' should be in \[0, 2\), got -2 at \[0\]"),
]


@pytest.mark.parametrize("kind", [net(64), conv(4096, 4)], ids=["delta", "conv"])
@pytest.mark.parametrize("wrong, message", BAD, ids=[m for _, m in BAD])
@pytest.mark.parametrize("threads", [1, 2])
def test_bad_indices_are_told_and_leave_the_state(
    kind: Kind, wrong: Arrays, message: str, threads: int
) -> None:
    kept = random_state(kind, 3, 2)
    good = {"seq_offsets": i32(0, 2, 4), "state_rows": i32(2, 0)}
    good.update(start=i32(0, 1), head=i32(1, 1))
    rig = kind.rig({**kind.tokens(np.random.default_rng(4), 5), **good}, kept, threads)
    with pytest.raises(BackendError, match=message):
        rig.run(**wrong)
    assert same(rig.state(kind.state), kept)
    rig.run()
    assert not same(rig.state(kind.state), kept)


@every_kind
def test_sequences_without_tokens_may_share_a_row(kind: Kind) -> None:
    kept = random_state(kind, 2)
    indices = {"seq_offsets": i32(0, 0, 2, 2), "state_rows": i32(1, 1, 1)}
    rig = kind.rig({**kind.tokens(np.random.default_rng(5), 3), **indices}, kept)
    rig.run()
    assert same(rig.state(kind.state)[0], kept[0])
    assert not same(rig.state(kind.state)[1], kept[1])


def rows_rig(of: str, n: int, idx: np.ndarray, threads: int) -> tuple[Rig, np.ndarray, np.ndarray]:
    """write_rows of n random rows, the rows, and the pool before; f32, f16, or bf16 as bits."""
    rng = np.random.default_rng(n)
    pool = rng.standard_normal((40, 3, 100)).astype(np.float32)
    rows = rng.standard_normal((n, 3, 100)).astype(np.float32)
    before: Arrays = {"f32": pool, "f16": pool.astype(np.float16), "bf16": to_bf16(pool)}
    return (
        Rig("write_rows", {"rows": rows, "idx": idx}, {"state": before[of]}, threads),
        rows,
        before[of],
    )


def to_bf16(x: np.ndarray) -> np.ndarray:
    b = x.view(np.uint32).astype(np.uint64)
    return ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("of", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 4, 260])
def test_written_rows_and_no_others(of: str, threads: int, n: int) -> None:
    idx = np.random.default_rng(n + 1).integers(-20, 40, n).astype(np.int32)
    rig, rows, expected = rows_rig(of, n, idx, threads)
    rig.run()
    convert = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16), "bf16": to_bf16}[of]
    for i, to in enumerate(idx):
        if to >= 0:
            expected[to] = convert(rows[i])
    assert same(rig.state("state"), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_beyond_the_pool_writes_nothing(threads: int) -> None:
    idx = np.arange(260, dtype=np.int32) % 40
    idx[259] = 40
    rig, _, before = rows_rig("f16", 260, idx, threads)
    with pytest.raises(BackendError, match=r"'idx' should be below 40, got 40 at \[259\]"):
        rig.run()
    assert same(rig.state("state"), before)


def test_values_that_f16_and_bf16_cannot_hold() -> None:
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 7e4, 65519.9, 6e-8, 2e-8, 3.4e38, 1e-45])
    strange = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    row = np.resize(np.r_[values.astype(np.float32), strange], 100)
    for of in ("f16", "bf16"):
        rig, _, _ = rows_rig(of, 1, i32(5), 1)
        rig.run(rows=np.broadcast_to(row, (1, 3, 100)))
        got = rig.state("state")[5, 0]
        with np.errstate(over="ignore"):
            want = row.astype(np.float16) if of == "f16" else to_bf16(row)
        wide = got if of == "f16" else (got.astype(np.uint32) << 16).view(np.float32)
        number = ~np.isnan(row)
        assert np.isnan(wide[~number]).all()
        assert same(got[number], want[number])
