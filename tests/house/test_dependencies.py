"""What an install brings along is used, and what is used is brought along."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

PACKAGES = ("api", "graph", "ops", "backends", "models", "engine", "speculative", "server")
PACKAGES += ("bench", "tools")
# Where a distribution's name is not that of its module.
MODULES = {"ik-llama-cpp-python": "ik_llama_cpp", "protobuf": "google"}
# What a user has for other reasons, and riverrun uses where it is there.
OPTIONAL = {"cupy", "llama_cpp"}
# Read by type checkers alone, which bring it along.
OPTIONAL |= {"typing_extensions"}
PROJECT = (ROOT / "pyproject.toml").read_text()


def required(text: str) -> set[str]:
    """The modules of the requirements in a piece of the project file."""
    names = re.findall(r'"([A-Za-z0-9_-]+)[^"]*"', text)
    return {MODULES.get(n, n.replace("-", "_")) for n in names}


def imported(path: Path) -> Iterator[str]:
    """The top modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


_, AFTER = PROJECT.split("\ndependencies = [", 1)
CORE = required(AFTER.split("]", 1)[0])
EXTRAS = required(AFTER.split("[project.optional-dependencies]", 1)[1].split("\n[", 1)[0])
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
OUTSIDE = {name for path in FILES for name in imported(path)} - {"riverrun"}
OUTSIDE -= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", sorted(CORE))
def test_each_dependency_is_imported(module: str) -> None:
    assert module in OUTSIDE


@pytest.mark.parametrize("module", sorted(OUTSIDE))
def test_each_import_is_a_dependency(module: str) -> None:
    assert module in CORE | EXTRAS | OPTIONAL


def test_the_lists_are_read() -> None:
    assert {"numpy", "tokenizers"} <= CORE and {"pytest", "cffi"} <= EXTRAS
