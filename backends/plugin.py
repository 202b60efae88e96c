"""Outside backends: shared libraries that speak the C ABI of csrc/include/riverrun.h.

They are named in RIVERRUN_BACKENDS (paths, separated like PATH) or by installed packages in the
entry point group "riverrun.backends", whose entries are functions that return a path."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ..graph.errors import BackendError
from .cpu import ABI_VERSION, CpuBackend, plugin_table
from .elf import check_library

VARIABLE, GROUP = "RIVERRUN_BACKENDS", "riverrun.backends"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_OWN = ("auto", "cpu", "cuda", "cupy", "null", "reference")

_DECLARATIONS = """
typedef struct {
  uint32_t struct_size;
  uint32_t abi_version;
  const char* name;
  const char* description;
  int (*score)(void);
  uint32_t n_kernels;
  const void* kernels;
} rr_plugin;
const rr_plugin* rr_plugin_get(void);
"""


class PluginBackend(CpuBackend):
    """A plug-in's kernels, run by the CPU executor on host memory."""

    packed_layouts = ()

    def __init__(self, path: str | os.PathLike[str], threads: int | None = None) -> None:
        """Load a library. Raises BackendError, naming the file, for one that cannot serve: no
        whole library, without rr_plugin_get, of another ABI version, damaged, with a name that is
        no device name or one of riverrun's own, or with score 0."""
        self.path = Path(path)
        plugin = _load(str(self.path.absolute()), str(self.path))
        self.name = plugin.name
        self.description = plugin.description
        self._address = plugin.address
        super().__init__(threads)

    def _table(self) -> Any:
        try:
            return plugin_table(self._address)
        except ValueError as error:
            raise BackendError(f"backend {self.path}: {error}") from None


@dataclass(frozen=True)
class Source:
    """Something that names a library: label says what, path gives it or raises BackendError."""

    label: str
    path: Callable[[], str]

    def name(self) -> str:
        """The library's device name. Raises BackendError for one that cannot serve."""
        path = Path(self.path())
        return _load(str(path.absolute()), str(path)).name

    def open(self, threads: int | None = None) -> PluginBackend:
        """The library's backend. Raises BackendError for one that cannot serve."""
        return PluginBackend(self.path(), threads)


def sources() -> list[Source]:
    """What the environment and installed packages name, in that order."""
    named = [p for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    found = [Source(path, partial(str, path)) for path in named]
    installed = sorted(entry_points(group=GROUP))
    return found + [Source(f"{GROUP}:{e.name}", partial(_path_of, e)) for e in installed]


def _path_of(entry: EntryPoint) -> str:
    try:
        return str(entry.load()())
    except Exception as error:  # a package's own code, which may raise anything
        raise BackendError(
            f"backend {entry.name}: {entry.value} gave no path: {type(error).__name__}: {error}"
        ) from None


def find_plugin(name: str, threads: int | None = None) -> PluginBackend | None:
    """The plug-in with this device name; None where no library that can be loaded has it.

    Raises BackendError for a name that two have, and for a library that cannot serve."""
    named = [source for source in sources() if _name_of(source) == name]
    if len(named) > 1:
        first, second = (source.path() for source in named[:2])
        raise BackendError(f"backend {second}: the device name {name!r} is taken by {first}")
    return named[0].open(threads) if named else None


def _name_of(source: Source) -> str:
    """A library's device name; "" where it cannot be loaded, which `devices` shows."""
    try:
        return source.name()
    except BackendError:
        return ""


@cache
def _ffi() -> Any:
    try:
        from cffi import FFI
    except ImportError:
        raise BackendError(
            "outside backends need the cffi package: pip install 'riverrun[plugins]'"
        ) from None
    ffi = FFI()
    ffi.cdef(_DECLARATIONS)
    return ffi


@dataclass(frozen=True)
class _Loaded:
    """A library's rr_plugin, checked."""

    name: str
    description: str
    address: int
    library: Any


@cache
def _load(path: str, shown: str) -> _Loaded:
    """The library at a path. Libraries stay loaded: kernels may be in plans."""
    ffi = _ffi()
    try:
        check_library(Path(path))
        library = ffi.dlopen(path)
    except (OSError, ValueError) as error:
        raise BackendError(f"backend {shown}: cannot be loaded: {error}") from None
    try:
        plugin = library.rr_plugin_get()
    except AttributeError:
        raise BackendError(
            f"backend {shown}: it exports no rr_plugin_get; is it a riverrun backend?"
        ) from None
    try:
        _check(ffi, plugin)
        name, description = (_text(ffi, plugin, field) for field in ("name", "description"))
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"its device name should be of a-z, 0-9, '_', '.' and '-', got {name!r}"
            )
        if name in _OWN:
            raise ValueError(f"the device name {name!r} is taken by riverrun's own")
    except ValueError as error:
        raise BackendError(f"backend {shown}: {error}") from None
    return _Loaded(name, description, int(ffi.cast("uintptr_t", plugin)), library)


def _check(ffi: Any, plugin: Any) -> None:
    """Raise ValueError for a plug-in that cannot serve."""
    if plugin == ffi.NULL:
        raise ValueError("rr_plugin_get gave nothing")
    remedy = "build it again with this riverrun's header"
    if plugin.abi_version != ABI_VERSION:
        raise ValueError(
            f"should speak ABI version {ABI_VERSION}, it speaks {plugin.abi_version}; {remedy}"
        )
    size = ffi.sizeof("rr_plugin")
    if plugin.struct_size < size:
        raise ValueError(
            f"the struct_size of its rr_plugin should be {size} or more, got "
            f"{plugin.struct_size}; {remedy}"
        )
    if plugin.name == ffi.NULL or plugin.score == ffi.NULL:
        raise ValueError("its name or score is missing")
    if plugin.score() <= 0:
        raise ValueError("its score is 0: it does not suit this machine")


def _text(ffi: Any, plugin: Any, field: str) -> str:
    """A text of the plug-in's, "" for none. Raises ValueError for what is not UTF-8."""
    given = getattr(plugin, field)
    raw = ffi.string(given) if given != ffi.NULL else b""
    try:
        return str(raw.decode())
    except UnicodeDecodeError:
        raise ValueError(f"its {field} should be UTF-8, got {raw!r}") from None
