"""What all endpoints share: options, models, metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from ..engine import SamplerParams
from ..engine.engine import Engine
from .logs import log
from .metrics import Metrics
from .options import ServerOptions
from .store import ModelStore

_SWEEP = 1.0  # seconds between looks at models that nobody uses


class Service:
    """Made before the event loop, opened on it. defaults: sampling of requests that do not say."""

    def __init__(
        self,
        options: ServerOptions,
        load: Callable[[Path], Engine],
        main: Path | None,
        defaults: SamplerParams | None = None,
    ) -> None:
        """load: opens a model file and makes its engine; main: the model that stays loaded."""
        self.options, self.defaults = options, defaults or SamplerParams()
        self.metrics = Metrics()
        self.store = ModelStore(options, load, main, self.metrics)
        self._main = main
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Load the main model, and begin to look after the others. Raises what loading raises."""
        if self._main is not None:
            (await self.store.get(None)).users -= 1
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Free all models."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeping
        await self.store.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            try:
                await self.store.unload_old()
            except Exception as error:
                log("a model could not be freed", error=f"{type(error).__name__}: {error}")
