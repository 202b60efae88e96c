"""Writes graph/opmethods.pyi, which gives the builder's op methods their types.

`python -m riverrun.tools.gen_stub` in a checkout rewrites it; with --check it exits with 1 when
the file is out of date."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from ..graph.op import Op
from ..ops import OPS

STUB = Path("graph/opmethods.pyi")


def _method(cls: type[Op]) -> str:
    parts = ["self"]
    for name in cls.inputs:
        if name.endswith("?"):
            parts.append(f"{name[:-1]}: Value | None = ...")
        else:
            parts.append(f"{name}: Value")
    if not (cls.inputs and cls.inputs[-1].startswith("*")):
        parts.append("*")
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        default = "" if f.default is dataclasses.MISSING else " = ..."
        parts.append(f"{f.name}: {f.type}{default}")
    parts.append("name: str = ...")
    n = len(cls.outputs)
    result = "Value" if n == 1 else f"tuple[{', '.join(['Value'] * n)}]"
    return f"    def {cls.name}({', '.join(parts)}) -> {result}: ...\n"


def generate() -> str:
    """The stub's text for the registered ops."""
    head = "from .node import Value\n\nclass OpMethods:\n"
    return head + "".join(_method(OPS[name]) for name in sorted(OPS))


def main(arguments: list[str]) -> int:
    """Write or check; the exit code."""
    text = generate()
    if "--check" not in arguments:
        STUB.write_text(text)
        print(f"{STUB}: {len(OPS)} ops")
    elif not STUB.exists() or STUB.read_text() != text:
        print(f"{STUB} is out of date: make stub", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
