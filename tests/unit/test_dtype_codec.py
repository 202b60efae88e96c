"""Element types, specs, host tensors and codecs."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import riverrun.models.quant  # noqa: F401
from riverrun.graph import HostTensor, TensorSpec, dtype, host_tensor
from riverrun.graph.codec import Codec, decode, encode, has_codec, register_codec
from riverrun.graph.dtype import BY_GGML_ID, BY_NAME
from riverrun.graph.errors import DTypeError, ShapeError
from riverrun.graph.unread_types import REFUSED

SPECIAL = [0.0, -0.0, 1.0, -2.5, 65504.0, 1e-8, np.inf, -np.inf, np.nan]


def test_ids_and_sizes_are_those_of_the_file_format() -> None:
    known = {t.value: t for t in gguf.GGMLQuantizationType}
    # q8_1 holds activations and is in no file; that table gives it the size of an early version.
    shared = (set(BY_GGML_ID) & set(known)) - {gguf.GGMLQuantizationType.Q8_1.value}
    assert len(shared) >= 30
    for number in shared:
        d, (block, size) = BY_GGML_ID[number], gguf.GGML_QUANT_SIZES[known[number]]
        assert (d.name.lower(), d.block, d.nbytes) == (known[number].name.lower(), block, size)


def test_names_are_unique_and_found() -> None:
    assert all(dtype(name) is d and d.name == name for name, d in BY_NAME.items())
    assert dtype(np.float16) is dtype("f16") and dtype(np.dtype("int32")) is dtype("i32")
    assert dtype(dtype("q6_k")) is dtype("q6_k")


@pytest.mark.parametrize("what", ["float33", "", np.complex64, object()])
def test_unknown_dtypes_are_refused(what: object) -> None:
    with pytest.raises(DTypeError, match=r"unknown dtype .*; known: f32, f16"):
        dtype(what)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "n", "nbytes"), [("f32", 7, 28), ("q8_0", 64, 68), ("bf16", 3, 6)]
)
def test_rows_have_whole_blocks(name: str, n: int, nbytes: int) -> None:
    d = dtype(name)
    assert d.row_bytes(n) == nbytes and d.row_bytes(0) == 0
    if d.quantized:
        with pytest.raises(DTypeError, match=f"{name}: rows are whole blocks of {d.block}"):
            d.row_bytes(n + 1)


def test_spec_counts_bytes_and_spells_strides() -> None:
    spec = TensorSpec((3, 2, 64), dtype("q8_0"))
    assert (spec.rank, spec.size, spec.nbytes) == (3, 384, 3 * 2 * 68)
    assert spec.contiguous and spec.byte_strides == (136, 68, 34)
    assert TensorSpec(()).nbytes == 4 and TensorSpec((0, 7)).nbytes == 0


def test_strides_of_single_rows_do_not_count() -> None:
    assert TensorSpec((1, 8), dtype("f32"), (999, 4)) == TensorSpec((1, 8))
    assert TensorSpec((0, 8), dtype("f32"), (7, 3)) == TensorSpec((0, 8))
    gap = TensorSpec((2, 8), dtype("f32"), (64, 4))
    assert not gap.contiguous and gap != TensorSpec((2, 8)) and gap.nbytes == 64


def test_specs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"takes as many strides"):
        TensorSpec((2, 3), dtype("f32"), (4,))
    with pytest.raises(ShapeError, match=r"negative extent"):
        TensorSpec((2, -3))


def test_host_tensor_is_as_long_as_its_spec() -> None:
    with pytest.raises(ShapeError, match=r"storage of f32\[2\] should be 8 flat bytes"):
        HostTensor(TensorSpec((2,)), np.zeros(7, np.uint8))
    with pytest.raises(ShapeError, match=r"flat bytes"):
        HostTensor(TensorSpec((2,)), np.zeros(2, np.float32))


def test_wide_arrays_are_narrowed() -> None:
    assert host_tensor(np.zeros(3)).spec == TensorSpec((3,))
    assert host_tensor(np.arange(3)).spec == TensorSpec((3,), dtype("i32"))
    assert host_tensor(np.zeros(3, np.float16)).spec == TensorSpec((3,), dtype("f16"))
    given = host_tensor(np.zeros(3))
    assert host_tensor(given) is given


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64"])
def test_special_values_survive(name: str) -> None:
    tensor = host_tensor(np.array(SPECIAL, np.float32), name)
    back = tensor.decoded().astype(np.float64)
    assert tensor.spec == TensorSpec((9,), dtype(name))
    assert np.array_equal(np.isnan(back), np.isnan(SPECIAL))
    assert np.array_equal(np.signbit(back[:2]), [False, True])
    exact = np.array(SPECIAL)[[2, 3, 6, 7]]
    assert np.array_equal(back[[2, 3, 6, 7]], exact)


def test_bf16_rounds_to_nearest_even() -> None:
    halfway = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)
    raw = host_tensor(halfway, "bf16").raw.view(np.uint16)
    assert raw.tolist() == [0x3F80, 0x3F82, 0x3F81]


@pytest.mark.parametrize("shape", [(0, 64), (2, 0), (3, 2, 64)])
def test_block_types_have_any_leading_axes(shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, np.float32)
    d = dtype("q8_0")
    tensor = host_tensor(values, d)
    assert tensor.spec == TensorSpec(shape, d) and tensor.decoded().shape == shape


def test_types_without_a_codec_are_refused_by_name() -> None:
    bare = next(d for d in BY_NAME.values() if not has_codec(d))
    raw = np.zeros(bare.nbytes, np.uint8)
    why = REFUSED[bare.name].why
    with pytest.raises(DTypeError, match=rf"{bare.name}: no codec \({why}\); known: .*q8_0"):
        decode(bare, raw, (bare.block,))
    with pytest.raises(DTypeError, match=f"{bare.name}: no encoder"):
        encode(bare, np.zeros(bare.block))


def test_encoding_takes_whole_blocks_only() -> None:
    with pytest.raises(DTypeError, match=r"whole blocks of 32"):
        encode(dtype("q8_0"), np.zeros((2, 33)))


def test_a_codec_is_registered_once() -> None:
    with pytest.raises(DTypeError, match=r"q8_0: a codec is registered already"):
        register_codec("q8_0", Codec(decode=lambda raw: raw))
