"""Ids of real vocabularies against those of Hugging Face's `tokenizers` from the same file.

RIVERRUN_TOKENIZERS names a folder with a folder for each vocabulary, called as in oracles.py, which
holds its tokenizer.json and tokenizer_config.json (or a folder `models` with both)."""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path

import pytest
from oracles import MERGED, VOCABULARIES
from riverrun.models.tokenizer import Tokenizer, load_tokenizer
from tokenizer_json import metadata_of, read_json
from tokenizer_texts import TEXTS
from tokenizers import Tokenizer as Engine

FOLDER = "RIVERRUN_TOKENIZERS"
PAIRS = [(name, kind.pre) for name, kind in VOCABULARIES.items()]
PAIRS += [(name, "gemma4") for name in MERGED]


def folder_of(name: str) -> Path:
    top = os.environ.get(FOLDER)
    if not top:
        pytest.skip(f"{FOLDER} names no folder with tokenizer.json files")
    for folder in (Path(top, name), Path(top, name, "models")):
        if (folder / "tokenizer.json").is_file():
            return folder
    pytest.skip(f"{FOLDER} has no {name}")


@cache
def both(name: str, pre: str) -> tuple[Tokenizer, Engine]:
    folder = folder_of(name)
    source = read_json(folder / "tokenizer.json")
    metadata = metadata_of(source, read_json(folder / "tokenizer_config.json"), pre)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = load_tokenizer(metadata, name)
    return tokenizer, Engine.from_file(str(folder / "tokenizer.json"))


def is_known_to_differ(name: str, pre: str, text: str) -> bool:
    """In files with spaces as tokens of their own, U+2581 is no space. SentencePiece takes NUL by
    its byte token also where there is a piece of it."""
    spaced = "▁" in text and name in ("gemma2", "gemma3")
    return spaced or ("\0" in text and name == "internlm2")


@pytest.mark.parametrize(("name", "pre"), PAIRS, ids=[f"{name}-{pre}" for name, pre in PAIRS])
def test_ids(name: str, pre: str) -> None:
    ours, theirs = both(name, pre)
    for title, text in TEXTS.items():
        if not is_known_to_differ(name, pre, text):
            wanted = theirs.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, add_special=False, parse_special=True) == wanted, title
            # The library always reads what spells a special token as that.
            if theirs.get_added_tokens_decoder().keys().isdisjoint(wanted):
                assert ours.encode(text, add_special=False) == wanted, title


ENDS = {
    "qwen3": "<|endoftext|> <|im_end|> <|fim_pad|> <|repo_name|> <|file_sep|>",
    "gemma2": "<eos> <end_of_turn>",
    "gemma3": "<eos> <end_of_turn>",
    "gptoss": "<|endoftext|> <|return|> <|call|>",
    "llama2": "</s>",
    "llama3_1": "<|end_of_text|> <|eot_id|>",
    "mistral_nemo": "</s>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",
}


@pytest.mark.parametrize("name", ENDS)
def test_ends_of_generation(name: str) -> None:
    tokenizer, _ = both(name, VOCABULARIES[name].pre)
    texts = {tokenizer.token_text(token) for token in tokenizer.eog_ids}
    assert {text for text in ENDS[name].split()} <= texts
    assert "</s>" not in texts or name in ("llama2", "mistral_nemo")
