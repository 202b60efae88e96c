"""Models without a vocabulary (`tokenizer.ggml.model` = "none"): token ids only."""

from __future__ import annotations

from typing import cast

from ...graph.errors import RequestError
from .base import Tokenizer
from .special import NO_SPECIALS
from .vocab import Metadata, TokenType, Vocab, scalar


class NoTokenizer(Tokenizer):
    """Encodes nothing, decodes everything to no text. n_vocab is the architecture's vocab_size,
    0 where the file has none."""

    def __init__(self, metadata: Metadata, source: str) -> None:
        super().__init__(Vocab(source, [], [], {}, {}), NO_SPECIALS, ())
        arch = scalar(metadata, "general.architecture", str, source)
        size = scalar(metadata, f"{arch}.vocab_size", int, source)
        self.n_vocab = max(0, cast("int | None", size) or 0)

    def encode(self, text: str, *how: object, **named: object) -> list[int]:
        """Always raises RequestError."""
        raise RequestError(
            f"{self.source}: the model has no vocabulary (tokenizer.ggml.model is 'none'), so "
            "that text cannot be encoded; pass token ids"
        )

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """Always b""."""
        return b""

    def token_text(self, token: int) -> str:
        """Always ""."""
        return ""

    def token_type(self, token: int) -> TokenType:
        """Always UNDEFINED."""
        return TokenType.UNDEFINED

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        return self.encode(text)

    def _decode_normal(self, text: str) -> bytes:
        return b""
