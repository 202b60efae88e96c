"""Vocabulary data that must be refused, or switched off with a warning, before any use."""

from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import pytest
from riverrun.graph.errors import RequestError, TokenizerError
from riverrun.models.tokenizer import load_tokenizer
from tokenizer_samples import CONTROL, bpe_metadata, spm_metadata

BPE_TOKENS = cast("list[str]", bpe_metadata()["tokenizer.ggml.tokens"])
SPM_TOKENS = cast("list[str]", spm_metadata()["tokenizer.ggml.tokens"])
SPM_TYPES = cast("np.ndarray", spm_metadata()["tokenizer.ggml.token_type"])
N_SPM = len(SPM_TOKENS)


def test_sample_metadata_is_sound() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_tokenizer(bpe_metadata(), "m").encode("hello") == [260]
        assert load_tokenizer(spm_metadata(), "m").encode("hello")[1:] == [N_SPM - 2]


def with_item(items: list[str], index: int, text: object) -> list[object]:
    return [*items[:index], text, *items[index + 1 :]]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model", None, "model is missing"),
        (
            "model",
            "abacus",
            "unknown tokenizer 'abacus'; known are gpt2, gemma4, llama, bert, none",
        ),
        ("model", 3, "model must be str, got int"),
        ("pre", "qwen99", "unknown pre-tokenizer 'qwen99'; known are .*qwen2, qwen35"),
        ("model", "t5", "tokenizer 't5' is not supported: Unigram"),
        ("model", "rwkv", "tokenizer 'rwkv' is not supported: RWKV"),
        ("model", "plamo2", "tokenizer 'plamo2' is not supported: PLaMo-2"),
        ("model", "hybriddna", "tokenizer 'hybriddna' is not supported: .*DNA"),
        ("model", "whitespace", "tokenizer 'whitespace' is not supported: .*white space"),
        ("pre", "whitespace", "pre-tokenizer 'whitespace' is not supported: .*white space"),
        ("pre", 7, "pre must be str"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens is empty"),
        ("tokens", np.arange(5), "tokens must be an array of strings, got an array of int64"),
        ("tokens", "abc", "tokens must be an array of strings, got str"),
        ("tokens", with_item(BPE_TOKENS, 3, 17), r"tokens\[3\] must be a string, got int"),
        ("tokens", with_item(BPE_TOKENS, 9, b"a"), r"tokens\[9\] must be a string, got bytes"),
        ("tokens", with_item(BPE_TOKENS, 5, BPE_TOKENS[4]), "must occur once, got it at 4 and 5"),
        ("tokens", with_item(BPE_TOKENS, 5, "\ud800"), r"tokens\[5\] must be valid Unicode"),
        ("token_type", np.ones(7, np.int32), "token_type must have at least 262 items.*got 7"),
        ("token_type", np.ones(262, np.float32), "must be an array of integers.*float32"),
        ("token_type", np.ones(262, np.bool_), "must be an array of integers.*bool"),
        ("token_type", ["1"] * 262, "must be an array of integers, got list"),
        ("token_type", 1, "must be an array of integers, got int"),
        ("token_type", np.full(262, 9), r"token_type\[0\] must be 0 to 6, got 9"),
        ("token_type", np.full(262, -1), r"token_type\[0\] must be 0 to 6, got -1"),
        ("merges", None, "merges is missing"),
        ("merges", np.zeros(3), "merges must be an array of strings"),
        ("merges", ["a b", "ab"], r"merges\[1\] must be two parts"),
        ("merges", ["a b", "a b", ""], r"merges\[2\] must be two parts"),
        ("merges", ["a "], r"merges\[0\] must be two parts"),
        ("merges", [" a"], r"merges\[0\] must be two parts"),
        ("merges", ["a b", 5], r"merges\[1\] must be a string"),
        ("eos_token_id", "2", "eos_token_id must be int, got str"),
        ("eos_token_id", 2.0, "eos_token_id must be int, got float"),
        ("eos_token_id", True, "eos_token_id must be int, got bool"),
        ("add_bos_token", 1, "add_bos_token must be bool, got int"),
        ("suppress_tokens", ["a"], "suppress_tokens must be an array of integers"),
    ],
)
def test_bad_byte_level_metadata(key: str, value: object, words: str) -> None:
    metadata = bpe_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(TokenizerError, match=f"bad.gguf: .*{words}"):
        load_tokenizer(metadata, "bad.gguf")


def scores_with(value: float) -> np.ndarray:
    scores = np.zeros(N_SPM, np.float32)
    scores[7] = value
    return scores


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("scores", None, "scores is missing"),
        ("scores", np.zeros(N_SPM, np.uint8), "scores must be an array of floats.*uint8"),
        ("scores", [0] * N_SPM, "scores must be an array of floats"),
        ("scores", np.zeros(N_SPM - 1, np.float32), f"scores must have at least {N_SPM}"),
        ("scores", scores_with(np.nan), r"scores\[7\] must be a number, got NaN"),
        ("token_type", None, "token_type is missing"),
        ("token_type", SPM_TYPES[:-1], f"token_type must have at least {N_SPM}"),
        ("tokens", with_item(SPM_TOKENS, 13, "<0x-1>"), r"tokens\[13\] is a byte token"),
        ("tokens", with_item(SPM_TOKENS, 13, "<0x100>"), r"tokens\[13\] is a byte token"),
        ("tokens", with_item(SPM_TOKENS, 13, "<0xG0>"), r"tokens\[13\] is a byte token"),
        ("tokens", with_item(SPM_TOKENS, 13, "x"), r"tokens\[13\] is a byte token|occur once"),
        ("tokens", with_item(SPM_TOKENS, 3, "<0x0a>"), "byte 0x0a must have one token"),
    ],
)
def test_bad_spm_metadata(key: str, value: object, words: str) -> None:
    metadata = spm_metadata() | {f"tokenizer.ggml.{key}": value}
    with pytest.raises(TokenizerError, match=f"bad.gguf: .*({words})"):
        load_tokenizer(metadata, "bad.gguf")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", [2**31, 2**32 - 1, 262, -1, np.uint32(4_000_000_000)])
def test_special_ids_outside_the_vocabulary_are_off(bad: object) -> None:
    metadata = bpe_metadata(eos_token_id=bad, bos_token_id=bad, padding_token_id=bad)
    with pytest.warns(UserWarning, match=r"m: tokenizer.ggml.eos_token_id is .* outside"):
        tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.eos_id is tokenizer.bos_id is tokenizer.pad_id is None
    assert tokenizer.eog_ids == frozenset()
    assert tokenizer.encode("hello") == [260]


@pytest.mark.filterwarnings("ignore")
def test_adding_a_token_that_is_off_adds_none() -> None:
    metadata = bpe_metadata(pre="llama-bpe", add_eos_token=True, eos_token_id=2**31)
    with pytest.warns(UserWarning, match="none is added"):
        tokenizer = load_tokenizer(metadata, "m")
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, False)
    assert tokenizer.encode("hello") == [260]


@pytest.mark.filterwarnings("ignore")
def test_default_ids_of_a_vocabulary_of_one_token() -> None:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.scores": np.zeros(1, np.float32),
        "tokenizer.ggml.token_type": np.ones(1, np.int32),
    }
    with pytest.warns(UserWarning, match="bos_token_id is 1, outside"):
        tokenizer = load_tokenizer(metadata, "m")
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (None, None, 0)
    assert tokenizer.encode("") == []
    assert tokenizer.encode("a") == [0]


def test_lists_and_longer_arrays_do() -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.scores"] = [*np.array(metadata["tokenizer.ggml.scores"]).tolist(), 1.0]
    metadata["tokenizer.ggml.token_type"] = [*SPM_TYPES.tolist(), 1, 1]
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.encode("hello") == load_tokenizer(spm_metadata(), "m").encode("hello")


def test_empty_texts_get_a_name() -> None:
    metadata = bpe_metadata(specials=(("", CONTROL), ("", CONTROL)))
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.token_text(262) == "[EMPTY_262]"
    assert tokenizer.encode("[EMPTY_263]", parse_special=True) == [263]


def test_missing_pretokenizer_warns_and_is_default() -> None:
    with pytest.warns(UserWarning, match="tokenizer.ggml.pre is missing"):
        bare = load_tokenizer(bpe_metadata(pre=None), "m")
    named = load_tokenizer(bpe_metadata(pre="default"), "m")
    text = "hello, hello!! 12345 a\n\n a"
    assert bare.encode(text) == named.encode(text)


def test_merges_that_lead_out_of_the_vocabulary_fall_back_to_bytes() -> None:
    metadata = bpe_metadata(("h e", "l l"))
    metadata["tokenizer.ggml.merges"] = ["h e", "l l", "x y", "he ll", "q zz"]
    tokenizer = load_tokenizer(metadata, "m")
    letters = [tokenizer.token_id(c) for c in "hell"]
    assert tokenizer.encode("hell") == letters
    assert tokenizer.encode("xy") == [tokenizer.token_id("x"), tokenizer.token_id("y")]
    assert tokenizer.encode("he") == [tokenizer.token_id("he")]
    assert max(tokenizer.encode("hell xy qzz")) < tokenizer.n_vocab


def test_bytes_without_a_token_are_dropped_like_the_reference_does() -> None:
    metadata = bpe_metadata()
    metadata["tokenizer.ggml.tokens"] = with_item(BPE_TOKENS, ord("z"), "[no z]")
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.decode(tokenizer.encode("azb")) == "ab"


def test_first_of_repeated_merges_counts() -> None:
    metadata = bpe_metadata(("a b", "b c"))
    metadata["tokenizer.ggml.merges"] = ["a b", "b c", "a b"]
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.encode("abc") == [tokenizer.token_id("ab"), tokenizer.token_id("c")]


def test_spm_without_byte_tokens_uses_the_unknown_token() -> None:
    tokenizer = load_tokenizer(spm_metadata(with_bytes=False), "m")
    ids = tokenizer.encode("a☃", add_special=False)
    assert ids[-1] == tokenizer.unk_id == 0
    with pytest.warns(UserWarning, match="unknown_token_id is 9999"):
        bare = load_tokenizer(spm_metadata(with_bytes=False, unknown_token_id=9999), "m")
    assert bare.encode("a☃", add_special=False) == ids[:-1]


def test_spm_with_some_byte_tokens_warns() -> None:
    tokens = [token for token in SPM_TOKENS if token != "<0x41>"]
    types = np.delete(SPM_TYPES, SPM_TOKENS.index("<0x41>"))
    metadata = spm_metadata() | {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
    }
    with pytest.warns(UserWarning, match="only 255 of 256 byte tokens"):
        tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.encode("A", add_special=False)[-1] == tokenizer.unk_id


def test_lower_case_byte_tokens() -> None:
    metadata = spm_metadata()
    metadata["tokenizer.ggml.tokens"] = [
        token.lower().replace("<0X", "<0x") if token.startswith("<0x") else token
        for token in SPM_TOKENS
    ]
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.decode(tokenizer.encode("☃ÿ")) == "☃ÿ"


@pytest.mark.parametrize("metadata", [bpe_metadata(), spm_metadata()])
def test_bad_requests(metadata: dict[str, object]) -> None:
    tokenizer = load_tokenizer(metadata, "m")
    with pytest.raises(RequestError, match=r"lone surrogate '\\ud800' at 2"):
        tokenizer.encode("ab\ud800")
    with pytest.raises(RequestError, match="must be a str, got bytes"):
        tokenizer.encode(b"ab")  # type: ignore[arg-type]
    for bad in (-1, tokenizer.n_vocab, 2**40):
        with pytest.raises(RequestError, match=f"got {bad}"):
            tokenizer.decode([0, bad])
        with pytest.raises(RequestError, match=f"got {bad}"):
            tokenizer.token_bytes(bad)
        with pytest.raises(RequestError, match=f"got {bad}"):
            tokenizer.stream().feed(bad)
        with pytest.raises(RequestError, match=f"got {bad}"):
            tokenizer.token_type(bad)
