"""Unicode normal forms, WordPiece vocabularies, and the option that leaves texts as they are."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
import riverrun as rr
from paths import DEMO
from riverrun.graph.errors import TokenizerError
from riverrun.models.load import open_tokenizer
from riverrun.models.tokenizer import load_tokenizer
from tokenizer_samples import CONTROL, NORMAL, UNKNOWN, Metadata, bpe_metadata

# Accents apart, Hangul in parts, letters that stand for others.
PAIRS = [
    ("e\u0301", "é"),
    ("\u1112\u1161\u11ab", "한"),
    ("\u212b", "Å"),
    ("\u0958", "\u0915\u093c"),
]
LONG = 16_384  # characters from which on another call of the library encodes
NORMAL_FORMS = {
    **dict.fromkeys(("qwen2", "qwen35", "deepseek-r1-qwen", "command-r", "olmo", "mpt"), "NFC"),
    **dict.fromkeys(("llama-bpe", "gpt-2", "gpt-4o", "tekken", "smollm", "deepseek-v3"), ""),
}


@pytest.mark.parametrize(("pre", "form"), NORMAL_FORMS.items())
def test_normal_form_of_a_family(pre: str, form: str) -> None:
    metadata = bpe_metadata(pre=pre, add_bos_token=False)
    tokenizer, plain = (load_tokenizer(metadata, "m", normalize=on) for on in (True, False))
    assert (tokenizer.normalizer, plain.normalizer) == (form, "")
    for apart, composed in PAIRS:
        for text in (apart, f"x {apart}\n", apart * (LONG // len(apart) + 1)):
            assert plain.decode(plain.encode(text)) == text
            wanted = unicodedata.normalize(form, text) if form else text
            assert tokenizer.decode(tokenizer.encode(text)) == wanted
        same = tokenizer.encode(apart) == tokenizer.encode(composed)
        assert same == bool(form)


def test_special_tokens_are_found_before() -> None:
    metadata = bpe_metadata(specials=(("e\u0301!", CONTROL),))
    tokenizer = load_tokenizer(metadata, "m")
    assert tokenizer.encode("ae\u0301!", parse_special=True)[-1] == 262


def test_option() -> None:
    text = "x = 'e\u0301'"
    for normalize, form in ((True, "NFC"), (False, "")):
        model = rr.load(DEMO, device="cpu", normalize=normalize)
        assert model.tokenizer.normalizer == form
        ids = model.tokenize(text)
        assert open_tokenizer(DEMO, normalize).encode(text, parse_special=True) == ids
        assert model.tokenizer.decode(ids) == (text if not form else "x = 'é'")


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = (
    *("the", "un", "##want", "##ed", "runn", "##ing", ",", "!", "中", "文", "e", "##e", "é", "##t"),
    *("The", "'", "don", "t"),
)


def wordpiece(**keys: object) -> Metadata:
    pieces = [piece[2:] if piece.startswith("##") else "▁" + piece for piece in PIECES]
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL] + [NORMAL] * len(pieces)
    ids = {"padding": 0, "unknown": 1, "bos": 2, "seperator": 3, "mask": 4}
    metadata: Metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [*WORDS, *pieces],
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    metadata |= {f"tokenizer.ggml.{role}_token_id": token for role, token in ids.items()}
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def spelled(text: str, **keys: object) -> list[str]:
    tokenizer = load_tokenizer(wordpiece(**keys), "m")
    return [(*WORDS, *PIECES)[token] for token in tokenizer.encode(text)]


def test_words_in_pieces() -> None:
    assert spelled("The  unwanted\nrunning!") == (
        ["[CLS]", "the", "un", "##want", "##ed", "runn", "##ing", "!", "[SEP]"]
    )
    assert spelled("the中文,ÉE xyz")[1:-1] == ["the", "中", "文", ",", "e", "##e", "[UNK]"]
    assert spelled("[MASK]")[1:-1] == ["[UNK]"] * 3
    kept = {"normalizer.lowercase": False}
    assert spelled("The the", **kept) == ["[CLS]", "The", "the", "[SEP]"]
    assert spelled("é ée", **kept)[1:-1] == ["é", "é", "##e"]
    assert spelled("the", add_bos_token=False, add_sep_token=False) == ["the"]
    tokenizer = load_tokenizer(wordpiece(), "m")
    assert tokenizer.encode("the [MASK]!", parse_special=True) == [2, 5, 4, 12, 3]
    ids = tokenizer.encode("the unwanted!")
    assert tokenizer.decode(ids) == "the unwanted !"
    assert tokenizer.decode(ids, clean=True) == "the unwanted!"
    assert (tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id) == (3, 4, 1)


def test_an_unknown_token_is_needed() -> None:
    metadata = wordpiece(unknown_token_id=99)
    with (
        pytest.warns(UserWarning, match="unknown_token_id is 99"),
        pytest.raises(TokenizerError, match="m: a WordPiece vocabulary must have an unknown"),
    ):
        load_tokenizer(metadata, "m")


def test_pieces_as_in_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    file = tmp_path_factory.mktemp("bert") / "vocab.txt"
    file.write_text("\n".join((*WORDS, *PIECES)), encoding="utf-8")
    theirs = legacy.BertTokenizerLegacy(str(file))
    tokenizer = load_tokenizer(wordpiece(), "m")
    for text in (
        "The unwanted, running!",
        "É e\u0301 TheT 中the文",
        "don't\t\x00\u200b the\u3000ee",
    ):
        wanted = theirs.convert_tokens_to_ids(theirs.tokenize(text))
        assert tokenizer.encode(text, add_special=False) == wanted, text
