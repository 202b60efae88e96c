"""Writes opmethods.pyi, which gives the builder's op methods their types.

`python -m riverrun.graph.stub` rewrites it; `--check` exits with 1 when it is out of date."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from .op import OPS, Op

STUB = Path(__file__).with_name("opmethods.pyi")


def _method(cls: type[Op]) -> str:
    parts = ["self"]
    for name in cls.inputs:
        if name.startswith("*"):
            parts.append(f"{name}: Value")
        elif name.endswith("?"):
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


def main() -> int:
    """Entry point."""
    import riverrun.ops  # noqa: F401

    text = generate()
    if "--check" in sys.argv:
        fresh = STUB.exists() and STUB.read_text() == text
        print("up to date" if fresh else f"{STUB.name} is out of date: make stub")
        return 0 if fresh else 1
    STUB.write_text(text)
    print(f"{STUB}: {len(OPS)} ops")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
