"""Writes tests/cuda/support.json: what the CUDA backend takes, which docs/support.md shows and
tests/cuda keeps.

`python -m riverrun.tools.gen_cuda_support` in a checkout, of a build with CUDA kernels or with
emulated ones, rewrites it; with --check it exits with 1 when it is out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..backends import open_backend
from ..bench.support import facts
from ..graph.errors import BackendError
from .generated import write_or_check

RECORD = Path("tests/cuda/support.json")


def stored() -> dict[str, Any]:
    """The facts in the checkout."""
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


def main(arguments: list[str]) -> int:
    """Write or check the record; the exit code."""
    try:
        backend = open_backend("cuda")
    except BackendError as error:
        print(error, file=sys.stderr)
        return 1
    text = json.dumps(facts(backend), indent=1) + "\n"
    return write_or_check(RECORD, text, "what cuda takes", "make support-cuda", arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
