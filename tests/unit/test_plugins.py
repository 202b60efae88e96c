"""Drafters and ops of an installed package, named by its entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli import DEVICE, LIMIT
from pages import blocks
from paths import DEMO

DRAFTER = '''
from riverrun.speculative import Draft, Drafter, register_drafter


@register_drafter
class Parrot(Drafter):
    """Guesses that the newest token comes again."""

    name, priority, default_max = "parrot", 5, 2

    def draft(self, asks):
        return [Draft([ask.context[-1]] * min(2, ask.limit)) for ask in asks]

    def clear(self, seq):
        pass
'''
ENTRIES = """[riverrun.drafters]
parrot = their_drafter

[riverrun.ops]
leaky_relu = their_op
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a package with one drafter and one op is installed."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "their_drafter.py").write_text(DRAFTER)
    source = blocks("docs/adding-an-op.md", "python")[0]
    (folder / "their_op.py").write_text(source.replace("from ..graph", "from riverrun.graph"))
    info = folder / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    return folder


def run(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command, with that folder among those of packages."""
    path = os.pathsep.join([str(site), *(p for p in sys.path if p)])
    return subprocess.run(
        [sys.executable, "-m", "riverrun", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )


def test_a_drafter_is_listed_and_drafts(site: Path) -> None:
    assert "Drafters: parrot, ngram-simple," in run(site, "run", "--help").stdout
    arguments = ("-p", "def ", "-n", 12, "--temp", 0, "--device", DEVICE, "--json")
    done = run(site, "run", DEMO, *arguments, "--spec", "parrot", "--no-adaptive")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["timings"]["draft_n"] > 0
    assert found["tokens"] == json.loads(run(site, "run", DEMO, *arguments).stdout)["tokens"]


def test_an_op_is_tested_by_its_name(site: Path) -> None:
    done = run(site, "test-ops", "--op", "leaky_relu", "--backend", "reference")
    assert done.returncode == 0, done.stderr
    assert "6 passed, 0 failed, 0 refused, 1 ops" in done.stdout


def test_a_package_that_cannot_be_imported_is_named(site: Path, tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[riverrun.ops]\nmine = no_such_module\n")
    done = run(tmp_path, "test-ops", "--op", "add")
    assert done.returncode == 1 and len(done.stderr.splitlines()) <= 3
    assert "entry point 'mine' of riverrun.ops (no_such_module) cannot be loaded" in done.stderr
