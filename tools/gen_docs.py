"""Writes docs/ops.md from the registry of ops and the table of kernels, docs/options.md from the
options of the commands, and docs/support.md (support_docs.py); checks what pages list by hand
(listed.py).

`python -m riverrun.tools.gen_docs` in a checkout rewrites them; with --check it exits with 1 when
one is out of date. The kernels are those of an x86-64 build, which has the most levels."""

from __future__ import annotations

import dataclasses
import inspect
import platform
import sys
from pathlib import Path

from .. import _cpu
from ..backends import open_backend
from ..bench.op_support import support_table
from ..graph.case import op_cases
from ..graph.errors import RiverrunError
from ..graph.op import Op
from ..models.architecture import architectures
from ..ops import OPS
from . import listed, option_docs, support_docs
from .dispatch import COMMANDS
from .generated import write_or_check

PAGE = Path("docs/ops.md")
HEAD = """# Ops

Generated from the op classes in `ops/` by `make docs`; do not edit. Each op is a method of
`riverrun.Graph`; [adding-an-op.md](adding-an-op.md) says how to write another.

Shapes are row-major, the last axis fastest. N tokens of all sequences lie flat; B sequences,
H heads, D or S head size, R rows of a state, K planes of a ring. Cases are the inputs on which
every backend's result is compared with the numpy reference, and, apart, those for measuring; beside
them stands how many of both the CPU backend takes ([testing-ops.md](testing-ops.md)).

| op | result | CPU kernels | cases | taken |
|---|---|---|---|---|
"""


def levels(name: str) -> list[str]:
    """The instruction-set levels that have a kernel of an op, lowest first."""
    found = sorted((k["priority"], k["isa"]) for k in _cpu.kernels() if k["op"] == name)
    return list(dict.fromkeys(isa for _, isa in found))


def signature(cls: type[Op]) -> str:
    """The builder call with its results: `y = g.rms_norm(x, w=None, *, eps: float)`."""
    parts = [f"{n[:-1]}=None" if n.endswith("?") else n for n in cls.inputs]
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if fields and not cls.inputs[-1].startswith("*"):
        parts.append("*")
    for f in fields:
        default = "" if f.default is dataclasses.MISSING else f" = {f.default!r}"
        parts.append(f"{f.name}: {f.type}{default}")
    results = ", ".join(n for n in cls.outputs if not n.endswith("?"))
    results += "".join(f"[, {n[:-1]}]" for n in cls.outputs if n.endswith("?"))
    return f"{results} = g.{cls.name}({', '.join(parts)})"


def properties(cls: type[Op]) -> list[str]:
    """What the class declares beside its meaning, one sentence each."""
    lines = []
    if cls.view:
        lines.append("A view: the result is the input's memory, and nothing runs.")
    for output, source in cls.writes.items():
        where = f"; it exists where `{source}` is given" if f"{output}?" in cls.outputs else ""
        lines.append(
            f"`{output}` is the next version of the state `{source}`, in its memory{where}."
        )
    for output, sources in cls.inplace.items():
        names = " or ".join(f"`{s}`" for s in sources.split())
        lines.append(f"`{output}` may take the memory of {names} where that dies here.")
    if cls.constants:
        names = ", ".join(f"`{c}`" for c in cls.constants)
        lines.append(f"A weight in practice, which backends may repack: {names}.")
    if cls.expand is not Op.expand:
        lines.append("Fused: a backend without a kernel for it runs its expansion.")
    return [*lines, *declared_rows(cls), *tolerance(cls)]


def declared_rows(cls: type[Op]) -> list[str]:
    """Which rows belong together."""
    lines = []
    if cls.rowwise:
        lines.append("Row-wise: row i of the result depends on row i of the inputs only.")
    for names, what in ((cls.per_token, "token"), (cls.per_sequence, "sequence")):
        if names:
            lines.append(f"A row for each {what}: {', '.join(f'`{name}`' for name in names)}.")
    if cls.no_rows:
        lines.append(f"Not checked row by row: {cls.no_rows}.")
    return lines


def tolerance(cls: type[Op]) -> list[str]:
    """How far kernels may be from the reference, where the default is another."""
    said = []
    if cls.tolerance is not None:
        said.append(f"{cls.tolerance:g}" if cls.tolerance else "0: there is one right answer")
    if cls.block_tolerance is not None:
        said.append(f"{cls.block_tolerance:g} where an input is of a block type")
    return [f"Largest NMSE of a kernel: {', '.join(said)}."] if said else []


def kernels(cls: type[Op]) -> str:
    """The sentence about CPU kernels."""
    if cls.view:
        return "No kernel is needed."
    rows = [k for k in _cpu.kernels() if k["op"] == cls.name]
    if not rows:
        fused = cls.expand is not Op.expand
        return "No CPU kernel" + ("; it runs as what it expands to." if fused else ".")
    bounds = sorted({k["bound"] or "not row-exact" for k in rows if not k["row_exact"]})
    exact = "row-exact" if not bounds else "; ".join(bounds)
    return f"CPU kernels: {', '.join(levels(cls.name))}; {exact}."


def cases(cls: type[Op]) -> tuple[int, int]:
    """How many cases are for testing and for measuring."""
    tags = [case.tags for case in op_cases(cls)]
    perf = sum("perf" in t for t in tags)
    return len(tags) - perf, perf


def row(cls: type[Op], taken: int) -> str:
    """The op's line in the table; taken: the cases that the CPU backend takes."""
    none = "none" if cls.expand is Op.expand else "expanded"
    where = "view" if cls.view else ", ".join(levels(cls.name)) or none
    test, perf = cases(cls)
    results = ", ".join(cls.output_names())
    return f"| [{cls.name}](#{cls.name}) | {results} | {where} | {test} + {perf} | {taken} |\n"


def section(cls: type[Op]) -> str:
    """The op's section: call, meaning, properties, kernels, source file."""
    module = cls.__module__.split(".", 1)[1].replace(".", "/")
    facts = [*properties(cls), kernels(cls), f"Defined in `{module}.py`."]
    meaning = inspect.cleandoc(cls.__doc__ or "")
    code = f"```text\n{signature(cls)}\n\n{meaning}\n```\n\n"
    return f"\n## {cls.name}\n\n{code}" + "".join(f"- {fact}\n" for fact in facts)


def generate() -> str:
    """The page's text."""
    known = [OPS[name] for name in sorted(OPS)]
    taken = {op: counts["cpu"] for op, counts in support_table([open_backend("cpu")]).items()}
    rows = "".join(row(cls, taken[cls.name]) for cls in known)
    return HEAD + rows + "".join(map(section, known))


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit code."""
    holds = f"{len(COMMANDS)} commands"
    page = option_docs.generate()
    options = write_or_check(option_docs.PAGE, page, holds, "make docs", arguments)
    return max(options, _listed(), _kernels(arguments))


def _listed() -> int:
    """Tell what pages written by hand list wrongly; nothing else puts it right."""
    faults = listed.faults()
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _kernels(arguments: list[str]) -> int:
    """The pages that tell of kernels of the processor."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pages = f"{PAGE} and {support_docs.PAGE}"
        print(f"{pages} list the kernels of an x86-64 build, which this is not", file=sys.stderr)
        return 0 if "--check" in arguments else 1
    try:
        support = support_docs.generate()
    except RiverrunError as error:
        print(error, file=sys.stderr)
        return 1
    holds = f"{len(architectures())} architectures"
    told = write_or_check(support_docs.PAGE, support, holds, "make docs", arguments)
    return max(told, write_or_check(PAGE, generate(), f"{len(OPS)} ops", "make docs", arguments))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
