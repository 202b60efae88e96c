"""Cases beyond the listed ones: shapes, gaps and attributes drawn from the same declarations."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from one_op import cpu
from riverrun.backends.harness import run_case
from riverrun.bench.op_cases import small_cases
from riverrun.graph import OPS, Op, TensorSpec
from riverrun.graph.case import BoundCase, Declared, Fixed, Rand, op_cases
from riverrun.graph.errors import GraphError
from riverrun.graph.op import make_op

EXTENTS = (0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100)
GAPS = (0, 0, 1, 3, 8, 64)
MOST = 1 << 17  # elements of a tensor


def free(case: BoundCase) -> bool:
    """Whether every input of a case is drawn, or an index for each row that can be repeated."""
    rows = case.inputs[0].shape[:1] if case.inputs[0] is not None else ()
    return all(
        d is None
        or isinstance(d, Rand)
        or (d.dtype.name == "i32" and d.shape[:1] == rows and 0 not in d.shape)
        for d in case.inputs
    )


BASES = {
    name: found
    for name in sorted(OPS)
    if OPS[name].rowwise and (found := [c for c in small_cases([name]) if free(c)])
}


def attributes(cls: type[Op]) -> dict[str, list[Any]]:
    """The values that an op's cases give to each attribute."""
    found: dict[str, list[Any]] = {f.name: [] for f in fields(cls)}  # type: ignore[arg-type]
    for case in op_cases(cls):
        for name, value in case.op.attributes().items():
            if value not in found[name]:
                found[name].append(value)
    return found


ATTRIBUTES = {name: attributes(OPS[name]) for name in BASES}


@st.composite
def cases(draw: st.DrawFn) -> BoundCase:
    """A listed case with other extents (equal ones stay equal), gaps and attributes."""
    base = draw(st.sampled_from(BASES[draw(st.sampled_from(sorted(BASES)))]))
    blocks: dict[int, int] = {}
    for d in base.inputs:
        if d is not None and d.shape:
            blocks[d.shape[-1]] = max(blocks.get(d.shape[-1], 1), d.dtype.block)
    extents = {
        n: block * draw(st.sampled_from((1, 2, 3)))
        if (block := blocks.get(n, 1)) > 1
        else draw(st.sampled_from((n, *EXTENTS)))
        for n in sorted({n for d in base.inputs if d is not None for n in d.shape})
    }
    extents |= {n: n for n in indexed(base)}
    inputs = tuple(draw(redrawn(d, extents)) for d in base.inputs)
    op = base.op
    for name, values in ATTRIBUTES[op.name].items():
        if draw(st.booleans()):
            given = {**op.attributes(), name: draw(st.sampled_from(values))}
            op = valid(op.name, given) or op
    label = f"{op.name}[drawn {inputs} {op.attributes()}]"
    return BoundCase(label, op, inputs, ())


def indexed(case: BoundCase) -> set[int]:
    """The extents of weights along axis 0, which given indices may choose from."""
    pairs = zip((n.strip("?*") for n in case.op.inputs), case.inputs, strict=False)
    tables = {d.shape[0] for name, d in pairs if d is not None and name in case.op.constants}
    return tables if any(isinstance(d, Fixed) for d in case.inputs) else set()


def valid(name: str, given: dict[str, Any]) -> Op | None:
    try:
        return make_op(name, given)
    except GraphError:
        return None


@st.composite
def redrawn(draw: st.DrawFn, d: Declared | None, extents: dict[int, int]) -> Declared | None:
    """An input of other extents; a given index for each row comes again in turn."""
    if d is None:
        return None
    shape = tuple(extents[n] for n in d.shape)
    if isinstance(d, Fixed):
        rows = d.values[[i % len(d.values) for i in range(shape[0])]]
        assume(rows.shape == shape)
        return Fixed(rows, d.dtype)
    plain = d.dtype.name == "f32" and len(shape) >= 2
    return replace(d, shape=shape, gap=draw(st.sampled_from(GAPS)) if plain else 0)


def fits(case: BoundCase) -> bool:
    """Whether the op's shape rule takes the case, and it is small."""
    specs = [
        None if d is None else TensorSpec(d.shape, d.dtype, case.strides(i))
        for i, d in enumerate(case.inputs)
    ]
    if any(s is not None and s.size > MOST for s in specs):
        return False
    try:
        outs = case.op.infer(*specs)
    except GraphError:
        return False
    return all(s.size <= MOST for s in (outs if isinstance(outs, tuple) else (outs,)))


SEEN: dict[str, int] = {}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # means of no elements
@settings(
    max_examples=600,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(cases())
def test_drawn_cases_agree_with_the_reference(case: BoundCase) -> None:
    assume(fits(case))
    result = run_case(cpu(2), case)
    SEEN[result.status] = SEEN.get(result.status, 0) + 1
    assert result.status != "failed", f"{case.id}: {result.why}"


def test_most_drawn_cases_ran() -> None:
    if not SEEN:
        pytest.skip("the drawn cases did not run in this process")
    assert SEEN.get("passed", 0) > 100 > SEEN.get("refused", 0)


def test_every_rowwise_op_is_drawn() -> None:
    assert set(BASES) >= {n for n in OPS if OPS[n].rowwise} - {"get_rows", "mul_mat_id"}
