"""Run-time state: sessions, memory, sampling, requests, and the engine that steps them."""

from typing import TYPE_CHECKING

from ..graph.late import late_names

if TYPE_CHECKING:
    from .engine import Engine
    from .event import Event
    from .generate import Generation
    from .inspection import Inspection, inspect
    from .loading import load
    from .model import Model
    from .request import Request
    from .result import Result
    from .rows import Pass
    from .sampler import Sampler, SamplerParams
    from .session import Session

__all__ = late_names(
    __name__,
    {
        ".engine": "Engine",
        ".event": "Event",
        ".generate": "Generation",
        ".inspection": "Inspection inspect",
        ".loading": "load",
        ".model": "Model",
        ".request": "Request",
        ".result": "Result",
        ".rows": "Pass",
        ".sampler": "Sampler SamplerParams",
        ".session": "Session",
    },
)
