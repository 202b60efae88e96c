"""Run-time state: sessions, memory, sampling, requests, and the engine that steps them."""

from .engine import Engine, Event
from .generate import Generation
from .inspection import Inspection, inspect
from .loading import load
from .model import Model
from .request import Request, Result
from .rows import Pass
from .sampler import Sampler, SamplerParams
from .session import Session

__all__ = [
    "Engine",
    "Event",
    "Generation",
    "Inspection",
    "Model",
    "Pass",
    "Request",
    "Result",
    "Sampler",
    "SamplerParams",
    "Session",
    "inspect",
    "load",
]
