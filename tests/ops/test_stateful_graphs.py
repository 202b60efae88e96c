"""The ops with state in graphs: shape rules, and the order of reads and overwrites."""

from __future__ import annotations

from typing import Any

import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import (
    Cost,
    Graph,
    TensorSpec,
    Value,
    dtype,
    make_op,
    parse,
    plan_memory,
    verify,
)
from riverrun.graph.errors import AttributeValueError, DTypeError, GraphError, ShapeError

KEYS = (1024, 2, 64)


def pools(g: Graph) -> tuple[Value, Value, Value, Value]:
    k, v = g.state("k", KEYS, "f16"), g.state("v", KEYS, "f16")
    return k, v, g.input("rows", (3, 2, 64)), g.input("idx", (3,), "i32")


def attend(g: Graph, q: Value, k: Value, v: Value) -> Value:
    offsets = g.input("seq_offsets", (3,), "i32")
    positions = g.input("positions", (3,), "i32")
    table = g.input("block_table", (2, 4), "i32")
    where = (offsets, positions, table)
    return g.attention(q, k, v, *where, scale=0.125, heads="grouped", mask="causal")


def test_attention_reads_what_was_written() -> None:
    g = Graph()
    k0, v0, rows, idx = pools(g)
    k1, v1 = g.write_rows(k0, rows, idx), g.write_rows(v0, rows, idx)
    g.output("o", attend(g, g.input("q", (3, 4, 64)), k1, v1))
    verify(g)
    assert str(parse(str(g))) == str(g)
    places = plan_memory(g).places
    assert places[k1] == places[k0] and places[k0].kind == "state"


def test_an_old_version_is_not_read_after_its_overwrite() -> None:
    g = Graph()
    k0, v0, rows, idx = pools(g)
    g.write_rows(k0, rows, idx)
    g.output("o", attend(g, g.input("q", (3, 4, 64)), k0, v0))
    with pytest.raises(GraphError, match=r"reads state version .* overwrites without depending"):
        verify(g)


def test_an_old_version_may_be_read_before_an_overwrite_that_depends_on_it() -> None:
    g = Graph()
    k0, v0, _, idx = pools(g)
    o = attend(g, g.input("q", (3, 2, 64)), k0, v0)
    g.output("k", g.write_rows(k0, o, idx))
    verify(g)


def test_a_version_is_written_once_and_the_newest_may_be_written_again() -> None:
    g = Graph()
    k0, _, rows, idx = pools(g)
    k1 = g.write_rows(k0, rows, idx)
    g.output("k2", g.write_rows(k1, rows, idx))
    verify(g)
    g.write_rows(k0, rows, idx)
    with pytest.raises(GraphError, match="overwritten twice"):
        verify(g)


def test_only_states_are_written() -> None:
    g = Graph()
    _, _, rows, idx = pools(g)
    g.write_rows(g.input("plain", KEYS), rows, idx)
    with pytest.raises(GraphError, match="which is not a state"):
        verify(g)


@pytest.mark.parametrize("planes", [0, 4])
def test_recurrent_ops_chain_their_states(planes: int) -> None:
    g = Graph()
    index = {n: g.input(n, (2,), "i32") for n in ("rows", "start", "head")}
    offsets = g.input("seq_offsets", (3,), "i32")
    ring = dict(start=index["start"], head=index["head"]) if planes else {}
    shape = lambda width: (5, planes, width) if planes else (5, width)  # noqa: E731
    tail0 = g.state("tail", shape(3 * 64))
    state0 = g.state("state", shape(2 * 16 * 16))
    x, w = g.input("x", (6, 64)), g.weight("w", TensorSpec((64, 4)))
    y, tail1 = g.ssm_conv(x, w, offsets, index["rows"], tail0, **ring)
    g.output("y", y)
    heads = [g.input(n, (6, h, 16)) for n, h in (("q", 1), ("k", 1), ("v", 2))]
    gates = [g.input(n, (6, 2)) for n in ("g", "beta")]
    o, state1 = g.gated_delta_net(
        *heads, *gates, offsets, index["rows"], state0, **ring, heads="tiled"
    )
    g.output("o", o)
    verify(g)
    places = plan_memory(g).places
    assert places[tail1] == places[tail0] and places[state1] == places[state0]
    assert (tail1.shape, state1.shape) == (tail0.shape, state0.shape)
    g.ssm_conv(x, w, offsets, index["rows"], tail0, **ring)
    with pytest.raises(GraphError, match="overwritten twice"):
        verify(g)


def spec(of: str, *shape: int, strides: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(shape, dtype(of), strides)


VALID: dict[str, tuple[dict[str, Any], dict[str, TensorSpec | None]]] = {
    "write_rows": (
        {},
        dict(state=spec("f16", 8, 2, 64), rows=spec("f32", 3, 2, 64), idx=spec("i32", 3)),
    ),
    "attention": (
        dict(scale=0.125, heads="grouped", mask="causal"),
        dict(
            q=spec("f32", 3, 4, 64),
            k=spec("f16", 512, 2, 64),
            v=spec("bf16", 512, 2, 32),
            seq_offsets=spec("i32", 3),
            positions=spec("i32", 3),
            block_table=spec("i32", 2, 4),
        ),
    ),
    "ssm_conv": (
        {},
        dict(
            x=spec("f32", 6, 64),
            w=spec("f32", 64, 4),
            seq_offsets=spec("i32", 3),
            state_rows=spec("i32", 2),
            tail=spec("f32", 5, 4, 192),
            start=spec("i32", 2),
            head=spec("i32", 2),
        ),
    ),
    "gated_delta_net": (
        dict(heads="tiled"),
        dict(
            q=spec("f32", 6, 2, 16),
            k=spec("f32", 6, 2, 16),
            v=spec("f32", 6, 4, 16),
            g=spec("f32", 6, 4),
            beta=spec("f32", 6, 4),
            seq_offsets=spec("i32", 3),
            state_rows=spec("i32", 2),
            state=spec("f32", 5, 1024),
            start=None,
            head=None,
        ),
    ),
}


def infer(op: str, changed: dict[str, Any], **attributes: Any) -> tuple[TensorSpec, ...]:
    given, specs = VALID[op]
    made = make_op(op, given | attributes).infer(*(specs | changed).values())
    return made if isinstance(made, tuple) else (made,)


def test_results_have_the_shapes_of_their_inputs() -> None:
    assert infer("write_rows", {}) == (spec("f16", 8, 2, 64),)
    assert infer("attention", {}) == (spec("f32", 3, 4, 32),)
    assert infer("ssm_conv", {}) == (spec("f32", 6, 64), spec("f32", 5, 4, 192))
    flat = dict(tail=spec("f32", 5, 192), start=None, head=None)
    assert infer("ssm_conv", flat)[1] == spec("f32", 5, 192)
    want = (spec("f32", 6, 4, 16), spec("f32", 5, 1024))
    assert infer("gated_delta_net", {}) == want
    assert infer("gated_delta_net", dict(g=spec("f32", 6, 4, 16))) == want


def cost(op: str) -> Cost:
    attributes, specs = VALID[op]
    return make_op(op, attributes).cost(*specs.values())


def test_costs_count_what_is_touched_not_whole_pools() -> None:
    assert cost("write_rows") == Cost(0, 3 * 128 * 4 + 3 * 4, 3 * 128 * 2)
    tails, inputs = 2 * 192 * 4, (6 * 64 + 64 * 4 + 3 + 2) * 4
    assert cost("ssm_conv") == Cost(2 * 6 * 64 * 4, inputs + tails, 6 * 64 * 4 + 3 * tails)
    states = 2 * 1024 * 4
    assert cost("gated_delta_net").write == 6 * 64 * 4 + states
    assert cost("gated_delta_net").flops == 6 * 4 * (7 * 256 + 64)
    pages = 2 * 1024 * 2 * (64 + 32) * 2
    assert cost("attention").read == (3 * 4 * 64 + 3 + 8) * 4 + pages
    assert cost("attention").flops == 2 * 3 * 4 * 1024 * 96


@pytest.mark.parametrize(
    ("op", "arg", "made"),
    [
        ("write_rows", "rows", spec("f32", 3, 2, 64, strides=(4096, 1024, 4))),
        ("attention", "q", spec("f32", 3, 4, 64, strides=(8192, 512, 4))),
        ("ssm_conv", "x", spec("f32", 6, 64, strides=(1024, 4))),
        ("gated_delta_net", "q", spec("f32", 6, 2, 16, strides=(4096, 64, 4))),
        ("gated_delta_net", "v", spec("f32", 6, 4, 16, strides=(64, 4096, 4))),
    ],
)
def test_rows_with_gaps_give_contiguous_results(op: str, arg: str, made: TensorSpec) -> None:
    assert infer(op, {arg: made}) == infer(op, {})


GAP = dict(strides=(1024, 8))
REFUSED = [
    ("write_rows", "state", spec("q5_0", 8, 2, 64), DTypeError, "bf16 or q8_0 or q4_0"),
    ("write_rows", "state", spec("q8_0", 8, 2, 40), ShapeError, "multiple of 32 .*; use f16"),
    ("write_rows", "rows", spec("f32", 3, 2, 32), ShapeError, "rows like the state's"),
    ("write_rows", "rows", spec("f16", 3, 2, 64), DTypeError, "f32"),
    ("write_rows", "rows", spec("f32", 3, 2, 64, strides=(512, 4, 8)), ShapeError, "with cont"),
    ("write_rows", "idx", spec("i32", 2), ShapeError, r"\(3,\)"),
    ("write_rows", "idx", spec("i64", 3), DTypeError, "i32"),
    ("attention", "q", spec("f32", 3, 4, 32), ShapeError, "'k' should be"),
    ("attention", "q", spec("f32", 3, 5, 64), ShapeError, "multiple of k's 2 heads"),
    ("attention", "k", spec("f16", 500, 2, 64), ShapeError, "'v' should be"),
    ("attention", "v", spec("i32", 512, 2, 32), DTypeError, "bf16"),
    ("attention", "v", spec("q4_0", 512, 2, 40), ShapeError, "multiple of 32 .*; use f16"),
    ("attention", "positions", spec("i32", 4), ShapeError, r"\(3,\)"),
    ("attention", "block_table", spec("i32", 3, 4), ShapeError, r"\(2, 4\)"),
    ("attention", "seq_offsets", spec("i32", 1), ShapeError, "B of at least 1"),
    ("ssm_conv", "x", spec("f32", 6, 64, **GAP), ShapeError, "dense along its last axis"),
    ("ssm_conv", "w", spec("f32", 64, 1), ShapeError, "W of at least 2"),
    ("ssm_conv", "w", spec("f32", 32, 4), ShapeError, r"\[64, W\]"),
    ("ssm_conv", "tail", spec("f32", 5, 4, 128), ShapeError, r"\[R, K, 192\]"),
    ("ssm_conv", "tail", spec("f16", 5, 4, 192), DTypeError, "f32"),
    ("ssm_conv", "tail", spec("f32", 5, 192), ShapeError, "'start' should be absent"),
    ("ssm_conv", "head", None, ShapeError, "'head' should be .* rank-3 tail, got None"),
    ("ssm_conv", "start", spec("i32", 3), ShapeError, r"\(2,\)"),
    ("ssm_conv", "state_rows", spec("i32", 3), ShapeError, r"\(2,\)"),
    ("gated_delta_net", "k", spec("f32", 6, 4, 16), ShapeError, "like q"),
    ("gated_delta_net", "v", spec("f32", 6, 3, 16), ShapeError, "Hv a multiple of 2"),
    ("gated_delta_net", "v", spec("f32", 6, 4, 32), ShapeError, "Hv, 16"),
    ("gated_delta_net", "g", spec("f32", 6, 4, 1), ShapeError, r"\(6, 4, 16\)"),
    ("gated_delta_net", "beta", spec("f32", 6, 2), ShapeError, r"\(6, 4\)"),
    ("gated_delta_net", "state", spec("f32", 5, 4, 16, 16), ShapeError, r"\[R, 1024\]"),
    ("gated_delta_net", "state", spec("f32", 5, 0, 1024), ShapeError, r"\[R, 1024\]"),
    ("gated_delta_net", "state", spec("f32", 5, 4, 1024), ShapeError, "'start' should be"),
    ("gated_delta_net", "head", spec("i32", 2), ShapeError, "absent for a rank-2 state"),
]


@pytest.mark.parametrize(("op", "arg", "made", "error", "message"), REFUSED)
def test_inputs_that_do_not_fit_are_refused(
    op: str, arg: str, made: TensorSpec | None, error: type[GraphError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        infer(op, {arg: made})
    assert str(raised.value).startswith(f"{op}: '")


def test_pools_are_whole_pages() -> None:
    odd = dict(k=spec("f16", 500, 2, 64), v=spec("f16", 500, 2, 64))
    with pytest.raises(ShapeError, match="'k' should be whole pages of 256 rows"):
        infer("attention", odd)
    assert infer("attention", odd, page=50) == (spec("f32", 3, 4, 64),)


@pytest.mark.parametrize(
    ("op", "changed"),
    [
        ("attention", dict(heads="split")),
        ("attention", dict(mask="none")),
        ("attention", dict(window=-1)),
        ("attention", dict(page=0)),
        ("attention", dict(scale=float("nan"))),
        ("gated_delta_net", dict(heads="modulo")),
        ("gated_delta_net", dict(scale=float("inf"))),
    ],
)
def test_attributes_out_of_range_are_refused(op: str, changed: dict[str, Any]) -> None:
    with pytest.raises(AttributeValueError, match=next(iter(changed))):
        infer(op, {}, **changed)


@pytest.mark.parametrize(("op", "missing"), [("attention", "mask"), ("gated_delta_net", "heads")])
def test_ambiguous_attributes_have_no_default(op: str, missing: str) -> None:
    given = {k: v for k, v in VALID[op][0].items() if k != missing}
    with pytest.raises(AttributeValueError, match=f"'{missing}' must be given"):
        make_op(op, given)
