"""The models of a server by name: loaded when a request names them, unloaded when nobody does."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..engine.engine import Engine
from .failures import ApiError, overloaded
from .logs import log
from .long_lived import gone, made
from .metrics import Metrics
from .options import ServerOptions
from .served import Served

# Of a model in several files the first has this ending, the others have none of their own.
_LATER_SHARD = re.compile(r"-(?!00001-of-)\d{5}-of-\d{5}$")
_FIRST_SHARD = re.compile(r"-00001-of-\d{5}$")
NEEDED = 1.2  # times its file's size that a model takes at least


@dataclass(frozen=True)
class Known:
    """A model that can be named. path: its file; fixed: it stays loaded."""

    name: str
    path: Path
    fixed: bool = False

    @property
    def modified(self) -> float:
        """When its file was written, in seconds since 1970."""
        return self.path.stat().st_mtime

    @property
    def size(self) -> int:
        """Bytes of its file."""
        return self.path.stat().st_size


def named_in(folder: Path) -> dict[str, Known]:
    """The models of a folder by name, which is their file's without its ending."""
    found = {}
    for path in sorted(folder.glob("*.gguf")):
        if not _LATER_SHARD.search(path.stem) and not path.stem.startswith("mmproj"):
            name = _FIRST_SHARD.sub("", path.stem)
            found[name] = Known(name, path)
    return found


class ModelStore:
    """What can be named, and what of it is loaded. Used on one event loop.

    load: opens a file and makes its engine; called on a thread. Loads one model at a time."""

    def __init__(
        self,
        options: ServerOptions,
        load: Callable[[Path], Engine],
        main: Path | None,
        metrics: Metrics,
    ) -> None:
        """main: the file of the model that stays loaded, and that requests without a name mean."""
        self.options, self._load, self._metrics = options, load, metrics
        self._main: Known | None = None
        if main is not None:
            name = options.alias or _FIRST_SHARD.sub("", main.stem)
            self._main = Known(name, main, True)
        self._served: dict[str, Served] = {}
        self._loading = asyncio.Lock()  # bound to a loop when it is first waited for

    @property
    def known(self) -> dict[str, Known]:
        """What can be named, by name; the folder is read each time."""
        found = {self._main.name: self._main} if self._main else {}
        if self.options.models is not None:
            found = {**named_in(self.options.models), **found}
        return found

    @property
    def loaded(self) -> Sequence[Served]:
        """The models that are loaded."""
        return list(self._served.values())

    def of(self, name: str) -> Served | None:
        """A model, if it is loaded."""
        return self._served.get(name)

    def find(self, asked: str | None) -> Known:
        """The model that a request means. Raises ApiError for a name that there is not."""
        known = self.known
        if not asked or asked == "default":
            if self._main is not None:
                return self._main
            if len(known) == 1:
                return next(iter(known.values()))
            raise ApiError(400, f"model: name one of {_listed(known)}", param="model")
        for name in (asked, asked.removesuffix(":latest"), asked.removesuffix(".gguf")):
            if name in known:
                return known[name]
            if self._main is not None and name in (self._main.path.name, self._main.path.stem):
                return self._main
        raise ApiError(
            404,
            f"model: there is no {asked!r} here; there is {_listed(known)}",
            "not_found_error",
            param="model",
            code="model_not_found",
        )

    async def get(self, asked: str | None) -> Served:
        """The model that a request means, loaded. Raises ApiError, and what loading raises."""
        found = self.find(asked)
        async with self._loading:
            served = self._served.get(found.name)
            if served is None:
                if not found.fixed:
                    await self._make_room(found)
                served = self._served[found.name] = await self._open(found)
        served.last_used = time.monotonic()
        served.users += 1
        return served

    async def unload(self, served: Served) -> None:
        """Free a model."""
        self._served.pop(served.name, None)
        await asyncio.to_thread(served.close)
        await asyncio.to_thread(gone)
        log("unloaded", model=served.name)

    async def unload_old(self) -> None:
        """Free those that nobody has used for as long as they are to stay."""
        async with self._loading:
            now = time.monotonic()
            for served in self._idle():
                stay = served.keep_alive
                stay = self.options.keep_alive if stay is None else stay
                if 0 <= stay <= now - served.last_used:
                    await self.unload(served)

    async def close(self) -> None:
        """Free all."""
        async with self._loading:
            for served in self.loaded:
                await self.unload(served)

    async def _open(self, known: Known) -> Served:
        began = time.monotonic()
        engine = await asyncio.to_thread(self._load, known.path)
        await asyncio.to_thread(made)
        log("loaded", model=known.name, seconds=round(time.monotonic() - began, 2))
        o = self.options
        return Served(known.name, engine, o.queue, o.timeout, self._metrics)

    async def _make_room(self, wanted: Known) -> None:
        """Free those unused for longest while there are too many, or memory is short. Raises
        ApiError while others are in use."""
        while True:
            others = [s for s in self.loaded if s.name != (self._main and self._main.name)]
            crowded = len(others) >= self.options.max_models
            if not crowded and available_bytes() >= NEEDED * wanted.size:
                return
            idle = self._idle()
            if idle:
                await self.unload(idle[0])
            elif crowded:
                raise overloaded(f"{len(others)} other models are loaded and in use; come back", 5)
            else:
                return

    def _idle(self) -> list[Served]:
        """Models that may go, the one unused for longest first."""
        fixed = self._main and self._main.name
        idle = [s for s in self.loaded if s.name != fixed and not s.busy and not s.users]
        return sorted(idle, key=lambda served: served.last_used)


def available_bytes() -> int:
    """Memory that can be had without swapping, in bytes; where that is not told, a large number."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":") for line in lines)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return 1 << 62


def _listed(known: dict[str, Known]) -> str:
    names = ", ".join(sorted(known)[:20])
    return names or "none"
