"""The block codecs against the gguf package, and round trips."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from gguf import GGMLQuantizationType, quants
from gguf.constants import GGML_QUANT_SIZES
from paths import shared
from riverrun.graph import codec
from riverrun.graph.dtype import BY_GGML_ID, BY_NAME
from riverrun.graph.errors import DTypeError
from riverrun.models.gguf import open_gguf

# Name -> byte positions of f16 fields, and the bound on the squared error of encoded normal values
# as a part of their energy: 1.1 to 1.4 times what they reach. No code of that many bits an element,
# scales included, beats 4 ** -bits; block formats reach 2.1 (iq4_xs) to 6.3 times that (q4_1).
FORMATS = {
    "bf16": ((), 4e-6),
    "q8_0": ((0,), 4e-5),
    "q4_0": ((0,), 9e-3),
    "q4_1": ((0, 2), 7.5e-3),
    "q5_0": ((0,), 2.3e-3),
    "q5_1": ((0, 2), 1.8e-3),
    "q2_k": ((80, 82), 7.8e-2),
    "q3_k": ((108,), 2.3e-2),
    "q4_k": ((0, 2), 6e-3),
    "q5_k": ((0, 2), 1.6e-3),
    "q6_k": ((208,), 3.3e-4),
    "iq4_nl": ((0,), 6.2e-3),
    "iq4_xs": ((0,), 6.3e-3),
    "mxfp4": ((), 1.5e-2),
    "iq2_xxs": ((0,), 1.3e-1),
    "iq2_xs": ((0,), 1e-1),
    "iq2_s": ((0,), 7e-2),
    "iq3_xxs": ((0,), 4e-2),
    "iq3_s": ((0,), 2.1e-2),
}
BLOCKS = [name for name in FORMATS if name != "bf16"]


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(BY_NAME[name].ggml_id)


def ggml(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType(BY_NAME[name].ggml_id)


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.square(got.astype(np.float64) - want).sum() / np.square(want).sum())


def random_storage(name: str, rows: int, count: int) -> np.ndarray:
    """Random bytes [rows, count blocks] with finite scales."""
    d = BY_NAME[name]
    raw = rng(name).integers(0, 256, (rows, count, d.nbytes), dtype=np.uint8)
    for place in FORMATS[name][0]:
        scales = rng(name).standard_normal((rows, count, 1)).astype("<f2")
        raw[:, :, place : place + 2] = scales.view(np.uint8)
    return raw.reshape(rows, count * d.nbytes)


def test_sizes_are_those_of_the_format() -> None:
    for type_id, d in BY_GGML_ID.items():
        # The package lags behind the format: it counts q8_1's two f16 as f32, and has no q2_0.
        if d.name not in ("q8_1", "q2_0"):
            assert GGML_QUANT_SIZES[GGMLQuantizationType(type_id)] == (d.block, d.nbytes), d.name
    assert {int(t) for t in GGML_QUANT_SIZES} <= set(BY_GGML_ID)
    assert (BY_NAME["q8_1"].block, BY_NAME["q8_1"].nbytes) == (32, 36)


@pytest.mark.parametrize("name", FORMATS)
def test_decode_equals_gguf_package(name: str) -> None:
    d = BY_NAME[name]
    # More than one chunk of the decoder, in rows of an odd number of blocks.
    count = 7 if d.quantized else 1001
    raw = random_storage(name, (1 << 18) // (count * d.block) + 3, count)
    with np.errstate(over="ignore"):
        want = quants.dequantize(raw, ggml(name))
    got = codec.decode(d, raw, (len(raw), count * d.block))
    assert got.dtype == np.float32
    # Random bf16 has NaN of every payload; equality is of bits.
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("name", ["bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"])
def test_encode_equals_gguf_package(name: str) -> None:
    x = rng(name).standard_normal((65, 256)).astype(np.float32)
    x[0] = 0
    x[1, 32:64] = 3
    x[2] = np.linspace(-1e-6, 1e-6, 256)
    x[3] *= 1000
    with np.errstate(divide="ignore", invalid="ignore"):
        want = quants.quantize(x, ggml(name))
    assert np.array_equal(codec.encode(BY_NAME[name], x), want)


@pytest.mark.parametrize("name", FORMATS)
def test_round_trip_error(name: str) -> None:
    d = BY_NAME[name]
    x = rng(name).standard_normal((64, 1024)).astype(np.float32)
    raw = codec.encode(d, x)
    assert raw.shape == (64, d.row_bytes(1024)) and raw.dtype == np.uint8
    least = 4.0 ** (-8 * d.nbytes / d.block)
    assert least < nmse(codec.decode(d, raw, x.shape), x) < FORMATS[name][1]


@pytest.mark.parametrize("name", [n for n in BLOCKS if not n.startswith(("iq2", "iq3"))])
def test_special_blocks(name: str) -> None:
    """Zero is exact, a constant and tiny values stay close, a lone peak keeps its size.

    Not so of grids, which hold typical groups of values alone."""
    # mxfp4 has nothing between 4 and 6; the value of the iq4 formats next to 0 is peak / 127.
    step = {"mxfp4": 1.0, "iq4_nl": 0.04, "iq4_xs": 0.04}.get(name, 0.02)
    d = BY_NAME[name]
    x = np.zeros((5, 256), np.float32)
    x[1] = -3
    x[2] = 3
    x[3] = 1e-30
    x[4, 17] = -5
    y = codec.decode(d, codec.encode(d, x), x.shape)
    assert np.array_equal(y[0], x[0])
    assert np.abs(y[1:3] - x[1:3]).max() < 0.02
    assert np.abs(y[3]).max() < 2e-30
    assert np.abs(y[4] - x[4]).max() <= step


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_fit_is_about_as_good_as_the_reference_quantiser(name: str) -> None:
    exact = open_gguf(shared("models", "riverrun-demo-bf16.gguf")).tensors
    coded = open_gguf(shared("models", "riverrun-demo-q4_k_m.gguf")).tensors
    ours, theirs, energy = 0.0, 0.0, 0.0
    for t in list(coded.values())[:40]:
        if t.dtype.name != name or t.data.size > 1 << 20:
            continue
        x = codec.decode(exact[t.name].dtype, exact[t.name].data, t.shape)
        again = codec.decode(t.dtype, codec.encode(t.dtype, x), t.shape)
        theirs += np.square(codec.decode(t.dtype, t.data, t.shape) - x).sum()
        ours += np.square(again - x).sum()
        energy += np.square(x).sum()
    assert energy > 0 and ours < 1.15 * theirs


@pytest.mark.parametrize("name", FORMATS)
def test_axes_and_empty(name: str) -> None:
    d = BY_NAME[name]
    x = rng(name).standard_normal((2, 3, 512)).astype(np.float32)
    raw = codec.encode(d, x)
    assert raw.shape == (2, 3, d.row_bytes(512))
    flat = codec.encode(d, x.reshape(6, 512))
    assert np.array_equal(raw.reshape(6, -1), flat)
    row = codec.decode(d, raw[1, 2], (512,))
    assert np.array_equal(row, codec.decode(d, raw, x.shape)[1, 2])
    strided = np.repeat(raw, 2, axis=1)[:, ::2]
    assert np.array_equal(codec.decode(d, strided, x.shape), codec.decode(d, raw, x.shape))
    assert codec.encode(d, np.zeros((0, 512), np.float32)).shape == (0, d.row_bytes(512))
    assert codec.encode(d, np.zeros((4, 0), np.float32)).shape == (4, 0)


@pytest.mark.parametrize("name", BLOCKS)
def test_values_that_cannot_be_encoded(name: str) -> None:
    d = BY_NAME[name]
    too_large_for_f16_scales = (5e8,) if FORMATS[name][0] else ()
    for bad in (np.nan, np.inf, -np.inf, 1e30, *too_large_for_f16_scales):
        x = np.ones((1, 256), np.float32)
        x[0, 200] = bad
        with pytest.raises(DTypeError):
            codec.encode(d, x)
    with pytest.raises(DTypeError, match="whole blocks"):
        codec.encode(d, np.ones((2, 48), np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_decode_refuses_a_part_of_a_block(name: str) -> None:
    registered = codec._CODECS[name]
    with pytest.raises(DTypeError, match="whole"):
        registered.decode(np.zeros((2, BY_NAME[name].nbytes + 1), np.uint8))


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    bits = {
        0x3F800000: 0x3F80,
        0x3F808000: 0x3F80,
        0x3F818000: 0x3F82,
        0x3F808001: 0x3F81,
        0x7F7FFFFF: 0x7F80,
        0x7F800000: 0x7F80,
        0x7F800001: 0x7FC0,
        0xFF800001: 0xFFC0,
        0xFFFFFFFF: 0xFFFF,
        0x80000000: 0x8000,
    }
    x = np.array(list(bits), np.uint32).view(np.float32)
    raw = codec.encode(BY_NAME["bf16"], x)
    assert raw.dtype == np.uint8
    assert [hex(v) for v in raw.view("<u2")] == [hex(v) for v in bits.values()]


def test_importing_the_folder_registers_every_format_once() -> None:
    code = (
        "import riverrun.models.quant, riverrun.graph.codec as c;print(' '.join(sorted(c._CODECS)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(FORMATS) <= set(out.stdout.split())
    with pytest.raises(DTypeError, match="registered already"):
        codec.register_codec("q8_0", codec._CODECS["q8_0"])
