"""Tokenizers made from the metadata of GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ...graph.errors import TokenizerError
from .base import Tokenizer
from .bpe import BpeTokenizer
from .none import NoTokenizer
from .spm import SpmTokenizer
from .stream import StreamDecoder
from .vocab import Metadata, TokenType, scalar

__all__ = ["StreamDecoder", "TokenType", "Tokenizer", "load_tokenizer"]

_KINDS: dict[str, Callable[[Metadata, str], Tokenizer]] = {
    "gpt2": BpeTokenizer,
    "llama": SpmTokenizer,
    "none": NoTokenizer,
}


def load_tokenizer(metadata: Metadata, source: str) -> Tokenizer:
    """Make the tokenizer that `metadata` describes: GGUF keys as they stand in the file, with
    string arrays as lists of str and numeric arrays as numpy arrays or lists.

    `source` names the file in messages. Raises TokenizerError for a kind of tokenizer or
    pre-tokenizer that is not known and for vocabulary data that is missing or malformed; warns
    (UserWarning) about a special id outside the vocabulary, which is then off."""
    key = "tokenizer.ggml.model"
    name = cast("str | None", scalar(metadata, key, str, source))
    if name is None:
        raise TokenizerError(
            f"{source}: {key} is missing, expected one of {', '.join(_KINDS)}; "
            "convert the model again with its tokenizer"
        )
    if name not in _KINDS:
        raise TokenizerError(
            f"{source}: {key}: unknown tokenizer {name!r}; known are {', '.join(_KINDS)}"
        )
    return _KINDS[name](metadata, source)
