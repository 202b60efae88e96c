"""What shape rules refuse, with which exception and message, and what the builder adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import riverrun.ops  # noqa: F401
from riverrun.graph import OPS, Graph, TensorSpec, dtype, make_op
from riverrun.graph.case import f32, op_cases
from riverrun.graph.errors import AttributeValueError, DTypeError, GraphError, ShapeError


def t(*shape: int, of: str = "f32", strides: tuple[int, ...] | None = None) -> TensorSpec:
    """A spec."""
    return TensorSpec(shape, dtype(of), strides)


ROPE: dict[str, Any] = dict(style="neox", n_rot=8, base=1e4)
IDS = t(4, of="i32")
GAP = t(4, 8, strides=(64, 4))
TURNED = t(4, 8, strides=(4, 16))

PAIRS, EXPERTS = t(4, 2, of="i32"), t(3, 5, 8)
PART: dict[str, Any] = dict(axis=0, start=0)
ROUTE: dict[str, Any] = dict(k=2, normalize=True, gating="softmax")
DELTA = [t(2, 3, 1, 8), t(2, 3, 1, 8), t(2, 3, 2, 8), t(2, 3, 2), t(2, 3, 2), t(2, 4, 128)]

# op, inputs, attributes, the argument at fault
SHAPES: list[tuple[str, list[TensorSpec | None], dict[str, Any], str]] = [
    ("add", [t(4, 8), t(4)], {}, "b"),
    ("mul", [t(4, 8), t(4, 2)], {}, "b"),
    ("sub", [t(8), t(4, 8)], {}, "b"),
    ("add", [t(1, 8), t(4, 8)], {}, "b"),
    ("swiglu", [t(4, 8), t(4, 9)], {}, "up"),
    ("geglu", [t(4, 8), t(8)], {}, "up"),
    ("rms_norm", [t(4, 8), t(4)], dict(eps=1e-6), "w"),
    ("l2_norm", [t()], dict(eps=1e-6, form="add"), "x"),
    ("get_rows", [t(2, 4, 8), IDS], {}, "table"),
    ("get_rows", [GAP, IDS], {}, "table"),
    ("get_rows", [t(4, 8), t(2, 2, of="i32")], {}, "ids"),
    ("mul_mat", [t(), t(4, 8)], {}, "x"),
    ("mul_mat", [t(4, 8), t(8)], {}, "w"),
    ("mul_mat", [t(4, 8), t(8, 4)], {}, "w"),
    ("mul_mat", [t(4, 8), GAP], {}, "w"),
    ("mul_mat", [TURNED, t(2, 8)], {}, "x"),
    ("rope", [t(4, 8), IDS, None], ROPE, "x"),
    ("rope", [t(3, 2, 8), IDS, None], ROPE, "positions"),
    ("rope", [t(4, 2, 8), t(4, 4, of="i32"), None], ROPE, "positions"),
    ("rope", [t(4, 2, 8), IDS, t(8)], ROPE, "factors"),
    ("reshape", [t(4, 8)], dict(shape=(4, 7)), "x"),
    ("reshape", [t(4, 8)], dict(shape=(5, -1)), "x"),
    ("reshape", [t(0, 8)], dict(shape=(0, -1)), "x"),
    ("reshape", [GAP], dict(shape=(32,)), "x"),
    ("reshape", [TURNED], dict(shape=(8, 4)), "x"),
    ("reshape", [t(2, 64, of="q8_0")], dict(shape=(8, 16)), "shape"),
    ("concat", [t(4, 8), t(4, 8, 1)], dict(axis=0), "xs[1]"),
    ("concat", [t(4, 8), t(4, 8), t(4, 7)], dict(axis=0), "xs[2]"),
    ("concat", [], dict(axis=0), "xs"),
    ("argmax", [t()], {}, "x"),
    ("argmax", [t(4, 0)], {}, "x"),
    ("top_k", [t()], dict(k=1), "x"),
    ("argsort", [t()], dict(order="asc"), "x"),
    ("cast", [t(4, 33)], dict(to="q8_0"), "x"),
    ("cast", [t()], dict(to="q4_0"), "x"),
    ("div", [t(8), t(4, 8)], {}, "b"),
    ("norm", [t(), None, None], dict(eps=1e-6), "x"),
    ("norm", [t(4, 0), None, None], dict(eps=1e-6), "x"),
    ("norm", [t(4, 8), t(4), None], dict(eps=1e-6), "w"),
    ("norm", [t(4, 8), None, t(1)], dict(eps=1e-6), "b"),
    ("softmax", [t(), None], {}, "x"),
    ("softmax", [TURNED, None], {}, "x"),
    ("softmax", [t(4, 8), t(2, 8)], {}, "mask"),
    ("softmax", [t(4, 8), t(1, 4, 8)], {}, "mask"),
    ("softmax", [t(4, 8), TURNED], {}, "mask"),
    ("sum", [TURNED], dict(axis=0), "x"),
    ("mean", [t(4, 0)], dict(axis=1), "x"),
    ("mean", [t(4, 0)], dict(axis=-1, keepdims=False), "x"),
    ("cumsum", [TURNED], dict(axis=0), "x"),
    ("set", [t(4, 8), t(4)], PART, "src"),
    ("set", [t(4, 8), t(2, 7)], PART, "src"),
    ("set", [t(4, 8), t(5, 8)], PART, "src"),
    ("solve_tri", [t(4), t(4)], {}, "a"),
    ("solve_tri", [t(4, 5), t(4, 5)], {}, "a"),
    ("solve_tri", [t(4, 4), t(3, 2)], {}, "b"),
    ("solve_tri", [t(2, 4, 4), t(4, 2)], {}, "b"),
    ("solve_tri", [t(4, 4, strides=(64, 4)), t(4, 2)], {}, "a"),
    ("solve_tri", [t(4, 4), t(4, 2, strides=(64, 4))], {}, "b"),
    ("mul_mat_id", [t(8), EXPERTS, PAIRS], {}, "x"),
    ("mul_mat_id", [TURNED, EXPERTS, PAIRS], {}, "x"),
    ("mul_mat_id", [t(4, 8), t(5, 8), PAIRS], {}, "w"),
    ("mul_mat_id", [t(4, 8), t(3, 5, 4), PAIRS], {}, "w"),
    ("mul_mat_id", [t(4, 8), t(0, 5, 8), PAIRS], {}, "w"),
    ("mul_mat_id", [t(4, 8), EXPERTS, IDS], {}, "ids"),
    ("mul_mat_id", [t(3, 8), EXPERTS, PAIRS], {}, "ids"),
    ("mul_mat_id", [t(4, 3, 8), EXPERTS, PAIRS], {}, "ids"),
    ("topk_moe", [t(8), None], ROUTE, "logits"),
    ("topk_moe", [TURNED, None], ROUTE, "logits"),
    ("topk_moe", [t(4, 8), t(4)], ROUTE, "bias"),
    ("ggml_gated_delta_net", [t(2, 3, 2, 8), *DELTA[1:]], {}, "k"),
    ("ggml_gated_delta_net", [t(3, 1, 8), *DELTA[1:]], {}, "q"),
    ("ggml_gated_delta_net", [t(2, 0, 1, 8), *DELTA[1:]], {}, "q"),
    ("ggml_gated_delta_net", [t(2, 3, 1, 8, strides=(96, 32, 4, 32)), *DELTA[1:]], {}, "q"),
    ("ggml_gated_delta_net", [*DELTA[:2], t(2, 4, 2, 8), *DELTA[3:]], {}, "v"),
    ("ggml_gated_delta_net", [*DELTA[:3], t(2, 3, 2, 1), *DELTA[4:]], {}, "g"),
    ("ggml_gated_delta_net", [*DELTA[:4], t(2, 3), DELTA[5]], {}, "beta"),
    ("ggml_gated_delta_net", [*DELTA[:5], t(2, 64)], {}, "state"),
    ("ggml_gated_delta_net", [*DELTA[:5], t(2, 0, 128)], {}, "state"),
    ("ggml_gated_delta_net", [*DELTA[:5], t(2, 4, 64)], {}, "state"),
]

DTYPES: list[tuple[str, list[TensorSpec | None], dict[str, Any], str]] = [
    ("add", [t(4, of="i32"), t(4)], {}, "a"),
    ("add", [t(4), t(4, of="f16")], {}, "b"),
    ("scale", [t(4, of="f16")], dict(factor=1.0), "x"),
    ("silu", [t(4, of="bf16")], {}, "x"),
    ("swiglu", [t(4, of="f16"), t(4)], {}, "gate"),
    ("geglu", [t(4), t(4, of="f16")], {}, "up"),
    ("rms_norm", [t(4, of="f16"), None], dict(eps=1e-6), "x"),
    ("rms_norm", [t(4, 8), t(8, of="f16")], dict(eps=1e-6), "w"),
    ("l2_norm", [t(4, of="f16")], dict(eps=1e-6, form="add"), "x"),
    ("get_rows", [t(4, 8, of="i32"), IDS], {}, "table"),
    ("get_rows", [t(4, 8), t(4)], {}, "ids"),
    ("mul_mat", [t(4, 8, of="f16"), t(2, 8)], {}, "x"),
    ("mul_mat", [t(4, 32), t(2, 32, of="i32")], {}, "w"),
    ("mul_mat", [t(4, 256), t(2, 256, of="iq1_s")], {}, "w"),
    ("rope", [t(4, 2, 8, of="f16"), IDS, None], ROPE, "x"),
    ("rope", [t(4, 2, 8), t(4), None], ROPE, "positions"),
    ("rope", [t(4, 2, 8), IDS, t(4, of="f16")], ROPE, "factors"),
    ("cont", [t(4, 32, of="q8_0")], {}, "x"),
    ("cast", [t(4, of="i64")], dict(to="f32"), "x"),
    ("concat", [t(4, 32, of="q8_0")], dict(axis=0), "xs[0]"),
    ("concat", [t(4), t(4, of="f16")], dict(axis=0), "xs[1]"),
    ("argmax", [t(4, of="i32")], {}, "x"),
    ("top_k", [t(4, of="f16")], dict(k=1), "x"),
    ("argsort", [t(4, of="i32")], dict(order="asc"), "x"),
    ("div", [t(4), t(4, of="f16")], {}, "b"),
    ("clamp", [t(4, of="f16")], dict(min=0.0, max=1.0), "x"),
    ("norm", [t(4, 8), t(8, of="f16"), None], dict(eps=1e-6), "w"),
    ("softmax", [t(4, 8), t(4, 8, of="f16")], {}, "mask"),
    ("sum", [t(4, of="i32")], dict(axis=0), "x"),
    ("cumsum", [t(4, of="f16")], dict(axis=0), "x"),
    ("repeat", [t(4, 32, of="q8_0")], dict(repeats=(1, 1)), "x"),
    ("pad", [t(4, of="f16")], dict(before=(0,), after=(0,)), "x"),
    ("set", [t(4, 8, of="bf16"), t(4, 8, of="bf16")], PART, "dst"),
    ("set", [t(4, 8), t(4, 8, of="f16")], PART, "src"),
    ("solve_tri", [t(4, 4), t(4, 2, of="f16")], {}, "b"),
    ("mul_mat_id", [t(4, 8), t(3, 5, 8, of="i32"), PAIRS], {}, "w"),
    ("mul_mat_id", [t(4, 8), EXPERTS, t(4, 2)], {}, "ids"),
    ("topk_moe", [t(4, 8, of="f16"), None], ROUTE, "logits"),
    ("topk_moe", [t(4, 8), t(8, of="f16")], ROUTE, "bias"),
    ("ggml_gated_delta_net", [*DELTA[:5], t(2, 4, 128, of="f16")], {}, "state"),
]

HEADS: list[TensorSpec | None] = [t(4, 2, 16), IDS, None]
YARN = dict(ext_factor=1.0, n_ctx_orig=4096)
ATTRIBUTES: list[tuple[str, list[TensorSpec | None], dict[str, Any], str]] = [
    ("scale", [t(4)], dict(factor=float("nan")), "factor"),
    ("scale", [t(4)], dict(factor=1.0, bias=float("inf")), "bias"),
    ("rms_norm", [t(4), None], dict(eps=-1.0), "eps"),
    ("l2_norm", [t(4)], dict(eps=-1.0, form="add"), "eps"),
    ("l2_norm", [t(4)], dict(eps=float("nan"), form="add"), "eps"),
    ("l2_norm", [t(4)], dict(eps=1.0, form="sum"), "form"),
    ("rope", HEADS, ROPE | {"style": "mrope"}, "style"),
    ("rope", HEADS, ROPE | {"n_rot": 7}, "n_rot"),
    ("rope", HEADS, ROPE | {"n_rot": 0}, "n_rot"),
    ("rope", HEADS, ROPE | {"n_rot": 18}, "n_rot"),
    ("rope", HEADS, ROPE | {"base": 1.0}, "base"),
    ("rope", HEADS, ROPE | {"freq_scale": 0.0}, "freq_scale"),
    ("rope", HEADS, ROPE | {"attn_factor": float("inf")}, "attn_factor"),
    ("rope", HEADS, ROPE | {"beta_fast": -1.0}, "beta_fast"),
    ("rope", HEADS, ROPE | {"beta_slow": 0.0}, "beta_slow"),
    ("rope", HEADS, ROPE | {"ext_factor": float("nan")}, "ext_factor"),
    ("rope", HEADS, ROPE | YARN | {"n_ctx_orig": 0}, "n_ctx_orig"),
    ("rope", HEADS, ROPE | {"sections": (11, 11, 10, 0)}, "sections"),
    ("rope", HEADS, ROPE | {"style": "imrope"}, "sections"),
    ("rope", HEADS, ROPE | {"style": "imrope", "sections": (4, 4, 4)}, "sections"),
    ("rope", HEADS, ROPE | {"style": "imrope", "sections": (0, 0, 0, 0)}, "sections"),
    ("rope", HEADS, ROPE | {"style": "imrope", "sections": (4, 4, -4, 4)}, "sections"),
    ("reshape", [t(4, 8)], dict(shape=(-1, -1)), "shape"),
    ("reshape", [t(4, 8)], dict(shape=(-2, 16)), "shape"),
    ("reshape", [t(4, 8)], dict(shape=(4, 8.0)), "shape"),
    ("reshape", [t(4, 8)], dict(shape=(4, 8, 1, 1, 1, 1, 1)), "shape"),
    ("view", [t(4, 8)], dict(axis=2, start=0, stop=1), "axis"),
    ("view", [t(4, 8)], dict(axis=-3, start=0, stop=1), "axis"),
    ("view", [t()], dict(axis=0, start=0, stop=0), "axis"),
    ("view", [t(4, 8)], dict(axis=1, start=9, stop=9), "start"),
    ("view", [t(4, 8)], dict(axis=1, start=-1, stop=9), "start"),
    ("view", [t(4, 8)], dict(axis=1, start=3, stop=9), "stop"),
    ("view", [t(4, 8)], dict(axis=1, start=3, stop=2), "stop"),
    ("view", [t(4, 64, of="q8_0")], dict(axis=1, start=0, stop=32), "axis"),
    ("permute", [t(4, 8)], dict(axes=(0, 0)), "axes"),
    ("permute", [t(4, 8)], dict(axes=(0,)), "axes"),
    ("permute", [t(4, 8)], dict(axes=(1, 2)), "axes"),
    ("permute", [t(4, 8)], dict(axes=(0, "a")), "axes"),
    ("permute", [t(4, 64, of="q8_0")], dict(axes=(1, 0)), "axes"),
    ("cast", [t(4)], dict(to="q4_k"), "to"),
    ("concat", [t(4, 8)], dict(axis=2), "axis"),
    ("concat", [t()], dict(axis=0), "axis"),
    ("top_k", [t(4, 8)], dict(k=0), "k"),
    ("top_k", [t(4, 8)], dict(k=9), "k"),
    ("argsort", [t(4, 8)], dict(order="up"), "order"),
    ("clamp", [t(4)], dict(min=float("nan"), max=1.0), "min"),
    ("clamp", [t(4)], dict(min=0.0, max=float("nan")), "max"),
    ("clamp", [t(4)], dict(min=1.0, max=0.5), "max"),
    ("norm", [t(4), None, None], dict(eps=-1.0), "eps"),
    ("softmax", [t(4), None], dict(scale=float("inf")), "scale"),
    ("sum", [t(4, 8)], dict(axis=2), "axis"),
    ("mean", [t()], dict(axis=0), "axis"),
    ("cumsum", [t(4, 8)], dict(axis=-3), "axis"),
    ("repeat", [t(4, 8)], dict(repeats=(2,)), "repeats"),
    ("repeat", [t(4, 8)], dict(repeats=(2, 0)), "repeats"),
    ("pad", [t(4, 8)], dict(before=(1,), after=(0, 0)), "before"),
    ("pad", [t(4, 8)], dict(before=(0, 0), after=(0, -1)), "after"),
    ("pad", [t(4)], dict(before=(0,), after=(1,), value=float("nan")), "value"),
    ("set", [t(4, 8), t(2, 8)], dict(axis=2, start=0), "axis"),
    ("set", [t(4, 8), t(2, 8)], dict(axis=0, start=3), "start"),
    ("set", [t(4, 8), t(2, 8)], dict(axis=0, start=-1), "start"),
    ("transpose", [t(4, 8)], dict(a=2, b=0), "a"),
    ("transpose", [t(4, 8)], dict(a=0, b=-3), "b"),
    ("transpose", [t(4, 64, of="q8_0")], dict(a=0, b=1), "b"),
    ("transpose", [t(4, 64, of="q8_0")], dict(a=-1, b=0), "a"),
    ("topk_moe", [t(4, 8), None], ROUTE | {"k": 9}, "k"),
    ("topk_moe", [t(4, 8), None], ROUTE | {"k": 0}, "k"),
    ("topk_moe", [t(4, 8), None], ROUTE | {"gating": "relu"}, "gating"),
    ("topk_moe", [t(4, 8), None], ROUTE | {"scale": float("nan")}, "scale"),
]

FAULTS = [
    *((ShapeError, "", *row) for row in SHAPES),
    *((DTypeError, "", *row) for row in DTYPES),
    *((AttributeValueError, "attribute ", *row) for row in ATTRIBUTES),
]


@pytest.mark.parametrize("error, word, name, inputs, attributes, arg", FAULTS)
def test_refusal_names_op_argument_expected_and_got(
    error: type[GraphError],
    word: str,
    name: str,
    inputs: list[TensorSpec | None],
    attributes: dict[str, Any],
    arg: str,
) -> None:
    with pytest.raises(error) as caught:
        make_op(name, attributes).infer(*inputs)
    assert type(caught.value) is error
    start = f"{name}: {word}'{arg}' should be "
    assert str(caught.value).startswith(start)
    assert ", got " in str(caught.value)[len(start) :]


def test_remedy_for_gaps() -> None:
    for name, inputs, attributes in (
        ("mul_mat", [TURNED, t(2, 8)], {}),
        ("reshape", [GAP], {"shape": (32,)}),
    ):
        with pytest.raises(ShapeError, match=r"make it contiguous with cont$"):
            make_op(name, attributes).infer(*inputs)


@pytest.mark.parametrize(
    "name, attributes, message",
    [
        ("scale", {}, "attribute 'factor' must be given"),
        ("scale", {"factor": "2"}, "attribute 'factor' should be float, got '2'"),
        ("scale", {"factor": True}, "attribute 'factor' should be float, got True"),
        ("scale", {"factor": 1.0, "eps": 1}, "unknown attribute 'eps'"),
        ("view", {"axis": 0.0, "start": 0, "stop": 1}, "attribute 'axis' should be int, got 0.0"),
        ("top_k", {"k": True}, "attribute 'k' should be int, got True"),
        ("reshape", {"shape": 4}, "attribute 'shape' should be tuple.*, got 4"),
        ("l2_norm", {"eps": 0.0, "form": 1}, "attribute 'form' should be str, got 1"),
    ],
)
def test_attributes_have_their_declared_type(
    name: str, attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(AttributeValueError, match=f"{name}: {message}"):
        make_op(name, attributes)


def test_numbers_of_numpy_become_python_s() -> None:
    op = make_op("top_k", {"k": np.int64(3)})
    assert type(op.attributes()["k"]) is int
    op = make_op("scale", {"factor": np.float32(0.5), "bias": 1})
    assert op.attributes() == {"factor": 0.5, "bias": 1.0}
    assert [type(v) for v in op.attributes().values()] == [float, float]
    op = make_op("reshape", {"shape": [np.int64(2), 3]})
    assert op.attributes() == {"shape": (2, 3)}
    assert [type(n) for n in op.attributes()["shape"]] == [int, int]


@pytest.mark.parametrize(
    "name, attributes",
    [
        ("l2_norm", {"eps": 1e-6}),
        ("rope", {"n_rot": 8, "base": 1e4}),
        ("argsort", {}),
        ("topk_moe", {"k": 2, "gating": "softmax"}),
        ("topk_moe", {"k": 2, "normalize": True}),
    ],
)
def test_what_is_ambiguous_has_no_default(name: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(AttributeValueError, match="must be given"):
        make_op(name, attributes)


def test_builder_adds_the_place() -> None:
    g = Graph()
    x = g.input("x", (4, 8))
    place = r"mul_mat: 'w' .*'blk\.0\.ffn'.*test_shape_rules\.py:\d+"
    with g.scope("blk.0"), pytest.raises(ShapeError, match=place):
        g.mul_mat(x, g.input("w", (2, 7)), name="ffn")
    with pytest.raises(GraphError, match="concat: input 1 is missing"):
        g.concat(x, None, axis=0)  # type: ignore[arg-type]


def test_case_needs_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    from riverrun.graph.case import Case, bind_case

    with pytest.raises(ValueError, match="a case of add has no input 'b'"):
        bind_case(OPS["add"], Case(a=f32(3)))
    both = bind_case(OPS["concat"], Case(xs=(f32(3), f32(4)), axis=0))
    assert both.id == "concat[xs=3,xs=4,axis=0]"
    twice = [Case(x=f32(3)), Case(x=f32(3))]
    monkeypatch.setattr(OPS["neg"], "cases", staticmethod(lambda: twice))
    with pytest.raises(ValueError, match=r"two cases are called neg\[x=3\]"):
        op_cases(OPS["neg"])


@pytest.mark.parametrize("name, inputs, attributes, shape", [
    ("add", [t(0, 8), t(8)], {}, (0, 8)),
    ("add", [t(), t()], {}, ()),
    ("neg", [t()], {}, ()),
    ("mul_mat", [t(0, 8), t(3, 8)], {}, (0, 3)),
    ("mul_mat", [t(8), t(3, 8)], {}, (3,)),
    ("mul_mat", [GAP, t(3, 8)], {}, (4, 3)),
    ("get_rows", [t(4, 64, of="q4_0"), t(0, of="i32")], {}, (0, 64)),
    ("argmax", [t(0, 8)], {}, (0,)),
    ("argmax", [t(8)], {}, ()),
    ("rope", [t(0, 2, 8), t(0, of="i32"), None], ROPE, (0, 2, 8)),
    ("reshape", [t(0, 8)], dict(shape=(-1, 4)), (0, 4)),
    ("reshape", [t(1)], dict(shape=()), ()),
    ("concat", [t(4, 8, strides=(64, 4)), t(4, 1)], dict(axis=-1), (4, 9)),
    ("cont", [TURNED], {}, (4, 8)),
    ("cast", [GAP], dict(to="f32"), (4, 8)),
    ("cast", [t(0, 64)], dict(to="q8_0"), (0, 64)),
    ("sum", [t(4, 8)], dict(axis=-2), (1, 8)),
    ("sum", [t(4)], dict(axis=0, keepdims=False), ()),
    ("mean", [t(0, 8)], dict(axis=1, keepdims=False), (0,)),
    ("repeat", [t(2, 3)], dict(repeats=(4, 1)), (8, 3)),
    ("pad", [t(2, 3)], dict(before=(1, 0), after=(0, 2)), (3, 5)),
    ("softmax", [GAP, t()], {}, (4, 8)),
    ("mul_mat_id", [GAP, EXPERTS, PAIRS], {}, (4, 2, 5)),
    ("mul_mat_id", [t(4, 2, 8), EXPERTS, PAIRS], {}, (4, 2, 5)),
    ("ggml_gated_delta_net", DELTA, {}, (2 * 3 * 16 + 4 * 2 * 128,)),
    ("ggml_gated_delta_net", [*DELTA[:3], DELTA[2], *DELTA[4:]], {}, (1120,)),
])  # fmt: skip
def test_accepted_shapes(
    name: str, inputs: list[TensorSpec | None], attributes: dict[str, Any], shape: tuple[int, ...]
) -> None:
    y = make_op(name, attributes).infer(*inputs)
    assert isinstance(y, TensorSpec)
    assert (y.shape, y.contiguous) == (shape, True)
