"""What `riverrun.inspect` tells of files, whole or cut, that run here or not."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
import riverrun as rr
from gguf_bytes import Image, array, info, scalar
from paths import DEMO
from riverrun.graph.errors import DTypeError, GgufError, RequestError
from tiny_models import VARIANTS, TinyModel

KEYS = (
    "path shards architecture name n_params n_bytes bits_per_weight context_length tokenizer "
    "chat_template tensors types supported why n_ctx memory missing_bytes"
)


def written(variant: str, folder: Path, **changes: Any) -> Path:
    """A tiny model's file with other fields of TinyModel."""
    model: TinyModel = VARIANTS[variant]()
    for name, value in changes.items():
        setattr(model, name, value)
    return model.write(folder / "model.gguf")


def test_facts_of_the_demo() -> None:
    found, theirs = rr.inspect(DEMO).as_dict(), gguf.GGUFReader(DEMO)
    assert list(found) == KEYS.split()
    assert repr(rr.inspect(DEMO)) == f"<Inspection {DEMO.name}, qwen35, 13.1 MiB, supported>"
    assert (found["supported"], found["why"], found["missing_bytes"]) == (True, None, 0)
    assert found["architecture"] == "qwen35" and found["chat_template"] is True
    for name, key in (("name", "general.name"), ("context_length", "qwen35.context_length")):
        assert found[name] == theirs.fields[key].contents()
    assert found["n_params"] == sum(int(t.n_elements) for t in theirs.tensors)
    assert found["n_bytes"] == sum(int(t.n_bytes) for t in theirs.tensors)
    assert found["bits_per_weight"] == 8 * found["n_bytes"] / found["n_params"]
    n_tokens = len(theirs.fields["tokenizer.ggml.tokens"].data)
    assert found["tokenizer"] == {"model": "gpt2", "pre": "qwen35", "n_tokens": n_tokens}
    assert found["tensors"] == len(theirs.tensors)
    for name, stored in found["types"].items():
        rows = [t for t in theirs.tensors if t.tensor_type.name.lower() == name]
        assert stored == {"count": len(rows), "bytes": sum(int(t.n_bytes) for t in rows)}
    assert sum(stored["count"] for stored in found["types"].values()) == found["tensors"]


@pytest.mark.parametrize("options", [{}, {"n_ctx": 300}, {"n_ctx": 70, "cache_type_k": "q8_0"}])
@pytest.mark.parametrize("variant", ["llama", "gemma3", "qwen35", "qwen35,all recurrent"])
def test_memory_is_what_a_session_takes(
    variant: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = written(variant, tmp_path)
    if variant == "llama" and "cache_type_k" in options:
        with pytest.raises(DTypeError, match="multiples of 32"):
            rr.inspect(path, **options)
        return
    plan = rr.load(path, "cpu").plan_session(**options)
    found = rr.inspect(path, **options)
    assert (found.n_ctx, found.memory) == (plan.n_ctx, plan.bytes)
    assert found.as_dict()["memory"] == plan.bytes.device + plan.bytes.host > 0


def test_memory_is_known_before_the_weights_are_there(tmp_path: Path) -> None:
    """Of a file that ends where its weights begin."""
    path = written("qwen35,mtp", tmp_path)
    whole, raw = rr.inspect(path, n_ctx=100), path.read_bytes()
    start = min(row.start for row in whole.tensors.values())
    end = max(row.start + row.nbytes for row in whole.tensors.values())
    path.write_bytes(raw[:start])
    cut = rr.inspect(path, n_ctx=100)
    assert (cut.memory, cut.n_bytes, cut.missing_bytes) == (
        whole.memory,
        whole.n_bytes,
        end - start,
    )
    assert not cut.supported and f"lacks its last {end - start} bytes" in str(cut.why)
    path.write_bytes(raw[: end - 1])
    assert rr.inspect(path).missing_bytes == 1
    path.write_bytes(raw[:end])
    assert rr.inspect(path).missing_bytes == 0 and rr.inspect(path).supported
    path.write_bytes(raw[: start // 2])
    with pytest.raises(GgufError, match="the file is truncated or damaged"):
        rr.inspect(path)


def test_unknown_architecture(tmp_path: Path) -> None:
    found = rr.inspect(written("llama", tmp_path, arch="marvin")).as_dict()
    assert (found["architecture"], found["context_length"]) == ("marvin", 512)
    assert not found["supported"] and found["why"].startswith("architecture 'marvin'")
    assert found["memory"] is None and found["n_ctx"] is None and found["n_params"] > 0


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"tokenizer.ggml.pre": "no-such"}, ("tokenizer.ggml.pre", "no-such")),
        ({"tokenizer.ggml.model": "wordpiece"}, ("tokenizer.ggml.model", "wordpiece")),
        ({"tokenizer.ggml.merges": 1}, ("tokenizer.ggml.merges",)),
    ],
)
def test_unknown_tokenizer(extra: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    found = rr.inspect(written("llama", tmp_path, vocab="gpt2", extra=extra))
    assert not found.supported and all(word in str(found.why) for word in words)
    assert found.tokenizer.n_tokens == 288 and len(found.tensors) > 0
    assert found.tokenizer.pre == extra.get("tokenizer.ggml.pre", "gpt-2")


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    model = VARIANTS["llama"]()
    del model.tensors["blk.1.ffn_up.weight"]
    found = rr.inspect(model.write(tmp_path / "m.gguf"))
    assert not found.supported and "missing: blk.1.ffn_up.weight" in str(found.why)


def test_unknown_types_and_next_to_no_metadata(tmp_path: Path) -> None:
    infos = [info("a", (8, 2), 0, 0), info("b", (5,), 250, 64), info("c", (256,), 20, 128)]
    found = rr.inspect(Image([], infos, bytes(272)).write(tmp_path / "m.gguf")).as_dict()
    assert found["types"] == {
        "iq4_nl": {"count": 1, "bytes": 144},
        "f32": {"count": 1, "bytes": 64},
        "type 250": {"count": 1, "bytes": 64},
    }
    assert (found["n_params"], found["supported"]) == (16 + 5 + 256, False)
    assert found["architecture"] is None and "'general.architecture' is missing" in found["why"]
    assert found["tokenizer"] == {"model": None, "pre": None, "n_tokens": None}


def test_keys_of_odd_types_are_not_told(tmp_path: Path) -> None:
    keys = [scalar("general.architecture", "str", "llama"), scalar("general.name", "u8", 3)]
    keys += [scalar("tokenizer.ggml.tokens", "u8", 3), scalar("llama.context_length", "f32", 8)]
    keys += [array("tokenizer.ggml.pre", "str", ["a"]), scalar("x", "str", b"\xff")]
    found = rr.inspect(Image(keys).write(tmp_path / "m.gguf")).as_dict()
    assert (found["name"], found["context_length"], found["n_params"]) == (None, None, 0)
    assert found["tokenizer"] == {"model": None, "pre": None, "n_tokens": None}
    assert found["bits_per_weight"] is None and found["types"] == {}


@pytest.mark.parametrize("number", [1, 2])
def test_a_set_of_shards(number: int, tmp_path: Path) -> None:
    for no in range(2):
        keys = [scalar("split.no", "u16", no), scalar("split.count", "u16", 2)]
        keys += [scalar("split.tensors.count", "i32", 2)]
        keys += [scalar("general.architecture", "str", "llama")] if no == 0 else []
        image = Image(keys, [info(f"t{no}", (8,), 0, 0)], bytes(32 - 4 * no))
        image.write(tmp_path / f"m-{no + 1:05d}-of-00002.gguf")
    found = rr.inspect(tmp_path / f"m-{number:05d}-of-00002.gguf").as_dict()
    assert (found["shards"], found["tensors"], found["missing_bytes"]) == (2, 2, 4)
    assert found["path"].endswith("m-00001-of-00002.gguf") and found["architecture"] == "llama"


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="n_ctx"):
        rr.inspect(DEMO, n_ctx=0)
    path = tmp_path / "swapped.gguf"
    path.write_bytes(b"GGUF" + struct.pack(">Iqq", 3, 0, 0))
    with pytest.raises(GgufError, match="big-endian"):
        rr.inspect(path)
    with pytest.raises(GgufError, match="no such file"):
        rr.inspect(tmp_path / "gone.gguf")
