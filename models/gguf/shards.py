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
from .tensors import GgufTensor, TensorInfo
from .typed import TypedKeys

_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class GgufFile(TypedKeys):
    """An open model file, or the set of shards that it belongs to. Metadata is the first shard's.

    infos: the rows of the tensor tables by name, in file order, whether their data can be read or
    not; missing_bytes: what the files lack at their ends.

    A context manager. Views on tensor data stay valid after close: the mapping lives as long as
    any of them. A tensor of unknown type leaves all but `tensors` usable, which raises then."""

    def __init__(self, shards: list[Container]) -> None:
        self._shards = shards
        self._tensors: Mapping[str, GgufTensor] | None = None
        self.path = shards[0].path
        self.metadata = shards[0].metadata
        rows = (row for shard in shards for row in shard.table.rows)
        self.infos: Mapping[str, TensorInfo] = MappingProxyType({row.name: row for row in rows})
        self.missing_bytes = sum(shard.table.missing for shard in shards)

    @property
    def shard_paths(self) -> tuple[Path, ...]:
        """The files, in order."""
        return tuple(shard.path for shard in self._shards)

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """The tensors by name, in file order. Raises GgufError when one has an unknown type or
        lies beyond the end of its file, or after close."""
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

    def give_back(self) -> None:
        """Take tensors that were read out of memory, where they are read from the files; views on
        them stay valid."""
        for shard in self._shards:
            shard.give_back()

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


def open_gguf(path: str | os.PathLike[str], load: str = MAP, whole: bool = True) -> GgufFile:
    """Open a GGUF file; of a model in shards, any of them, and the others are found by their names.
    load: "map" reads tensors from the file as they are used, "read" copies it into memory.
    whole=False: files that are cut within their tensors' data are opened, too (`missing_bytes`).

    Everything in header, metadata and tensor table is checked here, and that each tensor lies
    within its file. Raises GgufError, which names file, key or tensor, what was expected and
    what came, and RequestError for another `load`."""
    if load not in (MAP, READ):
        raise RequestError(f"load: expected one of {MAP}, {READ}, got {load!r}")
    given = Container(Path(path), load, whole)
    count = given.get_scalar("split.count", "u16", 0)
    if count < 2:
        return GgufFile([given])
    prefix, place = _place_in_set(given, count)
    shards = []
    for index in range(count):
        shard = given
        if index != place:
            shard = Container(_shard_path(given.path, prefix, index, count), load, whole)
        _check_shard(shard, index, count)
        shards.append(shard)
    _check_set(shards)
    return GgufFile(shards)


def _shard_path(path: Path, prefix: str, index: int, count: int) -> Path:
    return path.with_name(f"{prefix}-{index + 1:05d}-of-{count:05d}.gguf")


def _place_in_set(given: Container, count: int) -> tuple[str, int]:
    """The prefix of a shard's name and its place in the set, from 0, which name and keys tell."""
    number = given.get_scalar("split.no", "u16")
    match = _SHARD_NAME.fullmatch(given.path.name)
    if match is None or (int(match[2]), int(match[3])) != (number + 1, count):
        raise GgufError(
            f"{given.path}: shard {number + 1} of {count} (keys 'split.no', 'split.count') must be "
            f"named <prefix>-{number + 1:05d}-of-{count:05d}.gguf, got {show(given.path.name)}; "
            "rename the file"
        )
    return match[1], number


def _check_shard(shard: Container, index: int, count: int) -> None:
    wanted = {"split.no": index, "split.count": count}
    for key, value in wanted.items():
        got = shard.get_scalar(key, "u16")
        if got != value:
            raise GgufError(
                f"{shard.path}: key {key!r} must be {value} in shard {index + 1} of {count}, "
                f"got {got}; fetch the whole set again"
            )


def _check_set(shards: list[Container]) -> None:
    owners: dict[str, Path] = {}
    for shard in shards:
        for row in shard.table.rows:
            if row.name in owners:
                raise GgufError(
                    f"{shard.path}: tensor {show(row.name)} occurs in {owners[row.name].name} "
                    "too, expected once in a set of shards; fetch the whole set again"
                )
            owners[row.name] = shard.path
    key = "split.tensors.count"
    for shard in shards:
        total = shard.get_scalar(key, "i32", None)
        if total != len(owners):
            came = "none" if total is None else total
            raise GgufError(
                f"{shard.path}: key {key!r} must be the number of tensors in all {len(shards)} "
                f"shards, {len(owners)}, got {came}; fetch the whole set again"
            )
