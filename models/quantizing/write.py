"""Writing a quantised file, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from ...graph.dtype import DType
from ...graph.errors import DTypeError, RequestError
from ..gguf import (
    QUANTIZATION_VERSION,
    Field,
    GgufFile,
    GgufTensor,
    NewTensor,
    fields_of,
    scalar,
    write_gguf,
)
from .importance import Importance
from .mix import NEED_IMPORTANCE, Mix
from .plan import Step

_PIECE = 1 << 24  # bytes of the source at a time


class Recode(Protocol):
    """Makes rows of one type of rows of another."""

    def __call__(
        self, raw: np.ndarray, source: DType, to: DType, n: int, importance: np.ndarray | None
    ) -> np.ndarray:
        """raw: uint8 of whole rows of n values. importance: weights f32 [n] of squared errors.
        The rows as uint8. Raises DTypeError for types and values that it cannot take."""


def quantize(
    file: GgufFile,
    out: Path,
    mix: Mix,
    steps: Sequence[Step],
    recode: Recode,
    *,
    importance: Importance | None = None,
    allow_requantize: bool = False,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write a file with each tensor in the type of its step; metadata is the source's, with
    general.file_type and general.quantization_version of the new file.

    allow_requantize: take tensors that are quantised already. Raises RequestError where they are
    not taken, for types that need an importance matrix, and as write_gguf does; GgufError and
    DTypeError name the tensor whose values are bad."""
    check_sources(file, steps, allow_requantize)
    check_importance(mix, steps, importance)
    tensors = [
        NewTensor(
            step.tensor.name,
            step.tensor.shape,
            step.to,
            partial(_pieces, file, step, recode, importance),
        )
        for step in steps
    ]
    sources = {Path(file.path), *(Path(t.shard_path) for t in file.tensors.values())}
    if importance is not None:
        sources.add(importance.path)
    fields = _fields(file, mix, importance)
    write_gguf(out, fields, tensors, force=force, sources=sources, progress=progress)


def check_sources(file: GgufFile, steps: Sequence[Step], allow_requantize: bool) -> None:
    """Raise RequestError for tensors that are quantised already, unless that is allowed."""
    for step in steps:
        source = step.tensor.dtype
        if source.quantized and source != step.to and not allow_requantize:
            raise RequestError(
                f"{file.path}: tensor {step.tensor.name!r} is {source.name} already, expected "
                "f32, f16 or bf16; errors add up, so use the original, or --allow-requantize"
            )


def check_importance(mix: Mix, steps: Sequence[Step], importance: Importance | None) -> None:
    """Raise RequestError for the first tensor that cannot do without an importance matrix, and for
    a matrix that is not of this model."""
    for step in steps:
        name = step.tensor.name
        weights = importance.of(name, step.tensor.shape) if importance else None
        needs = step.to.name in (*NEED_IMPORTANCE, *mix.needs_importance)
        needs = needs and name not in ("token_embd.weight", "output.weight")
        if needs and weights is None and step.to != step.tensor.dtype:
            asks = mix.name if step.to.name in mix.needs_importance else step.to.name
            raise RequestError(
                f"{asks} needs an importance matrix (--imatrix): there is none for {name}"
            )


def _pieces(
    file: GgufFile, step: Step, recode: Recode, importance: Importance | None
) -> Iterator[np.ndarray]:
    """The storage of a tensor in its new type. What was read for a piece leaves memory when the
    next one is asked for."""
    for piece in _recoded(step, recode, importance):
        yield piece
        file.give_back()


def _recoded(step: Step, recode: Recode, importance: Importance | None) -> Iterator[np.ndarray]:
    tensor = step.tensor
    if tensor.dtype == step.to:
        for at in range(0, tensor.data.size, _PIECE):
            yield tensor.data[at : at + _PIECE]
        return
    n = tensor.shape[-1]
    row = tensor.dtype.row_bytes(n)
    for first, last, weights in _runs(tensor, row, importance):
        try:
            yield recode(tensor.data[first * row : last * row], tensor.dtype, step.to, n, weights)
        except DTypeError as error:
            raise DTypeError(
                f"{tensor.shard_path}: tensor {tensor.name!r}, rows from {first} on, to "
                f"{step.to.name}: {error}"
            ) from None


def _runs(
    tensor: GgufTensor, row: int, importance: Importance | None
) -> Iterator[tuple[int, int, np.ndarray | None]]:
    """Rows that are made at a time, first and behind the last, of `row` bytes each, with the
    weights f32 [n] that they share: those of a matrix have the same."""
    if not tensor.data.size:
        return
    found = importance.of(tensor.name, tensor.shape) if importance else None
    weights: Sequence[np.ndarray | None] = [None] if found is None else list(found)
    each, at_once = tensor.data.size // row // len(weights), max(1, _PIECE // row)
    for matrix, given in enumerate(weights):
        start, stop = matrix * each, (matrix + 1) * each
        for first in range(start, stop, at_once):
            yield first, min(first + at_once, stop), given


def _fields(file: GgufFile, mix: Mix, importance: Importance | None) -> dict[str, Field]:
    fields = {
        key: value
        for key, value in fields_of(file.metadata).items()
        if key not in ("split.no", "split.count", "split.tensors.count")
    }
    fields["general.quantization_version"] = scalar("u32", QUANTIZATION_VERSION)
    fields["general.file_type"] = scalar("u32", mix.file_type)
    if importance is not None:
        fields["quantize.imatrix.file"] = scalar("str", importance.path.name)
        if importance.datasets:
            fields["quantize.imatrix.dataset"] = scalar("str", importance.datasets[0])
        fields["quantize.imatrix.entries_count"] = scalar("u32", len(importance.values))
        if importance.n_chunks:
            fields["quantize.imatrix.chunks_count"] = scalar("u32", importance.n_chunks)
    return fields
