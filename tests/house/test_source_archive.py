"""The source archive: what its pages link to is in it, and it holds what an install needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from paths import ROOT

BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
FRONT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the archive, unpacked."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("archive")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("riverrun-*.tar.gz")
    with tarfile.open(made) as tar:
        tar.extractall(folder, filter="data")
    (top,) = [path for path in folder.iterdir() if path.is_dir()]
    return top


@pytest.fixture(scope="module")
def described(archive: Path) -> Message:
    """What the package index shows."""
    return Parser().parsestr((archive / "PKG-INFO").read_text())


def anchors(page: Path) -> set[str]:
    """The places of a page that links can name: its headings as they are written in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken(archive: Path) -> list[str]:
    """Links between pages of the archive that lead nowhere."""
    found = []
    for page in sorted(archive.rglob("*.md")):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            inside = archive.resolve() in target.resolve().parents
            if not inside or not target.exists() or (anchor and anchor not in anchors(target)):
                found.append(f"{page.relative_to(archive)}: {link}")
    return found


def test_pages_link_to_what_is_there(archive: Path) -> None:
    assert all((archive / name).is_file() for name in FRONT)
    assert len(list((archive / "docs").glob("*.md"))) == len(list((ROOT / "docs").glob("*.md")))
    assert broken(archive) == []


def test_a_broken_link_is_found(archive: Path) -> None:
    page = archive / "odd.md"
    page.write_text("# A b\n[a](#a-b) [b](gone.md) [c](README.md#gone) [d](../x.md) [e](docs)")
    try:
        assert broken(archive) == [f"odd.md: {x}" for x in ("gone.md", "README.md#gone", "../x.md")]
    finally:
        page.unlink()


def test_everything_that_git_holds_but_tests_is_there(archive: Path) -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git checkout, whose files the archive's are compared with")
    held = [p for p in done.stdout.splitlines() if not p.startswith(("tests/", ".ci/"))]
    assert len(held) > 500 and [p for p in held if not (archive / p).exists()] == []
    packed = {str(Path(d, f).relative_to(archive)) for d, _, fs in os.walk(archive) for f in fs}
    assert not [p for p in packed if p.split("/")[0] in ("tests", "build", ".dev", ".git", ".venv")]


def test_the_index_shows_the_readme(described: Message) -> None:
    assert described["Description-Content-Type"] == "text/markdown"
    assert described.get_payload().strip() == (ROOT / "README.md").read_text().strip()  # type: ignore[union-attr]
    assert described["License"].startswith("MIT License") and described["Summary"]
    kinds = {line.split(" :: ")[0] for line in described.get_all("Classifier") or []}
    wanted = {"Development Status", "Intended Audience", "License", "Operating System", "Topic"}
    assert wanted | {"Programming Language", "Typing"} <= kinds
