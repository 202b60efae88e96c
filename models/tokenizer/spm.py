"""SentencePiece BPE vocabularies (`tokenizer.ggml.model` = "llama").

Source: Kudo and Richardson 2018; the model format is sentencepiece_model.proto."""

from __future__ import annotations

import struct

from ...graph.errors import TokenizerError
from .base import Tokenizer
from .special import Defaults, read_specials, strip_sides
from .vocab import SPACE, Metadata, TokenType, Vocab, read_vocab, warn

_DEFAULTS = Defaults(
    ids=(("bos", 1), ("eos", 2), ("unknown", 0)), add_bos=True, add_space_prefix=True
)
_NOT_A_TOKEN = "<|not a token|>"


class SpmTokenizer(Tokenizer):
    """Merges by score over the characters of a text, with bytes for what the vocabulary lacks."""

    def __init__(self, metadata: Metadata, source: str) -> None:
        from sentencepiece import SentencePieceProcessor

        vocab = read_vocab(metadata, source, need_types=True, need_scores=True)
        specials = read_specials(metadata, vocab, _DEFAULTS)
        super().__init__(vocab, specials, strip_sides(metadata, vocab))
        self._engine = SentencePieceProcessor()
        try:
            self._engine.LoadFromSerializedProto(_model_proto(vocab, self.unk_id))
        except RuntimeError as error:
            raise TokenizerError(
                f"{source}: tokenizer.ggml.tokens, with its types and unknown_token_id, cannot be "
                f"used: {error}; convert the model again"
            ) from None

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        ids = self._engine.encode(" " + text if first and self.add_space_prefix else text)
        return [i for i in ids if i < self.n_vocab] if self.unk_id is None else ids

    def _decode_normal(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()


def _model_proto(vocab: Vocab, unk_id: int | None) -> bytes:
    """A serialized ModelProto: pieces, a BPE trainer spec and an identity normalizer.

    The library wants exactly one unknown piece, and all 256 byte pieces or none. Control pieces
    take part in no merge, so that no text is merged into one."""
    complete = len(vocab.bytes_of) == 256
    if vocab.bytes_of and not complete:
        warn(
            vocab.source,
            f"only {len(vocab.bytes_of)} of 256 byte tokens are there; characters outside the "
            "vocabulary are encoded as unknown",
        )
    kinds = [_piece_type(kind, complete) for kind in vocab.types]
    texts = list(vocab.tokens)
    if complete:
        for index, byte in vocab.bytes_of.items():
            texts[index] = f"<0x{byte:02X}>"
    assert vocab.scores is not None
    scores = vocab.scores.astype("<f4").tobytes()
    if unk_id is None:
        texts.append(_NOT_A_TOKEN)
        kinds.append(TokenType.UNKNOWN)
        scores += struct.pack("<f", 0.0)
    else:
        kinds[unk_id] = TokenType.UNKNOWN
    out = [
        _field(1, _piece(text.encode(), scores[4 * i : 4 * i + 4], kind))
        for i, (text, kind) in enumerate(zip(texts, kinds, strict=True))
    ]
    out.append(_field(2, _number(3, 2) + _number(35, int(complete))))
    # No dummy prefix, keep all spaces, write them as U+2581.
    normalizer = _field(1, b"identity") + _number(3, 0) + _number(4, 0) + _number(5, 1)
    out.append(_field(3, normalizer))
    return b"".join(out)


def _piece_type(kind: int, has_bytes: bool) -> TokenType:
    if kind in (TokenType.UNKNOWN, TokenType.CONTROL):
        return TokenType.CONTROL
    if kind == TokenType.BYTE:
        return TokenType.BYTE if has_bytes else TokenType.CONTROL
    return TokenType.NORMAL


def _piece(text: bytes, score: bytes, kind: int) -> bytes:
    return b"\x0a" + _varint(len(text)) + text + b"\x15" + score + b"\x18" + bytes([kind])


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    if value < 128:
        return bytes([value])
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
