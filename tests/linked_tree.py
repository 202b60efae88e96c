"""A package of links to the checkout, in which files can be added or replaced."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from paths import ROOT
from riverrun import _cpu


def make_tree(top: Path, files: Mapping[str, str]) -> Path:
    """The package riverrun under `top`, which is given back. files: path in the checkout -> text;
    the folders that these lie in are folders of links, all else is linked whole."""
    package = top / "riverrun"
    subprocess.run([ROOT / "tools" / "dev_tree.sh", top], check=True)
    compiled = package / Path(_cpu.__file__).name
    if not compiled.exists():
        compiled.symlink_to(_cpu.__file__)
    for place, text in files.items():
        for folder in list(Path(place).parents)[-2::-1]:
            _unlink(package / folder, ROOT / folder)
        (package / place).unlink(missing_ok=True)
        (package / place).write_text(text)
    return top


def _unlink(folder: Path, original: Path) -> None:
    """Make a linked folder one of links."""
    if not folder.is_symlink():
        return
    folder.unlink()
    folder.mkdir()
    for path in original.iterdir():
        if path.name != "__pycache__":
            (folder / path.name).symlink_to(path)
