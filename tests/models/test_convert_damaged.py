"""Damaged JSON in the folder of a checkpoint: a ModelError that names the file, or a model file
that loads."""

from __future__ import annotations

import json
import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from byte_level_files import byte_level
from json_mutants import DEEP, spoiled
from riverrun.graph.errors import ModelError
from riverrun.models import load_file
from riverrun.models.convert import convert
from small_checkpoint import checkpoint, tensors

WEIGHTS = "a.safetensors"
FILES = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"),
    *("model.safetensors.index.json", WEIGHTS),
)
SHORT, LONG = 16, 400  # mutants of each file
RUNS = [SHORT, pytest.param(LONG, marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the converter reads."""
    folder = tmp_path_factory.mktemp("damaged") / "sound"
    folder.mkdir()
    size = byte_level(folder).get_vocab_size()
    held = tensors()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        held[name] = held[name].repeat(2, axis=0)[:size]
    checkpoint(folder, held, vocab_size=size, eos_token_id=[1, 2], rope_scaling=None)
    settings = {
        "eos_token": {"content": "<|im_end|>"},
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "added_tokens_decoder": {str(size - 1): {"content": "<|odd|>", "special": False}},
        "chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}],
    }
    generation = {"eos_token_id": [size - 3], "temperature": 0.6, "top_k": 20, "top_p": 0.9}
    for name, value in (("tokenizer_config", settings), ("generation_config", generation)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def linked(sound: Path, folder: Path) -> Path:
    """The same folder again, to be spoiled."""
    folder.mkdir()
    for path in sound.iterdir():
        os.link(path, folder / path.name)
    return folder


def split(raw: bytes) -> tuple[bytes, bytes]:
    """Header and data of a safetensors file."""
    end = 8 + int.from_bytes(raw[:8], "little")
    return raw[8:end], raw[end:]


def replace(path: Path, text: bytes) -> None:
    """Put JSON in the place of a file's, or of its header."""
    if path.name == WEIGHTS:
        text = len(text).to_bytes(8, "little") + text + split(path.read_bytes())[1]
    path.unlink()
    path.write_bytes(text)


def attempt(folder: Path, out: Path) -> str:
    """What converting says, "" where it made a file that loads; nothing is left otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            convert(folder, out)
        except ModelError as error:
            assert not out.exists()
            return str(error)
        assert load_file(out).tokenizer.encode("the weather")
    return ""


@pytest.mark.parametrize("count", RUNS)
@pytest.mark.parametrize("name", FILES)
def test_mutants(tmp_path: Path, sound: Path, name: str, count: int) -> None:
    raw = (sound / name).read_bytes()
    text = split(raw)[0] if name == WEIGHTS else raw
    for number in range(count):
        what, made = spoiled(text, random.Random(f"{name} {number}"))
        folder = linked(sound, tmp_path / str(number))
        replace(folder / name, made)
        try:
            told = attempt(folder, tmp_path / f"{number}.gguf")
        except Exception as error:
            raise AssertionError(f"mutant {name} {number} ({what}): {error!r}") from error
        assert not told or str(tmp_path) in told


@pytest.mark.parametrize(
    ("name", "at", "value", "told"),
    [
        ("tokenizer.json", ["model", "vocab", "Z"], {}, "model.vocab['Z'] should be a number"),
        ("tokenizer.json", ["model", "vocab"], {}, "model.vocab should hold tokens"),
        ("tokenizer.json", ["model", "merges"], [["a"]], "model.merges[0] should be two texts"),
        ("tokenizer.json", ["model", "merges"], ["a "], "model.merges[0] should be two texts"),
        ("tokenizer.json", ["model", "merges"], [["a", 1]], "model.merges[0] should be two texts"),
        ("tokenizer.json", ["added_tokens"], [7], "added_tokens[0] should be an object, got 7"),
        ("tokenizer.json", ["added_tokens"], [{"id": 1}], "added_tokens[0].content should be"),
        ("tokenizer.json", ["normalizer"], {"normalizers": 1}, "normalizer.normalizers should"),
        (
            "tokenizer.json",
            ["pre_tokenizer"],
            {"pretokenizers": [{"pattern": 1}]},
            "pre_tokenizer.pretokenizers[0].pattern should be an object",
        ),
        ("tokenizer_config.json", ["added_tokens_decoder"], {"x": {}}, "should be a number"),
        ("tokenizer_config.json", ["added_tokens_decoder"], {"7": 1}, "['7'] should be an object"),
        ("tokenizer_config.json", ["chat_template"], [{"name": "a"}], "[0].template should be"),
        ("tokenizer_config.json", ["chat_template"], "\ud800", "chat_template should be a text"),
        ("generation_config.json", ["top_k"], float("inf"), "top_k should be a finite number"),
        (
            "model.safetensors.index.json",
            ["weight_map", "lm_head.weight"],
            {},
            "should be a file's name",
        ),
        (WEIGHTS, ["lm_head.weight", "dtype"], {}, "is of {}, expected one of F64"),
        ("config.json", ["architectures"], [{}], "architectures[0] should be a text, got {}"),
        ("config.json", ["num_hidden_layers"], 2**40, "num_hidden_layers should be 1 to 16383"),
        ("config.json", ["vocab_size"], 2**40, "vocab_size should be 1 to 4194303"),
        ("config.json", ["num_attention_heads"], 0, "num_attention_heads should be 1 to"),
        ("config.json", ["num_key_value_heads"], 0, "num_key_value_heads should be 1 to"),
        (
            "config.json",
            ["rope_parameters"],
            {"partial_rotary_factor": {}},
            "rope_parameters.partial_rotary_factor should be 0 to 1, got {}",
        ),
        (
            "config.json",
            ["rope_parameters"],
            {"full_attention": {"long_factor": [1.0, "x"]}},
            "rope_parameters.full_attention.long_factor[1] should be a finite number",
        ),
        (
            "config.json",
            ["rope_parameters"],
            {"rope_type": "yarn", "original_max_position_embeddings": 0},
            "rope_parameters.original_max_position_embeddings should be above 0, got 0",
        ),
        (WEIGHTS, ["lm_head.weight", "shape"], [float("inf")], "should have dtype, shape and"),
        ("config.json", ["rms_norm_eps"], 10**400, "rms_norm_eps should be a number that f64"),
    ],
)
def test_the_member_is_named(
    tmp_path: Path, sound: Path, name: str, at: list[str], value: Any, told: str
) -> None:
    folder = linked(sound, tmp_path / "c")
    text = (sound / name).read_bytes()
    made = json.loads(split(text)[0] if name == WEIGHTS else text)
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    if name == WEIGHTS:
        at = [next(iter(made)), *at[1:]]
        holder = made[at[0]]
    holder[at[-1]] = value
    replace(folder / name, json.dumps(made).encode())
    said = attempt(folder, tmp_path / "x.gguf")
    assert told in said and name in said


@pytest.mark.parametrize("name", FILES)
def test_deep_nesting_is_refused(tmp_path: Path, sound: Path, name: str) -> None:
    folder = linked(sound, tmp_path / "c")
    replace(folder / name, DEEP)
    assert "nested too deeply" in attempt(folder, tmp_path / "x.gguf")


def test_a_template_that_is_no_text(tmp_path: Path, sound: Path) -> None:
    folder = linked(sound, tmp_path / "c")
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.jinja").write_bytes(b"{{ x }}\xff")
    assert "chat_template.jinja: is not UTF-8" in attempt(folder, tmp_path / "x.gguf")
