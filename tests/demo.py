"""The demo model, loaded once per device and file type."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import riverrun as rr
from own_share import all_processors
from paths import DATA, DEMO, SHARED, shared
from shortened import shorten

PROMPTS = {p["name"]: p for p in json.loads((DATA / "golden.json").read_text())["prompts"]}


@cache
def _load(path: Path, device: str, threads: int | None) -> rr.Model:
    with all_processors() if threads else nullcontext():
        return rr.load(path, device=device, threads=threads)


_files = tempfile.TemporaryDirectory()
DRAFT = "draft-q8_0"
# Layers of the demo model that draft where its own draft model is not beside the checkout: of the
# drafts of 8 a quarter is right, so that both outcomes are seen.
DRAFT_LAYERS = 8


@cache
def draft_file() -> Path:
    """A model that drafts for the demo model: its own, or the first layers of it."""
    if SHARED is not None:
        return shared("models", f"riverrun-demo-{DRAFT}.gguf")
    return shorten(DEMO, Path(_files.name, "draft.gguf"), DRAFT_LAYERS)


def loaded_once(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """`riverrun.load` gives the model of this process for the demo's file, whose plans are then
    compiled once."""
    load, model = rr.load, demo(device)

    def cached(path: Path, *arguments: Any, **options: Any) -> rr.Model:
        return model if path == DEMO else load(path, *arguments, **options)

    monkeypatch.setattr(rr, "load", cached)


def demo(device: str = "cpu", kind: str = "q8_0", threads: int | None = None) -> rr.Model:
    """The target model; skips the running test where the file is not there."""
    if kind == DRAFT:
        return _load(draft_file(), device, threads)
    path = DEMO if kind == "q8_0" else shared("models", f"riverrun-demo-{kind}.gguf")
    return _load(path, device, threads)
