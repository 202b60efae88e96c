"""The reader on sound files: values, types, zero-copy views, getters, closing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import Image, array, info, scalar, small
from paths import DEMO, shared
from riverrun.graph import codec
from riverrun.graph.errors import GgufError, ModelError
from riverrun.models.gguf import INT_KINDS, GgufFile, open_gguf


@pytest.fixture
def sound(tmp_path: Path) -> GgufFile:
    return open_gguf(small().write(tmp_path / "small.gguf"))


def check_equal_to_package(path: Path) -> None:
    """Every key and every tensor byte equal what the gguf package reads."""
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert list(ours.metadata) == list(fields)
    for key, f in fields.items():
        value = ours.metadata[key]
        np.testing.assert_array_equal(np.asarray(value), np.asarray(f.contents()), err_msg=key)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for t in theirs.tensors:
        got = ours.tensors[t.name]
        assert got.shape == tuple(int(n) for n in t.shape[::-1])
        assert got.dtype.ggml_id == int(t.tensor_type)
        assert np.array_equal(got.data, t.data.reshape(-1).view(np.uint8)), t.name


def test_demo_equals_gguf_package() -> None:
    check_equal_to_package(DEMO)


@pytest.mark.parametrize("name", ["riverrun-demo-q4_k_m.gguf", "riverrun-demo-draft-bf16.gguf"])
def test_shared_models_equal_gguf_package(name: str) -> None:
    check_equal_to_package(shared("models", name))


def test_large_vocabulary_equals_gguf_package() -> None:
    path = shared("vocab", "ggml-vocab-gpt-2.gguf")
    theirs = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    assert open_gguf(path).get_str_array("tokenizer.ggml.tokens") == theirs


def test_values_and_declared_types(sound: GgufFile) -> None:
    m: Mapping[str, Any] = sound.metadata
    assert (
        m["general.architecture"] == "llama" and sound.value_type("general.architecture") == "str"
    )
    assert m["a.flag"] is True and sound.value_type("a.flag") == "bool"
    for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"):
        assert m[f"a.{kind}"] == 7 and type(m[f"a.{kind}"]) is int
        assert sound.value_type(f"a.{kind}") == kind
        assert m[f"b.{kind}"].tolist() == [1, 2, 3]
        assert m[f"b.{kind}"].dtype.itemsize * 8 == int(kind[1:])
        assert sound.value_type(f"b.{kind}") == f"array[{kind}]"
    assert type(m["a.f32"]) is float and m["b.f64"].dtype == np.float64
    assert m["b.bool"].tolist() == [True, False] and m["b.bool"].dtype == bool
    assert m["b.str"] == ["x", "", "ü→"]
    assert "absent" not in m and len(m) == 24
    with pytest.raises(KeyError):
        m["absent"]
    with pytest.raises(KeyError):
        sound.value_type("absent")


def test_bool_byte_other_than_one_is_true(tmp_path: Path) -> None:
    key = scalar("x", "u8", 2).replace(b"x\0\0\0\0", b"x\7\0\0\0")
    f = open_gguf(Image([key]).write(tmp_path / "b.gguf"))
    assert f.get_bool("x") is True


def test_tensors_are_readonly_views_in_file_order(sound: GgufFile) -> None:
    t = sound.tensors
    assert list(t) == ["w.f32", "w.q8_0", "w.f16"]
    assert [x.shape for x in t.values()] == [(2, 3), (1, 32), (4,)]
    assert [x.dtype.name for x in t.values()] == ["f32", "q8_0", "f16"]
    assert [x.nbytes for x in t.values()] == [24, 34, 8]
    for x in t.values():
        assert x.data.dtype == np.uint8 and x.data.ndim == 1
        assert not x.data.flags.writeable and not x.data.flags.owndata
        assert x.shard_path == sound.path
    np.testing.assert_array_equal(
        codec.decode(t["w.f32"].dtype, t["w.f32"].data, (2, 3)), np.arange(6.0).reshape(2, 3)
    )
    with pytest.raises(ValueError):
        t["w.f32"].data.flags.writeable = True
    with pytest.raises(TypeError):
        t["x"] = t["w.f32"]  # type: ignore[index]


def test_one_dims_stay_as_the_file_says(tmp_path: Path) -> None:
    ne = {"scalar": (), "row": (1,), "col": (1, 1, 8), "none": (4, 0)}
    offsets = [0, 32, 64, 96]
    infos = [info(n, d, 0, o) for (n, d), o in zip(ne.items(), offsets, strict=True)]
    f = open_gguf(Image([], infos, bytes(128)).write(tmp_path / "dims.gguf"))
    assert {n: t.shape for n, t in f.tensors.items()} == {
        "scalar": (1,),
        "row": (1,),
        "col": (8, 1, 1),
        "none": (0, 4),
    }
    assert f.tensors["none"].nbytes == 0


def test_declared_alignment_places_the_data(tmp_path: Path) -> None:
    keys = [scalar("general.alignment", "u32", 64)]
    infos = [info("a", (1,), 24, 0), info("b", (1,), 24, 64)]
    image = Image(keys, infos, b"\5" + bytes(63) + b"\6", alignment=64)
    f = open_gguf(image.write(tmp_path / "a.gguf"))
    assert [int(t.data[0]) for t in f.tensors.values()] == [5, 6]


def test_file_without_tensors_needs_no_padding(tmp_path: Path) -> None:
    f = open_gguf(Image([scalar("x", "u32", 1)], version=2).write(tmp_path / "m.gguf"))
    assert f.metadata["x"] == 1 and len(f.tensors) == 0


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_are_read_alike(tmp_path: Path, version: int) -> None:
    image = small()
    image.version = version
    path = image.write(tmp_path / "v.gguf")
    check_equal_to_package(path)
    assert len(open_gguf(path).metadata) == 24


def test_typed_getters(sound: GgufFile) -> None:
    assert sound.get_u32("a.u32") == 7 and sound.get_f32("a.f32") == 7.0
    assert sound.get_bool("a.flag") is True and sound.get_str("general.architecture") == "llama"
    assert sound.get_scalar("a.u16", "u16") == 7
    assert sound.get_str_array("b.str") == ["x", "", "ü→"]
    assert sound.get_array("b.i32", INT_KINDS).tolist() == [1, 2, 3]
    assert sound.get_array("b.bool", INT_KINDS, max_len=2).tolist() == [True, False]
    assert sound.get_u32("absent", 3) == 3 and sound.get_str("absent", None) is None
    assert sound.get_array("absent", ("f32",), None) is None
    with pytest.raises(ValueError):
        sound.get_array("b.i32", INT_KINDS)[0] = 9


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda f: f.get_u32("a.i32"), ["'a.i32'", "u32", "i32"]),
        (lambda f: f.get_u32("a.u64"), ["'a.u64'", "u32", "u64"]),
        (lambda f: f.get_u32("b.u32"), ["'b.u32'", "u32", "array[u32]"]),
        (lambda f: f.get_f32("a.f64"), ["'a.f64'", "f32", "f64"]),
        (lambda f: f.get_bool("a.u8"), ["'a.u8'", "bool", "u8"]),
        (lambda f: f.get_str("b.str"), ["'b.str'", "str", "array[str]"]),
        (lambda f: f.get_str_array("b.u8"), ["'b.u8'", "array[str]", "array[u8]"]),
        (lambda f: f.get_array("b.u8", ("f32",)), ["'b.u8'", "array[f32]", "array[u8]"]),
        (lambda f: f.get_array("a.f32", ("f32",)), ["'a.f32'", "array[f32]", "f32"]),
        (lambda f: f.get_array("b.f32", ("f32",), min_len=4), ["'b.f32'", "at least 4", "3"]),
        (lambda f: f.get_array("b.f32", ("f32",), max_len=2), ["'b.f32'", "0 to 2", "3"]),
        (lambda f: f.get_str_array("b.str", min_len=4), ["'b.str'", "at least 4", "3"]),
        (lambda f: f.get_per_layer("b.u32", 4), ["'b.u32'", "must have 4 items", "3"]),
        (lambda f: f.get_per_layer("a.f32", 4), ["'a.f32'", "u32 or an array of integers", "f32"]),
        (lambda f: f.get_per_layer("b.f32", 3), ["'b.f32'", "array of integers", "array[f32]"]),
        (lambda f: f.get_array("b.str", INT_KINDS), ["'b.str'", "array of integers", "array[str]"]),
        (lambda f: f.get_u32("absent"), ["'absent'", "missing"]),
        (lambda f: f.get_array("absent", ("f32",)), ["'absent'", "missing"]),
        (lambda f: f.get_per_layer("absent", 2), ["'absent'", "missing"]),
    ],
)
def test_getters_name_key_wanted_and_actual(
    sound: GgufFile, call: Callable[[GgufFile], object], parts: list[str]
) -> None:
    with pytest.raises(GgufError) as caught:
        call(sound)
    for part in [*parts, "small.gguf"]:
        assert part in str(caught.value)


def test_per_layer_takes_scalar_or_array(tmp_path: Path) -> None:
    keys = [scalar("one", "u32", 8), array("i", "i32", [1, 0, 3]), array("b", "bool", [1, 0, 1])]
    keys.append(array("neg", "i32", [1, -1, 3]))
    f = open_gguf(Image(keys).write(tmp_path / "p.gguf"))
    assert f.get_per_layer("one", 3) == [8, 8, 8]
    assert f.get_per_layer("i", 3) == [1, 0, 3]
    assert f.get_per_layer("b", 3) == [1, 0, 1]
    assert f.get_per_layer("absent", 2, 5) == [5, 5]
    with pytest.raises(GgufError, match="got -1 for layer 1"):
        f.get_per_layer("neg", 3)


INTEGERS = [kind for kind in INT_KINDS if kind != "bool"]


@pytest.mark.parametrize("kind", INTEGERS)
def test_per_layer_takes_any_integers_that_hold_the_values(tmp_path: Path, kind: str) -> None:
    bits = int(kind[1:])
    most = (1 << bits - (kind[0] == "i")) - 1
    keys = [scalar("one", kind, 8), array("each", kind, [1, 0, 100]), scalar("most", kind, most)]
    keys += [array("beyond", kind, [1, most])]
    keys += [array("less", kind, [0, -1]), scalar("minus", kind, -2)] if kind[0] == "i" else []
    f = open_gguf(Image(keys).write(tmp_path / "p.gguf"))
    assert f.get_per_layer("one", 2) == [8, 8] and f.get_per_layer("each", 3) == [1, 0, 100]
    assert f.get_array("each", INT_KINDS).tolist() == [1, 0, 100]
    for key in ("most", "beyond"):
        if most < 1 << 31:
            assert f.get_per_layer(key, 2)[1] == most
            continue
        with pytest.raises(GgufError, match=rf"'{key}'.*2147483647, got {most} for layer"):
            f.get_per_layer(key, 2)
    for key, value in (("less", "-1 for layer 1"), ("minus", "-2 for layer 0")):
        if kind[0] == "i":
            with pytest.raises(GgufError, match=rf"'{key}'.*got {value}"):
                f.get_per_layer(key, 2)


def test_views_outlive_close(tmp_path: Path) -> None:
    path = small().write(tmp_path / "c.gguf")
    with open_gguf(path) as f:
        tensor = f.tensors["w.f16"]
    f.close()
    gc.collect()
    assert codec.decode(tensor.dtype, tensor.data, tensor.shape).tolist() == [1, 2, 3, 4]
    with pytest.raises(GgufError, match="closed"):
        f.metadata["a.u32"]
    with pytest.raises(GgufError, match="closed"):
        _ = f.tensors
    assert "a.u32" in f.metadata


def test_strings_must_be_utf8_when_read(tmp_path: Path) -> None:
    keys = [
        scalar("bad", "str", b"a\xff"),
        array("worse", "str", ["a", b"\xc3"]),
        scalar("x", "u8", 1),
    ]
    f = open_gguf(Image(keys).write(tmp_path / "u.gguf"))
    assert f.metadata["x"] == 1
    for key in ("bad", "worse"):
        with pytest.raises(GgufError, match=f"'{key}'.*UTF-8"):
            f.metadata[key]


def _replace(image: Image, name: str, raw: bytes) -> Image:
    at = {"w.f32": 0, "w.q8_0": 32, "w.f16": 96}[name]
    image.data = image.data[:at] + raw + image.data[at + len(raw) :]
    return image


def test_check_tensors_passes_sound_files(sound: GgufFile) -> None:
    sound.check_tensors()
    open_gguf(DEMO).check_tensors()


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("w.f32", b"\0\0\0\0\0\0\xc0\x7f", "value 1"),
        ("w.f32", b"\0\0\x80\xff", "value 0"),
        ("w.q8_0", b"\0\x7c", "scale of block 0"),
        ("w.f16", b"\0\x3c\1\xfc", "value 1"),
    ],
)
def test_check_tensors_finds_nan_and_infinity(
    tmp_path: Path, name: str, raw: bytes, message: str
) -> None:
    f = open_gguf(_replace(small(), name, raw).write(tmp_path / "nan.gguf"))
    with pytest.raises(GgufError, match=message) as caught:
        f.check_tensors()
    assert name in str(caught.value)


def test_check_tensors_knows_where_each_type_keeps_its_scales(tmp_path: Path) -> None:
    """A NaN in the listed fields makes every element NaN for the gguf package's decoder."""
    from riverrun.graph.dtype import BY_NAME
    from riverrun.models.gguf.scan import _F16_SCALES

    for name, places in _F16_SCALES.items():
        d = BY_NAME[name]
        for place in places:
            block = np.random.default_rng(d.ggml_id).integers(1, 40, d.nbytes, dtype=np.uint8)
            path = tmp_path / "scale.gguf"
            image = Image([], [info("w", (d.block,), d.ggml_id, 0)], block.tobytes())
            open_gguf(image.write(path)).check_tensors()
            block[place : place + 2] = 0xFF
            decoded = gguf.quants.dequantize(
                block.reshape(1, -1), gguf.GGMLQuantizationType(d.ggml_id)
            )
            assert np.isnan(decoded).all(), name
            image.data = block.tobytes()
            with pytest.raises(GgufError, match="scale of block 0"):
                open_gguf(image.write(path)).check_tensors()


def test_errors_are_model_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        open_gguf(tmp_path / "absent.gguf")
