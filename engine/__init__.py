"""Run-time state: sessions, memory, sampling, generation."""

from .generate import Generation, Result
from .model import Model, load
from .sampler import Sampler, SamplerParams
from .session import Pass, Session

__all__ = ["Generation", "Model", "Pass", "Result", "Sampler", "SamplerParams", "Session", "load"]
