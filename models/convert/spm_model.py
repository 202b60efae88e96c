"""A tokenizer.model of SentencePiece: pieces, scores, types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import SentencePieceProcessor
from sentencepiece import sentencepiece_model_pb2 as wire

from ...graph.errors import ModelError
from ..tokenizer import TokenType


@dataclass(frozen=True)
class SpmVocabulary:
    """Pieces by id; types are those of GGUF, which are SentencePiece's."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    add_space_prefix: bool


def read_spm(path: Path) -> SpmVocabulary:
    """Read a file. Raises ModelError for one that is damaged or no BPE model."""
    raw = path.read_bytes()
    proto: Any = wire.ModelProto()  # type: ignore[attr-defined]
    try:
        SentencePieceProcessor(model_proto=raw)
        proto.ParseFromString(raw)
    except (RuntimeError, DecodeError) as error:
        raise ModelError(f"{path}: is no SentencePiece model ({error}); fetch it again") from None
    kind = proto.trainer_spec.model_type
    if kind != proto.trainer_spec.BPE:
        name = proto.trainer_spec.ModelType.Name(kind)
        raise ModelError(f"{path}: expected a BPE model, got {name}")
    return SpmVocabulary(
        [piece.piece for piece in proto.pieces],
        [piece.score for piece in proto.pieces],
        [int(TokenType(piece.type)) for piece in proto.pieces],
        proto.normalizer_spec.add_dummy_prefix,
    )
