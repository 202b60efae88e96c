"""A tokenizer.model of SentencePiece: pieces, scores, types."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...graph.errors import ModelError, RequestError
from ..tokenizer import TokenType

_FATAL = 3
# Where in the library's source an error arose, and which condition it is there.
_PLACE = re.compile(r"^\w+: (src/\S+ \[.*\])?")


@dataclass(frozen=True)
class SpmVocabulary:
    """Pieces by id; types are those of GGUF, which are SentencePiece's."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    add_space_prefix: bool


def read_spm(path: Path) -> SpmVocabulary:
    """Read a file. Raises ModelError for one that is damaged or no BPE model, RequestError where
    what reads it is not installed."""
    proto = _parse(path)
    spec = proto.trainer_spec
    if spec.model_type != spec.BPE:
        name = spec.ModelType.Name(spec.model_type)
        raise ModelError(f"{path}: expected a BPE model, got {name}")
    return SpmVocabulary(
        [piece.piece for piece in proto.pieces],
        [piece.score for piece in proto.pieces],
        [int(TokenType(piece.type)) for piece in proto.pieces],
        proto.normalizer_spec.add_dummy_prefix,
    )


def _parse(path: Path) -> Any:
    """The message that a file is."""
    import sentencepiece

    proto = _messages(path).ModelProto()
    raw = path.read_bytes()
    # What the library prints on standard error by itself names neither file nor remedy.
    sentencepiece.SetMinLogLevel(_FATAL)
    why = "it holds no pieces"
    try:
        sentencepiece.SentencePieceProcessor(model_proto=raw)
        proto.ParseFromString(raw)
    except Exception as error:  # of either library: DecodeError, RuntimeError
        proto.Clear()
        why = _PLACE.sub("", str(error)).strip() or "its bytes are no message of that format"
    if not proto.pieces:
        raise ModelError(f"{path}: is no SentencePiece model: {why}; fetch it again")
    return proto


def _messages(path: Path) -> Any:
    """The classes of the format's messages. What they warn of is no concern of who converts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from sentencepiece import sentencepiece_model_pb2
    except ModuleNotFoundError:
        raise RequestError(
            f"{path}: reading it needs the package protobuf: pip install 'riverrun[convert]'"
        ) from None
    except Exception as error:  # protobuf's own, for versions that do not go together
        said = str(error).splitlines()[0]
        raise RequestError(
            f"{path}: reading it needs a version of protobuf that sentencepiece's files were made "
            f"for: pip install -U protobuf sentencepiece ({said})"
        ) from None
    return sentencepiece_model_pb2
