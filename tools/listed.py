"""Lists that pages hold by hand, with words of their own beside the names, against the registries
that they are of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from ..bench.type_support import weight_types
from ..models.architecture import architectures
from ..models.convert import OUTTYPES
from ..models.convert.family import families

README, CONVERTING = Path("README.md"), Path("docs/converting.md")


def faults(root: Path = Path()) -> list[str]:
    """What the pages below `root` list otherwise than it is, a line for each; pages that are not
    there list nothing."""
    found: list[str] = []
    for page, check in ((README, _readme), (CONVERTING, _converting)):
        path = root / page
        if path.is_file():
            found += (f"{page}: {fault}" for fault in check(path.read_text(encoding="utf-8")))
    return found


def _readme(text: str) -> Iterator[str]:
    """Rows of the table of what works: architectures in code marks, types of weights before the
    link."""
    named, _, _ = _row(text, "architectures").partition(";")
    yield from _compare("row of architectures", _codes(named), set(architectures()))
    types, _, _ = _row(text, "weights").partition(" (")
    known = {kind.name for kind in weight_types()}
    yield from _compare("row of weights", {t.lower() for t in types.split(", ") if t}, known)


def _converting(text: str) -> Iterator[str]:
    """The option of types, and the table of checkpoints: their names, and the files' architecture,
    one for each name of a row or one for all."""
    listed = _codes(_row(text, "`--outtype T`"))
    yield from _compare("types of --outtype", listed, set(OUTTYPES))
    rows: set[tuple[str, str]] = set()
    _, _, table = text.partition("\n## Which checkpoints\n")
    for line in re.findall(r"^\| (`.*)$", table.partition("\n## ")[0], re.M):
        names, files = (re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")[:2])
        each = len(names) == len(files)
        rows |= set(zip(names, files, strict=True) if each else product(names, files))
    wanted = {(name, family.arch) for family in families().values() for name in family.hf}
    yield from _compare("table of checkpoints", set(map(_arrow, rows)), set(map(_arrow, wanted)))


def _row(text: str, first: str) -> str:
    """The second cell of the row of a table whose first one is this, "" for none."""
    found = re.search(rf"^\| {re.escape(first)} \| (.*) \|$", text, re.M)
    return found[1] if found else ""


def _codes(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def _arrow(pair: tuple[str, str]) -> str:
    return f"{pair[0]} as {pair[1]}"


def _compare(what: str, listed: set[str], wanted: set[str]) -> Iterator[str]:
    for name in sorted(wanted - listed):
        yield f"{what} lacks {name}"
    for name in sorted(listed - wanted):
        yield f"{what} has {name}, which is not there"
