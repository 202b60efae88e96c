"""The processor's fused nodes: the bits of the nodes that they stand for, and where plans have
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from lower_levels import check_at
from one_op import bits, cpu, normal
from riverrun.backends.base import BoundPlan, Pools
from riverrun.backends.cpu import instruction_sets
from riverrun.backends.harness import Built, build, execute
from riverrun.backends.native import FUSE
from riverrun.bench.op_cases import small_cases
from riverrun.graph import Graph, HostTensor, TensorSpec, Value, make_op
from riverrun.graph.case import BoundCase
from riverrun.graph.codec import encode
from riverrun.graph.dtype import dtype
from riverrun.graph.passes.expand import expand

K = 2304  # two whole stretches of k that sums are cut at and a part of one
COUNTS = (*range(1, 18), 33, 65, 260)
SOME = (1, 5, 33)
MIXES = {
    "alike": (("q4_k", 72), ("q4_k", 16), ("q4_k", 1)),
    "k": (("q6_k", 72), ("q4_k", 40), ("q5_k", 17), ("q4_k", 16)),
    "blocks": (("q8_0", 33), ("q4_1", 40), ("q8_0", 16), ("q3_k", 48)),
    "floats": (("q8_0", 160), ("f32", 16), ("f32", 17), ("bf16", 5), ("f16", 40)),
    "one": (("q6_k", 300),),
    "tables": (("iq4_xs", 48), ("iq2_s", 33), ("mxfp4", 16), ("q2_k", 7)),
}


@cache
def weight(of: str, m: int, k: int) -> HostTensor:
    raw = np.ascontiguousarray(encode(dtype(of), normal(m, m, k))).reshape(-1).view(np.uint8)
    return HostTensor(TensorSpec((m, k), dtype(of)), raw)


def norm_of(g: Graph, k: int) -> Value:
    return g.constant(1 + normal(3, k) / 8, "norm")


Operands = Callable[[Graph, int, int, list[Value]], tuple[Value, ...]]


def gapped(g: Graph, name: str, n: int, *shape: int) -> Value:
    """A part of the last axis of an input."""
    whole = g.input(name, (n, *shape[:-1], shape[-1] + 32))
    return g.view(whole, axis=len(shape), start=32, stop=shape[-1] + 32)


def given(g: Graph, n: int, k: int, ws: list[Value]) -> tuple[Value, ...]:
    return gapped(g, "x", n, k), *ws


def normed(g: Graph, n: int, k: int, ws: list[Value]) -> tuple[Value, ...]:
    return gapped(g, "x", n, k), norm_of(g, k), *ws


def summed(g: Graph, n: int, k: int, ws: list[Value]) -> tuple[Value, ...]:
    return g.input("x", (n, k)), gapped(g, "delta", n, k), norm_of(g, k), *ws


def gated(g: Graph, n: int, k: int, ws: list[Value]) -> tuple[Value, ...]:
    return gapped(g, "gate", n, 32, k // 32), gapped(g, "up", n, 32, k // 32), *ws


def heads(g: Graph, n: int, k: int, ws: list[Value]) -> tuple[Value, ...]:
    x, gate = gapped(g, "x", n, k // 128, 128), gapped(g, "gate", n, k // 128, 128)
    return x, norm_of(g, 128), gate, *ws


OPS: dict[str, tuple[Operands, dict[str, Any]]] = {
    "mul_mats": (given, {}),
    "norm_mul_mats": (normed, {"eps": 1e-6}),
    "add_norm_mul_mats": (summed, {"eps": 1e-6}),
    "gated_norm_mul_mat": (heads, {"eps": 1e-6}),
    **{f"glu_mul_mat {act}": (gated, {"act": act}) for act in ("silu", "gelu", "sigmoid")},
}
MANY = [name for name in OPS if name.endswith("mats")]
ONE = [name for name in OPS if name not in MANY]
PAIRS = [(op, mix) for op in MANY for mix in MIXES] + [(op, "one") for op in ONE]


class Runs:
    """A fused node, or the nodes of its expansion, with n rows."""

    def __init__(self, op: str, mix: str, n: int, k: int, threads: int, fused: bool) -> None:
        g, (operands, attributes) = Graph(op), OPS[op]
        ws = [g.constant(weight(of, m, k), f"w.{i}") for i, (of, m) in enumerate(MIXES[mix])]
        made = make_op(op.split()[0], attributes)
        inputs = operands(g, n, k, ws)
        if fused:
            values = g.apply(made, inputs).values
        else:
            parts = made.expand(g, *inputs)
            values = parts if isinstance(parts, tuple) else (parts,)
        for i, value in enumerate(values):
            g.output(f"y{i}", value)
        plan = cpu(threads).compile(g)
        self.ops = Counter(choice.kernel.op for choice in plan.choices)
        self.bound: BoundPlan = plan.bind(plan.own_weights(), Pools(plan.states))

    def __call__(self, rows: int | None = None) -> list[np.ndarray]:
        for i, (_, array) in enumerate(sorted(self.bound.inputs.items())):
            array[...] = 3 * normal(20 + i, *array.shape)
        self.bound.scratch[...] = 0xFF
        self.bound.run(rows)
        return [np.array(value) for value in self.bound.outputs.values()]


@pytest.fixture(autouse=True)
def nothing_else_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUSE, "0")


def check(op: str, mix: str, n: int, threads: int, rows: int | None = None, k: int = K) -> None:
    node = Runs(op, mix, n, k, threads, fused=True)
    assert node.ops == {op.split()[0]: 1}
    parts = Runs(op, mix, n, k, 1, fused=False)
    for have, want in zip(node(rows), parts(), strict=True):
        np.testing.assert_array_equal(bits(have[:rows]), bits(want[:rows]), f"{n} rows")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("op, mix", PAIRS)
def test_it_gives_the_bits_of_its_parts(op: str, mix: str, threads: int) -> None:
    for n in COUNTS if mix in ("k", "one") and threads == 2 else SOME:
        check(op, mix, n, threads)


@pytest.mark.parametrize("op, mix", PAIRS)
def test_short_rows_that_each_thread_makes_for_itself(op: str, mix: str) -> None:
    for n in (1, 4, 5, 257):
        check(op, mix, n, 3, k=256)


@pytest.mark.parametrize("op", OPS)
def test_more_rows_than_are_prepared_at_a_time(op: str) -> None:
    check(op, "one", 600, 2)


@pytest.mark.parametrize("op", OPS)
def test_padding_is_left_out(op: str) -> None:
    for rows in (1, 5):
        check(op, "one", 40, 2, rows)


NODES = ["ssm_conv_silu", "delta_mix", *dict.fromkeys(op.split()[0] for op in OPS)]


@pytest.mark.parametrize("case", small_cases(NODES), ids=lambda case: case.id)
def test_its_cases_give_the_bits_of_their_parts(case: BoundCase) -> None:
    whole = build(case)
    graph = expand(whole.graph, lambda node: False)
    parts = Built(graph, graph.nodes[-1], whole.inputs, whole.states)
    have, want = execute(cpu(2), whole), execute(cpu(1), parts)
    assert have.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(bits(have[name]), bits(value), name)


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_all_of_this_at_lower_instruction_sets(isa: str) -> None:
    check_at(isa, __file__, "not lower_instruction_sets")
