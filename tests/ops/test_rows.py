"""A row of a step has the same bits alone and among any others: every case of every op on the CPU,
and what an op declares about its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from one_op import cpu
from riverrun.backends.harness import outline
from riverrun.backends.reference import ReferenceBackend
from riverrun.backends.row_exact import SIZES, check_rows, undeclared
from riverrun.graph import OPS, Op, TensorSpec, register
from riverrun.graph.case import BoundCase, Case, Fixed, f32, fixed, ints, op_cases
from run_cases import first_of_patterns, small_cases

CASES = small_cases()
# 9 is the first size that products of several rows do not take in one go.
FEW = (2, 9, 33)


# Every case runs at one of these, and the first of each pattern of operands at all sizes: each
# kernel meets each size, and each shape meets one.
PATTERNS = first_of_patterns(CASES)
FIRST = {case.id for case in PATTERNS}


def few(case: BoundCase) -> tuple[int, ...]:
    return FEW if case.id in FIRST else (FEW[crc32(case.id.encode()) % len(FEW)],)


def check(case: BoundCase, sizes: tuple[int, ...]) -> None:
    result = check_rows([cpu(1), cpu(2)], case, sizes)
    if result.status == "refused":
        assert result.why in (case.op.no_rows, "a view: nothing runs") or without_rows(case)
        pytest.skip(result.why)
    assert result.status == "passed", result.why


def without_rows(case: BoundCase) -> bool:
    """Whether there are no tokens or rows, or one axis only, which is a single row."""
    named = {name: d for name, d in zip(case.names, case.inputs, strict=True) if d is not None}
    if not case.op.per_token:
        return len(named[case.names[0]].shape) < 2 or outline(case).specs[0].shape[0] == 0
    offsets = named.get("seq_offsets")
    no_tokens = isinstance(offsets, Fixed) and not offsets.values[-1]
    return no_tokens or named[case.op.per_token[0]].shape[0] == 0


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_rows_keep_their_bits(case: BoundCase) -> None:
    check(case, few(case))


@pytest.mark.parametrize("case", PATTERNS, ids=[case.id for case in PATTERNS])
def test_rows_keep_their_bits_among_any_number(case: BoundCase) -> None:
    check(case, tuple(n for n in SIZES if n not in FEW))


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_says_which_rows_it_has(name: str) -> None:
    assert undeclared(make(name)) == ""


def make(name: str) -> Op:
    return op_cases(OPS[name])[0].op


class Carried(Op):
    """y = x plus the sum of the rows of its sequence before it, the sum going on in a state

    x: [N, D] f32; scale: [B] i32, which each row is multiplied by; seq_offsets: i32 [B + 1];
    state_rows: i32 [B]; state: [R, D] f32; last: [B, D] f32, the last row of y."""

    inputs = ("x", "scale", "seq_offsets", "state_rows", "state")
    outputs = ("y", "state_out", "last")
    writes = {"state_out": "state"}
    others = 0.0  # what rows of other sequences add

    def infer(self, x: TensorSpec, *given: TensorSpec) -> tuple[TensorSpec, ...]:
        return x.like(), given[3].like(), TensorSpec((given[0].shape[0], x.shape[1]))

    def reference(
        self, x: np.ndarray, scale: np.ndarray, seq_offsets: np.ndarray, *kept: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        state_rows, state = kept
        y, state = np.zeros_like(x), state.copy()
        last = np.zeros((len(state_rows), x.shape[1]), np.float32)
        for b, row in enumerate(state_rows):
            for t in range(seq_offsets[b], seq_offsets[b + 1]):
                state[row] += x[t] * scale[b] + np.float32(self.others * len(x))
                y[t] = last[b] = state[row]
        return y, state, last

    @staticmethod
    def cases() -> Iterable[Case]:
        for lengths in ((3,), (2, 0, 5)):
            batch = len(lengths)
            yield Case(
                f"t={lengths}",
                x=f32(sum(lengths), 4),
                scale=ints(*range(1, batch + 1)),
                seq_offsets=fixed(np.cumsum((0, *lengths)), "i32"),
                state_rows=ints(*range(batch - 1, -1, -1)),
                state=f32(batch, 4),
            )


DECLARED = {"per_token": ("x",), "per_sequence": ("scale", "state_rows", "last")}


@pytest.fixture
def results(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """What is said of the cases of the op above with these class attributes."""
    made = register(type("Made", (Carried,), {"name": "carried", **request.param}))
    try:
        cases = op_cases(made)
        found = [check_rows([ReferenceBackend()], case, (2, 9)) for case in cases]
        yield [f"{r.status}: {r.why}" for r in found]
    finally:
        del OPS["carried"]


@pytest.mark.parametrize("results", [DECLARED], indirect=True)
def test_a_new_ragged_op_needs_no_other_file(results: list[str]) -> None:
    assert results == ["passed: "] * 2


@pytest.mark.parametrize("results", [DECLARED | {"others": 1e-3}], indirect=True)
def test_rows_of_a_new_op_that_depend_on_others_are_found(results: list[str]) -> None:
    assert results[0].startswith("failed: y: a sequence among 9 rows differs from it alone")
    assert results[1].startswith("failed: y: sequence 0 differs from it alone")


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ({}, "takes seq_offsets and declares neither per_token nor, with the reason, no_rows"),
        ({"per_token": ("x",)}, "its rows are found by an input state_rows per sequence"),
        (DECLARED | {"per_token": ("y2",)}, "per_token names 'y2', which is no input or output"),
        (DECLARED | {"rowwise": True}, "declares both rowwise and per_token; one of them holds"),
        ({"no_rows": "so it is", "rowwise": True}, "declares both no_rows and rowwise"),
        # An operand that is left out keeps the rows of the whole batch.
        (DECLARED | {"per_sequence": ("state_rows", "last")}, ""),
    ],
    indirect=["results"],
)
def test_an_op_that_does_not_say_which_rows_it_has_fails(results: list[str], why: str) -> None:
    assert all(r.startswith("failed: ") for r in results[1:]) and results[1:]
    assert why in results[1]


def test_an_op_without_declarations_fails_too() -> None:
    silent = type("Silent", (Op,), {"name": "silent", "inputs": ("x",)})()
    want = "silent is not row-wise and declares neither per_token nor, with the reason, no_rows"
    assert undeclared(silent) == want
    silent.__class__.per_token = ("x",)
    assert undeclared(silent) == "silent has rows without a state: declare rowwise"


def test_reasons_for_having_no_rows_are_reported() -> None:
    (concat, *_), (view, *_) = op_cases(OPS["concat"]), op_cases(OPS["view"])
    result = check_rows([cpu(1)], concat)
    assert (result.status, result.why) == ("refused", OPS["concat"].no_rows)
    assert check_rows([cpu(1)], view).why == "a view: nothing runs"


@pytest.mark.parametrize("name", sorted(OPS))
def test_only_ops_with_a_log_are_recurrent(name: str) -> None:
    assert OPS[name].recurrent == ("log?" in OPS[name].inputs)


def test_a_factor_that_broadcasts_has_no_rows_of_its_own() -> None:
    add = make("add")
    square, row, each = TensorSpec((4, 4)), TensorSpec((4,)), TensorSpec((4, 1))
    assert add.row_inputs(square, row) == (0,)
    assert add.row_inputs(square, each) == (0, 1)
    assert add.row_inputs(row, row) == ()
