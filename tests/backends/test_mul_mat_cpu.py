"""The CPU's matrix products and row lookups: exactness of rows, odd shapes, extreme values."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from hashlib import sha256

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from eight_bits import rounded
from lower_levels import check_at, integers_only
from one_op import bits, cpu, normal
from riverrun.backends.base import Pools
from riverrun.backends.cpu import instruction_sets
from riverrun.graph import Graph, HostTensor, TensorSpec
from riverrun.graph.codec import decode, encode
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import BackendError

FLOATS = ("f32", "f16", "bf16")
# Block types, and where a block has its f16 scales.
SCALES: dict[str, tuple[int, ...]] = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "iq4_nl": (0,),
    "mxfp4": (),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq4_xs": (0,),
    "iq2_xxs": (0,),
    "iq2_xs": (0,),
    "iq2_s": (0,),
    "iq3_xxs": (0,),
    "iq3_s": (0,),
}
BLOCKS = tuple(SCALES)
TYPES = FLOATS + BLOCKS
COUNTS = (*range(1, 18), 33, 65, 260)
# Two whole stretches of k that sums are cut at and a part of one; four groups of rows and a part
# of one, large enough for two threads to share.
K, M = 2304, 72


def raw_of(kind: str, values: np.ndarray) -> np.ndarray:
    """Encoded bytes."""
    return np.ascontiguousarray(encode(dtype(kind), values)).reshape(-1).view(np.uint8)


class Product:
    """mul_mat of n rows of x with fixed weights, given as bytes."""

    def __init__(self, kind: str, raw: np.ndarray, n: int, m: int, k: int, threads: int = 1):
        g = Graph("product")
        w = g.constant(HostTensor(TensorSpec((m, k), dtype(kind)), raw), "w")
        g.output("y", g.mul_mat(g.input("x", (n, k), "f32"), w))
        plan = cpu(threads).compile(g)
        self.bound = plan.bind(plan.own_weights(), Pools(plan.states))

    def __call__(self, x: np.ndarray, rows: int | None = None) -> np.ndarray:
        self.bound.inputs["x"][...] = x
        self.bound.scratch[...] = 0xFF
        self.bound.run(rows)
        return np.array(self.bound.outputs["y"])


def product(kind: str, x: np.ndarray, raw: np.ndarray, m: int, threads: int = 1) -> np.ndarray:
    return Product(kind, raw, len(x), m, x.shape[1], threads)(x)


def exact(kind: str, x: np.ndarray, raw: np.ndarray, m: int) -> np.ndarray:
    """The product in f64."""
    w = decode(dtype(kind), raw, (m, x.shape[1])).astype(np.float64)
    if kind == "bf16":
        w = decode(dtype("bf16"), raw.view(np.uint16), (m, x.shape[1])).astype(np.float64)
    return x.astype(np.float64) @ w.T


def expected(kind: str, x: np.ndarray, raw: np.ndarray, m: int) -> np.ndarray:
    """The product in f64, of the same rounded x."""
    return exact(kind, rounded(x) if kind in BLOCKS else x, raw, m)


def check_close(have: np.ndarray, want: np.ndarray) -> None:
    """Equal but for the rounding of f32 sums."""
    assert np.isfinite(have).all()
    error = np.square(have - want).sum() / max(np.square(want).sum(), 1e-300)
    assert error < 1e-11


@cache
def weights(kind: str) -> np.ndarray:
    return raw_of(kind, normal(5, M, K))


@cache
def rows_alone(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """260 rows of x, each multiplied on its own by one thread."""
    x = normal(6, max(COUNTS), K)
    one = Product(kind, weights(kind), 1, M, K)
    return x, np.concatenate([one(row[None]) for row in x])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", TYPES)
def test_a_row_does_not_depend_on_its_company(kind: str, threads: int) -> None:
    x, alone = rows_alone(kind)
    for n in COUNTS:
        pick = (np.arange(n) * 7 + 3 * n) % len(x)
        together = Product(kind, weights(kind), n, M, K, threads)(x[pick])
        np.testing.assert_array_equal(bits(together), bits(alone[pick]), f"{n} rows")


@pytest.mark.parametrize("kind", TYPES)
def test_rows_alone_are_right(kind: str) -> None:
    x, alone = rows_alone(kind)
    check_close(alone[:8], expected(kind, x[:8], weights(kind), M))


@pytest.mark.parametrize("m", [1, 15, 16, 17, 31, 33, 100])
@pytest.mark.parametrize("kind", TYPES)
def test_odd_shapes(kind: str, m: int) -> None:
    unit = dtype(kind).block
    for n, k in ((1, unit), (3, 3 * unit), (9, 5 * unit), (2, 1024 + unit)):
        x, raw = normal(m, n, k), raw_of(kind, normal(k, m, k))
        check_close(product(kind, x, raw, m, threads=2), expected(kind, x, raw, m))


@pytest.mark.parametrize("kind", FLOATS)
def test_lengths_that_no_vector_divides(kind: str) -> None:
    for m, k in ((1, 1), (5, 33), (17, 513), (40, 100)):
        x, raw = normal(m, 3, k), raw_of(kind, normal(k, m, k))
        check_close(product(kind, x, raw, m), expected(kind, x, raw, m))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_are_no_constants(kind: str, threads: int) -> None:
    k = 300 if kind in FLOATS else 768
    x, w = normal(1, 5, k), normal(2, 70, k)
    g = Graph("dynamic")
    spec = dtype(kind)
    g.output("y", g.mul_mat(g.input("x", x.shape, "f32"), g.input("w", w.shape, spec)))
    bound = (plan := cpu(threads).compile(g)).bind(plan.own_weights(), Pools(plan.states))
    raw = raw_of(kind, w)
    bound.inputs["x"][...] = x
    bound.inputs["w"].reshape(-1)[...] = raw.view(spec.storage)
    bound.run()
    check_close(bound.outputs["y"], exact(kind, x, raw, len(w)))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(kind: str, poison: float) -> None:
    clean = normal(3, 5, K)
    x = clean.copy()
    x[2, 1100] = poison
    run = Product(kind, weights(kind), 5, M, K, 2)
    before, after = run(clean), run(x)
    assert not np.isfinite(after[2]).any()
    if kind in BLOCKS or np.isnan(poison):
        assert np.isnan(after[2]).all()
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(bits(after[others]), bits(before[others]))


@pytest.mark.parametrize("n", [1, 63, 64])
@pytest.mark.parametrize("kind", TYPES)
def test_huge_rows_stay_finite(kind: str, n: int) -> None:
    x = np.where(normal(4, n, K) > 0, np.float32(3e5), np.float32(2.9e5))
    y = product(kind, x, weights(kind), M, threads=2)
    assert np.isfinite(y).all()
    check_close(y[:4], expected(kind, x[:4], weights(kind), M))


@pytest.mark.parametrize("kind", BLOCKS)
def test_zero_and_vanishing_rows(kind: str) -> None:
    x = np.zeros((3, K), np.float32)
    x[1], x[2] = 1e-38, normal(8, K)
    x[2, ::32] = 1e-44
    y = product(kind, x, weights(kind), M)
    np.testing.assert_array_equal(y[0], 0)
    assert np.abs(y[1]).max() < 1e-30
    assert np.isfinite(y[2]).all()


def scaled(kind: str, m: int, blocks: np.ndarray, scales: tuple[float, float]) -> np.ndarray:
    """Encoded bytes of m rows of a block's bytes, or of all blocks', with other f16 scales."""
    d = dtype(kind)
    raw = np.broadcast_to(blocks, (m * 512 // d.block, d.nbytes)).astype(np.uint8)
    for at, scale in zip(SCALES[kind], scales, strict=False):
        raw[:, at : at + 2] = np.array([scale], "<f2").view(np.uint8)
    if kind == "mxfp4":
        raw[:, 0] = 128 + np.log2(scales[0])
    return raw.reshape(-1)


@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("kind", BLOCKS)
def test_extreme_codes_are_exact(kind: str, fill: int) -> None:
    m, k = 17, 512
    raw = scaled(kind, m, np.array(fill), (1, 2))
    x = np.ones((5, k), np.float32)
    x[1], x[2, ::2], x[3, 1::4], x[4, :7] = -1, -1, -1, -1
    check_close(product(kind, 127 * x, raw, m), expected(kind, 127 * x, raw, m))


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_bit_of_a_block_is_where_it_should_be(kind: str) -> None:
    m, k, d = 33, 512, dtype(kind)
    drawn = np.random.default_rng(2).integers(0, 256, (m * k // d.block, d.nbytes))
    raw, x = scaled(kind, m, drawn, (0.25, 0.5)), normal(11, 9, k)
    check_close(product(kind, x, raw, m), expected(kind, x, raw, m))


@pytest.mark.parametrize("e, size", [(0, 3e5), (1, 3e5), (2, 3e5), (253, 1e-3), (254, 1e-3)])
def test_the_ends_of_the_scales_of_mxfp4(e: int, size: float) -> None:
    raw = np.full((17 * 2, 17), 0x91, np.uint8)  # +1 and -1
    raw[:, 0] = e
    x = size * normal(12, 3, 64)
    check_close(product("mxfp4", x, raw.reshape(-1), 17), expected("mxfp4", x, raw.reshape(-1), 17))


def test_padding_rows_are_not_needed() -> None:
    run = Product("q8_0", weights("q8_0"), 8, M, K, 2)
    x = normal(9, 8, K)
    whole = run(x)
    x[3:] = np.nan
    np.testing.assert_array_equal(bits(run(x, rows=3)[:3]), bits(whole[:3]))


@pytest.mark.parametrize("n, m, k", [(0, 5, 64), (3, 0, 64), (3, 5, 0)])
def test_empty_products(n: int, m: int, k: int) -> None:
    y = product("f32", np.ones((n, k), np.float32), np.ones(4 * m * k, np.uint8), m)
    assert y.shape == (n, m)
    np.testing.assert_array_equal(y, 0)


def lookup(kind: str, raw: np.ndarray, shape: tuple[int, int], ids: list[int]) -> np.ndarray:
    g = Graph("lookup")
    table = g.constant(HostTensor(TensorSpec(shape, dtype(kind)), raw), "table")
    g.output("y", g.get_rows(table, g.input("ids", (len(ids),), "i32")))
    bound = (plan := cpu(2).compile(g)).bind(plan.own_weights(), Pools(plan.states))
    bound.inputs["ids"][...] = ids
    bound.run()
    return np.array(bound.outputs["y"])


# Where a block's floats have their upper bytes.
UPPER_BYTES = {"f32": [3], "f16": [1], "bf16": [1]}
UPPER_BYTES |= {kind: [at + 1 for at in places] for kind, places in SCALES.items()}


@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_decoded_bit_for_bit(kind: str) -> None:
    d, rng = dtype(kind), np.random.default_rng(1)
    shape = (11, 2 * max(d.block, 20))
    raw = rng.integers(0, 256, (11, d.row_bytes(shape[1])), np.uint8)
    for at in UPPER_BYTES[kind]:
        raw[:, at :: d.nbytes] &= 0xBF  # no NaN, no infinity
    want = decode(d, raw, shape).astype(np.float32)
    ids = [3, 10, 0, 3]
    np.testing.assert_array_equal(bits(lookup(kind, raw.reshape(-1), shape, ids)), bits(want[ids]))


@pytest.mark.parametrize("ids, at", [([0, 1, 11], 2), ([4, -1, 3], 1), ([2**31 - 1], 0)])
def test_an_id_outside_the_table_is_an_error(ids: list[int], at: int) -> None:
    raw = raw_of("q8_0", normal(1, 11, 64))
    message = rf"^get_rows: ids\[{at}\] is {ids[at]}, outside \[0, 11\)"
    with pytest.raises(BackendError, match=message):
        lookup("q8_0", raw, (11, 64), ids)


def digest() -> str:
    """Of the bits of products of all block types, in tiles of one to eight columns."""
    x, m, k = normal(13, 9, 768), 33, 768
    total = sha256()
    for kind in BLOCKS:
        raw = raw_of(kind, normal(14, m, k))
        for n in range(1, 10):
            total.update(product(kind, x[:n], raw, m).tobytes())
    return total.hexdigest()


@cache
def digest_at(isa: str) -> str:
    places = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = os.environ | {"RIVERRUN_ISA": isa, "PYTHONPATH": places}
    command = [sys.executable, "-c", "import test_mul_mat_cpu as t; print(t.digest())"]
    return subprocess.check_output(command, env=environment, text=True, timeout=600)


# The levels with fused multiply-add: on x86-64 all but the lowest.
FUSED = instruction_sets()[1 if "avx2" in instruction_sets() else 0 :]


@pytest.mark.parametrize("isa", FUSED[1:])
def test_levels_with_fused_multiply_add_give_the_same_bits(isa: str) -> None:
    assert digest_at(isa) == digest_at(FUSED[0])


@pytest.mark.parametrize("isa", instruction_sets()[:-1])
def test_all_of_this_at_lower_instruction_sets(isa: str) -> None:
    floats = " and not f32 and not f16" if integers_only(isa) else ""
    check_at(isa, __file__, "not lower_instruction_sets and not levels_with" + floats)
