"""The devices that can be asked for by name."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from ..graph.errors import BackendError
from . import cuda
from .base import Backend
from .cpu import CpuBackend, instruction_sets
from .debug import watched
from .null import NullBackend
from .plugin import PluginBackend, plugin_paths, plugins
from .processors import default_threads
from .reference import ReferenceBackend
from .scheduler import SplitBackend

_CARD = re.compile(r"cuda(?::(\d+))?")


@dataclass(frozen=True)
class Device:
    """A device that this build and this machine have."""

    name: str
    description: str


def devices() -> list[Device]:
    """Every device that models can run on, best first."""
    isa = instruction_sets()[-1]
    cpu = f"{platform.machine()}, {isa} kernels, {default_threads()} threads by default"
    builtin = [Device("cpu", cpu), Device("reference", "numpy, slow, right by definition")]
    found = _cards()
    own = [*builtin, *found] if cuda.emulated() else [*found, *builtin]
    return own + [_describe(path) for path in plugin_paths()]


def _cards() -> list[Device]:
    """CUDA devices that can be used; none where the build or the machine has none."""
    try:
        found = cuda.cards() if cuda.built() else []
    except BackendError:
        return []
    return [
        Device(f"cuda:{i}" if i else "cuda", cuda.describe(card)) for i, card in enumerate(found)
    ]


def _describe(path: str) -> Device:
    """A plug-in's device; one that cannot serve is listed with its reason."""
    try:
        plugin = PluginBackend(path, threads=1)
    except BackendError as error:
        return Device(path, f"refused: {error}")
    return Device(plugin.name, f"{plugin.description} ({path})".strip())


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """The backend of a device name; "auto" takes the best. Several names with commas between them
    make one backend that splits graphs over those devices, earlier ones first; "null" computes
    nothing. RIVERRUN_DEBUG has it report what it does. Raises BackendError for unknown names."""
    parts = [_open(part.strip(), threads) for part in name.split(",")]
    return watched(SplitBackend(parts) if len(parts) > 1 else parts[0])


def _open(name: str, threads: int | None) -> Backend:
    if name == "auto":
        name = devices()[0].name
    if name == "cpu":
        return CpuBackend(threads)
    if name == "reference":
        return ReferenceBackend()
    if name == "null":
        return NullBackend()
    if found := _CARD.fullmatch(name):
        return cuda.CudaBackend(int(found[1] or 0))
    outside = plugins(threads)
    if name in outside:
        return outside[name]
    known = ", ".join(["auto", *(d.name for d in devices()), "null"])
    raise BackendError(f"device {name!r} is not in this build of riverrun; devices: {known}")


def is_card(name: str) -> bool:
    """Whether a device name is that of a CUDA device, there or not."""
    return _CARD.fullmatch(name) is not None


def free_bytes(name: str) -> int:
    """Bytes of memory that a CUDA device has free now. Raises BackendError for other devices."""
    if not (found := _CARD.fullmatch(name)):
        raise BackendError(f"device {name!r} has no memory of its own")
    cuda.cards()  # tells what is missing where there are none
    return cuda.free_bytes(int(found[1] or 0))
