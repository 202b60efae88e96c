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

from importlib import import_module as _import_module
from pathlib import Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from .public import (
        Engine,
        Generation,
        Graph,
        Inspection,
        Model,
        Request,
        Result,
        SamplerParams,
        Session,
        Speculation,
        compile,
        devices,
        errors,
        inspect,
        load,
        ops,
    )

    __version__: str

DEMO_MODEL = Path(__file__).parent / "data" / "riverrun-demo-q8_0.gguf"

__all__ = [
    "DEMO_MODEL",
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
    "__version__",
    "compile",
    "devices",
    "errors",
    "inspect",
    "load",
    "ops",
]

_PACKAGES = ("backends", "bench", "engine", "graph", "models", "ops", "speculative")


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("riverrun")
    except PackageNotFoundError:
        return "0+uninstalled"


def _on_first_use(name: str) -> object:
    """A public name, imported when it is first asked for."""
    found: object
    if name == "__version__":
        found = _installed_version()
    elif name in _PACKAGES:
        found = _import_module(f".{name}", __name__)
    elif name in __all__:
        found = getattr(_import_module(".public", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, found)


if not _TYPE_CHECKING:
    # Hidden from type checkers, to which it would give every name.
    __getattr__ = _on_first_use
