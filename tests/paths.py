"""Where tests find data that does not live in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "api" / "riverrun" / "data" / "riverrun-demo-q8_0.gguf"
_shared = ROOT.parent / "shared"
SHARED: Path | None = _shared if _shared.is_dir() else None


def shared(*parts: str) -> Path:
    """The path of a shared file; skips the running test where it is absent."""
    path = (SHARED or _shared).joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared file {'/'.join(parts)} is not beside this checkout")
    return path
