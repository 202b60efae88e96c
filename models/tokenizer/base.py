"""What all tokenizers share: special tokens around and inside texts, and decoding."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from ...graph.errors import RequestError
from .heap import give_back
from .partition import Partition
from .special import Specials
from .stream import PieceReader, StreamDecoder
from .vocab import TokenType, Vocab, warn

_SILENT = (TokenType.UNKNOWN, TokenType.CONTROL)
_VERBATIM = (*_SILENT, TokenType.USER_DEFINED)
_BOUNDARY = (TokenType.CONTROL, TokenType.USER_DEFINED)
# Characters of a text from which on libraries use, and free, so much memory (200 bytes for one of
# the text) that it is worth milliseconds to have it back.
_LARGE = 1 << 18
_SHORTENED = ("'s", "'m", "'re", "'ve")


class Tokenizer(ABC):
    """Text to token ids and back, for one vocabulary. Safe to use from several threads.

    n_vocab: number of tokens; ids are 0 to n_vocab - 1.
    bos_id, eos_id, eot_id, sep_id, pad_id, unk_id, mask_id: None where the vocabulary has no such
    token.
    fim_ids: the tokens around the parts of a text with a hole, by role ("pre", "suf", "mid", ...).
    add_bos, add_eos: whether `encode` puts those around a text. add_sep: whether a SEP token stands
    between two texts that are given to the model as a pair, and in a WordPiece vocabulary behind
    each text.
    normalizer: the Unicode normal form that texts are brought to before they are encoded ("NFC"),
    "" for none.
    add_space_prefix: whether a text's first piece carries a space that is not in the text.
    clean_spaces: whether `decode(..., clean=True)` has an effect.
    eog_ids: the tokens that end a generation. inner_ids: those that other vocabularies have for an
    end, and that end a part of an answer in this one (the reasoning, ...).
    suppress_ids: the tokens that must never be sampled."""

    def __init__(
        self, vocab: Vocab, specials: Specials, strips: tuple[frozenset[int], ...]
    ) -> None:
        self.source = vocab.source
        self.n_vocab = len(vocab.tokens)
        self.bos_id = specials.ids.get("bos")
        self.eos_id = specials.ids.get("eos")
        self.eot_id = specials.ids.get("eot")
        self.sep_id = specials.ids.get("seperator")
        self.pad_id = specials.ids.get("padding")
        self.unk_id = specials.ids.get("unknown")
        self.mask_id = specials.ids.get("mask")
        self.fim_ids = {
            role.removeprefix("fim_"): token
            for role, token in specials.ids.items()
            if role.startswith("fim_")
        }
        self.add_bos = specials.add_bos
        self.add_eos = specials.add_eos
        self.add_sep = specials.add_sep
        self.normalizer = ""
        self.add_space_prefix = specials.add_space_prefix
        self.clean_spaces = specials.clean_spaces
        self.eog_ids, self.inner_ids = specials.eog_ids, specials.inner_ids
        self.suppress_ids = specials.suppress_ids
        self._vocab = vocab
        self._types = vocab.types
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        self._all_special = self._partition(_VERBATIM, strips)
        self._user_defined = self._partition((TokenType.USER_DEFINED,), strips)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.source}, {self.n_vocab} tokens>"

    @abstractmethod
    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        """Ids of a text without special tokens; `first`: it starts a text or follows one."""

    @abstractmethod
    def _decode_normal(self, text: str) -> bytes:
        """Bytes of an ordinary token, from its text in the vocabulary."""

    def encode(
        self,
        text: str,
        add_special: bool = True,
        parse_special: bool = False,
        stand_ins: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Token ids of `text`.

        add_special: put BOS and EOS around it where add_bos and add_eos say so (in a WordPiece
        vocabulary BOS and SEP).
        parse_special: read control tokens that the text spells out as those tokens. Without it,
        text from outside can hold no control token; user-defined tokens are found either way.
        stand_ins: characters of the text, each with the one that it stands for, which is part of
        no control token there.
        Raises RequestError for text that is not valid Unicode (a lone surrogate)."""
        _check_text(text)
        ids: list[int] = []
        bos, end = self._around() if add_special else (None, None)
        if bos is not None:
            ids.append(bos)
        first = True
        for part in self._parts(text, parse_special, stand_ins):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._encode_fragment(part, first)
            first = isinstance(part, int)
        if bos is not None and ids[1:2] == [bos]:
            warn(self.source, "the text starts with the BOS token that encoding puts before it")
        if end is not None:
            if ids[-1:] == [end]:
                warn(self.source, "the text ends with the token that encoding puts behind it")
            ids.append(end)
        if len(text) >= _LARGE:
            give_back()
        return ids

    def decode(self, ids: Iterable[int], special: bool = False, clean: bool = False) -> str:
        """The text of a whole sequence of ids; undoes `encode`.

        special: show control and unknown tokens. clean: remove the spaces before punctuation
        where the vocabulary asks for it (clean_spaces); the text is then no longer the one that
        was encoded. Bytes that are not UTF-8 become U+FFFD. Raises RequestError for an id
        outside the vocabulary."""
        reader = self._reader(continuation=False, special=special)
        text = b"".join(map(reader.read, ids)).decode("utf-8", "replace")
        return _clean(text) if clean and self.clean_spaces else text

    def stream(
        self, continuation: bool = True, special: bool | Container[int] = False
    ) -> StreamDecoder:
        """A decoder that takes one id at a time.

        continuation: the tokens follow a text that is already there, as generated ones do, and
        keep their leading space; otherwise the joined pieces equal `decode` of all ids.
        special: show control and unknown tokens, or those of them that it contains."""
        return StreamDecoder(self._reader(continuation, special))

    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes of one token, perhaps a part of a character. Control and unknown tokens have
        none unless `special` is set. Raises RequestError for an id outside the vocabulary."""
        if not 0 <= token < self.n_vocab:
            self._check_id(token)
        if not special and self._types[token] in _SILENT:
            return b""
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self._make_piece(token)
        return piece

    def token_text(self, token: int) -> str:
        """The token as the vocabulary spells it. Raises RequestError for an id outside it."""
        self._check_id(token)
        return self._vocab.tokens[token]

    def token_id(self, text: str) -> int | None:
        """The id of the token that the vocabulary spells `text`, or None."""
        return self._vocab.ids.get(text)

    def token_type(self, token: int) -> TokenType:
        """The type of a token. Raises RequestError for an id outside the vocabulary."""
        self._check_id(token)
        return TokenType(self._types[token])

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The texts that `encode` reads as tokens with parse_special only."""
        return tuple(self._vocab.tokens[i] for i, kind in enumerate(self._types) if kind in _SILENT)

    def _parts(
        self, text: str, parse_special: bool, stand_ins: Mapping[str, str] | None
    ) -> Iterator[str | int]:
        """A text's fragments and the ids of its special tokens."""
        parts = (self._all_special if parse_special else self._user_defined).split(text)
        if not stand_ins:
            yield from parts
            return
        table = str.maketrans(dict(stand_ins))
        for part in parts:
            if isinstance(part, int):
                yield part
            else:
                yield from self._user_defined.split(part.translate(table))

    def _around(self) -> tuple[int | None, int | None]:
        """The ids before and behind a text."""
        return (self.bos_id if self.add_bos else None), (self.eos_id if self.add_eos else None)

    def _check_id(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            raise RequestError(
                f"token id must be 0 to {self.n_vocab - 1}, got {token}; "
                "does it come from another model?"
            )

    def _make_piece(self, token: int) -> bytes:
        if token in self._vocab.bytes_of:
            return bytes([self._vocab.bytes_of[token]])
        text = self._vocab.tokens[token]
        return text.encode() if self._types[token] in _VERBATIM else self._decode_normal(text)

    def _partition(
        self, kinds: tuple[TokenType, ...], strips: tuple[frozenset[int], ...]
    ) -> Partition:
        chosen = [i for i, kind in enumerate(self._types) if kind in kinds]
        return Partition(((self._vocab.tokens[i], i) for i in chosen), *strips)

    def _reader(self, continuation: bool, special: bool | Container[int]) -> PieceReader:
        def piece(token: int) -> bytes:
            return self.token_bytes(token, token in chosen)

        chosen: Any = special
        return PieceReader(
            partial(self.token_bytes, special=special) if isinstance(special, bool) else piece,
            lambda token: self._types[token] in _BOUNDARY,
            opens=self.add_space_prefix and not continuation,
        )


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"text to encode must be a str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"text to encode must be valid Unicode, got the lone surrogate "
            f"{text[error.start]!r} at {error.start}; remove or replace it"
        ) from None


def _clean(text: str) -> str:
    for mark in "?!.,":
        text = text.replace(f" {mark}", mark)
    text = text.replace(" ' ", "'")
    for ending in _SHORTENED:
        text = text.replace(f" {ending}", ending)
    return text
