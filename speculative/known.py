"""The drafters that can be named."""

from __future__ import annotations

from ..graph import plugins
from .drafter import DRAFTERS, scan_drafters


def known_drafters() -> list[str]:
    """The names of all drafters, those of other packages included, in the order in which they are
    asked. Raises what `load_plugins` raises."""
    scan_drafters()
    plugins.load_plugins(plugins.DRAFTERS)
    return sorted(DRAFTERS, key=lambda name: DRAFTERS[name].priority)
