"""Building graphs: leaves, op calls, scopes, and what is refused with which words."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import OPS, Graph, TensorSpec, Value, dtype, host_tensor
from riverrun.graph.errors import AttributeValueError, DTypeError, GraphError, ShapeError


def test_every_op_is_a_method_of_the_graph() -> None:
    g = Graph()
    assert set(OPS) <= set(dir(g))
    assert all(callable(getattr(g, name)) for name in OPS)


def test_unknown_method_names_the_ops() -> None:
    with pytest.raises(AttributeError, match=r"no op or attribute 'rmsnorm'; ops: .*rms_norm"):
        Graph().rmsnorm  # noqa: B018


def test_leaves_keep_their_specs_and_names() -> None:
    g = Graph("demo")
    x = g.input("x", (2, 3))
    s = g.state("s", (4, 64), "f16")
    w = g.weight("w", TensorSpec((8, 64), dtype("q8_0")))
    c = g.constant(np.arange(3), "c")
    assert [v.node.name for v in (x, s, w, c)] == ["x", "s", "w", "c"]
    assert [str(v.spec) for v in (x, s, w, c)] == ["f32[2,3]", "f16[4,64]", "q8_0[8,64]", "i32[3]"]
    assert all(v.node.is_leaf for v in (x, s, w, c))


def test_constants_hold_their_data_and_get_names_of_their_own() -> None:
    g = Graph()
    a = g.constant(np.array([1.5, 2.5]))
    b = g.constant(host_tensor(np.zeros((2, 32)), "q8_0"))
    assert a.dtype == dtype("f32") and b.dtype == dtype("q8_0")
    assert a.node.name != b.node.name
    assert g.data[a.node.name].decoded().tolist() == [1.5, 2.5]


def test_a_weight_asked_for_twice_is_one_value() -> None:
    g, spec = Graph(), TensorSpec((8, 64))
    assert g.weight("w", spec) == g.weight("w", spec)
    with pytest.raises(GraphError, match=r"'w' is taken by constant f32\[8,64\]"):
        g.weight("w", TensorSpec((8, 32)))


@pytest.mark.parametrize("make", ["input", "state"])
def test_leaf_names_are_unique_across_kinds(make: str) -> None:
    g = Graph("demo")
    g.input("x", (2,))
    with pytest.raises(GraphError, match=f"graph 'demo': {make} 'x' is taken by input"):
        getattr(g, make)("x", (2,))


@pytest.mark.parametrize(
    ("shape", "of", "error", "message"),
    [
        ((2, 33), "q8_0", DTypeError, "whole blocks of 32"),
        ((2, -1), "f32", ShapeError, "negative extent"),
        ((1,) * 7, "f32", ShapeError, "rank 7 is over the limit of 6"),
        ((2,), "f31", DTypeError, "unknown dtype 'f31'; known: f32"),
    ],
)
def test_leaves_that_cannot_be_are_refused(
    shape: tuple[int, ...], of: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Graph().input("x", shape, of)


def test_call_takes_inputs_by_place_or_name() -> None:
    g = Graph()
    x, w = g.input("x", (2, 8)), g.input("w", (8,))
    for y in (
        g.rms_norm(x, w, eps=1e-6),
        g.rms_norm(x, w=w, eps=1e-6),
        g.rms_norm(x=x, w=w, eps=1e-6),
    ):
        assert y.node.inputs == (x, w)
    assert g.rms_norm(x, eps=1e-6).node.inputs == (x, None)


def test_several_outputs_come_as_a_tuple() -> None:
    g = Graph()
    values, indices = g.top_k(g.input("x", (2, 8)), k=3)
    assert values.node is indices.node and (values.index, indices.index) == (0, 1)
    assert (str(values.spec), str(indices.spec)) == ("f32[2,3]", "i32[2,3]")


def test_variadic_op_takes_any_number() -> None:
    g = Graph()
    parts = [g.input(f"x{i}", (2, i + 1)) for i in range(4)]
    assert g.concat(*parts, axis=1).shape == (2, 10)


def call(op: str, *args: object, **rest: object) -> Value:
    """An op on one input x f32[2, 8] of a fresh graph; "x" stands for it among the arguments."""
    g = Graph("demo")
    x = g.input("x", (2, 8))
    swap = lambda a: x if isinstance(a, str) and a == "x" else a  # noqa: E731
    given = {k: swap(v) for k, v in rest.items()}
    return getattr(g, op)(*(swap(a) for a in args), **given)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("args", "rest", "error", "message"),
    [
        ((), dict(eps=1e-6), GraphError, "rms_norm: input 'x' is missing"),
        ((None,), dict(eps=1e-6), GraphError, "input 'x' is missing"),
        (("x", "x", "x"), dict(eps=1e-6), GraphError, "got 3 inputs"),
        (("x",), dict(x="x", eps=1e-6), GraphError, "input 'x' given twice"),
        (("x",), dict(), AttributeValueError, r"attribute 'eps' must be given \(float\)"),
        (("x",), dict(eps=1e-6, epsilon=1), AttributeValueError, "'epsilon'; it has: eps"),
        (("x",), dict(eps="small"), AttributeValueError, "'eps' should be float, got 'small'"),
        (("x",), dict(eps=True), AttributeValueError, "'eps' should be float, got True"),
        (("x",), dict(eps=-1.0), AttributeValueError, "'eps' should be zero or positive"),
        ((np.zeros((2, 8)),), dict(eps=1e-6), GraphError, r"wrap arrays with g.constant"),
    ],
)
def test_calls_that_mean_nothing_are_refused(
    args: tuple[object, ...], rest: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call("rms_norm", *args, **rest)


def test_variadic_inputs_are_not_none() -> None:
    with pytest.raises(GraphError, match=r"concat: input 1 is missing"):
        call("concat", "x", None, axis=0)


def test_values_of_another_graph_are_refused() -> None:
    one, two = Graph("one"), Graph("two")
    x = one.input("x", (2,))
    two.input("x", (2,))
    with pytest.raises(GraphError, match=r"belongs to another graph than 'two'"):
        two.neg(x)
    with pytest.raises(GraphError, match=r"belongs to another graph than 'two'"):
        two.output("y", x)


def test_refused_shapes_name_node_label_and_line() -> None:
    g = Graph()
    x, w = g.input("x", (2, 8)), g.input("w", (4,))
    with pytest.raises(ShapeError) as raised, g.scope("blk.3"):
        g.rms_norm(x, w, eps=1e-6, name="attn_norm")
    message = str(raised.value)
    assert message.startswith("rms_norm: 'w' should be (8,), x's last axis, got (4,)")
    assert "node 2 'blk.3.attn_norm'" in message and "test_graph_builder.py:" in message
    assert len(g.nodes) == 2


def test_numpy_numbers_become_plain_attributes() -> None:
    g = Graph()
    x = g.input("x", (2, 8))
    a = g.rms_norm(x, eps=np.float32(0.5)).node.op.attributes()["eps"]
    b = g.reshape(x, shape=[np.int64(4), 4]).node.op.attributes()["shape"]
    assert type(a) is float and b == (4, 4) and all(type(n) is int for n in b)


def test_scopes_nest_and_end() -> None:
    g = Graph()
    x = g.input("x", (2,))
    with g.scope("blk.0"):
        with g.scope("ffn"):
            inner = g.neg(x, name="up")
            bare = g.neg(x)
        outer = g.neg(x, name="out")
    after = g.neg(x, name="last")
    names = [v.node.name for v in (inner, bare, outer, after)]
    assert names == ["blk.0.ffn.up", "blk.0.ffn", "blk.0.out", "last"]


def test_output_names_are_unique() -> None:
    g = Graph("demo")
    x = g.input("x", (2,))
    assert g.output("y", x) == x
    with pytest.raises(GraphError, match=r"graph 'demo' has an output 'y' already"):
        g.output("y", x)


def test_an_output_is_one_object() -> None:
    g = Graph()
    values, indices = g.top_k(g.input("x", (2, 8)), k=3)
    assert Value(values.node) is values and Value(values.node, 1) is indices
    assert values.node.values == (values, indices) and len({values, indices, values}) == 2


def test_attributes_are_told_apart_as_kernels_do() -> None:
    g = Graph()
    x = g.input("x", (2, 8))
    plus, minus, again = (g.scale(x, factor=1.0, bias=b).node.op for b in (0.0, -0.0, 0.0))
    assert plus == again and hash(plus) == hash(again) and plus is again
    assert plus != minus and str(minus.attributes()["bias"]) == "-0.0"
    assert g.concat(x, axis=1).shape == (2, 8)
    with pytest.raises(AttributeValueError, match=r"'axis' should be int, got True"):
        call("concat", "x", axis=True)


def test_specs_keep_their_meaning_when_copied() -> None:
    spec = TensorSpec((2, 8), dtype("f16"), (64, 2))
    assert pickle.loads(pickle.dumps(spec)) == spec and hash(copy.deepcopy(spec)) == hash(spec)
