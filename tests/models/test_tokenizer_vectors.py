"""Ids and texts against the outputs of other implementations."""

from __future__ import annotations

import json
from functools import cache

import pytest
from oracles import VECTORS
from paths import DATA, DEMO, shared
from riverrun.models.gguf import open_gguf
from riverrun.models.tokenizer import Tokenizer, load_tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def load(path: str) -> Tokenizer:
    """As llama.cpp encodes, whose vectors these are."""
    with open_gguf(path) as file:
        return load_tokenizer(file.metadata, path, normalize=False)


@pytest.mark.parametrize("name", VECTORS)
def test_shared_vectors(name: str) -> None:
    path = shared("vocab", f"ggml-vocab-{name}.gguf")
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = path.with_suffix(".gguf.out").read_bytes().decode().split("\n")
    texts = texts[:-1] if texts[-1] == "" else texts
    assert len(texts) == VECTORS[name][0]
    tokenizer = load(str(path))
    for text, line in zip(texts, lines, strict=False):
        ids = [int(number) for number in line.split()]
        assert tokenizer.encode(text, add_special=False) == ids
        assert tokenizer.encode(text)[-len(ids) :] == ids or not ids
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_ids_of_known_vocabularies() -> None:
    ends = {"qwen35": "<|im_end|>", "llama-bpe": "<|eot_id|>", "phi-3": "<|end|>"}
    for name, end in ends.items():
        tokenizer = load(str(shared("vocab", f"ggml-vocab-{name}.gguf")))
        assert tokenizer.eot_id == tokenizer.token_id(end)
        assert tokenizer.eot_id in tokenizer.eog_ids
        assert tokenizer.eos_id in tokenizer.eog_ids
    llama = load(str(shared("vocab", "ggml-vocab-llama-bpe.gguf")))
    assert llama.add_bos
    assert llama.encode("Hi")[0] == llama.bos_id
    assert llama.encode("Hi", add_special=False)[0] != llama.bos_id


def test_demo_model_golden_prompts() -> None:
    tokenizer = load(str(DEMO))
    golden = json.loads((DATA / "golden.json").read_text())
    assert golden["prompts"]
    for prompt in golden["prompts"]:
        assert tokenizer.encode(prompt["text"]) == prompt["ids"]
        assert tokenizer.decode(prompt["ids"]) == prompt["text"]
        stream = tokenizer.stream()
        text = "".join(map(stream.feed, prompt["greedy"])) + stream.finish()
        assert text == prompt["greedy_text"]


def test_demo_model_ends_and_chat_markers() -> None:
    tokenizer = load(str(DEMO))
    assert tokenizer.n_vocab == 6144
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.eos_id == tokenizer.pad_id == 6141
    assert tokenizer.eog_ids == {6141, 6143}
    text = "<|im_start|>user\nhi<|im_end|>\n"
    ids = tokenizer.encode(text, parse_special=True)
    assert ids[0] == 6142
    assert ids.count(6143) == 1
    assert tokenizer.decode(ids, special=True) == text
    assert tokenizer.decode(ids) == "user\nhi\n"
    typed = tokenizer.encode(text)
    assert not {6141, 6142, 6143} & set(typed)
    assert tokenizer.decode(typed) == text


def test_phi3_strips_after_special_tokens() -> None:
    tokenizer = load(str(shared("vocab", "ggml-vocab-phi-3.gguf")))
    user, end = tokenizer.token_id("<|user|>"), tokenizer.token_id("<|end|>")
    stripped = tokenizer.encode("<|user|>\n hi<|end|> \n", add_special=False, parse_special=True)
    assert stripped == tokenizer.encode("<|user|>hi<|end|>", add_special=False, parse_special=True)
    assert stripped[0] == user
    assert stripped[-1] == end
    kept = tokenizer.encode("<s>\n", add_special=False, parse_special=True)
    assert len(kept) > 1
