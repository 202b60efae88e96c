"""Vocabularies of checkpoints: ids from the converted metadata against the files' own programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from byte_level_files import NFC, TEXTS, byte_level, corpus
from riverrun.graph.errors import ModelError
from riverrun.models.convert.config import Config
from riverrun.models.convert.pre_names import NAMES, OTHERS
from riverrun.models.convert.specials import sampling_keys
from riverrun.models.convert.vocabulary import vocabulary_keys
from riverrun.models.tokenizer import load_tokenizer
from riverrun.models.tokenizer.pretokenizers import PRETOKENIZERS
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, normalizers, trainers


def keys(folder: Path, size: int, pre: str = "", **config: Any) -> dict[str, Any]:
    return vocabulary_keys(
        folder, Config(folder / "config.json", {"vocab_size": size, **config}), pre
    )


def write(folder: Path, name: str, values: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(values))


def test_byte_level(tmp_path: Path) -> None:
    made = byte_level(tmp_path)
    size = made.get_vocab_size() + 3
    found = keys(tmp_path, size)
    assert found["tokenizer.ggml.model"] == "gpt2" and found["tokenizer.ggml.pre"] == "qwen2"
    at = {text: made.token_to_id(text) for text in ("<|im_end|>", "<tool>", "<|odd|>")}
    types = found["tokenizer.ggml.token_type"]
    assert [types[i] for i in at.values()] == [3, 4, 3]
    assert types[-3:] == [5, 5, 5] and len(types) == len(found["tokenizer.ggml.tokens"]) == size
    ours = load_tokenizer(found, "x")
    for text in [*TEXTS, *corpus()[:5], "the<tool> weather<|im_end|>"]:
        assert ours.encode(text, add_special=False, parse_special=True) == made.encode(text).ids


@pytest.mark.parametrize(
    ("normalizer", "name"),
    [(NFC, "qwen2"), (normalizers.Sequence([NFC]), "qwen2"), (None, "hunyuan")],
    ids=["NFC", "sequence", "none"],
)
def test_texts_are_normalised_as_the_file_says(
    tmp_path: Path, normalizer: normalizers.Normalizer | None, name: str
) -> None:
    """Accents of their own, which the normal form puts into the letters before them."""
    made = byte_level(tmp_path, normalizer=normalizer)
    found = keys(tmp_path, made.get_vocab_size())
    assert found["tokenizer.ggml.pre"] == name
    ours = load_tokenizer(found, "x")
    for text in ("the weathe\u0301r", "e\u0301 u\u0308\u0301", "\u212b"):
        assert ours.encode(text, add_special=False) == made.encode(text).ids


def test_normal_forms_without_a_name_are_quoted(tmp_path: Path) -> None:
    both = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    size = byte_level(tmp_path, normalizer=both).get_vocab_size()
    with pytest.raises(ModelError, match=r"normalised by NFKC, Lowercase and cut by .* --pre"):
        keys(tmp_path, size)


def test_names_mean_what_they_are_found_by() -> None:
    for (form, _), name in NAMES.items():
        assert PRETOKENIZERS[name].normalizer == form, name
    for (name, _), other in OTHERS.items():
        assert PRETOKENIZERS[other].normalizer == PRETOKENIZERS[name].normalizer, other
        assert PRETOKENIZERS[other].patterns == PRETOKENIZERS[name].patterns, other


def test_special_ids_and_templates(tmp_path: Path) -> None:
    made = byte_level(tmp_path)
    size, ends = made.get_vocab_size(), ["<|im_end|>", "<|endoftext|>", "<tool>"]
    ids = [made.token_to_id(text) for text in ends]
    settings = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}
    settings |= {"chat_template": "{{ x }}", "add_bos_token": False}
    write(tmp_path, "tokenizer_config.json", settings)
    write(tmp_path, "generation_config.json", {"eos_token_id": ids})
    found = keys(tmp_path, size, bos_token_id=ids[2], mask_token_id=size)
    named = {key: found[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "padding", "bos")}
    assert named == {"eos": ids[0], "padding": ids[1], "bos": ids[2]}
    assert [found[f"tokenizer.ggml.{key}_token_id"] for key in ("eot", "eom")] == ids[1:]
    assert found["tokenizer.chat_template"] == "{{ x }}"
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert not [key for key in found if "mask" in key]


def test_several_templates(tmp_path: Path) -> None:
    size = byte_level(tmp_path).get_vocab_size()
    both = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": both})
    found = keys(tmp_path, size)
    assert found["tokenizer.chat_template"] == "a"
    assert found["tokenizer.chat_templates"] == ["tool_use"]
    assert found["tokenizer.chat_template.tool_use"] == "b"
    write(tmp_path, "tokenizer_config.json", {})
    (tmp_path / "chat_template.jinja").write_text("c")
    assert keys(tmp_path, size)["tokenizer.chat_template"] == "c"


def test_unknown_cuts_are_quoted_and_can_be_named(tmp_path: Path) -> None:
    size = byte_level(tmp_path, r"\w+|\s+").get_vocab_size()
    with pytest.raises(ModelError, match=r"w\+\|.*give it with --pre"):
        keys(tmp_path, size)
    assert keys(tmp_path, size, pre="gpt-2")["tokenizer.ggml.pre"] == "gpt-2"


def test_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    size = byte_level(tmp_path).get_vocab_size()
    with pytest.raises(ModelError, match=f"holds token {size - 1}, .* is {size - 1}"):
        keys(tmp_path, size - 1)


def test_sentencepiece(tmp_path: Path) -> None:
    SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_prefix=str(tmp_path / "tokenizer"),
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    peer = SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    added = {"300": {"content": "<start_of_turn>", "special": True}}
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "added_tokens_decoder": added})
    found = keys(tmp_path, 302)
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.token_type"][:3] == [2, 3, 3]
    assert found["tokenizer.ggml.token_type"][300:] == [3, 5]
    ours = load_tokenizer(found, "x")
    for text in [*TEXTS, *corpus()[:5]]:
        assert ours.encode(text, add_special=False) == peer.encode(text)


@pytest.mark.parametrize("tab", ["<0x09>", "\t"])
def test_characters_with_bytes_from_json(tmp_path: Path, tab: str) -> None:
    """As Llama 2's tokenizer.json: scores follow from the merges' order. Gemma's have a tab in the
    place of its byte, without which no byte would be used."""
    made = Engine(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=tokens, show_progress=False)
    made.train_from_iterator(corpus(), trainer)
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    described = json.loads(path.read_text())
    described["added_tokens"] = described["added_tokens"][:3]
    vocab = described["model"]["vocab"]
    described["model"]["vocab"] = {tab if t == "<0x09>" else t: n for t, n in vocab.items()}
    path.write_text(json.dumps(described))
    found = keys(tmp_path, made.get_vocab_size())
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.add_space_prefix"] is True
    ours, peer = load_tokenizer(found, "x"), Engine.from_file(str(path))
    for text in [*TEXTS[:3], "the\tü", *corpus()[:5]]:
        assert ours.encode(text, add_special=False) == peer.encode(text).ids


def test_what_authors_recommend_for_sampling() -> None:
    found = sampling_keys({"temperature": 1, "top_k": 20, "top_p": 0.95, "do_sample": True})
    assert found == {
        "general.sampling.temp": 1.0,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
    }
