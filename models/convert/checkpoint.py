"""The tensors of a checkpoint: safetensors files, mapped into memory and read piece by piece.

Source: the safetensors format (8 bytes of length, a JSON header, the data)."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...graph.errors import ModelError
from .json_files import TEXT, Each, Leaf, Members, parse, read_json

INDEX = "model.safetensors.index.json"
ALONE = "model.safetensors"
MAX_HEADER = 100_000_000  # the format's own limit
BLOCK = 1 << 24  # elements that are read at a time
# numpy's type of each stored type; bf16, which numpy lacks, as its bits.
KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1"}
KINDS |= {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1"}
_FILE = Leaf("a file's name", lambda value: TEXT.test(value) and 0 < len(value.encode()) < 256)
_INDEX_FORM = Members(may={"weight_map": Each(_FILE, key=TEXT)})
FLOATS = ("F32", "F16", "BF16", "F64")

Shape = tuple[int, ...]
Array = np.ndarray


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint. kind: "F32", "BF16", ...; shape as numpy and torch have it."""

    path: Path
    name: str
    kind: str
    shape: Shape
    mapped: mmap.mmap
    at: int

    @property
    def rows(self) -> int:
        """Length of the first axis, 1 of a tensor without axes."""
        return self.shape[0] if self.shape else 1

    def stored(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows start .. stop as they are stored, bf16 as u16: a view of the file."""
        kind, shape = np.dtype(KINDS[self.kind]), self.shape or (1,)
        row = math.prod(shape[1:])
        stop = self.rows if stop is None else stop
        flat = np.frombuffer(
            self.mapped, kind, (stop - start) * row, self.at + start * row * kind.itemsize
        )
        return flat.reshape(stop - start, *shape[1:])

    def floats(self, start: int = 0, stop: int | None = None) -> Array:
        """Rows start .. stop as f32. Raises ModelError for a tensor of integers."""
        if self.kind not in FLOATS:
            raise ModelError(
                f"{self.path}: tensor {self.name!r} should be of {', '.join(FLOATS)}, got "
                f"{self.kind}; convert a checkpoint that is not quantised"
            )
        found = self.stored(start, stop)
        if self.kind == "BF16":
            return (found.astype(np.uint32) << 16).view(np.float32)
        return found.astype(np.float32)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows, in order, of some BLOCK elements each."""
        step = max(1, BLOCK // max(1, math.prod(self.shape[1:])))
        for start in range(0, self.rows, step):
            yield start, min(self.rows, start + step)


class Checkpoint:
    """All tensors of a folder by name, in the order of the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors: dict[str, Source] = {}
        for path in _files(folder):
            for source in _tensors(path):
                if source.name in self.tensors:
                    other = self.tensors[source.name].path.name
                    raise ModelError(f"{path}: tensor {source.name!r} is in {other}, too")
                self.tensors[source.name] = source
        if not self.tensors:
            raise ModelError(f"{folder}: its safetensors files hold no tensors")

    @property
    def kind(self) -> str:
        """The type of most of its elements."""
        sizes: dict[str, int] = {}
        for source in self.tensors.values():
            if source.kind in FLOATS:
                sizes[source.kind] = sizes.get(source.kind, 0) + math.prod(source.shape)
        return max(sizes, key=lambda kind: sizes[kind], default="F32")


def _files(folder: Path) -> list[Path]:
    """The files that the index names, or the only one."""
    index = folder / INDEX
    if not index.is_file():
        if (folder / ALONE).is_file():
            return [folder / ALONE]
        others = sorted(p.name for p in folder.glob("*.bin")) or sorted(
            p.name for p in folder.glob("*.safetensors")
        )
        found = f"; found {', '.join(others[:3])}" if others else ""
        raise ModelError(
            f"{folder}: expected {ALONE} or {INDEX}{found}; save the checkpoint as safetensors"
        )
    placed = read_json(index, _INDEX_FORM).get("weight_map")
    if not placed:
        raise ModelError(f"{index}: weight_map is missing, expected the file of each tensor")
    paths = [folder / name for name in dict.fromkeys(placed.values())]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise ModelError(f"{index}: names {', '.join(missing[:3])}, not in the folder; fetch them")
    held = {source.name for path in paths for source in _tensors(path)}
    lost = sorted(set(placed) - held)
    if lost:
        raise ModelError(f"{index}: names tensor {lost[0]!r}, which {placed[lost[0]]} lacks")
    return paths


def _tensors(path: Path) -> Iterator[Source]:
    """The tensors of a file. Raises ModelError for a file that is damaged."""
    with path.open("rb") as file:
        size = path.stat().st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ModelError(f"{path}: is no safetensors file, or cut short; fetch it again")
        header = parse(file.read(length), f"{path}: header")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for name, entry in header.items():
        if name != "__metadata__":
            yield _source(path, name, entry, mapped, 8 + length)


def _source(path: Path, name: str, entry: Any, mapped: mmap.mmap, data: int) -> Source:
    try:
        kind, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ModelError(
            f"{path}: tensor {name!r} should have dtype, shape and data_offsets; fetch it again"
        ) from None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ModelError(
            f"{path}: tensor {name!r} is of {kind}, expected one of {', '.join(KINDS)}"
        )
    want = math.prod(shape) * np.dtype(KINDS[kind]).itemsize
    if min(shape, default=0) < 0 or begin < 0 or end - begin != want or data + end > len(mapped):
        raise ModelError(
            f"{path}: tensor {name!r} of {kind} {shape} should have {want} bytes within the file, "
            f"got {begin} .. {end}; fetch it again"
        )
    return Source(path, name, kind, shape, mapped, data + begin)
