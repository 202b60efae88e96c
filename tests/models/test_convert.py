"""The converter's own side: what is refused and how, types, memory, vocabularies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import riverrun as rr
from paths import shared
from resident import NEEDS_SMAPS, resident
from riverrun.graph.errors import ModelError, RequestError
from riverrun.models.convert import convert
from riverrun.models.convert.arch.gptoss import Blocks
from riverrun.models.convert.checkpoint import Checkpoint
from riverrun.models.convert.config import Config
from riverrun.models.convert.family import FAMILIES, find_family
from riverrun.models.convert.size_label import size_label
from riverrun.models.gguf import open_gguf
from riverrun.tools.main import main
from safetensors_bytes import write_safetensors
from small_checkpoint import ABSENT, N_EMBD, N_VOCAB, checkpoint, tensors


def message(folder: Path, out: Path, error: type[Exception] = ModelError, **more: Any) -> str:
    """What converting says; nothing is left of the file."""
    with pytest.raises(error) as caught:
        convert(folder, out, **{"tokenizer": False, **more})
    assert sorted(p.name for p in out.parent.iterdir() if ".gguf" in p.name) == []
    return str(caught.value)


def test_the_demo_checkpoint_gives_the_demo_file(tmp_path: Path) -> None:
    """Against the file that another converter made of the same checkpoint: all of it."""
    want = open_gguf(shared("models", "riverrun-demo-bf16.gguf"))
    folder = shared("models", "hf-demo")
    got = open_gguf(convert(folder, tmp_path / "x.gguf", name="qwen35-demo-py-13m"))
    assert set(got.metadata) == set(want.metadata)
    for key in want.metadata:
        assert got.value_type(key) == want.value_type(key)
        assert np.array_equal(got.metadata[key], want.metadata[key]), key
    assert set(got.tensors) == set(want.tensors)
    for name, tensor in want.tensors.items():
        assert got.tensors[name].dtype == tensor.dtype
        assert got.tensors[name].shape == tensor.shape
        assert np.array_equal(got.tensors[name].data, tensor.data), name


def test_rows_of_heads_become_neighbours(tmp_path: Path) -> None:
    """Rows i and i + 8 of a head of 16 are a rotary pair in a checkpoint, 2i and 2i + 1 in a
    file."""
    file = open_gguf(convert(checkpoint(tmp_path / "c"), tmp_path / "x.gguf", tokenizer=False))
    for name, part in (("attn_q", "q_proj"), ("attn_k", "k_proj")):
        want = tensors()[f"model.layers.1.self_attn.{part}.weight"].reshape(-1, 16, 64)
        got = file.tensors[f"blk.1.{name}.weight"].data.view(np.float32).reshape(-1, 16, 64)
        assert np.array_equal(got[:, 0::2], want[:, :8])
        assert np.array_equal(got[:, 1::2], want[:, 8:])


@pytest.mark.parametrize(
    ("kind", "outtype", "stored"),
    [
        ("F32", "auto", "f32"),
        ("F16", "auto", "f16"),
        ("BF16", "auto", "bf16"),
        ("BF16", "q8_0", "q8_0"),
        ("F32", "bf16", "bf16"),
        ("F64", "auto", "f32"),
    ],
)
def test_types(tmp_path: Path, kind: str, outtype: str, stored: str) -> None:
    folder = checkpoint(tmp_path / "c", kind=kind)
    file = open_gguf(convert(folder, tmp_path / "x.gguf", outtype, tokenizer=False))
    types = {name: tensor.dtype.name for name, tensor in file.tensors.items()}
    assert {t for n, t in types.items() if "norm" in n} == {"f32"}
    assert {t for n, t in types.items() if "norm" not in n} == {stored}


def test_matrices_that_do_not_divide_into_blocks_are_f16(tmp_path: Path) -> None:
    held = tensors()
    for i in range(2):
        for part in ("gate_proj", "up_proj"):
            name = f"model.layers.{i}.mlp.{part}.weight"
            held[name] = held[name][:72]
        name = f"model.layers.{i}.mlp.down_proj.weight"
        held[name] = held[name][:, :72]
    folder = checkpoint(tmp_path / "c", held, intermediate_size=72)
    file = open_gguf(convert(folder, tmp_path / "x.gguf", "q8_0", tokenizer=False))
    assert file.tensors["blk.0.ffn_down.weight"].dtype.name == "f16"
    assert file.tensors["blk.0.ffn_up.weight"].dtype.name == "q8_0"


@pytest.mark.parametrize(
    ("outtype", "value", "words"),
    [("f16", 1e6, "overflow"), ("q8_0", np.nan, "must be finite"), ("q8_0", 1e8, "must fit f16")],
)
def test_values_beyond_the_type_are_refused(
    tmp_path: Path, outtype: str, value: float, words: str
) -> None:
    """An infinity in their place would make every logit one that is no number."""
    held, name = tensors(), "model.layers.1.mlp.up_proj.weight"
    held[name][3, 5] = value
    out = tmp_path / "x.gguf"
    said = message(checkpoint(tmp_path / "c", held), out, outtype=outtype)
    assert name in said and words in said and f"does not fit {outtype}" in said
    assert "choose another --outtype" in said


@pytest.mark.parametrize(
    ("shapes", "label"),
    [
        ({"a.weight": (1000, 1300), "b": (7,)}, "1.3M"),
        ({"a.weight": (4000, 3200)}, "13M"),
        ({"a.weight": (70000, 100000)}, "7.0B"),
        ({"a.weight": (20, 20)}, "0.40K"),
        # One of eight experts has 3 * 10**6, all else 4 * 10**6.
        ({"ffn_up_exps.weight": (8, 3000, 1000), "a.weight": (4000, 1000)}, "8x7.0M"),
    ],
)
def test_labels_of_sizes(shapes: dict[str, tuple[int, ...]], label: str) -> None:
    assert size_label(shapes) == label


def without(name: str) -> dict[str, np.ndarray]:
    return {n: x for n, x in tensors().items() if n != name}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"hidden_size": ABSENT}, ["config.json", "hidden_size is missing"]),
        ({"num_hidden_layers": "2"}, ["num_hidden_layers should be a whole number, got 2"]),
        ({"rms_norm_eps": None}, ["rms_norm_eps is missing"]),
        ({"architectures": ["Foo"], "model_type": "foo"}, ["one of", "LlamaForCausalLM", "Foo"]),
        ({"rope_scaling": {"rope_type": "odd", "factor": 2.0}}, ["rope_type", "odd"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, ["factor", "a finite number"]),
        ({"num_hidden_layers": 3}, ["missing layers.2.input_layernorm.weight", "and 5 more"]),
        ({"num_hidden_layers": 1}, ["unknown model.layers.1."]),
        (
            {"num_attention_heads": 3, "num_key_value_heads": 1},
            ["'model.layers.0.self_attn", "does not fit"],
        ),
    ],
    ids=str,
)
def test_configurations_that_do_not_fit(
    tmp_path: Path, more: dict[str, Any], words: list[str]
) -> None:
    said = message(checkpoint(tmp_path / "c", **more), tmp_path / "x.gguf")
    assert all(word in said for word in words), said


ONLY_FULL = ["full_attention"] * 2


@pytest.mark.parametrize(
    ("family", "more", "words"),
    [
        ("Qwen2", {"use_sliding_window": True}, "use_sliding_window should be false"),
        ("SmolLM3", {"no_rope_layers": [1, 0]}, "no_rope_layers should be 0 for every fourth"),
        ("SmolLM3", {"use_sliding_window": True}, "use_sliding_window should be false"),
        ("Qwen3Moe", {"mlp_only_layers": [0]}, "mlp_only_layers should be empty"),
        ("Qwen3Moe", {"decoder_sparse_step": 2}, "decoder_sparse_step 1"),
        ("Qwen3Moe", {"norm_topk_prob": False}, "norm_topk_prob should be true"),
        ("Glm4Moe", {"n_group": 2}, "n_group should be 1, got 2"),
        ("GptOss", {"layer_types": ONLY_FULL}, "sliding_attention and full_attention in turns"),
        (
            "Qwen3_5",
            {"layer_types": ["x"], "linear_num_value_heads": 2},
            "a list of 2, got 1 items",
        ),
    ],
    ids=str,
)
def test_settings_that_a_file_could_not_tell(
    tmp_path: Path, family: str, more: dict[str, Any], words: str
) -> None:
    sizes = ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads")
    more = {f"linear_{size}": 4 for size in sizes} | more
    folder = checkpoint(tmp_path / "c", architectures=[f"{family}ForCausalLM"], **more)
    assert words in message(folder, tmp_path / "x.gguf")


def test_factors_are_counted(tmp_path: Path) -> None:
    scaling = {"rope_type": "longrope", "long_factor": [1.0] * 7, "short_factor": [1.0] * 8}
    folder = checkpoint(tmp_path / "c", rope_scaling=scaling, architectures=["Phi3ForCausalLM"])
    read = Config.read(folder)
    with pytest.raises(ModelError, match="long_factor should be 8 numbers, got 7"):
        dict(find_family(read)(read).extra())


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", without("model.layers.1.mlp.up_proj.weight"))
    assert "missing layers.1.mlp.up_proj.weight" in message(folder, tmp_path / "x.gguf")


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    held = tensors()
    held["model.norm.weight"] = held["model.norm.weight"][:32]
    said = message(checkpoint(tmp_path / "c", held), tmp_path / "x.gguf")
    assert "output_norm.weight has shape (32,), expected (64,)" in said
    assert str(tmp_path / "x.gguf") in said


@pytest.mark.parametrize("kind", ["I64", "U8"])
def test_quantised_checkpoints_are_refused(tmp_path: Path, kind: str) -> None:
    said = message(checkpoint(tmp_path / "c", kind=kind), tmp_path / "x.gguf")
    assert kind in said and "not quantised" in said


def spoil_cut(folder: Path) -> None:
    file = folder / "b.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def spoil_header(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(b"\x10" + bytes(7) + b"not json at all!")


def spoil_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def spoil_shard(folder: Path) -> None:
    (folder / "b.safetensors").unlink()


def spoil_format(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_cut, "b.safetensors: tensor"),
        (spoil_header, "a.safetensors: header is not valid JSON"),
        (spoil_index, "is not valid JSON"),
        (spoil_shard, "names b.safetensors, not in the folder"),
        (spoil_format, "found pytorch_model.bin; save the checkpoint as safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "config.json: no such file"),
    ],
)
def test_damaged_folders(tmp_path: Path, spoil: Callable[[Path], None], words: str) -> None:
    folder = checkpoint(tmp_path / "c")
    spoil(folder)
    assert words in message(folder, tmp_path / "x.gguf")


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    said = message(checkpoint(tmp_path / "c"), tmp_path / "x.gguf", tokenizer=True)
    assert "neither tokenizer.json nor tokenizer.model" in said


def test_arguments_are_checked_first(tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    assert "expected the folder" in message(tmp_path / "none", out, RequestError)
    folder = checkpoint(tmp_path / "c")
    assert "one of auto, f32" in message(folder, out, RequestError, outtype="q4_0")
    for bad, words in ((tmp_path / "no" / "x.gguf", "no is not there"), (folder, "is a folder")):
        with pytest.raises(RequestError, match=words):
            convert(folder, bad, tokenizer=False)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    folder, out = checkpoint(tmp_path / "c"), tmp_path / "x.gguf"
    out.write_text("mine")
    with pytest.raises(RequestError, match="is there already; replace it with"):
        convert(folder, out, tokenizer=False)
    assert out.read_text() == "mine"
    convert(folder, out, tokenizer=False, force=True)
    assert rr.load(out, "cpu").name


def test_a_failure_leaves_nothing_and_an_old_file(tmp_path: Path) -> None:
    held = tensors()
    held["model.norm.weight"] = held["model.norm.weight"][:32]
    folder, out = checkpoint(tmp_path / "c", held), tmp_path / "x.gguf"
    out.write_text("mine")
    with pytest.raises(ModelError):
        convert(folder, out, tokenizer=False, force=True)
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["x.gguf"]
    assert out.read_text() == "mine"


def test_every_name_of_a_family_is_known(tmp_path: Path) -> None:
    """So that the message about unknown ones lists what there is."""
    said = message(checkpoint(tmp_path / "c", architectures=["X"], model_type="x"), tmp_path / "y")
    assert {name for cls in FAMILIES.values() for name in cls.hf} <= set(
        said.replace(";", ",").replace("one of ", ", ").split(", ")
    )


def test_pieces_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read at a time: all rows, or two."""
    folder, files = checkpoint(tmp_path / "c", kind="BF16"), []
    for block in (1 << 24, 2 * N_EMBD):
        monkeypatch.setattr("riverrun.models.convert.checkpoint.BLOCK", block)
        for outtype in ("bf16", "q8_0"):
            out = convert(folder, tmp_path / f"{block}.gguf", outtype, tokenizer=False, force=True)
            files.append(out.read_bytes())
    assert files[:2] == files[2:]
    assert files[0] != files[1]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        assert 0 < done < total
        raise KeyboardInterrupt

    folder = checkpoint(tmp_path / "c")
    with pytest.raises(KeyboardInterrupt):
        convert(folder, tmp_path / "x.gguf", tokenizer=False, progress=interrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = str(checkpoint(tmp_path / "c")), tmp_path / "x.gguf"
    assert main(["convert", folder, str(out), "--outtype", "q4_0"]) == 2
    assert "--outtype" in capsys.readouterr().err
    assert main(["convert", folder, str(out)]) == 1
    assert "neither tokenizer.json nor tokenizer.model" in capsys.readouterr().err
    assert main(["convert", folder, str(out), "--no-tokenizer", "--name", "small"]) == 0
    told = capsys.readouterr()
    assert told.out == "" and f"{out.stat().st_size:,} bytes" in told.err
    assert open_gguf(out).metadata["general.name"] == "small"
    assert main(["convert", folder, str(out), "--no-tokenizer"]) == 1
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["run", str(out), "--tokens", "1,2", "-n", "2", "--temp", "0", "--json"]) == 0


# The values of the sixteen codes of a 4-bit float of 2 exponent bits and 1 of mantissa (OCP MX).
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def test_mxfp4_blocks_of_a_checkpoint(tmp_path: Path) -> None:
    """A byte of a checkpoint holds an element in its lower half and the next one in its upper."""
    rng = np.random.default_rng(0)
    nibbles = rng.integers(0, 256, (2, 6, 3, 16)).astype(np.uint8)
    scales = rng.integers(120, 134, (2, 6, 3)).astype(np.uint8)
    write_safetensors(tmp_path / "model.safetensors", {"q": nibbles, "s": scales}, "U8")
    held = Checkpoint(tmp_path).tensors
    codes = np.stack([nibbles & 15, nibbles >> 4], -1).reshape(2, 6, 3, 32)
    sign = np.where(codes & 8, -1, 1)
    want = sign * CODES[codes & 7] * 2.0 ** (scales[..., None].astype(int) - 127)
    want = want.reshape(2, 6, 96)
    for start, step in ((0, 1), (0, 2), (1, 2)):
        how = Blocks(start, step)
        assert how.shape([nibbles.shape, scales.shape]) == (2, 6 // step, 96)
        pieces = np.stack(list(how.pieces([held["q"], held["s"]])))
        got = gguf.quants.dequantize(pieces, gguf.GGMLQuantizationType.MXFP4)
        assert np.array_equal(got, want[:, start::step])


def test_one_file_needs_no_index(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    write_safetensors(folder / "model.safetensors", tensors(), "F32")
    assert rr.load(convert(folder, tmp_path / "x.gguf", tokenizer=False), "cpu").name


@NEEDS_SMAPS
@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_what_was_read_leaves_memory(tmp_path: Path, outtype: str) -> None:
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    held = {name: np.tile(x, (40, 1)) if name in ends else x for name, x in tensors().items()}
    folder, seen = checkpoint(tmp_path / "hf", held, vocab_size=40 * N_VOCAB), []
    files = sorted(folder.glob("*.safetensors"))
    convert(
        *(folder, tmp_path / "m.gguf", outtype),
        tokenizer=False,
        progress=lambda done, total: seen.append(sum(map(resident, files))),
    )
    assert max(seen) < 0.1 * sum(f.stat().st_size for f in files)
