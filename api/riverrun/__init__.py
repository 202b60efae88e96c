"""riverrun: a static tensor-graph runtime for language models.

import riverrun as rr

model = rr.load("model.gguf")
for piece in model.generate("def quicksort(", max_tokens=64, temperature=0):
    print(piece, end="")

g = rr.Graph()
x = g.input("x", (4, 256))
y = g.rms_norm(x, g.constant(w), eps=1e-6)
plan = rr.compile(g, y, device="cpu")
plan(x=array)
"""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from pathlib import Path

from . import errors, ops
from .backends import devices
from .compiling import compile
from .engine import Engine, Generation, Model, Request, Result, SamplerParams, Session
from .graph import Graph
from .loading import load
from .speculative import Speculation

try:
    __version__ = _version("riverrun")
except _NotInstalled:
    __version__ = "0+uninstalled"

DEMO_MODEL = Path(__file__).parent / "data" / "riverrun-demo-q8_0.gguf"

__all__ = [
    "DEMO_MODEL",
    "Engine",
    "Generation",
    "Graph",
    "Model",
    "Request",
    "Result",
    "SamplerParams",
    "Session",
    "Speculation",
    "__version__",
    "compile",
    "devices",
    "errors",
    "load",
    "ops",
]
