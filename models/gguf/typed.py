"""Strictly typed access to metadata: a u32 key stored as i32 is an error, as in ggml's loader."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from ...graph.errors import GgufError
from .cursor import show
from .metadata import Metadata

T = TypeVar("T")


class Required(Enum):
    """The type of REQUIRED."""

    token = 0


REQUIRED: Final = Required.token
INT_KINDS: Final = ("i32", "u32", "bool", "i64", "u64", "i16", "u16", "i8", "u8")
_MOST = (1 << 31) - 1


class TypedKeys:
    """Getters over `metadata`. Each raises GgufError, naming the key, the wanted and the actual
    type, when the type differs, and naming the key when it is absent and no default is given."""

    path: Path
    metadata: Metadata

    def value_type(self, key: str) -> str:
        """The declared type of a key: "u32", "str", "array[i32]". Raises KeyError if absent."""
        return self.metadata.value_type(key)

    def get_scalar(self, key: str, kind: str, default: object = REQUIRED) -> Any:
        """A scalar of exactly this kind: "u16", "i32", "f64", ..."""
        if self._absent(key, default):
            return default
        got = self.metadata.value_type(key)
        if got != kind:
            raise self._wrong(key, kind, got)
        return self.metadata[key]

    def get_u32(self, key: str, default: T | Required = REQUIRED) -> int | T:
        """An unsigned 32-bit number."""
        return self.get_scalar(key, "u32", default)

    def get_f32(self, key: str, default: T | Required = REQUIRED) -> float | T:
        """A 32-bit float."""
        return self.get_scalar(key, "f32", default)

    def get_bool(self, key: str, default: T | Required = REQUIRED) -> bool | T:
        """A truth value."""
        return self.get_scalar(key, "bool", default)

    def get_str(self, key: str, default: T | Required = REQUIRED) -> str | T:
        """A text."""
        return self.get_scalar(key, "str", default)

    def get_str_array(
        self,
        key: str,
        default: T | Required = REQUIRED,
        *,
        min_len: int = 0,
        max_len: int | None = None,
    ) -> list[str] | T:
        """An array of texts whose length lies in min_len..max_len."""
        return self._array(key, ("str",), default, min_len, max_len)

    def get_array(
        self,
        key: str,
        kinds: Collection[str],
        default: T | Required = REQUIRED,
        *,
        min_len: int = 0,
        max_len: int | None = None,
    ) -> np.ndarray | T:
        """An array of numbers, read-only, whose item kind is one of `kinds` ("f32", or INT_KINDS,
        any integers) and whose length lies in min_len..max_len."""
        return self._array(key, kinds, default, min_len, max_len)

    def get_per_layer(
        self, key: str, n_layers: int, default: int | Required = REQUIRED
    ) -> list[int]:
        """One number in 0 .. 2**31 - 1 per layer: from one for all layers, or an array with exactly
        n_layers items, of any of INT_KINDS."""
        if self._absent(key, default):
            return [int(default)] * n_layers  # type: ignore[arg-type]
        entry = self.metadata.entry(key)
        if entry.n_items < 0:
            if entry.kind not in INT_KINDS:
                raise self._wrong(key, "u32 or an array of integers", entry.kind)
            items: list[Any] = [self.metadata[key]] * n_layers
        else:
            items = self._array(key, INT_KINDS, REQUIRED, n_layers, n_layers).tolist()
        for layer, item in enumerate(items):
            if not 0 <= item <= _MOST:
                raise GgufError(
                    f"{self.path}: key {show(key)} must hold numbers in 0 .. {_MOST}, got {item} "
                    f"for layer {layer}; convert the model again"
                )
        return [int(item) for item in items]

    def _absent(self, key: str, default: object) -> bool:
        if key in self.metadata:
            return False
        if default is REQUIRED:
            raise GgufError(
                f"{self.path}: key {show(key)} is missing, and there is no default; "
                "convert the model again with a converter that writes it"
            )
        return True

    def _wrong(self, key: str, wanted: str, got: str) -> GgufError:
        return GgufError(
            f"{self.path}: key {show(key)} must have type {wanted}, got {got}; "
            "convert the model again"
        )

    def _array(
        self, key: str, kinds: Collection[str], default: object, min_len: int, max_len: int | None
    ) -> Any:
        if self._absent(key, default):
            return default
        entry = self.metadata.entry(key)
        if entry.n_items < 0 or entry.kind not in kinds:
            wanted = "an array of integers" if kinds is INT_KINDS else f"array[{'|'.join(kinds)}]"
            raise self._wrong(key, wanted, entry.value_type)
        if entry.n_items < min_len or (max_len is not None and entry.n_items > max_len):
            raise GgufError(
                f"{self.path}: key {show(key)} must have {_range(min_len, max_len)} items, "
                f"got {entry.n_items}; convert the model again"
            )
        return self.metadata[key]


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {low}"
    return str(low) if low == high else f"{low} to {high}"
