"""Every public name of `riverrun` but its version and the path of the demo model.

Apart from the package's own file, which imports this one when the first of these names is used, so
that the command can start without them."""

from . import errors, ops
from .backends import devices
from .compiling import compile
from .engine import (
    Engine,
    Generation,
    Inspection,
    Model,
    Request,
    Result,
    SamplerParams,
    Session,
    inspect,
)
from .graph import Graph
from .loading import load
from .speculative import Speculation

__all__ = [
    "Engine",
    "Generation",
    "Graph",
    "Inspection",
    "Model",
    "Request",
    "Result",
    "SamplerParams",
    "Session",
    "Speculation",
    "compile",
    "devices",
    "errors",
    "inspect",
    "load",
    "ops",
]
