"""Calls into drafters, which may be anybody's code."""

from __future__ import annotations

from typing import Any

from ..graph.errors import DrafterError, RiverrunError
from .drafter import Drafter


def call(drafter: Drafter, method: str, *arguments: Any) -> Any:
    """What the method of the drafter returns. Exceptions that are not this package's own become
    DrafterError, which names the drafter and the method."""
    try:
        return getattr(drafter, method)(*arguments)
    except (RiverrunError, MemoryError):
        raise
    except Exception as error:
        raise DrafterError(
            f"drafter {drafter.name!r}: {method} raised {type(error).__name__}: {error}"
        ) from error
