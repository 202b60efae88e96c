"""What a backend takes, as the facts that the page of support shows and that tests keep."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..backends import Backend
from ..models.architecture import architectures
from .architecture_support import memory_types, taken
from .type_support import refusals, weight_types

# Whose attention memory stands for that of all.
PLAIN = "llama"


def facts(backend: Backend) -> dict[str, Any]:
    """JSON of what a backend takes: of every architecture in the shape of a published model, of
    every type of weights the ops that it does not take, and of attention memory the types."""
    known = architectures()
    return {
        "architectures": {name: asdict(taken(arch, backend)) for name, arch in known.items()},
        "weights": {kind.name: refusals(kind, backend) for kind in weight_types()},
        "memory": memory_types(known[PLAIN], backend),
    }
