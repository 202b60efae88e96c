"""The CPU's row lookups: every table type decodes bit for bit, at every instruction set."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from one_op import bits, cpu
from riverrun.backends.base import Pools
from riverrun.backends.cpu import instruction_sets
from riverrun.graph import Graph, HostTensor, TensorSpec
from riverrun.graph.codec import decode
from riverrun.graph.dtype import BY_NAME, dtype
from riverrun.models.gguf.scan import _F16_SCALES
from riverrun.ops.get_rows import _TABLE_TYPES

ROWS, BLOCKS = 256, 2


def lookup(kind: str, raw: np.ndarray, ids: np.ndarray, threads: int) -> np.ndarray:
    d = dtype(kind)
    shape = (len(raw), raw.shape[1] // d.nbytes * d.block)
    g = Graph("lookup")
    table = g.constant(HostTensor(TensorSpec(shape, d), raw.reshape(-1)), "table")
    g.output("y", g.get_rows(table, g.input("ids", ids.shape, "i32")))
    plan = cpu(threads).compile(g)
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


def test_every_type_with_a_codec_is_a_case() -> None:
    from riverrun.graph.codec import _CODECS

    assert set(_CODECS) | {"f32", "f16"} == set(_TABLE_TYPES)


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_the_same_at_lower_instruction_sets(isa: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", "bit_for_bit"],
        env=os.environ | {"RIVERRUN_ISA": isa},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
