"""The devices that can be asked for by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from ..graph.errors import BackendError
from .base import Backend
from .cpu import CpuBackend, default_threads, instruction_sets
from .plugin import PluginBackend, plugin_paths, plugins
from .reference import ReferenceBackend


@dataclass(frozen=True)
class Device:
    """A device that this build and this machine have."""

    name: str
    description: str


def devices() -> list[Device]:
    """Every device that `open_backend` accepts, best first."""
    isa = instruction_sets()[-1]
    cpu = f"{platform.machine()}, {isa} kernels, {default_threads()} threads by default"
    builtin = [Device("cpu", cpu), Device("reference", "numpy, slow, right by definition")]
    return builtin + [_describe(path) for path in plugin_paths()]


def _describe(path: str) -> Device:
    """A plug-in's device; one that cannot serve is listed with its reason."""
    try:
        plugin = PluginBackend(path, threads=1)
    except BackendError as error:
        return Device(path, f"refused: {error}")
    return Device(plugin.name, f"{plugin.description} ({path})".strip())


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """The backend of a device name; "auto" takes the best. Raises BackendError for others."""
    if name == "auto":
        name = devices()[0].name
    if name == "cpu":
        return CpuBackend(threads)
    if name == "reference":
        return ReferenceBackend()
    outside = plugins(threads)
    if name in outside:
        return outside[name]
    known = ", ".join(["auto", *(d.name for d in devices())])
    raise BackendError(f"device {name!r} is not in this build of riverrun; devices: {known}")
