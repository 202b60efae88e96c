"""The CPU's row lookups: every table type decodes bit for bit, at every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from lower_levels import check_at
from one_op import bits, cpu
from riverrun.backends.base import Pools
from riverrun.backends.cpu import ROWS16, CpuPlan, instruction_sets
from riverrun.backends.native import PLAIN
from riverrun.graph import Graph, HostTensor, TensorSpec
from riverrun.graph.codec import decode
from riverrun.graph.dtype import BY_NAME, dtype
from riverrun.graph.errors import BackendError
from riverrun.models.gguf.scan import _F16_SCALES
from riverrun.ops.get_rows import _TABLE_TYPES

ROWS, BLOCKS = 256, 2
# Types whose packed layouts hold what they were packed of, bit by bit; others hold values.
BY_BIT = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k")
BY_BIT += ("q5_k", "q6_k", "iq4_nl", "iq4_xs")


def plan_of(kind: str, raw: np.ndarray, n: int, threads: int, tied: bool = False) -> CpuPlan:
    """Lookups of n rows; tied: of a table that is a weight as well."""
    d = dtype(kind)
    shape = (len(raw), raw.shape[1] // d.nbytes * d.block)
    g = Graph("lookup")
    table = g.constant(HostTensor(TensorSpec(shape, d), raw.reshape(-1)), "table")
    g.output("y", g.get_rows(table, g.input("ids", (n,), "i32")))
    if tied:
        g.output("logits", g.mul_mat(g.input("x", (1, shape[1])), table))
    return cpu(threads).compile(g)


def lookup(
    kind: str, raw: np.ndarray, ids: np.ndarray, threads: int, tied: bool = False
) -> np.ndarray:
    plan = plan_of(kind, raw, len(ids), threads, tied)
    bound = plan.bind(plan.own_weights(), Pools(plan.states))
    bound.inputs["ids"][...] = ids
    bound.run()
    return np.array(bound.outputs["y"])


def random_table(kind: str) -> np.ndarray:
    """Random bytes [ROWS, BLOCKS blocks] with finite floats, subnormal ones among them."""
    d = BY_NAME[kind]
    count = BLOCKS if d.quantized else 33
    raw = np.random.default_rng(d.ggml_id).integers(0, 256, (ROWS, count, d.nbytes), np.uint8)
    for at in {"f16": (0,), **_F16_SCALES}.get(kind, ()):
        raw[..., at + 1] &= 0xFB
    if kind in ("f32", "bf16"):
        raw[..., -1] &= 0xBF
    if kind == "mxfp4":
        raw[:, 0, 0] = np.arange(256)
    return raw.reshape(ROWS, count * d.nbytes)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", _TABLE_TYPES)
def test_rows_are_decoded_bit_for_bit(kind: str, threads: int) -> None:
    d, raw = dtype(kind), random_table(kind)
    width = raw.shape[1] // d.nbytes * d.block
    want = decode(d, raw, (ROWS, width)).astype(np.float32)
    ids = np.random.default_rng(1).permutation(np.arange(2 * ROWS, dtype=np.int32) % ROWS)
    # Enough values for both threads to take a part.
    ids = np.tile(ids, -(-65536 // (len(ids) * width)))
    np.testing.assert_array_equal(bits(lookup(kind, raw, ids, threads)), bits(want[ids]))


@pytest.mark.parametrize("n_blocks", [1, 2, 5])
@pytest.mark.parametrize("kind", _TABLE_TYPES)
def test_bit_for_bit_of_a_table_that_is_a_weight_too(kind: str, n_blocks: int) -> None:
    """It is read as the product reads it, packed in groups of 16 rows, the last one not full."""
    d, whole = dtype(kind), random_table(kind)
    raw = np.tile(whole, (1, 3))[:35, : n_blocks * (d.nbytes if d.quantized else 11 * d.nbytes)]
    raw = np.ascontiguousarray(raw)
    layouts = [choice.layouts for choice in plan_of(kind, raw, 3, 1, tied=True).choices]
    assert (layouts[0][0] == ROWS16) == (kind in BY_BIT)
    want = decode(d, raw, (35, raw.shape[1] // d.nbytes * d.block)).astype(np.float32)
    for ids in (np.arange(35, dtype=np.int32), np.array([34, 0, 34, 16], np.int32)):
        np.testing.assert_array_equal(bits(lookup(kind, raw, ids, 2, tied=True)), bits(want[ids]))


def test_a_table_that_is_no_weight_stays_in_the_file() -> None:
    plan = plan_of("q8_0", random_table("q8_0"), 3, 1)
    assert [choice.layouts[0] for choice in plan.choices] == [PLAIN]


def test_ids_outside_a_packed_table_are_told() -> None:
    for bad in (-1, ROWS):
        with pytest.raises(BackendError, match=rf"ids\[1\] is {bad}, outside \[0, {ROWS}\)"):
            lookup("q4_k", random_table("q4_k"), np.array([0, bad], np.int32), 1, tied=True)


def test_every_type_with_a_codec_is_a_case() -> None:
    from riverrun.graph.codec import _CODECS

    assert set(_CODECS) | {"f32", "f16"} == set(_TABLE_TYPES)


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_the_same_at_lower_instruction_sets(isa: str) -> None:
    check_at(isa, __file__, "bit_for_bit")
