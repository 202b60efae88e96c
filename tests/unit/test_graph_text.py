"""Graphs as text: what is printed parses to the same graph, and what does not parse says where."""

from __future__ import annotations

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import Graph, parse, to_text, verify
from riverrun.graph.errors import GraphError
from riverrun.graph.spec import TensorSpec, parse_spec

DEMO = """graph "demo"
%0 = input "x" : f32[4,256]
%1 = constant "w" : f32[256]
%2 = rms_norm(%0, %1) {"eps": 1e-06} "norm" : f32[4,256]
%3 = top_k(%2) {"k": 2} "" : f32[4,2] i32[4,2]
return "y" = %2
return "best" = %3.1
"""


def same(g: Graph) -> Graph:
    again = parse(to_text(g))
    verify(again)
    assert to_text(again) == to_text(g)
    assert [n.op for n in again.nodes if not n.is_leaf] == [n.op for n in g.nodes if not n.is_leaf]
    assert [n.specs for n in again.nodes] == [n.specs for n in g.nodes]
    return again


def test_the_text_is_exactly_this() -> None:
    g = Graph("demo")
    x, w = g.input("x", (4, 256)), g.weight("w", TensorSpec((256,)))
    y = g.rms_norm(x, w, eps=1e-6, name="norm")
    g.output("y", y)
    g.output("best", g.top_k(y, k=2)[1])
    assert to_text(g) == str(g) == DEMO
    same(g)


def test_blank_lines_and_indents_do_not_matter() -> None:
    assert to_text(parse(DEMO.replace("\n", "\n\n   "))) == DEMO


@pytest.mark.parametrize("name", ['a "quoted" name', "back\\slash", "new\nline", "été, x} {%0", ""])
def test_any_name_survives(name: str) -> None:
    g = Graph(name)
    x = g.input(name, (2,))
    g.output(name, g.neg(x, name=name))
    again = same(g)
    assert again.name == name and list(again.outputs) == [name]
    assert [n.name for n in again.nodes] == [name, name]


def test_attributes_of_every_kind_survive() -> None:
    g = Graph()
    x = g.input("x", (4, 2, 64))
    p = g.input("p", (4,), "i32")
    q = g.rope(x, p, style="neox", n_rot=64, base=1e4, sections=())
    g.output("y", g.scale(g.reshape(q, shape=(4, -1)), factor=1e-300, bias=-0.1))
    same(g)


def test_absent_inputs_states_and_views_survive() -> None:
    g = Graph()
    s0, idx = g.state("s", (8, 32), "f16"), g.input("idx", (2,), "i32")
    x = g.rms_norm(g.input("x", (2, 64)), eps=0.5)
    g.output("s1", g.write_rows(s0, g.view(x, axis=1, start=32, stop=64), idx))
    again = same(g)
    assert "rms_norm(%2, _)" in to_text(again)
    assert "f32[2,32]@256,4" in to_text(again)


def test_constants_keep_names_not_data() -> None:
    g = Graph()
    g.output("y", g.neg(g.constant(np.ones(3), "ones")))
    assert same(g).data == {}


@pytest.mark.parametrize("text", ["f32[]", "q8_0[8,64]", "bf16[2,3]@12,2", "i32[0,4]"])
def test_specs_print_and_parse(text: str) -> None:
    assert str(parse_spec(text)) == text


@pytest.mark.parametrize(
    ("was", "now", "line", "message"),
    [
        ('graph "demo"', "digraph {", 1, 'should start with: graph "name"'),
        ('graph "demo"', "graph demo", 1, "Expecting value"),
        ("%1 = constant", "%1 = parameter", 3, "'parameter' is not one of input, constant, state"),
        ("%1 = constant", "%4 = constant", 3, "the next node should be %1"),
        ("f32[256]", "f31[256]", 3, "unknown dtype 'f31'"),
        ("f32[256]", "f32[256", 3, "'f32.256' is not a spec"),
        ("rms_norm", "rmsnorm", 4, "no op is called 'rmsnorm'"),
        ("%0, %1", "%0, %9", 4, "%9 is not defined above"),
        ("%0, %1", "%0, %1.1", 4, "%1.1 is not defined above"),
        ("%0, %1", "%0, %-1", 4, "'%-1' is not a value"),
        ("%0, %1", "%0", 4, "rms_norm: takes x, w\\?; got 1 inputs"),
        ("%0, %1", "_, %1", 4, "rms_norm: input 0 is missing"),
        ('{"eps": 1e-06}', "{}", 4, "'eps' must be given"),
        ('{"eps": 1e-06}', '{"eps": }', 4, "Expecting value"),
        ('"norm" : f32[4,256]', '"norm" : f32[4,255]', 4, r"specs should be f32\[4,256\]"),
        ('return "y" = %2', 'return "y" = %2.4', 6, "%2.4 is not defined above"),
        ('return "y" = %2', 'result "y" = %2', 6, "is not a node, leaf or return"),
        ('return "best"', 'return "y"', 7, "has an output 'y' already"),
    ],
)
def test_wrong_text_names_the_line(was: str, now: str, line: int, message: str) -> None:
    assert was in DEMO
    with pytest.raises(GraphError, match=f"^graph text, line {line}: .*{message}"):
        parse(DEMO.replace(was, now, 1))


def test_no_text_is_no_graph() -> None:
    with pytest.raises(GraphError, match=r"graph text is empty"):
        parse(" \n")
