"""A model's file or set of shards, opened as one: `open_gguf`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from ...graph.errors import GgufError, RequestError
from .cursor import show
from .reader import MAP, READ, Container
from .scan import check_finite
from .tensors import GgufTensor
from .typed import TypedKeys

_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class GgufFile(TypedKeys):
    """An open model file, or the set of shards that starts with it. Metadata is the first shard's.

    A context manager. Views on tensor data stay valid after close: the mapping lives as long as
    any of them. A tensor of unknown type leaves the metadata readable; `tensors` raises then."""

    def __init__(self, shards: list[Container]) -> None:
        self._shards = shards
        self._tensors: Mapping[str, GgufTensor] | None = None
        self.path = shards[0].path
        self.metadata = shards[0].metadata

    @property
    def shard_paths(self) -> tuple[Path, ...]:
        """The files, in order."""
        return tuple(shard.path for shard in self._shards)

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """The tensors by name, in file order. Raises GgufError when one has an unknown type, or
        after close."""
        if self._tensors is None:
            found = (t for shard in self._shards for t in shard.tensors())
            self._tensors = MappingProxyType({t.name: t for t in found})
        return self._tensors

    def check_tensors(self) -> None:
        """Raise GgufError for the first tensor with a NaN or an infinity among its values (f32,
        f16, bf16, f64) or its block scales. Reads the whole file."""
        for tensor in self.tensors.values():
            check_finite(tensor)

    def check_unchanged(self) -> None:
        """Raise ModelError where a mapped file was written to or cut since it was opened."""
        for shard in self._shards:
            shard.check_unchanged()

    def close(self) -> None:
        """Let go of the files. Metadata and `tensors` raise GgufError from here on."""
        self._tensors = None
        for shard in self._shards:
            shard.release()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_gguf(path: str | os.PathLike[str], load: str = MAP) -> GgufFile:
    """Open a GGUF file; of a model in shards, the first, and the others are found by their names.
    load: "map" reads tensors from the file as they are used, "read" copies it into memory.

    Everything in header, metadata and tensor table is checked here, and that each tensor lies
    within its file. Raises GgufError, which names file, key or tensor, what was expected and
    what came, and RequestError for another `load`."""
    if load not in (MAP, READ):
        raise RequestError(f"load: expected one of {MAP}, {READ}, got {load!r}")
    first = Container(Path(path), load)
    count = first.get_scalar("split.count", "u16", 0)
    if count < 2:
        return GgufFile([first])
    prefix = _check_first(first, count)
    shards = [first]
    for index in range(1, count):
        shard = Container(_shard_path(first.path, prefix, index, count), load)
        _check_later(shard, index, count)
        shards.append(shard)
    _check_set(shards)
    return GgufFile(shards)


def _shard_path(path: Path, prefix: str, index: int, count: int) -> Path:
    return path.with_name(f"{prefix}-{index + 1:05d}-of-{count:05d}.gguf")


def _check_first(first: Container, count: int) -> str:
    path = first.path
    number = first.get_scalar("split.no", "u16")
    match = _SHARD_NAME.fullmatch(path.name)
    if number != 0:
        wanted = _shard_path(path, match[1], 0, count).name if match else "the first shard"
        raise GgufError(
            f"{path}: key 'split.no' must be 0 in the file to open, got {number} (shard "
            f"{number + 1} of {count}); open {wanted}"
        )
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        raise GgufError(
            f"{path}: the first of {count} shards must be named "
            f"<prefix>-00001-of-{count:05d}.gguf, got {show(path.name)}; rename the file"
        )
    return match[1]


def _check_later(shard: Container, index: int, count: int) -> None:
    wanted = {"split.no": index, "split.count": count}
    for key, value in wanted.items():
        got = shard.get_scalar(key, "u16")
        if got != value:
            raise GgufError(
                f"{shard.path}: key {key!r} must be {value} in shard {index + 1} of {count}, "
                f"got {got}; fetch the whole set again"
            )


def _check_set(shards: list[Container]) -> None:
    first = shards[0]
    owners: dict[str, Path] = {}
    for shard in shards:
        for row in shard.table.rows:
            if row.name in owners:
                raise GgufError(
                    f"{shard.path}: tensor {show(row.name)} occurs in {owners[row.name].name} "
                    "too, expected once in a set of shards; fetch the whole set again"
                )
            owners[row.name] = shard.path
    total = first.get_scalar("split.tensors.count", "i32")
    if any(shard.table.fault for shard in shards):
        return
    if total != len(owners):
        raise GgufError(
            f"{first.path}: key 'split.tensors.count' must be the number of tensors in the "
            f"{len(shards)} shards, {len(owners)}, got {total}; fetch the whole set again"
        )
