"""View ops: where in memory their results lie, and what the planner makes of them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import riverrun.models.quant
import riverrun.ops  # noqa: F401
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.graph import OPS, Graph, Op, TensorSpec, dtype, make_op, plan_memory, verify
from riverrun.graph.case import BoundCase, op_cases
from riverrun.graph.codec import decode
from riverrun.graph.errors import ShapeError
from riverrun.ops.reshape import reshaped_strides

CASES = [
    case for name in ("reshape", "view", "permute", "transpose") for case in op_cases(OPS[name])
]


def laid_out(spec: TensorSpec, raw: np.ndarray) -> np.ndarray:
    """A flat buffer that holds contiguous bytes where spec wants them; gaps hold 0xa5."""
    width = spec.dtype.row_bytes(spec.shape[-1]) if spec.shape else spec.dtype.nbytes
    rows = spec.shape[:-1]
    end = sum((n - 1) * s for n, s in zip(rows, spec.byte_strides, strict=False)) + width
    buffer = np.full(0 if spec.size == 0 else end, 0xA5, np.uint8)
    if spec.size:
        into = np.lib.stride_tricks.as_strided(
            buffer, (*rows, width), (*spec.byte_strides[: len(rows)], 1)
        )
        into[...] = raw.reshape(*rows, width)
    return buffer


def read(spec: TensorSpec, buffer: np.ndarray, offset: int) -> np.ndarray:
    """The decoded elements of spec in a buffer, gathered through its strides."""
    if spec.size == 0:
        return decode(spec.dtype, np.zeros(0, np.uint8), spec.shape)
    blocks = spec.shape
    if spec.dtype.quantized:
        blocks = (*spec.shape[:-1], spec.shape[-1] // spec.dtype.block)
    assert offset + sum((n - 1) * s for n, s in zip(blocks, spec.byte_strides, strict=True)) + (
        spec.dtype.nbytes
    ) <= len(buffer)
    raw = np.lib.stride_tricks.as_strided(
        buffer[offset:], (*blocks, spec.dtype.nbytes), (*spec.byte_strides, 1)
    )
    return decode(spec.dtype, np.ascontiguousarray(raw), spec.shape)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_strides_and_offset_find_what_the_reference_says(case: BoundCase) -> None:
    declared, drawn = case.inputs[0], case.draw()[0]
    assert declared is not None and drawn is not None
    x = TensorSpec(declared.shape, declared.dtype, case.strides(0))
    buffer = laid_out(x, drawn.raw)
    np.testing.assert_array_equal(read(x, buffer, 0), drawn.decoded())
    y = case.op.infer(x)
    assert isinstance(y, TensorSpec)
    found = read(y, buffer, case.op.view_offset(x))
    np.testing.assert_array_equal(found, case.op.reference(drawn.decoded()))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_reference_of_a_view_shares_memory(case: BoundCase) -> None:
    declared = case.inputs[0]
    assert declared is not None
    x = np.zeros(declared.shape, np.float32)
    y = case.op.reference(x)
    assert y.size == 0 or np.shares_memory(x, y)


def by_hand(op: Op, spec: TensorSpec) -> tuple[tuple[int, ...] | None, int]:
    """Strides and offset of a view op's output."""
    y = op.infer(spec)
    assert isinstance(y, TensorSpec)
    return y.strides, op.view_offset(spec)


def test_strides_and_offsets_by_hand() -> None:
    x = TensorSpec((4, 6, 8))
    assert by_hand(make_op("view", dict(axis=1, start=2, stop=5)), x) == ((192, 32, 4), 64)
    assert by_hand(make_op("view", dict(axis=-1, start=3, stop=4)), x) == ((192, 32, 4), 12)
    assert by_hand(make_op("view", dict(axis=0, start=1, stop=3)), x) == (None, 192)
    assert by_hand(make_op("permute", dict(axes=(1, 0, 2))), x) == ((32, 192, 4), 0)
    blocks = TensorSpec((4, 6, 64), dtype("q8_0"))
    assert by_hand(make_op("view", dict(axis=1, start=2, stop=5)), blocks) == ((408, 68, 34), 136)
    gap = TensorSpec((6, 8), strides=(64, 4))
    assert by_hand(make_op("reshape", dict(shape=(2, 3, 2, 4))), gap) == ((192, 64, 16, 4), 0)


def test_reshape_moves_whole_blocks_only() -> None:
    d = dtype("q8_0")
    rows = TensorSpec((4, 64), d, (136, 34))
    heads = make_op("reshape", dict(shape=(4, 2, 32))).infer(rows)
    assert heads == TensorSpec((4, 2, 32), d, (136, 34, 34))
    with pytest.raises(ShapeError, match="whole blocks of 32 for q8_0"):
        make_op("reshape", dict(shape=(4, 4, 16))).infer(rows)
    with pytest.raises(ShapeError, match="contiguous with cont"):
        make_op("reshape", dict(shape=(2, 128))).infer(rows)


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """An array with gaps, permuted axes, and extents of 1, over a buffer of distinct values."""
    shape = draw(st.lists(st.integers(1, 4), min_size=0, max_size=4))
    wide = [n + draw(st.integers(0, 1)) for n in shape]
    base = np.arange(math.prod(wide), dtype=np.float32).reshape(wide)
    cut = base.view()
    for axis, n in enumerate(shape):
        cut = cut[(slice(None),) * axis + (slice(0, n),)]
    return cut.transpose(draw(st.permutations(range(len(shape)))))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """A strided array and another shape with as many elements."""
    x = draw(strided())
    left, new = x.size, list[int]()
    while left > 1 and len(new) < 5:
        new.append(draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= new[-1]
    new.append(left)
    return x, tuple(draw(st.permutations(new)))


@settings(max_examples=600, deadline=None, derandomize=True)
@given(reshapes())
def test_reshape_is_a_view_exactly_where_numpy_has_one(
    case: tuple[np.ndarray, tuple[int, ...]],
) -> None:
    x, new = case
    spec = TensorSpec(x.shape, strides=x.strides)
    expected = x.reshape(new)
    op = make_op("reshape", {"shape": new})
    if not np.shares_memory(x, expected):
        assert reshaped_strides(x.shape, x.strides, new) is None
        with pytest.raises(ShapeError, match=r"reshape: 'x' should be laid out .* with cont"):
            op.infer(spec)
        return
    y = op.infer(spec)
    assert isinstance(y, TensorSpec) and y.shape == new
    found = np.lib.stride_tricks.as_strided(x, new, y.byte_strides)
    np.testing.assert_array_equal(found, expected)
    assert op.reference(x).tolist() == expected.tolist()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(strided(), st.data())
def test_chains_of_views_add_their_offsets(x: np.ndarray, data: st.DataObject) -> None:
    spec, offset, y = TensorSpec(x.shape, strides=x.strides), 0, x
    for _ in range(3):
        if y.ndim == 0:
            break
        axis = data.draw(st.integers(-y.ndim, y.ndim - 1))
        start = data.draw(st.integers(0, y.shape[axis] - 1))
        stop = data.draw(st.integers(start + 1, y.shape[axis]))
        axes = tuple(data.draw(st.permutations(range(y.ndim))))
        view = make_op("view", dict(axis=axis, start=start, stop=stop))
        for op in (view, make_op("permute", {"axes": axes})):
            offset += op.view_offset(spec)
            inferred = op.infer(spec)
            assert isinstance(inferred, TensorSpec)
            spec, y = inferred, op.reference(y)
    flat = x.base if x.base is not None else x
    buffer = np.asarray(flat).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(read(spec, buffer, offset), y)


def test_axes_of_one_element_leave_a_layout_contiguous() -> None:
    row = TensorSpec((1, 96), strides=(512, 4))
    assert row.contiguous and row == TensorSpec((1, 96))
    assert TensorSpec((4, 1, 8), strides=(64, 7, 4)) == TensorSpec((4, 1, 8), strides=(64, 9, 4))
    with pytest.raises(ShapeError, match="takes as many strides"):
        TensorSpec((4, 8), strides=(4,))


def test_an_input_read_through_a_view_is_not_overwritten() -> None:
    g = Graph()
    a = g.scale(g.input("x", (4, 4)), factor=2.0)
    y = g.output("y", g.add(a, g.permute(a, axes=(1, 0))))
    verify(g)
    places = plan_memory(g).places
    assert places[y].offset != places[a].offset
    g = Graph()
    a = g.scale(g.input("x", (4, 4)), factor=2.0)
    y = g.output("y", g.add(a, g.input("b", (4, 4))))
    places = plan_memory(g).places
    assert places[y] == places[a]


def test_views_take_no_memory_of_their_own() -> None:
    g = Graph()
    a = g.scale(g.input("x", (6, 8)), factor=2.0)
    v = g.view(g.reshape(a, shape=(6, 2, 4)), axis=0, start=2, stop=5)
    g.output("y", g.cont(g.permute(v, axes=(1, 0, 2))))
    places = plan_memory(g).places
    assert places[v].offset == places[a].offset + 2 * 32
    assert len({p.offset for v, p in places.items() if p.kind == "arena"}) == 3


def test_every_slice_of_every_axis() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for axis in range(-3, 3):
        n = x.shape[axis]
        for start, stop in itertools.combinations_with_replacement(range(n + 1), 2):
            op = make_op("view", dict(axis=axis, start=start, stop=stop))
            expected = np.take(x, range(start, stop), axis)
            np.testing.assert_array_equal(op.reference(x), expected)
            assert op.infer(TensorSpec(x.shape)).shape == expected.shape  # type: ignore[union-attr]
