"""The drafters that can be named."""

from __future__ import annotations

import importlib
import pkgutil

from ..graph import plugins
from .drafter import DRAFTERS


def known_drafters() -> list[str]:
    """The names of all drafters, those of other packages included, in the order in which they are
    asked. Raises what `load_plugins` raises."""
    from .. import speculative

    for info in sorted(pkgutil.iter_modules(speculative.__path__), key=lambda m: m.name):
        importlib.import_module(f"{speculative.__name__}.{info.name}")
    plugins.load_plugins(plugins.DRAFTERS)
    return sorted(DRAFTERS, key=lambda name: DRAFTERS[name].priority)
