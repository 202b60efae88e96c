"""What holds for each registered op, whatever it computes: its declarations, cases, reference."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from riverrun.graph import OPS, Graph, HostTensor, Op, TensorSpec, parse, to_text, verify
from riverrun.graph.case import BoundCase, op_cases

NAMES = sorted(OPS)
ALL = {name: op_cases(OPS[name]) for name in NAMES}
SMALL = [case for name in NAMES for case in ALL[name] if "perf" not in case.tags]
KINDS = ("bool", "int", "float", "str", "tuple")


def specs_of(case: BoundCase) -> list[TensorSpec | None]:
    """The input specs, with the gaps that the case asks for."""
    return [
        None if d is None else TensorSpec(d.shape, d.dtype, case.strides(i))
        for i, d in enumerate(case.inputs)
    ]


def infer(case: BoundCase) -> tuple[TensorSpec, ...]:
    """The output specs of a case."""
    outs = case.op.infer(*specs_of(case))
    return outs if isinstance(outs, tuple) else (outs,)


def values(tensors: list[HostTensor | None]) -> list[np.ndarray | None]:
    """Inputs as a reference gets them."""
    return [None if t is None else t.decoded().copy() for t in tensors]


def run(op: Op, inputs: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """The outputs of the reference."""
    outs = op.reference(*inputs)
    return outs if isinstance(outs, tuple) else (outs,)


def of_op(cases: list[BoundCase]) -> Any:
    """Let a check of a case be a test of each op: of all its cases, naming the first that fails."""

    def made(check: Callable[[BoundCase], None]) -> Callable[[str], None]:
        names = sorted({case.op.name for case in cases})

        @pytest.mark.parametrize("name", names)
        def test(name: str) -> None:
            for case in cases:
                if case.op.name == name:
                    try:
                        check(case)
                    except Exception as error:
                        raise AssertionError(case.id) from error

        return test

    return made


@pytest.mark.parametrize("name", NAMES)
def test_declarations_name_inputs_and_outputs(name: str) -> None:
    cls = OPS[name]
    inputs = [n.strip("?*") for n in cls.inputs]
    assert len(set(inputs)) == len(inputs) > 0
    assert all(not n.startswith("*") for n in cls.inputs[:-1])
    assert set(cls.constants) <= set(inputs)
    for aliases in (cls.writes, cls.inplace):
        for output, sources in aliases.items():
            assert output in cls.output_names()
            assert set(sources.split()) <= set(inputs)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    assert all(str(f.type).partition("[")[0] in KINDS for f in fields)
    assert not {f.name for f in fields} & {*inputs, "name"}
    assert cls.__doc__ and cls.__doc__ != Op.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_builder_method(name: str) -> None:
    """`help(g.rms_norm)` shows inputs, attributes and what the op computes."""
    cls, method = OPS[name], getattr(Graph(), name)
    shown = list(inspect.signature(method).parameters)
    attributes = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    assert shown == [*(n.strip("?*") for n in cls.inputs), *attributes, "name"]
    page = pydoc.plain(pydoc.render_doc(method))
    assert cls.__doc__ is not None and cls.__doc__.splitlines()[0] in page


@pytest.mark.parametrize("name", NAMES)
def test_cases_exist_and_are_named_apart(name: str) -> None:
    cases = ALL[name]
    assert len({case.id for case in cases}) == len(cases) > 0
    assert all(case.id.startswith(f"{name}[") for case in cases)
    assert OPS[name].view or any("perf" in case.tags for case in cases)


@of_op([case for name in NAMES for case in ALL[name]])
def test_case_infers(case: BoundCase) -> None:
    specs, outs = specs_of(case), infer(case)
    wanted = [n for n in case.op.outputs if not n.endswith("?")]
    names = case.op.output_names(len(outs))
    assert len(wanted) <= len(names) == len(outs)
    cost = case.op.cost(*specs)
    assert all(type(n) is int and n >= 0 for n in dataclasses.astuple(cost))
    if case.op.view:
        assert (cost.flops, cost.read, cost.write) == (0, 0, 0)
        return
    assert all(out.contiguous for out in outs)
    named = dict(zip([n.strip("?*") for n in case.op.inputs], specs, strict=False))
    for output, sources in (case.op.writes | case.op.inplace).items():
        for source in sources.split():
            spec = named[source]
            if output not in names:
                assert spec is None
                continue
            out = outs[names.index(output)]
            assert spec is not None and (spec.shape, spec.dtype) == (out.shape, out.dtype)


@of_op(SMALL)
def test_reference_agrees_with_infer_and_leaves_its_inputs(case: BoundCase) -> None:
    inputs = values(case.draw())
    before = [None if x is None else x.tobytes() for x in inputs]
    outs = run(case.op, inputs)
    assert [None if x is None else x.tobytes() for x in inputs] == before
    for spec, out in zip(infer(case), outs, strict=True):
        # Block types and bf16 have no array type of their own; their values are f32.
        expected = spec.dtype.numpy or np.dtype(np.float32)
        assert isinstance(out, np.ndarray)
        assert (out.shape, out.dtype) == (spec.shape, expected)


@of_op(SMALL)
def test_case_draws_the_same_inputs_again(case: BoundCase) -> None:
    for one, two in zip(case.draw(), case.draw(), strict=True):
        assert (one is None and two is None) or (
            one is not None and two is not None and one.raw.tobytes() == two.raw.tobytes()
        )


def rowwise_inputs(case: BoundCase) -> list[int]:
    """The inputs that axis 0 of the outputs runs along."""
    n, first = infer(case)[0].shape[0], case.inputs[0]
    assert first is not None
    return [
        i
        for i, (name, d) in enumerate(zip(case.names, case.inputs, strict=True))
        if d is not None
        and d.shape[:1] == (n,)
        and name not in case.op.constants
        and (name not in case.op.broadcasts or len(d.shape) == len(first.shape))
    ]


def has_rows(case: BoundCase) -> bool:
    """Whether a rowwise op gets several rows; a lone row of rank 1 is all features, no rows."""
    first = case.inputs[0]
    several = first is not None and len(first.shape) >= 2 and infer(case)[0].shape[0] > 1
    return case.op.rowwise and several


ROWWISE = [case for case in SMALL if has_rows(case)]


@of_op(ROWWISE)
def test_row_of_a_rowwise_reference_stands_alone(case: BoundCase) -> None:
    inputs, along = values(case.draw()), rowwise_inputs(case)
    outs = run(case.op, inputs)
    assert along
    for i in (0, len(outs[0]) - 1):
        alone = [x[i : i + 1] if x is not None and j in along else x for j, x in enumerate(inputs)]
        for out, row in zip(outs, run(case.op, alone), strict=True):
            assert row.tobytes() == np.ascontiguousarray(out[i : i + 1]).tobytes()


def test_every_rowwise_op_has_a_case_with_rows() -> None:
    assert {n for n in NAMES if OPS[n].rowwise} == {case.op.name for case in ROWWISE}


@pytest.mark.parametrize("name", NAMES)
def test_graph_of_the_first_case_prints_and_parses(name: str) -> None:
    case, cls = ALL[name][0], OPS[name]
    names = [n.strip("?*") for n in cls.inputs]
    states = {names.index(source) for source in cls.writes.values()}
    g = Graph(name)
    given = []
    for i, d in enumerate(case.inputs):
        make = g.state if i in states else g.input
        given.append(None if d is None else make(f"in.{i}", d.shape, d.dtype))
    node = g.apply(case.op, tuple(given), "it")
    for i in range(len(node.specs)):
        g.output(f"out.{i}", node.value(i))
    verify(g)
    again = parse(to_text(g))
    verify(again)
    assert to_text(again) == to_text(g)
    assert again.nodes[-1].op == case.op
