"""The demo model, loaded once per device and file type."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import riverrun as rr
from paths import DATA, DEMO, shared

PROMPTS = {p["name"]: p for p in json.loads((DATA / "golden.json").read_text())["prompts"]}


@cache
def _load(path: Path, device: str, threads: int | None) -> rr.Model:
    return rr.load(path, device=device, threads=threads)


def demo(device: str = "cpu", kind: str = "q8_0", threads: int | None = None) -> rr.Model:
    """The target model; skips the running test where the file is not there."""
    path = DEMO if kind == "q8_0" else shared("models", f"riverrun-demo-{kind}.gguf")
    return _load(path, device, threads)
