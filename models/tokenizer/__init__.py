"""Tokenizers made from the metadata of GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from ...graph.errors import TokenizerError
from .base import Tokenizer
from .bpe import load_bpe
from .none import NoTokenizer
from .spm import SpmTokenizer
from .stream import StreamDecoder
from .vocab import Metadata, TokenType, scalar
from .wpm import WpmTokenizer

__all__ = ["KINDS", "REFUSED", "Kind", "StreamDecoder", "TokenType", "Tokenizer"]
__all__ += ["load_tokenizer"]


class Kind(NamedTuple):
    """A value of `tokenizer.ggml.model`: what it is, and what makes a tokenizer of metadata, the
    source's name and whether to normalise."""

    what: str
    load: Callable[[Metadata, str, bool], Tokenizer]


_NONE = Kind("token ids only", lambda metadata, source, normalize: NoTokenizer(metadata, source))
KINDS: dict[str, Kind] = {
    "gpt2": Kind("byte-level BPE; `tokenizer.ggml.pre` names how texts are cut", load_bpe),
    "gemma4": Kind(
        "BPE over characters, with U+2581 for the space and byte tokens for what the vocabulary "
        "lacks",
        load_bpe,
    ),
    "llama": Kind(
        "SentencePiece BPE, merges by score",
        lambda metadata, source, normalize: SpmTokenizer(metadata, source),
    ),
    "bert": Kind(
        "WordPiece: words in the longest pieces; `decode` gives the words back, and not the text",
        lambda metadata, source, normalize: WpmTokenizer(metadata, source),
    ),
    "none": _NONE,
    "no_vocab": _NONE,
}

# Kinds in use for which there is no implementation, and what they are.
REFUSED = {
    "t5": "Unigram vocabularies (T5) need a search by score",
    "rwkv": "RWKV vocabularies hold bytes that are no text, and are matched greedily",
    "plamo2": "PLaMo-2 vocabularies need a search over suffixes by score",
    "hybriddna": "it spells DNA in groups of six letters",
    "whitespace": "it drops white space, which no model that generates can do without",
}


def load_tokenizer(metadata: Metadata, source: str, normalize: bool = True) -> Tokenizer:
    """Make the tokenizer that `metadata` describes: GGUF keys as they stand in the file, with
    string arrays as lists of str and numeric arrays as numpy arrays or lists.

    `source` names the file in messages. normalize: bring texts to the Unicode normal form of the
    vocabulary's family first, as the model was trained (NFC for Qwen and some others); without it
    they are encoded as they are, as llama.cpp does. Raises TokenizerError for a kind of tokenizer
    or pre-tokenizer that is not known and for vocabulary data that is missing or malformed; warns
    (UserWarning) about a special id outside the vocabulary, which is then off."""
    key = "tokenizer.ggml.model"
    name = cast("str | None", scalar(metadata, key, str, source))
    if name is None:
        raise TokenizerError(
            f"{source}: {key} is missing, expected one of {', '.join(KINDS)}; "
            "convert the model again with its tokenizer"
        )
    if name in REFUSED:
        raise TokenizerError(
            f"{source}: {key}: tokenizer {name!r} is not supported: {REFUSED[name]}; "
            f"take a model with one of {', '.join(KINDS)}"
        )
    if name not in KINDS:
        raise TokenizerError(
            f"{source}: {key}: unknown tokenizer {name!r}; known are {', '.join(KINDS)}"
        )
    return KINDS[name].load(metadata, source, normalize)
