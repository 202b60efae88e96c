"""Instruction-set levels of the processor beside one another, each in a process of its own, since
a process reads its level once.

`python -m riverrun.bench.levels FILE N_CTX THREADS LOAD` is such a process (`apart.answer`); it
says its level first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ..backends.cpu import instruction_sets
from ..engine import loading
from ..graph.errors import BackendError, RiverrunError
from .apart import Apart, answer, read_names
from .throughput import Bench


def read_levels(text: str) -> tuple[str, ...]:
    """The levels of "LEVEL,LEVEL...". Raises ValueError for one that this processor, or
    RIVERRUN_ISA, does not allow, and for one that comes twice."""
    return read_names(text, instruction_sets(), "level")


def open_level(level: str, path: Path, n_ctx: int, threads: int, load: str = "map") -> Apart:
    """The process of a level. Raises BackendError where it does not use that level."""
    return at_level(level, __name__, (str(path), str(n_ctx), str(threads), load))


def at_level(level: str, module: str, arguments: Sequence[str] = ()) -> Apart:
    """A process of a module that says its level first. Raises BackendError where it does not use
    that level."""
    opened = Apart(f"the level {level}", module, arguments, {"RIVERRUN_ISA": level})
    if opened.ready != level:
        opened.close()
        raise BackendError(f"expected kernels of {level}, got those of {opened.ready}")
    return opened


def main(arguments: Sequence[str]) -> None:
    """A level's process."""
    path, n_ctx, threads, load = arguments
    try:
        bench = Bench(loading.load(path, "cpu", int(threads), load=load), int(n_ctx))
    except RiverrunError as error:
        sys.exit(str(error))
    answer(instruction_sets()[-1], bench.measure)


if __name__ == "__main__":
    main(sys.argv[1:])
