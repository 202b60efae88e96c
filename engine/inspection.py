"""What a model file holds and whether it runs, from its metadata and tensor table alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..graph.errors import GgufError, ModelError
from ..models.architecture import Architecture
from ..models.chat.stored import KEY
from ..models.gguf import GgufFile, Metadata, TensorInfo, open_gguf
from ..models.load import read_model
from .memory import MemoryBytes
from .session_options import SessionOptions
from .session_plan import mib, session_bytes


@dataclass(frozen=True)
class Stored:
    """How many tensors are stored in a type, and their bytes."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokenizer: kind ("gpt2", "llama"), pre-tokenizer, number of tokens;
    None for what it does not say."""

    model: str | None
    pre: str | None
    n_tokens: int | None


@dataclass(frozen=True, repr=False)
class Inspection:
    """A model file without its weights. What it does not say is None.

    path: the file, of a set of shards the first; shards: all of its files; tensors: the rows of
    the tensor table by name; supported: whether this version runs it, and else why not; n_ctx,
    memory: a session's tokens, and the bytes that it would take beside the weights, None where
    that is not known; missing_bytes: what the files lack at their ends, 0 of whole ones."""

    path: Path
    shards: tuple[Path, ...]
    metadata: Metadata
    tensors: Mapping[str, TensorInfo]
    architecture: str | None
    name: str | None
    context_length: int | None
    tokenizer: Vocabulary
    chat_template: bool
    why: str | None
    n_ctx: int | None
    memory: MemoryBytes | None
    missing_bytes: int

    def __repr__(self) -> str:
        where = "supported" if self.supported else f"not supported: {self.why}"
        return f"<Inspection {self.path.name}, {self.architecture}, {mib(self.n_bytes)}, {where}>"

    @property
    def supported(self) -> bool:
        """Whether this version runs it."""
        return self.why is None

    @property
    def n_params(self) -> int:
        """Numbers in all tensors."""
        return sum(row.n_elements for row in self.tensors.values())

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors; of a cut file those of the whole one."""
        return sum(row.nbytes for row in self.tensors.values())

    @property
    def bits_per_weight(self) -> float | None:
        """Bits of storage for each of n_params."""
        return 8 * self.n_bytes / self.n_params if self.n_params else None

    @property
    def types(self) -> dict[str, Stored]:
        """Tensors and bytes of each type, most bytes first; "type 99" for one that is not known,
        whose bytes include padding."""
        found: dict[str, Stored] = {}
        for row in self.tensors.values():
            before = found.get(row.type_name, Stored(0, 0))
            found[row.type_name] = Stored(before.count + 1, before.bytes + row.nbytes)
        return dict(sorted(found.items(), key=lambda item: -item[1].bytes))

    def as_dict(self) -> dict[str, Any]:
        """Everything but metadata and the single tensors, for JSON. `tensors` is their number,
        `memory` a session's bytes."""
        return {
            "path": str(self.path),
            "shards": len(self.shards),
            "architecture": self.architecture,
            "name": self.name,
            "n_params": self.n_params,
            "n_bytes": self.n_bytes,
            "bits_per_weight": self.bits_per_weight,
            "context_length": self.context_length,
            "tokenizer": vars(self.tokenizer),
            "chat_template": self.chat_template,
            "tensors": len(self.tensors),
            "types": {name: vars(stored) for name, stored in self.types.items()},
            "supported": self.supported,
            "why": self.why,
            "n_ctx": self.n_ctx,
            "memory": self.memory and self.memory.device + self.memory.host,
            "missing_bytes": self.missing_bytes,
        }


def inspect(path: str | os.PathLike[str], n_ctx: int | None = None, **options: Any) -> Inspection:
    """Read a GGUF file's metadata and tensor table, and nothing of its weights; of a model in
    shards any of them. Files that cannot be run are read, too: unknown architectures, tokenizers
    and tensor types, and files that are cut within the weights.

    n_ctx, options: of the session whose memory is told, as of Model.session. Raises GgufError for a
    file that is damaged or cut before the weights, RequestError for options out of range."""
    asked = SessionOptions(n_ctx, **options)
    file = open_gguf(path, whole=False)
    arch, why = _readable(file)
    size, memory = session_bytes(arch, asked) if arch else (None, None)
    architecture = _text(file, "general.architecture")
    return Inspection(
        path=file.path,
        shards=file.shard_paths,
        metadata=file.metadata,
        tensors=file.infos,
        architecture=architecture,
        name=_text(file, "general.name"),
        context_length=_integer(file, f"{architecture}.context_length"),
        tokenizer=_vocabulary(file),
        chat_template=KEY in file.metadata,
        why=why,
        n_ctx=size,
        memory=memory,
        missing_bytes=file.missing_bytes,
    )


def _readable(file: GgufFile) -> tuple[Architecture | None, str | None]:
    """The architecture where the file is one that runs or would if it were whole, and what keeps
    it from running."""
    try:
        arch, _ = read_model(file)
    except ModelError as error:
        return None, _without_path(file, error)
    try:
        _ = file.tensors
    except GgufError as error:
        return arch, _without_path(file, error)
    return arch, None


def _without_path(file: GgufFile, error: ModelError) -> str:
    return str(error).removeprefix(f"{file.path}: ")


def _vocabulary(file: GgufFile) -> Vocabulary:
    tokens = "tokenizer.ggml.tokens"
    n_tokens = file.metadata.entry(tokens).n_items if tokens in file.metadata else -1
    return Vocabulary(
        _text(file, "tokenizer.ggml.model"),
        _text(file, "tokenizer.ggml.pre"),
        n_tokens if n_tokens >= 0 else None,
    )


def _text(file: GgufFile, key: str) -> str | None:
    """A text, None where the key is absent or holds no readable one."""
    try:
        return file.get_str(key, None)
    except GgufError:
        return None


def _integer(file: GgufFile, key: str) -> int | None:
    """An integer of any type, None where the key is absent or holds none."""
    value = file.metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
