"""The vocabulary arrays of a GGUF file, checked before anything indexes them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ...graph.errors import TokenizerError

Metadata = Mapping[str, object]

# What stands for a space in vocabularies over characters.
SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenType(IntEnum):
    """Values of `tokenizer.ggml.token_type`. Source: the GGUF specification."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass
class Vocab:
    """Token texts with their types, and for SPM their scores (f32, same length).

    `ids` maps each text to its id; `bytes_of` maps the id of each byte token to its byte."""

    source: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    bytes_of: dict[int, int]
    scores: np.ndarray | None = None


def warn(source: str, message: str) -> None:
    """Report something in a model file that is odd but can be lived with."""
    warnings.warn(f"{source}: {message}", UserWarning, stacklevel=3)


def scalar(metadata: Metadata, key: str, kind: type, source: str) -> object | None:
    """The value of `key` as a bool, int or str, or None where the key is absent.

    Raises TokenizerError for a value of another type."""
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is not kind:
        raise TokenizerError(
            f"{source}: {key} must be {kind.__name__}, got {type(value).__name__} "
            f"{str(value)[:40]!r}; convert the model again"
        )
    return value


def strings(metadata: Metadata, key: str, source: str) -> list[str]:
    """The string array `key`. Raises TokenizerError if absent or of other elements."""
    value = _present(metadata, key, source)
    if not isinstance(value, list | tuple):
        raise _wrong_array(source, key, "strings", value)
    if not set(map(type, value)) <= {str}:
        index = next(i for i, item in enumerate(value) if type(item) is not str)
        raise TokenizerError(
            f"{source}: {key}[{index}] must be a string, got "
            f"{type(value[index]).__name__}; convert the model again"
        )
    return list(value)


def integers(metadata: Metadata, key: str, source: str) -> list[int]:
    """The integer array `key`. Raises TokenizerError if absent or of other elements."""
    return _numbers(metadata, key, source, "iu", "integers").tolist()


def floats(metadata: Metadata, key: str, source: str) -> np.ndarray:
    """The float array `key` as f32. Raises TokenizerError if absent or of other elements."""
    return _numbers(metadata, key, source, "f", "floats").astype(np.float32)


def read_vocab(metadata: Metadata, source: str, need_types: bool, need_scores: bool) -> Vocab:
    """Read tokens, types and scores. An empty text becomes `[EMPTY_i]`, without types all tokens
    are normal. Raises TokenizerError for a missing array, elements of a wrong type, types or
    scores shorter than the tokens, a type outside 0..6, a score that is not a number, a repeated
    text and a byte token that is not <0xHH>."""
    tokens = strings(metadata, "tokenizer.ggml.tokens", source)
    if not tokens:
        raise TokenizerError(
            f"{source}: tokenizer.ggml.tokens is empty, expected at least 1 token; "
            "convert the model again"
        )
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    _check_encodable(tokens, source)
    ids = _index(tokens, source)
    types = _read_types(metadata, len(tokens), source, need_types)
    scores = _read_scores(metadata, len(tokens), source) if need_scores else None
    return Vocab(source, tokens, types, ids, _read_bytes(tokens, types, source), scores)


def _present(metadata: Metadata, key: str, source: str) -> object:
    value = metadata.get(key)
    if value is None:
        raise TokenizerError(f"{source}: {key} is missing; convert the model again")
    return value


def _wrong_array(source: str, key: str, expected: str, value: object) -> TokenizerError:
    dtype = getattr(value, "dtype", None)
    got = f"an array of {dtype}" if dtype is not None else type(value).__name__
    return TokenizerError(
        f"{source}: {key} must be an array of {expected}, got {got}; convert the model again"
    )


def _numbers(metadata: Metadata, key: str, source: str, kinds: str, expected: str) -> np.ndarray:
    value = _present(metadata, key, source)
    if isinstance(value, list | tuple):
        if not set(map(type, value)) <= {int, float}:
            raise _wrong_array(source, key, expected, value)
        try:
            value = np.array(value) if value else np.zeros(0, np.int64).astype(kinds[0])
        except OverflowError:
            raise _wrong_array(source, key, expected, value) from None
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in kinds:
        raise _wrong_array(source, key, expected, value)
    return value


def _check_encodable(tokens: list[str], source: str) -> None:
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:
        index = next(i for i, t in enumerate(tokens) if re.search("[\ud800-\udfff]", t))
        raise TokenizerError(
            f"{source}: tokenizer.ggml.tokens[{index}] must be valid Unicode, got "
            f"{tokens[index]!r}; convert the model again"
        ) from None


def _index(tokens: list[str], source: str) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        second = next(i for i, token in enumerate(tokens) if ids[token] != i)
        text = tokens[second]
        raise TokenizerError(
            f"{source}: tokenizer.ggml.tokens: {text[:40]!r} must occur once, got it at "
            f"{second} and {ids[text]}; convert the model again"
        )
    return ids


def _check_length(source: str, key: str, length: int, n_tokens: int) -> None:
    if length < n_tokens:
        raise TokenizerError(
            f"{source}: {key} must have at least {n_tokens} items, one for each token, "
            f"got {length}; convert the model again"
        )


def _read_types(metadata: Metadata, n_tokens: int, source: str, required: bool) -> list[int]:
    key = "tokenizer.ggml.token_type"
    if metadata.get(key) is None and not required:
        return [int(TokenType.NORMAL)] * n_tokens
    types = integers(metadata, key, source)
    _check_length(source, key, len(types), n_tokens)
    del types[n_tokens:]
    if not 0 <= min(types) <= max(types) <= max(TokenType):
        index = next(i for i, t in enumerate(types) if not 0 <= t <= max(TokenType))
        raise TokenizerError(
            f"{source}: {key}[{index}] must be 0 to {max(TokenType):d}, got {types[index]}; "
            "convert the model again"
        )
    return types


def _read_scores(metadata: Metadata, n_tokens: int, source: str) -> np.ndarray:
    key = "tokenizer.ggml.scores"
    scores = floats(metadata, key, source)
    _check_length(source, key, len(scores), n_tokens)
    scores = scores[:n_tokens]
    bad = np.flatnonzero(np.isnan(scores))
    if bad.size:
        raise TokenizerError(
            f"{source}: {key}[{bad[0]}] must be a number, got NaN; convert the model again"
        )
    return scores


def _read_bytes(tokens: list[str], types: list[int], source: str) -> dict[int, int]:
    bytes_of: dict[int, int] = {}
    first: dict[int, int] = {}
    for index in (i for i, t in enumerate(types) if t == TokenType.BYTE):
        match = _BYTE_TOKEN.fullmatch(tokens[index])
        if match is None:
            raise TokenizerError(
                f"{source}: tokenizer.ggml.tokens[{index}] is a byte token and must read "
                f"<0x00> to <0xFF>, got {tokens[index][:40]!r}; convert the model again"
            )
        value = int(match[1], 16)
        if first.setdefault(value, index) != index:
            raise TokenizerError(
                f"{source}: tokenizer.ggml.tokens: byte {value:#04x} must have one token, got "
                f"{first[value]} and {index}; convert the model again"
            )
        bytes_of[index] = value
    return bytes_of
