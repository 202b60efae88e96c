"""Packages whose names are imported when they are used: the same names for programs and for type
checkers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from paths import ROOT
from riverrun.engine import embedding, embedding_options
from riverrun.engine.memory import ROLLBACKS, STRATEGIES
from riverrun.graph.late import LatePackage
from riverrun.speculative.acceptance import RULES
from riverrun.speculative.drafter import DRAFTERS, scan_drafters
from riverrun.speculative.known import MATCH, REJECTION, declared_drafters, known_drafters

PACKAGES = ("graph", "models", "engine", "engine.memory", "engine.sampler", "speculative")


@pytest.mark.parametrize("name", PACKAGES)
def test_names_are_those_that_type_checkers_see(name: str) -> None:
    package = import_module(f"riverrun.{name}")
    assert isinstance(package, LatePackage)
    tree = ast.parse((ROOT / name.replace(".", "/") / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: "." * node.level + (node.module or "")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == package.__homes__
    assert package.__all__ == sorted(seen) and set(seen) <= set(dir(package))
    for each, home in seen.items():
        assert getattr(package, each) is getattr(import_module(home, package.__name__), each)


def test_a_module_does_not_hide_the_function_of_its_name() -> None:
    code = (
        "import riverrun.graph.verify, riverrun.graph.dtype; from riverrun.graph import dtype;"
        "import riverrun.graph as g; print(callable(g.verify), callable(dtype), g.memory.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True
    )
    assert done.stdout == "True True riverrun.graph.memory\n", done.stderr


def test_a_name_that_is_not_there() -> None:
    package = import_module("riverrun.engine")
    with pytest.raises(
        AttributeError, match=r"module 'riverrun.engine' has no attribute 'engines'"
    ):
        _ = package.engines


def test_codecs_are_there_when_one_is_looked_for() -> None:
    code = (
        "import sys, riverrun.models.gguf; from riverrun.graph.dtype import dtype;"
        "from riverrun.graph.codec import has_codec;"
        "late = 'riverrun.models.quant' not in sys.modules;"
        "print(late, has_codec(dtype('q4_k')), has_codec(dtype('bf16')), has_codec(dtype('i64')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True
    )
    assert done.stdout == "True True True True\n", done.stderr


def test_names_in_help_are_those_of_what_does_the_work() -> None:
    assert ("auto", *STRATEGIES, "checkpoint") == ROLLBACKS
    assert tuple(embedding.POOLINGS) == embedding_options.KINDS
    assert tuple(RULES) == (MATCH, REJECTION)


def test_drafters_that_are_read_are_those_that_register_themselves() -> None:
    read = dict(declared_drafters(ROOT / "speculative"))
    scan_drafters()
    own = {n: d.priority for n, d in DRAFTERS.items() if d.__module__.startswith("riverrun.")}
    assert read == own
    assert set(read) <= set(known_drafters())


def test_drafters_that_cannot_be_read_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = known_drafters()
    monkeypatch.setattr("riverrun.speculative.known.ast.parse", lambda _: ast.Module([UNREAD], []))
    assert known_drafters() == wanted


UNREAD = ast.parse("@register_drafter\nclass Mine(Drafter):\n    name, priority = title(), 3").body[
    0
]


def test_a_drafter_without_literals_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import this_is_not_imported\n\n" + ast.unparse(UNREAD))
    with pytest.raises(ValueError, match="malformed node"):
        dict(declared_drafters(tmp_path))
    (tmp_path / "mine.py").write_text(
        "import this_is_not_imported\n\n@register_drafter\nclass Mine(Other):\n    name = 'mine'\n"
    )
    with pytest.raises(KeyError, match="priority"):
        dict(declared_drafters(tmp_path))
