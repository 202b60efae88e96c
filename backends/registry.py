"""The devices that can be asked for by name."""

from __future__ import annotations

import platform
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from ..graph.errors import BackendError, RequestError
from . import cuda
from .array import cupy_backend, has_cupy
from .base import Backend
from .cpu import CpuBackend, instruction_sets
from .debug import watched
from .null import NullBackend
from .plugin import Source, find_plugin, sources
from .processors import default_threads
from .reference import ReferenceBackend
from .scheduler import SplitBackend

_CARD = re.compile(r"cuda(?::(\d+))?")


@dataclass(frozen=True)
class Device:
    """A device that this build and this machine have. usable: models can run on it; where they
    cannot, the description says why."""

    name: str
    description: str
    usable: bool = True


def devices() -> list[Device]:
    """Every device, those that models can run on first, and of these the best first."""
    found = [*_preferred(), *_others()]
    return sorted(found, key=lambda device: not device.usable)


def _preferred() -> list[Device]:
    """What "auto" chooses from, best first: cards, then the processor. Emulated cards are for
    tests: they are taken only when they are named."""
    isa = instruction_sets()[-1]
    cpu = f"{platform.machine()}, {isa} kernels, {default_threads()} threads by default"
    return [*([] if cuda.emulated() else _cards()), Device("cpu", cpu)]


def _others() -> Iterator[Device]:
    yield Device("reference", "numpy, slow, right by definition")
    if has_cupy():
        yield Device("cupy", "the reference with cupy's arrays, slow, for checking kernels")
    if cuda.emulated():
        yield from _cards()
    yield from map(_outside, sources())


def _cards() -> list[Device]:
    """CUDA devices; none where the build or the machine has none."""
    try:
        found = cuda.cards() if cuda.built() else []
    except BackendError:
        return []
    return [_card(cuda.name_of(i), card) for i, card in enumerate(found)]


def _card(name: str, card: cuda.Facts) -> Device:
    if refusal := cuda.refusal(card):
        return Device(name, f"refused: {refusal}", usable=False)
    return Device(name, cuda.describe(card))


def _outside(source: Source) -> Device:
    """A plug-in's device; one that cannot serve is listed with its reason."""
    try:
        plugin = source.open(threads=1)
    except BackendError as error:
        return Device(source.label, f"refused: {error}", usable=False)
    return Device(plugin.name, f"{plugin.description} ({plugin.path})".strip())


def automatic() -> str:
    """The name of the device that "auto" stands for: the first one that opens of the cards and the
    processor. Warns in one line of those before it, which do not."""
    passed: list[str] = []
    for device in _preferred():
        why = "" if device.usable else device.description.removeprefix("refused: ")
        if not why and is_card(device.name):
            try:
                free_bytes(device.name)
            except BackendError as error:
                why = str(error)
        if why:
            passed.append(f"{device.name} cannot be used ({why})")
            continue
        if passed:
            warnings.warn(f"{'; '.join(passed)}: taking {device.name}", stacklevel=2)
        return device.name
    raise BackendError("no device can be used")


def names_of(device: str) -> list[str]:
    """The names in a device's, which may be several with commas between; "auto" is resolved.

    Raises RequestError for what is no text."""
    if not isinstance(device, str):
        raise RequestError(
            f"device should be a name such as 'auto' or 'cpu', got {type(device).__name__}; "
            f"devices: {_known()}"
        )
    names = [part.strip() for part in device.split(",")]
    return [automatic() if name == "auto" else name for name in names]


def canonical(name: str) -> str:
    """The name by which `devices` lists a device: "cuda" for "cuda:0"."""
    found = _CARD.fullmatch(name)
    return cuda.name_of(int(found[1] or 0)) if found else name


def usable_names() -> list[str]:
    """The names of the devices that models can run on."""
    return [device.name for device in devices() if device.usable]


def _known() -> str:
    return ", ".join(["auto", *usable_names()])


def open_backend(name: str = "auto", threads: int | None = None) -> Backend:
    """The backend of a device name; "auto" takes the best. Several names with commas between them
    make one backend that splits graphs over those devices, earlier ones first; "null" computes
    nothing, for tests. RIVERRUN_DEBUG has it report what it does. Raises BackendError for unknown
    names, RequestError for what is no name."""
    parts = [_open(part, threads) for part in names_of(name)]
    return watched(SplitBackend(parts) if len(parts) > 1 else parts[0])


def _open(name: str, threads: int | None) -> Backend:
    if name == "cpu":
        return CpuBackend(threads)
    if name == "reference":
        return ReferenceBackend()
    if name == "cupy":
        return cupy_backend()
    if name == "null":
        return NullBackend()
    if found := _CARD.fullmatch(name):
        return cuda.CudaBackend(int(found[1] or 0))
    if outside := find_plugin(name, threads):
        return outside
    refused = [d.description for d in devices() if not d.usable and not is_card(d.name)]
    raise BackendError(
        f"device {name!r} is not in this build of riverrun; devices: {_known()}"
        + "".join(f"; {reason}" for reason in refused)
    )


def is_card(name: str) -> bool:
    """Whether a device name is that of a CUDA device, there or not."""
    return _CARD.fullmatch(name) is not None


def free_bytes(name: str) -> int:
    """Bytes of memory that a CUDA device has free now. Raises BackendError for other devices."""
    if not (found := _CARD.fullmatch(name)):
        raise BackendError(f"device {name!r} has no memory of its own")
    cuda.cards()  # says what is missing where there are none
    return cuda.free_bytes(int(found[1] or 0))
