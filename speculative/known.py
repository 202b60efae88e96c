"""What can be named: drafters, and rules of acceptance."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ..graph import plugins
from .drafter import DRAFTERS, scan_drafters

MATCH, REJECTION = "match", "rejection"  # acceptance.py says what they are


def known_drafters() -> list[str]:
    """The names of all drafters, those of other packages included, in the order in which they are
    asked. Those of this folder are read and not imported, since a list of names, such as in help,
    needs nothing that they import. Raises what `load_plugins` raises."""
    try:
        found = dict(declared_drafters(Path(__file__).parent))
    except (KeyError, ValueError):
        scan_drafters()
        found = {}
    plugins.load_plugins(plugins.DRAFTERS)
    found |= {name: drafter.priority for name, drafter in DRAFTERS.items()}
    return sorted(found, key=lambda name: found[name])


def declared_drafters(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and priority of each class under @register_drafter in the files of a folder. Raises
    ValueError or KeyError where they are no literals of the class."""
    for path in sorted(folder.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "\n@register_drafter" not in source:
            continue
        for each in ast.parse(source).body:
            if isinstance(each, ast.ClassDef) and "register_drafter" in map(
                ast.unparse, each.decorator_list
            ):
                fields = dict(_fields(each))
                yield ast.literal_eval(fields["name"]), ast.literal_eval(fields["priority"])


def _fields(each: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """What the body of a class assigns to which names, as in `name, priority = "mine", 60`."""
    for node in each.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(map(ast.unparse, target.elts), value.elts, strict=True)
            else:
                yield ast.unparse(target), value
