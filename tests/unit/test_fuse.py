"""The fusing pass: what is found, what is left, that nothing changes but the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
import riverrun.ops
from riverrun.backends import open_backend
from riverrun.backends.base import Pools, prepare
from riverrun.backends.reference import ReferenceBackend, ReferencePlan
from riverrun.graph import OPS, Graph, Node, Op, TensorSpec, Value, to_text, verify
from riverrun.graph.dtype import dtype
from riverrun.graph.fusion import Fusion, Uses, label
from riverrun.graph.passes.fuse import fuse
from riverrun.models.memories import Capacity
from riverrun.models.quantizing import find_mix
from riverrun.models.step import StepShape
from riverrun.models.synth import SHAPES, outline
from tiny_models import VARIANTS


def always(node: Node, parts: Sequence[Node]) -> bool:
    return True


def work(graph: Graph) -> list[str]:
    """The ops of the nodes that compute, in order."""
    return [n.op.name for n in graph.nodes if not n.is_leaf and not n.op.view]


def weight(g: Graph, name: str, *shape: int) -> Value:
    """A constant of fixed values."""
    rng = np.random.default_rng(len(name))
    return g.constant(rng.uniform(-1, 1, shape).astype(np.float32), name)


def results(graph: Graph) -> dict[str, bytes]:
    """Outputs and states of a run on the reference backend, from fixed inputs."""
    plan = ReferencePlan(prepare(graph, "step"), "step")
    pools = Pools(plan.states)
    bound = plan.bind(plan.own_weights(), pools)
    rng = np.random.default_rng(1)
    for name in sorted(bound.inputs):
        array = bound.inputs[name]
        array[...] = rng.uniform(-2, 2, array.shape) if array.dtype.kind == "f" else 0
    bound.run()
    found = {name: array.tobytes() for name, array in bound.outputs.items()}
    return found | {name: pools.states[name].tobytes() for name in plan.states}


def fused(graph: Graph, *names: str, takes: Callable[..., bool] = always) -> Graph:
    """The graph with these ops fused (all there are by default); results stay the same bits."""
    before = to_text(graph)
    made = fuse(graph, names or OPS, takes)
    verify(made)
    assert to_text(graph) == before
    assert results(made) == results(graph)
    return made


def feed_forward(n: int = 3, hidden: bool = False) -> Graph:
    """A sum, its norm and a gated feed-forward part. hidden: the norm is an output, too."""
    g = Graph("ffn")
    x, delta = g.input("x", (n, 8)), g.input("delta", (n, 8))
    with g.scope("blk.0"):
        x = g.add(x, delta, name="residual")
        h = g.rms_norm(x, weight(g, "norm", 8), eps=1e-6, name="ffn_norm")
        gate = g.mul_mat(h, weight(g, "gate", 16, 8), name="ffn_gate")
        up = g.mul_mat(h, weight(g, "up", 16, 8), name="ffn_up")
        y = g.mul_mat(g.swiglu(gate, up, name="ffn_act"), weight(g, "down", 8, 16), name="ffn_down")
        g.output("y", g.add(x, y, name="sum"))
    if hidden:
        g.output("hidden", h)
    return g


def test_a_feed_forward_part_becomes_two_nodes() -> None:
    g = fused(feed_forward())
    assert work(g) == ["add_norm_mul_mats", "glu_mul_mat", "add"]
    first, second, _ = (n for n in g.nodes if not n.is_leaf and not n.op.view)
    assert first.name == "blk.0.residual+ffn_norm+ffn_gate+ffn_up"
    assert second.name == "blk.0.ffn_act+ffn_down"
    assert first.where.startswith("unit/test_fuse.py:") and first.where != second.where
    assert [n.name for n in g.nodes if n.op.name == "view"] == ["blk.0.ffn_gate", "blk.0.ffn_up"]
    assert list(g.outputs) == ["y"] and g.name == "ffn" and set(g.data) == set(feed_forward().data)


def test_values_that_others_read_are_not_fused_away() -> None:
    assert work(fused(feed_forward(hidden=True))) == [
        *("add_rms_norm", "mul_mats", "glu_mul_mat", "add")
    ]


def test_what_the_backend_does_not_take_is_left_to_the_next_smaller_one() -> None:
    def without_sum(node: Node, parts: Sequence[Node]) -> bool:
        return node.op.name != "add_norm_mul_mats"

    assert work(fused(feed_forward(), takes=without_sum)) == [
        *("add", "norm_mul_mats", "glu_mul_mat", "add")
    ]
    names = ("mul_mats",)
    assert work(fused(feed_forward(), *names)) == [
        *("add", "rms_norm", "mul_mats", "swiglu", "mul_mat", "add")
    ]


def test_products_with_floats_are_left_alone_where_a_backend_does_not_take_them() -> None:
    g = Graph()
    x = g.input("x", (3, 32))
    for name, of in (("a", "q8_0"), ("b", "f32"), ("c", "q8_0")):
        w = g.weight(name, TensorSpec((4, 32), dtype(of)))
        g.output(name, g.neg(g.mul_mat(x, w)))

    def blocks(node: Node, parts: Sequence[Node]) -> bool:
        return node.op.name != "mul_mats" or all(v.dtype.quantized for v in node.inputs[1:])

    made = fuse(g, OPS, blocks)
    assert Counter(work(made)) == {"mul_mats": 1, "mul_mat": 1, "neg": 3}
    assert work(fuse(g, OPS, always)) == ["mul_mats", "neg", "neg", "neg"]


def test_nothing_to_fuse_gives_the_same_graph() -> None:
    g = feed_forward()
    assert fuse(g, OPS, lambda node, parts: False) is g
    assert fuse(g, (), always) is g and fuse(g, ("rms_norm",), always) is g


def test_takes_sees_the_fused_node_and_its_parts() -> None:
    seen: dict[str, list[str]] = {}

    def takes(node: Node, parts: Sequence[Node]) -> bool:
        seen.setdefault(node.op.name, [p.op.name for p in parts])
        return True

    fuse(feed_forward(), ("add_norm_mul_mats",), takes)
    parts = ["add", "rms_norm", "mul_mat", "mul_mat"]
    # swiglu, which reads the products, is asked about as it then reads rows with gaps.
    assert seen == {"add_norm_mul_mats": parts, "swiglu": ["swiglu"]}


def test_layouts_that_a_reader_refuses_undo_the_fusion() -> None:
    def takes(node: Node, parts: Sequence[Node]) -> bool:
        return node.op.name != "swiglu" or all(v is None or v.spec.contiguous for v in node.inputs)

    names = ("add_norm_mul_mats", "norm_mul_mats", "mul_mats")
    expected = ["add", "rms_norm", "mul_mat", "mul_mat", "swiglu", "mul_mat", "add"]
    assert work(fused(feed_forward(), *names, takes=takes)) == expected
    # Fused with its product it is not there to refuse anything.
    assert work(fused(feed_forward(), takes=takes)) == [
        *("add_norm_mul_mats", "glu_mul_mat", "add")
    ]


def test_layouts_that_an_op_refuses_undo_the_fusion() -> None:
    g = Graph()
    x = g.input("x", (3, 8))
    idx = g.input("ids", (3, 2), "i32")
    a, b = (g.mul_mat(x, weight(g, name, 8, 8)) for name in "ab")
    # Reshaping rows with gaps into one is no view.
    g.output("y", g.neg(g.reshape(a, shape=(24,))))
    g.output("z", g.neg(b))
    g.output("i", g.cont(idx))
    assert work(fused(g)) == ["mul_mat", "mul_mat", "neg", "neg", "cont"]


def test_outputs_of_the_graph_keep_their_layout() -> None:
    g = Graph()
    x = g.input("x", (3, 8))
    g.output("a", g.mul_mat(x, weight(g, "a", 8, 8)))
    g.output("b", g.neg(g.mul_mat(x, weight(g, "b", 8, 8))))
    assert work(fused(g)) == ["mul_mat", "mul_mat", "neg"]


def test_an_order_that_would_be_a_cycle_is_not_made() -> None:
    g = Graph()
    x = g.input("x", (3, 8))
    first = g.mul_mat(x, weight(g, "a", 8, 8))
    g.output("y", g.mul_mat(g.silu(first), weight(g, "b", 8, 8)))
    g.output("z", g.silu(g.mul_mat(x, weight(g, "c", 8, 8))))
    # The sum that would be fused with the norm and its product depends on that product.
    h = g.rms_norm(x, weight(g, "n", 8), eps=1e-6)
    g.output("w", g.silu(g.mul_mat(h, weight(g, "d", 8, 8))))
    assert Counter(work(fused(g))) == Counter(
        {"mul_mats": 1, "silu": 3, "mul_mat": 1, "norm_mul_mats": 1}
    )


def test_products_move_to_the_first_of_them_and_readers_after_it() -> None:
    g = Graph()
    x = g.input("x", (3, 8))
    a = g.silu(g.mul_mat(x, weight(g, "a", 8, 8)))
    b = g.mul_mat(x, weight(g, "b", 4, 8))
    g.output("y", g.concat(a, b, axis=1))
    assert work(fused(g)) == ["mul_mats", "silu", "concat"]


class Twice(Op):
    """Two nodes `neg` as one, for a test; not registered."""

    name, inputs, outputs = "twice", ("a", "b"), ("y", "z")
    fuses = ("neg",)

    def infer(self, a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
        return a.like(), b.like()

    def reference(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -a, -b

    @classmethod
    def fusions(cls, node: Node, uses: Uses) -> Iterable[Fusion]:
        """A node and the next `neg` behind a reader of it: right only where that one is neg."""
        for reader in uses.of(node.value()):
            for last in (reader, *uses.of(reader.value())):
                if last.op.name == "neg":
                    both = {node.value(): (0, 0), last.value(): (1, 0)}
                    yield Fusion(cls(), (node.inputs[0], last.inputs[0]), (node, last), both)


@pytest.mark.parametrize("between", ["scale", "nothing"])
def test_a_node_that_reads_what_it_makes_itself_is_not_made(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPS, "twice", Twice)
    g = Graph()
    first = g.neg(g.input("x", (2, 4)))
    g.output("y", g.neg(g.scale(first, factor=2.0) if between == "scale" else first))
    assert fuse(g, ("twice",), always) is g


def test_readers_of_an_old_state_stay_before_its_write() -> None:
    g = Graph()
    s0, idx = g.state("s", (4, 8)), g.input("idx", (3,), "i32")
    x = g.mul_mat(g.get_rows(s0, idx), weight(g, "a", 8, 8))
    s1 = g.write_rows(s0, g.silu(x), idx)
    h = g.get_rows(s1, idx)
    a, b = (g.mul_mat(h, weight(g, name, 8, 8)) for name in "bc")
    s2 = g.write_rows(s1, g.add(a, b), idx)
    g.output("y", g.get_rows(s2, idx))
    assert work(fused(g)) == [
        *("get_rows", "mul_mat", "silu", "write_rows", "get_rows", "mul_mats", "add"),
        *("write_rows", "get_rows"),
    ]


def test_labels_name_each_scope_once() -> None:
    g = feed_forward()
    nodes = [n for n in g.nodes if not n.is_leaf]
    assert label(nodes[:2]) == "blk.0.residual+ffn_norm"
    assert label([n for n in g.nodes if n.is_leaf][:1]) == "x" and label([]) == ""


TINY = sorted(name for name in SHAPES if name == "tiny" or name.endswith("-tiny"))


@cache
def step_graph(shape: str, n: int) -> Graph:
    """A pass of n tokens of a sequence by a tiny model, with drafts to take back."""
    arch, specs = outline(SHAPES[shape], find_mix("Q4_K_M"))
    return prepare(
        arch.build(StepShape(n, 1, n), Capacity(4, 2, 2, log=8, window_pages=2), specs), "step"
    )


@pytest.mark.parametrize("shape", TINY)
def test_passes_of_any_number_of_rows_are_fused_alike(shape: str) -> None:
    one, many = (fuse(step_graph(shape, n), OPS, always) for n in (1, 8))
    assert work(one) == work(many)
    assert len(work(one)) < len(work(step_graph(shape, 1)))


def test_a_hybrid_model_is_fused_whole() -> None:
    found = Counter(work(fuse(step_graph("tiny", 2), OPS, always)))
    blocks = 8
    assert not found.keys() & {"mul_mat", "swiglu"}
    # Without a sum before it: the first norm.
    assert found["norm_mul_mats"] == 1 and found["add_norm_mul_mats"] == 2 * blocks
    assert found["glu_mul_mat"] + found["gated_norm_mul_mat"] == 2 * blocks
    assert found["conv_delta_mix"] == 6
    assert found["attention_prepare"] == found["attention"] == 2
    parts = {"add", "silu", "l2_norm", "rms_norm", "rope", "write_rows", "gated_delta_net"}
    parts |= {"ssm_conv", "ssm_conv_silu", "delta_mix"}
    assert not found.keys() & parts


class FusingReference(ReferenceBackend):
    """The reference backend, which fuses all it can."""

    def compile(self, graph: Graph, kind: str = "step") -> ReferencePlan:
        return ReferencePlan(fuse(prepare(graph, kind), OPS, always), kind)


@pytest.mark.parametrize("variant", ["qwen35", "llama", "gemma3", "qwen35moe", "qwen3next"])
def test_models_compute_the_same_bits_fused(variant: str, tmp_path: Path) -> None:
    if variant not in VARIANTS:
        variant = next(name for name in VARIANTS if name.startswith(variant))
    path = VARIANTS[variant]().write(tmp_path / "tiny.gguf")
    found = []
    for backend in (ReferenceBackend(), FusingReference()):
        model = rr.load(path, device="reference")
        model.backend = backend
        session = model.session(64)
        first = session.prefill([5, 7, 11, 2, 9])
        found.append([first.tobytes(), *(session.decode(t).tobytes() for t in (3, 1, 4))])
    assert found[0] == found[1]


def test_nodes_that_no_kernel_takes_fused_run_as_the_graph_has_them() -> None:
    backend = open_backend("cpu")
    g = feed_forward()
    plan = backend.compile(g)
    assert to_text(plan.graph) == to_text(prepare(g, "step"))


def on_the_processor(n: int) -> Counter[str]:
    """What a plan of the tiny hybrid model runs."""
    plan: Any = open_backend("cpu").compile(step_graph("tiny", n))
    return Counter(choice.kernel.op for choice in plan.choices)


@pytest.mark.parametrize("n", [1, 8, 64])
def test_a_hybrid_model_is_fused_on_the_processor(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_the_processor(n)
    attention, recurrent = 2, 6
    blocks = attention + recurrent
    assert found == {
        "get_rows": 1,
        "norm_mul_mats": 1,
        "add_norm_mul_mats": 2 * blocks,
        "glu_mul_mat": blocks + attention,
        **dict.fromkeys(("ssm_conv_silu", "delta_mix", "gated_norm_mul_mat"), recurrent),
        **dict.fromkeys(("rms_norm", "rope", "write_rows"), 2 * attention),
        "attention": attention,
    }
    assert found.total() == 60
    monkeypatch.setenv("RIVERRUN_FUSE", "0")
    assert on_the_processor(n).total() == 189


def test_long_passes_normalise_keys_once_for_all_heads() -> None:
    found = on_the_processor(65)
    assert found["gated_delta_net"] == 6 and found["l2_norm"] == 12 and not found["delta_mix"]
