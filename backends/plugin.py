"""Outside backends: shared libraries that speak the C ABI of csrc/include/riverrun.h.

They are named in RIVERRUN_BACKENDS (paths, separated like PATH) or by installed packages in the
entry point group "riverrun.backends", whose entries are functions that return a path."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..graph.errors import BackendError
from .cpu import ABI_VERSION, CpuBackend, plugin_table

VARIABLE, GROUP = "RIVERRUN_BACKENDS", "riverrun.backends"

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
        """Load a library. Raises BackendError, naming the file, for one that cannot serve:
        not loadable, without rr_plugin_get, of another ABI version, damaged, or with score 0."""
        self.path = Path(path)
        plugin = _load(str(self.path))
        ffi = _ffi()
        self.name = ffi.string(plugin.name).decode()
        described = plugin.description != ffi.NULL
        self.description = ffi.string(plugin.description).decode() if described else ""
        self._address = int(ffi.cast("uintptr_t", plugin))
        super().__init__(threads)

    def _table(self) -> Any:
        try:
            return plugin_table(self._address)
        except ValueError as error:
            raise BackendError(f"backend {self.path}: {error}") from None


def plugin_paths() -> list[str]:
    """The libraries that the environment and installed packages name, in that order."""
    named = [p for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    return named + [str(entry.load()()) for entry in sorted(entry_points(group=GROUP))]


def plugins(threads: int | None = None) -> dict[str, PluginBackend]:
    """All plug-ins by device name. Raises BackendError for a bad one or a name used twice."""
    found: dict[str, PluginBackend] = {}
    for path in plugin_paths():
        backend = PluginBackend(path, threads)
        if backend.name in found or backend.name in ("auto", "cpu", "reference"):
            raise BackendError(f"backend {path}: the device name {backend.name!r} is taken")
        found[backend.name] = backend
    return found


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


@cache
def _load(path: str) -> Any:
    """The library's rr_plugin, checked. Libraries stay loaded: kernels may be in plans."""
    ffi = _ffi()
    try:
        library = ffi.dlopen(path)
    except OSError as error:
        raise BackendError(f"backend {path}: cannot be loaded: {error}") from None
    _KEPT.append(library)
    try:
        plugin = library.rr_plugin_get()
    except AttributeError:
        raise BackendError(
            f"backend {path}: it exports no rr_plugin_get; is it a riverrun backend?"
        ) from None
    if plugin == ffi.NULL:
        raise BackendError(f"backend {path}: rr_plugin_get gave nothing")
    if plugin.abi_version != ABI_VERSION or plugin.struct_size < ffi.sizeof("rr_plugin"):
        raise BackendError(
            f"backend {path}: should speak ABI version {ABI_VERSION}, it speaks "
            f"{plugin.abi_version}; build it again with this riverrun's header"
        )
    if plugin.name == ffi.NULL or plugin.score == ffi.NULL:
        raise BackendError(f"backend {path}: its name or score is missing")
    if plugin.score() <= 0:
        raise BackendError(f"backend {path}: its score is 0: it does not suit this machine")
    return plugin


_KEPT: list[Any] = []
