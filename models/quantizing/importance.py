"""Importance matrices: mean squares of what each column of a weight is multiplied with.

Read are the GGUF form (general.type "imatrix": tensors NAME.in_sum2 [matrices, columns] and
NAME.counts [matrices, 1], f32) and the older one, of llama.cpp's tool of that name."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from ...graph.errors import GgufError, RequestError
from ..gguf import GgufFile, open_gguf
from ..gguf.reader import MAGIC

_MAX_NAME, _MAX_ENTRIES = 4096, 1 << 20


@dataclass(frozen=True)
class Importance:
    """values: by tensor name, f32 [matrices * columns]; what it was computed from."""

    path: Path
    values: dict[str, np.ndarray]
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0

    def of(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The weights f32 [matrices, columns] of a tensor, None where there are none. Raises
        RequestError for another number of them than the tensor has."""
        found = self.values.get(name)
        if found is None:
            return None
        matrices = shape[0] if len(shape) > 2 else 1
        if found.size != matrices * shape[-1]:
            if name == "token_embd.weight":  # looked up by row and multiplied with: one is missing
                return None
            raise RequestError(
                f"{self.path}: {name} should have {matrices * shape[-1]} values, got "
                f"{found.size}; the importance matrix is of another model"
            )
        return found.reshape(matrices, shape[-1])


def load_importance(path: str | os.PathLike[str]) -> Importance:
    """Read an importance matrix. Raises RequestError or GgufError for what is none."""
    source = Path(path)
    try:
        with open(source, "rb") as file:
            is_gguf = file.read(len(MAGIC)) == MAGIC
        found = _from_gguf(source) if is_gguf else _Older(source).read()
    except OSError as error:
        raise RequestError(f"{source}: cannot be read: {error.strerror or error}") from None
    for name, values in found.values.items():
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise RequestError(f"{source}: {name} should hold finite numbers of 0 or more")
    return found


def _from_gguf(path: Path) -> Importance:
    with open_gguf(path) as file:
        return Importance(
            path,
            _means(file),
            file.get_str_array("imatrix.datasets", []),
            file.get_u32("imatrix.chunk_count", 0),
        )


def _means(file: GgufFile) -> dict[str, np.ndarray]:
    """The sums over their counts, by the names of the weights, f32 [matrices * columns]."""
    values = {}
    for name, sums in file.tensors.items():
        if not name.endswith(".in_sum2"):
            continue
        weight = name[: -len(".in_sum2")]
        counts = file.tensors.get(f"{weight}.counts")
        if counts is None or sums.dtype.name != "f32" or counts.dtype.name != "f32":
            raise GgufError(f"{file.path}: {weight} should have .in_sum2 and .counts in f32")
        total = np.array(sums.data.view("<f4"))
        count = np.array(counts.data.view("<f4"))
        if not count.size or total.size % count.size:
            raise GgufError(
                f"{file.path}: {name} should have as many rows as there are counts, "
                f"{count.size}, got {total.size} values"
            )
        rows = total.reshape(count.size, -1)
        means = np.where(count[:, None] > 0, rows / np.maximum(count, 1)[:, None], 1)
        values[weight] = np.ascontiguousarray(means.reshape(-1), np.float32)
    if not values:
        raise RequestError(
            f"{file.path}: expected an importance matrix, got a GGUF file without .in_sum2 tensors"
        )
    return values


class _Older:
    """The form before GGUF, i32 and f32 little-endian: the number of entries; of each the name,
    the number of calls and the sums; then the number of chunks and the name of the text. `read`
    raises RequestError for anything else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        self.pos = 0

    def read(self) -> Importance:
        n, values = self._i32(), {}
        if not 0 < n <= _MAX_ENTRIES:
            self._fail("a number of entries")
        for _ in range(n):
            name = self._text()
            calls, size = self._i32(), self._i32()
            if size < 1 or 4 * size > len(self.data) - self.pos:
                self._fail(f"{size} values of {name!r}")
            sums = np.frombuffer(self.data, "<f4", size, self.pos).astype(np.float32)
            self.pos += 4 * size
            values[name] = sums / np.float32(calls) if calls > 0 else sums
        if self.pos == len(self.data):
            return Importance(self.path, values)
        chunks = self._i32()
        names = [self._text()] if self.pos < len(self.data) else []
        return Importance(self.path, values, names, max(chunks, 0))

    def _i32(self) -> int:
        if len(self.data) - self.pos < 4:
            self._fail("4 more bytes")
        (value,) = struct.unpack_from("<i", self.data, self.pos)
        self.pos += 4
        return value

    def _text(self) -> str:
        length = self._i32()
        if not 0 <= length <= min(_MAX_NAME, len(self.data) - self.pos):
            self._fail(f"a name, got one of {length} bytes")
        raw = self.data[self.pos : self.pos + length]
        self.pos += length
        return raw.decode("utf-8", "replace")

    def _fail(self, wanted: str) -> NoReturn:
        raise RequestError(
            f"{self.path}: expected {wanted} at byte {self.pos}; it is no importance matrix, or cut"
        )
