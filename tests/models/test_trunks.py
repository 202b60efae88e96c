"""Steps of the same sizes, which share the graph of their layers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from riverrun.graph import Graph, TensorSpec, to_text, verify
from riverrun.graph.dtype import dtype
from riverrun.models.architecture import Architecture
from riverrun.models.memories import Capacity
from riverrun.models.quantizing import find_mix
from riverrun.models.step import Choice, StepShape
from riverrun.models.synth import SHAPES, outline

ROOM = Capacity(4, 2, 4, log=8, window_pages=2)
TINY = sorted(name for name in SHAPES if name == "tiny" or name.endswith("-tiny"))
EACH = StepShape(4, 4, 4)
SHAPE_OF = {
    "logits": EACH,
    "hidden": replace(EACH, hidden=True),
    "neither": replace(EACH, n_out=0),
    "candidates": replace(EACH, candidates=64),
    "drawn": replace(EACH, choice=Choice(256, 8, drawn=True)),
    "some rows": replace(EACH, n_out=2),
    "one text": replace(EACH, n_seqs=1, n_out=1),
}


def opened(name: str = "tiny") -> tuple[Architecture, dict[str, TensorSpec]]:
    return outline(SHAPES[name], find_mix("Q4_K_M"))


def alike(one: Graph, other: Graph) -> bool:
    """Whether graphs are the same, source lines included."""
    lines = [[(n.name, n.where) for n in g.nodes] for g in (one, other)]
    return to_text(one) == to_text(other) and lines[0] == lines[1]


@pytest.mark.parametrize("name", TINY)
def test_a_shared_beginning_changes_no_graph(name: str) -> None:
    arch, weights = opened(name)
    for shape in SHAPE_OF.values():
        made = arch.build(shape, ROOM, weights)
        verify(made)
        assert alike(made, opened(name)[0].build(shape, ROOM, weights))
    picking = arch.ahead(EACH, ROOM, weights, 256)
    assert alike(picking, opened(name)[0].ahead(EACH, ROOM, weights, 256))


def test_layers_are_built_once_for_what_a_step_gives() -> None:
    arch, weights = opened()
    first, second = (arch.build(SHAPE_OF[name], ROOM, weights) for name in ("logits", "drawn"))
    shared = sum(a is b for a, b in zip(first.nodes, second.nodes, strict=False))
    assert shared > len(first.nodes) - 10 and first.outputs.keys() != second.outputs.keys()
    again = arch.build(EACH, ROOM, weights)
    assert alike(first, again) and first.nodes is not again.nodes


@pytest.mark.parametrize("change", ["sizes", "memory", "weights", "vocabulary"])
def test_other_layers_are_other_nodes(change: str) -> None:
    arch, weights = opened()
    name = "blk.0.ffn_up.weight"
    other = weights | {name: TensorSpec(weights[name].shape, dtype("f32"))}
    makers = {
        "sizes": lambda: arch.build(StepShape(8, 4, 8), ROOM, weights),
        "memory": lambda: arch.build(EACH, replace(ROOM, rows=5), weights),
        "weights": lambda: arch.build(EACH, ROOM, other),
        "vocabulary": lambda: arch.ahead(EACH, ROOM, weights, 200),
    }
    first = arch.ahead(EACH, ROOM, weights, 256)
    plain = arch.build(EACH, ROOM, weights)
    made = makers[change]()
    assert made.nodes[-1] not in (first.nodes[-1], plain.nodes[-1])
    assert to_text(made) not in (to_text(first), to_text(plain))
    verify(made)


def test_sizes_are_forgotten() -> None:
    arch, weights = opened()
    first = arch.build(EACH, ROOM, weights)
    for n in range(8, 16):
        arch.build(StepShape(n, 1, n), ROOM, weights)
    again = arch.build(EACH, ROOM, weights)
    assert again.nodes[-2] is not first.nodes[-2] and alike(first, again)
