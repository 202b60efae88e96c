"""What other packages add: ops, drafters and the like, named by entry points.

A package whose pyproject.toml has

    [project.entry-points."riverrun.drafters"]
    mine = "my_package.drafter"

has that module imported, and with it registered what it defines, when such names are looked for."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from .errors import RequestError

OPS, DRAFTERS = "riverrun.ops", "riverrun.drafters"


@cache
def load_plugins(group: str) -> tuple[str, ...]:
    """Import what the installed packages name in this group of entry points, once; the names.

    Raises RequestError naming the entry point whose module cannot be imported."""
    found = sorted(entry_points(group=group), key=lambda entry: entry.name)
    for entry in found:
        try:
            entry.load()
        except Exception as error:
            raise RequestError(
                f"entry point {entry.name!r} of {group} ({entry.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}; repair or uninstall its package"
            ) from error
    return tuple(entry.name for entry in found)
