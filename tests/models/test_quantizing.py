"""Which type each tensor of a quantised file gets, importance matrices, and the file itself."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resident import NEEDS_SMAPS, resident
from riverrun.backends.cpu_blocks import BlockRecoder
from riverrun.graph.codec import decode
from riverrun.graph.dtype import dtype
from riverrun.graph.errors import RequestError
from riverrun.models.gguf import NewTensor, array, fields_of, open_gguf, scalar, write_gguf
from riverrun.models.quantizing import (
    MIXES,
    Importance,
    find_mix,
    load_importance,
    plan,
    quantize,
)

RNG = np.random.default_rng(11)


def model(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    arch: str = "llama",
    kind: str = "f32",
    **keys: int,
) -> Path:
    """A file with these tensors, whatever an architecture says of them."""
    fields = {"general.architecture": scalar("str", arch), "general.name": scalar("str", "x")}
    fields["tokenizer.ggml.tokens"] = array("str", ["a", "é", ""])
    fields["split.count"] = scalar("u16", 0)
    for key, value in keys.items():
        fields[f"{arch}.{key.replace('__', '.')}"] = scalar("u32", value)
    recode = BlockRecoder(1)

    def tensor(name: str, shape: tuple[int, ...]) -> NewTensor:
        x = (0.1 * RNG.standard_normal(shape)).astype(np.float32)
        stored = dtype("f32" if len(shape) == 1 else kind)
        raw = x.view(np.uint8).reshape(-1)
        data = recode(raw, dtype("f32"), stored, shape[-1]) if stored.name != "f32" else raw
        return NewTensor(name, shape, stored, lambda: [data])

    write_gguf(path, fields, [tensor(*item) for item in shapes.items()])
    return path


def layers(n: int, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (3, 256)}
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
    for i in range(n):
        shapes |= {f"blk.{i}.{part}.weight": (2, 256) for part in parts}
        shapes |= {f"blk.{i}.{part}.weight": shape for part, shape in more.items()}
        shapes[f"blk.{i}.attn_norm.weight"] = (256,)
    return shapes


def types(
    path: Path, name: str, *overrides: tuple[str, str], imatrix: bool = False
) -> dict[str, str]:
    steps = plan(open_gguf(path), find_mix(name), overrides, imatrix)
    return {step.tensor.name: step.to.name for step in steps}


def of(found: dict[str, str], part: str) -> list[str]:
    """The types of a part in all layers, by layer."""
    return [kind for name, kind in found.items() if name.endswith(f".{part}.weight")]


def test_more_bits_at_both_ends_and_every_third_between(tmp_path: Path) -> None:
    found = types(model(tmp_path / "m.gguf", layers(16), block_count=16), "Q4_K_M")
    more = [i in (0, 1, 4, 7, 10, 13, 14, 15) for i in range(16)]
    assert of(found, "ffn_down") == ["q6_k" if m else "q4_k" for m in more]
    assert of(found, "attn_v") == ["q6_k" if m else "q4_k" for m in more]
    assert set(of(found, "attn_output") + of(found, "attn_q") + of(found, "ffn_up")) == {"q4_k"}
    assert found["token_embd.weight"] == "q6_k"
    assert found["blk.0.attn_norm.weight"] == "f32"


FOURS = ["q4_k"] * 8
MORE_BITS = ["q4_k" if i in (0, 3, 6, 7) else "iq3_s" for i in range(8)]


@pytest.mark.parametrize(
    ("name", "keys", "part", "want"),
    [
        ("Q4_K_S", {}, "attn_v", ["q5_k"] * 4 + ["q4_k"] * 4),
        ("Q4_K_S", {}, "ffn_down", ["q5_k"] + ["q4_k"] * 7),
        ("Q3_K_M", {}, "attn_v", ["q5_k"] * 2 + ["q4_k"] * 6),
        ("Q3_K_M", {}, "attn_output", ["q4_k"] * 8),
        ("Q3_K_L", {}, "ffn_down", ["q5_k"] * 8),
        ("Q2_K", {}, "attn_v", ["q3_k"] * 8),
        (
            "Q2_K",
            {"attention__head_count": 8, "attention__head_count_kv": 2},
            "attn_v",
            ["q4_k"] * 8,
        ),
        ("IQ4_XS", {}, "ffn_down", ["q5_k"] + ["iq4_xs"] * 7),
        ("Q4_K_M", {"expert_count": 8}, "attn_v", ["q8_0"] * 8),
        ("Q4_K_M", {"expert_count": 8}, "attn_k", ["q8_0"] * 8),
        ("Q4_K_M", {"expert_count": 8}, "attn_output", ["q5_k"] * 8),
        ("IQ2_XXS", {}, "attn_q", ["iq2_xxs"] * 8),
        ("IQ2_XXS", {}, "ffn_down", ["q2_k"] + ["iq2_xxs"] * 7),
        ("IQ2_XS", {"attention__head_count": 8, "attention__head_count_kv": 2}, "attn_v", FOURS),
        ("IQ2_XS", {"expert_count": 8}, "attn_v", FOURS),
        ("IQ2_XS", {"expert_count": 8}, "attn_k", FOURS),
        ("IQ2_S", {}, "ffn_up", ["iq2_xs"] * 8),
        ("IQ2_S", {}, "attn_output", ["iq3_s"] * 8),
        ("IQ2_M", {}, "attn_v", ["iq3_s"] * 8),
        ("IQ2_M", {"expert_count": 8}, "attn_output", ["q5_k"] * 8),
        ("IQ3_XXS", {}, "attn_v", ["iq3_s"] * 8),
        ("IQ3_XXS", {}, "ffn_down", ["q4_k"] + ["q3_k"] * 7),
        ("IQ3_XXS", {}, "attn_k", ["iq2_s"] * 8),
        ("IQ3_XS", {}, "ffn_gate", ["iq3_s"] + ["iq3_xxs"] * 6 + ["iq3_s"]),
        ("IQ3_XS", {}, "attn_q", ["iq3_xxs"] * 8),
        ("IQ3_S", {"expert_count": 8}, "attn_k", ["q8_0"] * 8),
        ("IQ3_M", {}, "ffn_down", ["q4_k"] + ["iq3_s"] * 7),
        ("IQ3_M", {"expert_count": 8}, "ffn_down", MORE_BITS),
        ("Q8_0", {}, "attn_v", ["q8_0"] * 8),
        ("BF16", {}, "ffn_down", ["bf16"] * 8),
    ],
)
def test_rules_of_the_mixes(
    tmp_path: Path, name: str, keys: dict[str, int], part: str, want: list[str]
) -> None:
    path = model(tmp_path / "m.gguf", layers(8), block_count=8, **keys)
    assert of(types(path, name), part) == want


def test_an_importance_matrix_changes_first_layers(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", layers(8), block_count=8)
    assert of(types(path, "Q4_0"), "ffn_down") == ["q4_0"] * 8
    assert of(types(path, "Q4_0", imatrix=True), "ffn_down") == ["q4_1"] + ["q4_0"] * 7
    assert of(types(path, "IQ4_NL", imatrix=True), "ffn_down") == ["iq4_nl"] * 8
    assert of(types(path, "IQ3_XXS", imatrix=True), "ffn_down") == ["iq3_xxs"] * 8
    assert of(types(path, "IQ3_XXS", imatrix=True), "attn_v") == ["iq3_xxs"] * 8


@pytest.mark.parametrize(
    ("name", "head", "embedding"),
    [
        ("IQ2_XXS", "q5_k", "q2_k"),
        ("IQ2_M", "q5_k", "iq3_s"),
        ("IQ3_XXS", "q5_k", "iq3_s"),
        ("IQ3_S", "q6_k", "iq3_s"),
    ],
)
def test_heads_and_embeddings_of_small_mixes(
    tmp_path: Path, name: str, head: str, embedding: str
) -> None:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (3, 256), "output.weight": (3, 256)}
    path = model(tmp_path / "m.gguf", shapes, block_count=1)
    assert types(path, name) == {"output.weight": head, "token_embd.weight": embedding}


def test_values_of_linear_layers_count_with_those_of_full_ones(tmp_path: Path) -> None:
    shapes = layers(8)
    for i in range(8):
        if i % 4 != 3:
            shapes[f"blk.{i}.attn_qkv.weight"] = shapes.pop(f"blk.{i}.attn_v.weight")
    path = model(tmp_path / "m.gguf", shapes, "qwen35", block_count=8)
    found = types(path, "Q4_K_M")
    kinds = [
        found.get(f"blk.{i}.attn_v.weight") or found[f"blk.{i}.attn_qkv.weight"] for i in range(8)
    ]
    assert kinds == ["q6_k" if i in (0, 3, 6, 7) else "q4_k" for i in range(8)]


def test_experts_of_the_moe_mix(tmp_path: Path) -> None:
    shapes = layers(2, ffn_down_exps=(4, 2, 256), ffn_gate_inp=(4, 256))
    found = types(model(tmp_path / "m.gguf", shapes, block_count=2, expert_count=4), "MXFP4_MOE")
    assert of(found, "ffn_down_exps") == ["mxfp4"] * 2
    assert of(found, "ffn_gate_inp") == ["f32"] * 2
    assert of(found, "attn_q") == ["q8_0"] * 2


@pytest.mark.parametrize(
    ("name", "n", "want"),
    [
        ("Q4_K_S", 96, "q5_0"),
        ("Q5_K_S", 96, "q5_1"),
        ("Q6_K", 96, "q8_0"),
        ("Q3_K_S", 96, "q4_0"),
        ("IQ4_XS", 96, "iq4_nl"),
        ("IQ3_S", 96, "iq4_nl"),
        ("Q4_K_S", 72, "f16"),
        ("Q8_0", 72, "f16"),
    ],
)
def test_rows_that_are_no_blocks_get_other_types(
    tmp_path: Path, name: str, n: int, want: str
) -> None:
    shapes = {"token_embd.weight": (3, 256), "blk.0.attn_q.weight": (2, n)}
    path = model(tmp_path / "m.gguf", shapes, block_count=1)
    (step,) = [s for s in plan(open_gguf(path), find_mix(name)) if "attn_q" in s.tensor.name]
    assert (step.to.name, step.odd) == (want, True)


def test_odd_rows_of_a_head_and_other_heads(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", {"token_embd.weight": (3, 96)}, block_count=1)
    assert types(path, "Q4_K_M") == {"token_embd.weight": "q8_0"}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (3, 256), "output.weight": (3, 256)}
    path = model(tmp_path / "n.gguf", shapes, block_count=1)
    assert types(path, "Q4_0") == {"output.weight": "q6_k", "token_embd.weight": "q4_0"}


def test_overrides_count_in_order(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf", layers(2), block_count=2)
    found = types(path, "Q4_K_M", (r"blk\.1\..*down", "q8_0"), ("down", "F16"), ("norm", "q8_0"))
    assert of(found, "ffn_down") == ["f16", "q8_0"]
    assert of(found, "attn_norm") == ["f32", "f32"]
    with pytest.raises(RequestError, match="regular expression"):
        types(path, "Q4_K_M", ("(", "q8_0"))
    with pytest.raises(RequestError, match="got 'q9_k'"):
        types(path, "Q4_K_M", ("down", "q9_k"))


def written(tmp_path: Path, source: Path, name: str, **how: Any) -> Path:
    out, file = tmp_path / "out.gguf", open_gguf(source)
    importance = how.get("importance")
    steps = plan(file, find_mix(name), (), importance is not None)
    quantize(file, out, find_mix(name), steps, BlockRecoder(2), **how)
    return out


def test_the_written_file(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", layers(2), block_count=2)
    seen: list[tuple[int, int]] = []
    out = written(tmp_path, source, "Q5_K_M", progress=lambda *at: seen.append(at))
    before, after = open_gguf(source), open_gguf(out)
    assert after.get_u32("general.file_type") == MIXES["Q5_K_M"].file_type == 17
    assert after.get_u32("general.quantization_version") == 2
    assert after.get_str_array("tokenizer.ggml.tokens") == ["a", "é", ""]
    assert "split.count" not in after.metadata
    assert list(after.tensors)[:2] == ["token_embd.weight", "blk.0.attn_k.weight"]
    for name, tensor in after.tensors.items():
        x = decode(before.tensors[name].dtype, before.tensors[name].data, tensor.shape)
        got = decode(tensor.dtype, tensor.data, tensor.shape)
        assert np.square(got - x).sum() < 2e-3 * np.square(x).sum()
    assert seen[-1][0] == seen[-1][1] == sum(t.nbytes for t in after.tensors.values())
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_shards_become_one_file(tmp_path: Path) -> None:
    shapes = {"token_embd.weight": (3, 256), "blk.0.attn_q.weight": (2, 256)}
    for i, item in enumerate(shapes.items()):
        path = model(tmp_path / f"p{i}.gguf", dict([item]), block_count=1)
        file = open_gguf(path)
        fields = fields_of(file.metadata)
        fields["split.no"], fields["split.count"] = scalar("u16", i), scalar("u16", 2)
        fields["split.tensors.count"] = scalar("i32", 2)
        (tensor,) = file.tensors.values()
        new = NewTensor(tensor.name, tensor.shape, tensor.dtype, lambda t=tensor: [t.data])
        write_gguf(tmp_path / f"m-0000{i + 1}-of-00002.gguf", fields, [new])
    after = open_gguf(written(tmp_path, tmp_path / "m-00001-of-00002.gguf", "Q8_0"))
    assert set(after.tensors) == set(shapes)
    assert not any(key.startswith("split.") for key in after.metadata)


def test_what_is_quantised_is_taken_on_request(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", layers(1), kind="q8_0", block_count=1)
    with pytest.raises(RequestError, match="is q8_0 already"):
        written(tmp_path, source, "Q4_K_M")
    assert not (tmp_path / "out.gguf").exists()
    written(tmp_path, source, "Q4_K_M", allow_requantize=True)
    assert open_gguf(tmp_path / "out.gguf").tensors["blk.0.attn_q.weight"].dtype.name == "q4_k"


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", layers(1), block_count=1)
    (tmp_path / "out.gguf").write_text("mine")
    with pytest.raises(RequestError, match="is there already; replace it with --force"):
        written(tmp_path, source, "Q8_0")
    assert (tmp_path / "out.gguf").read_text() == "mine"
    written(tmp_path, source, "Q8_0", force=True)


def test_bad_values_leave_no_file(tmp_path: Path) -> None:
    source = model(tmp_path / "m.gguf", layers(1), block_count=1)
    raw = bytearray(source.read_bytes())
    wrong = open_gguf(source).tensors["blk.0.ffn_down.weight"].data[-4:].tobytes()
    at = raw.rindex(wrong)
    raw[at : at + 4] = struct.pack("<f", np.nan)
    source.write_bytes(raw)
    with pytest.raises(ValueError, match=r"tensor 'blk.0.ffn_down.weight'.*finite"):
        written(tmp_path, source, "Q4_K_M")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf"]


def imatrix_gguf(path: Path, sums: np.ndarray, counts: np.ndarray) -> Path:
    fields = {"general.type": scalar("str", "imatrix"), "imatrix.chunk_count": scalar("u32", 3)}
    fields["imatrix.datasets"] = array("str", ["wiki"])
    f32 = dtype("f32")
    name = "blk.0.ffn_down_exps.weight"
    tensors = [
        NewTensor(f"{name}.in_sum2", sums.shape, f32, lambda: [sums]),
        NewTensor(f"{name}.counts", counts.shape, f32, lambda: [counts]),
    ]
    write_gguf(path, fields, tensors)
    return path


def test_both_forms_of_importance_matrices(tmp_path: Path) -> None:
    sums = RNG.gamma(1, size=(2, 4)).astype(np.float32)
    counts = np.array([[5], [0]], np.float32)
    found = load_importance(imatrix_gguf(tmp_path / "i.gguf", sums, counts))
    got = found.of("blk.0.ffn_down_exps.weight", (2, 7, 4))
    np.testing.assert_allclose(got, [sums[0] / 5, np.ones(4)], rtol=1e-6)
    assert (found.datasets, found.n_chunks) == (["wiki"], 3)
    old = struct.pack("<ii4sii4f", 1, 4, b"a.w\0"[:4], 2, 4, *map(float, range(4)))
    (tmp_path / "old.dat").write_bytes(old + struct.pack("<ii4s", 9, 4, b"text"))
    found = load_importance(tmp_path / "old.dat")
    np.testing.assert_array_equal(next(iter(found.values.values())), [0, 0.5, 1, 1.5])
    assert (found.datasets, found.n_chunks) == (["text"], 9)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "expected 4 more bytes at byte 0"),
        (struct.pack("<i", -1), "a number of entries"),
        (struct.pack("<ii", 1, 999), "got one of 999 bytes"),
        (struct.pack("<ii1sii", 1, 1, b"a", 1, 1 << 30), "1073741824 values"),
        (struct.pack("<ii1siif", 1, 1, b"a", 1, 1, np.nan), "finite numbers"),
    ],
)
def test_damaged_importance_matrices(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "bad.dat").write_bytes(data)
    with pytest.raises(RequestError, match=told):
        load_importance(tmp_path / "bad.dat")


def test_an_importance_matrix_is_used_per_expert(tmp_path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (3, 256)}
    name = "blk.0.ffn_down_exps.weight"
    source = model(tmp_path / "m.gguf", shapes | {name: (2, 4, 256)}, block_count=1)
    weights = RNG.gamma(0.3, size=(2, 256)).astype(np.float32)
    given = Importance(Path("i.gguf"), {name: weights.reshape(-1)}, ["wiki"], 3)
    out = open_gguf(written(tmp_path, source, "Q4_K_M", importance=given))
    x = open_gguf(source).tensors[name].data
    half = x.size // 2
    want = [
        BlockRecoder(1)(x[half * i : half * (i + 1)], dtype("f32"), out.tensors[name].dtype, 256, w)
        for i, w in enumerate(weights)
    ]
    np.testing.assert_array_equal(out.tensors[name].data, np.concatenate(want))
    assert out.get_str("quantize.imatrix.file") == "i.gguf"
    assert out.get_u32("quantize.imatrix.entries_count") == 1
    other = Importance(Path("i.gguf"), {name: weights[0]})
    with pytest.raises(RequestError, match=r"should have 512 values, got 256"):
        written(tmp_path, source, "Q4_K_M", importance=other, force=True)
    with pytest.raises(RequestError, match="Q2_K_S needs an importance matrix"):
        written(tmp_path, source, "Q2_K_S", force=True)


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS"])
def test_small_mixes_need_an_importance_matrix(tmp_path: Path, name: str) -> None:
    source = model(tmp_path / "m.gguf", layers(1), block_count=1)
    told = r"^iq[23]_\w+ needs an importance matrix \(--imatrix\): there is none for blk\.0\."
    with pytest.raises(RequestError, match=told):
        written(tmp_path, source, name)
    weights = RNG.gamma(0.3, size=256).astype(np.float32)
    given = {t: weights for t in open_gguf(source).tensors if t.startswith("blk.")}
    out = open_gguf(written(tmp_path, source, name, importance=Importance(Path("i.gguf"), given)))
    assert out.get_u32("general.file_type") == find_mix(name).file_type
    kind = out.tensors["blk.0.ffn_up.weight"].dtype
    x = open_gguf(source).tensors["blk.0.ffn_up.weight"].data
    want = BlockRecoder(1)(x, dtype("f32"), kind, 256, weights)
    np.testing.assert_array_equal(out.tensors["blk.0.ffn_up.weight"].data, want)


def test_a_type_that_is_asked_for_needs_an_importance_matrix_too(tmp_path: Path) -> None:
    file = open_gguf(model(tmp_path / "m.gguf", layers(1), block_count=1))
    mix = find_mix("Q8_0")
    steps = plan(file, mix, [("attn_k", "iq2_s")])
    with pytest.raises(RequestError, match=r"iq2_s needs .* there is none for blk\.0\.attn_k"):
        quantize(file, tmp_path / "out.gguf", mix, steps, BlockRecoder(1))
    steps = plan(file, mix, [("ffn_up", "iq3_s"), ("token_embd", "iq2_xs")])
    quantize(file, tmp_path / "out.gguf", mix, steps, BlockRecoder(1))
    assert open_gguf(tmp_path / "out.gguf").tensors["token_embd.weight"].dtype.name == "iq2_xs"


@NEEDS_SMAPS
@pytest.mark.parametrize("mix", ["Q4_0", "F32"])
def test_what_was_read_of_the_source_leaves_memory(tmp_path: Path, mix: str) -> None:
    """While it runs, too, and whether values change their type or not."""
    shapes = {"token_embd.weight": (256, 1024)} | layers(6, ffn_up=(512, 256))
    source, seen = model(tmp_path / "m.gguf", shapes, block_count=6), []
    file, chosen = open_gguf(source), find_mix(mix)
    for tensor in file.tensors.values():
        assert tensor.data.any()  # in memory now
    assert resident(source) > 0.9 * source.stat().st_size
    quantize(
        *(file, tmp_path / "o.gguf", chosen, plan(file, chosen, (), False), BlockRecoder(1)),
        progress=lambda done, total: seen.append(resident(source)),
    )
    assert len(seen) == len(shapes)
    assert max(seen) < 0.1 * source.stat().st_size
