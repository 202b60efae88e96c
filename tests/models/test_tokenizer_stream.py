"""Round trips, single tokens, and text that arrives token by token."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.models.tokenizer import Tokenizer, TokenType, load_tokenizer
from riverrun.models.tokenizer.pretokenizers import PRETOKENIZERS
from tokenizer_samples import (
    CONTROL,
    UNUSED,
    USER,
    bpe_metadata,
    spaced_metadata,
    spm_metadata,
)

SPECIALS = (("<|im_end|>", CONTROL), ("<u>", USER), ("<unused7>", UNUSED))
BPE = load_tokenizer(bpe_metadata(specials=SPECIALS, pre="qwen35"), "bpe")
SPM = load_tokenizer(spm_metadata(specials=SPECIALS), "spm")
KINDS = {
    name: load_tokenizer(bpe_metadata(pre=name, add_bos_token=False), name)
    for name in ("qwen2", "qwen35", "llama-bpe", "gpt-2", "default")
}
FAST = settings(derandomize=True, deadline=None, max_examples=150)
SAMPLE = "hello 中文 👨‍👩‍👧 e\u0301\u0301 ﷽ \x00 a  a\r\n\t don't 12345 .\u200b"


def stream_text(tokenizer: Tokenizer, ids: list[int], **kind: bool) -> str:
    stream = tokenizer.stream(**kind)
    return "".join(stream.feed(token) for token in ids) + stream.finish()


def normal(tokenizer: Tokenizer, text: str) -> str:
    """What a text is encoded as."""
    return unicodedata.normalize(tokenizer.normalizer, text) if tokenizer.normalizer else text


def test_every_pretokenizer_builds_and_cuts_losslessly() -> None:
    for name, kind in PRETOKENIZERS.items():
        if kind.spaced:
            continue
        tokenizer = load_tokenizer(bpe_metadata(pre=name, add_bos_token=False), name)
        assert tokenizer.decode(tokenizer.encode(SAMPLE)) == normal(tokenizer, SAMPLE)


@pytest.mark.parametrize("name", KINDS)
@FAST
@given(st.text())
def test_byte_level_round_trip(name: str, text: str) -> None:
    tokenizer = KINDS[name]
    ids = tokenizer.encode(text)
    text = normal(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert stream_text(tokenizer, ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@FAST
@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_spm_round_trip(text: str) -> None:
    ids = SPM.encode(text)
    assert SPM.decode(ids) == text
    assert stream_text(SPM, ids, continuation=False) == text


@pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["bpe", "spm"])
@FAST
@given(st.lists(st.integers(0, 257)))
def test_streamed_pieces_equal_the_decoded_bytes(tokenizer: Tokenizer, ids: list[int]) -> None:
    ids = [token + tokenizer.n_vocab - 258 if token % 5 == 0 else token for token in ids]
    for special in (False, True):
        joined = b"".join(tokenizer.token_bytes(token, special) for token in ids)
        assert stream_text(tokenizer, ids, special=special) == joined.decode("utf-8", "replace")
        whole = tokenizer.decode(ids, special)
        assert stream_text(tokenizer, ids, continuation=False, special=special) == whole


@pytest.mark.parametrize("char", ["é", "中", "😀"])
def test_a_character_in_parts_comes_out_once_and_whole(char: str) -> None:
    for first, tokenizer in ((0, BPE), (3, SPM)):
        stream = tokenizer.stream()
        *parts, last = (first + byte for byte in char.encode())
        assert [stream.feed(part) for part in parts] == [""] * len(parts)
        assert stream.feed(last) == char
        assert stream.finish() == ""


def test_broken_bytes() -> None:
    lead, tail = 0xE4, 0xB8
    stream = BPE.stream()
    assert stream.feed(lead) == ""
    assert stream.feed(tail) == ""
    assert stream.finish() == "\ufffd"
    assert stream_text(BPE, [lead, ord("a")]) == "\ufffda"
    assert stream_text(BPE, [tail, ord("a")]) == "\ufffda"
    assert BPE.decode([lead, tail]) == "\ufffd"


def test_continuations_keep_their_leading_space() -> None:
    hello = SPM.token_id("▁hello")
    assert hello is not None
    assert SPM.stream().feed(hello) == " hello"
    assert SPM.stream(continuation=False).feed(hello) == "hello"
    assert SPM.decode([hello, hello]) == "hello hello"
    assert SPM.decode([1, hello, hello]) == "hello hello"
    assert SPM.decode([hello], special=True) == "hello"


def test_single_tokens() -> None:
    end, user, unused = (BPE.token_id(text) for text, _ in SPECIALS)
    assert end is not None and user is not None and unused is not None
    assert BPE.token_bytes(end) == b""
    assert BPE.token_bytes(end, special=True) == b"<|im_end|>"
    assert BPE.token_bytes(user) == b"<u>"
    assert BPE.token_bytes(unused) == b"<unused7>"
    assert BPE.token_bytes(np.int32(ord("a"))) == b"a"  # type: ignore[arg-type]
    kinds = [BPE.token_type(token) for token in (end, user, unused, 0)]
    assert kinds == [
        *(TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.NORMAL),
    ]
    assert SPM.token_type(3 + 65) == TokenType.BYTE
    assert SPM.token_bytes(3 + 65) == b"A"
    assert SPM.token_bytes(0) == b""
    assert SPM.token_bytes(0, special=True) == b"<unk>"
    assert SPM.token_id("nowhere") is None


def test_texts_outside_the_byte_alphabet_are_kept_as_they_are() -> None:
    tokenizer = load_tokenizer(bpe_metadata(specials=(("中Ġ\x85", 1),)), "m")
    assert tokenizer.token_bytes(262) == "中 \x85".encode()


def test_clean_up_on_request_only() -> None:
    text = "a . a , a ? a ! it ' s they 're"
    messy = KINDS["gpt-2"]
    ids = messy.encode(text)
    assert messy.decode(ids) == text
    assert messy.decode(ids, clean=True) == "a. a, a? a! it's they're"
    tidy = KINDS["qwen35"]
    assert tidy.decode(tidy.encode(text), clean=True) == text


@pytest.mark.parametrize("pre", [name for name, kind in PRETOKENIZERS.items() if kind.spaced])
def test_merges_over_characters(pre: str) -> None:
    tokenizer = load_tokenizer(spaced_metadata(pre=pre), pre)
    hello, spaced = (tokenizer.token_id(text) for text in ("hello", "▁hello"))
    begins = [tokenizer.bos_id] * tokenizer.add_bos
    assert tokenizer.encode("hello hello") == [*begins, hello, spaced]
    assert tokenizer.encode("é", add_special=False) == [3 + byte for byte in "é".encode()]
    assert tokenizer.decode(tokenizer.encode(SAMPLE)) == SAMPLE
    whole = tokenizer.encode("<unk>hello</s>", add_special=False)
    assert not {0, 1, 2} & set(whole)
    assert tokenizer.decode(whole) == "<unk>hello</s>"


def test_merges_over_characters_without_bytes() -> None:
    tokenizer = load_tokenizer(spaced_metadata(with_bytes=False), "m")
    assert tokenizer.encode("hello☃☃a", add_special=False)[1] == tokenizer.unk_id
