"""Every public name of `riverrun` but its version and the path of the demo model.

Apart from the package's own file, which imports this one when the first of these names is used, so
that the command can start without them."""

from . import ops
from .backends import devices
from .compiling import compile
from .engine import Generation, Model, Result, SamplerParams, Session, load
from .graph import Graph, errors
from .speculative import Speculation

__all__ = [
    "Generation",
    "Graph",
    "Model",
    "Result",
    "SamplerParams",
    "Session",
    "Speculation",
    "compile",
    "devices",
    "errors",
    "load",
    "ops",
]
