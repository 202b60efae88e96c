"""What model files are, told from their metadata and tensor tables without loading them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.inspection import inspect
from ..graph.errors import RiverrunError
from ..models.chat.stored import KEY
from ..models.load import open_tokenizer
from ..models.quantizing.mix import MIXES
from .store import Known

_TYPES: dict[Any, str] = {mix.file_type: mix.name for mix in MIXES.values()}
# What a template that renders tools, or that knows of reasoning, mentions.
_TOOLS = re.compile(r"\btools\b")
_THINKING = re.compile(r"enable_thinking|reasoning_effort|reasoning_content|\bthinking\b|<think>")
_MOST_ITEMS = 64  # of arrays that are told


@dataclass(frozen=True)
class Facts:
    """family: the architecture; n_params: numbers in all tensors; quantization: the mix of types;
    template: the chat template, empty where there is none; pooled: an embedding model's file says
    how rows become one vector; metadata: by key, None for long arrays; digest: 64 hexadecimal
    digits that change when the file does."""

    family: str
    n_params: int
    quantization: str
    template: str
    pooled: bool
    metadata: dict[str, Any]
    digest: str

    @property
    def has_tools(self) -> bool:
        """Whether the template renders tools."""
        return bool(_TOOLS.search(self.template))

    @property
    def has_thinking(self) -> bool:
        """Whether the template knows of reasoning."""
        return knows_thinking(self.template)

    @property
    def size_label(self) -> str:
        """The number of parameters in three digits: 13.4M, 7.62B."""
        for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
            if self.n_params >= unit:
                return f"{self.n_params / unit:.3g}{letter}"
        return str(self.n_params)


def knows_thinking(template: str) -> bool:
    """Whether a chat template knows of reasoning."""
    return bool(_THINKING.search(template))


def facts_of(known: Known) -> Facts:
    """The facts of a model's file; those of late are kept. Takes its time: for a thread. Of a file
    that cannot be read only what its name and size say."""
    stat = known.path.stat()
    return _facts(known.path, stat.st_size, stat.st_mtime_ns)


@lru_cache(256)
def _facts(path: Path, size: int, modified: int) -> Facts:
    digest = hashlib.sha256(f"{path.name} {size} {modified}".encode()).hexdigest()
    try:
        found = inspect(path)
        metadata = {key: _short(found.metadata[key]) for key in found.metadata}
    except RiverrunError:
        return Facts("unknown", 0, "unknown", "", False, {}, digest)
    types = list(found.types)
    quantization = _TYPES.get(metadata.get("general.file_type"), types[0].upper() if types else "")
    template = metadata.get(KEY)
    pooling = metadata.get(f"{found.architecture}.pooling_type")
    return Facts(
        found.architecture or "unknown",
        found.n_params,
        quantization,
        template if isinstance(template, str) else "",
        bool(pooling),
        metadata,
        digest,
    )


def all_metadata(path: Path) -> dict[str, Any]:
    """A file's metadata with its long arrays. Raises GgufError."""
    metadata = inspect(path).metadata
    return {key: _plain(metadata[key]) for key in metadata}


@lru_cache(256)
def fills_in(path: Path, modified: float) -> bool:
    """Whether a file's vocabulary has the tokens of holes in texts. Takes its time."""
    try:
        return {"pre", "suf", "mid"} <= open_tokenizer(path).fim_ids.keys()
    except RiverrunError:
        return False


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _short(value: Any) -> Any:
    many = isinstance(value, list | np.ndarray) and len(value) > _MOST_ITEMS
    return None if many else _plain(value)
