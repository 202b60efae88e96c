"""Text from tokens as they come: whole characters only, nothing lost and nothing shown twice."""

from __future__ import annotations

import codecs
from collections.abc import Callable

Piece = Callable[[int], bytes]


class PieceReader:
    """Bytes of tokens in sequence, with the spaces that encoding put in front taken out again.

    An SPM vocabulary with add_space_prefix writes one space before a text and one after each
    control or user-defined token. With `opens` set, the tokens are read as a whole text and those
    spaces are dropped; without it the bytes are those of the tokens, as a continuation needs."""

    def __init__(self, piece: Piece, is_boundary: Callable[[int], bool], opens: bool) -> None:
        self.piece, self.opens = piece, opens
        self._is_boundary = is_boundary
        self._drop_space = opens

    def read(self, token: int) -> bytes:
        """The bytes that `token` adds. Raises RequestError for an id outside the vocabulary."""
        piece = self.piece(token)
        if self._drop_space:
            piece = piece.removeprefix(b" ")
        self._drop_space = self.opens and self._is_boundary(token)
        return piece


class StreamDecoder:
    """Turns token ids into text one at a time; made by `Tokenizer.stream`.

    The texts of all `feed` calls and of `finish`, joined, equal the bytes of all tokens decoded
    as UTF-8 with errors="replace"."""

    def __init__(self, reader: PieceReader) -> None:
        self._read = reader.read if reader.opens else reader.piece
        self._part = b""  # of a character that is not complete

    def feed(self, token: int) -> str:
        """The text that `token` completes; "" while a character is still in parts.

        Raises RequestError for an id outside the vocabulary."""
        data = self._part + self._read(token)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._part = data[used:]
        return text

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never got complete, else ""."""
        part, self._part = self._part, b""
        return part.decode("utf-8", "replace")
