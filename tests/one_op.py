"""One op on the CPU backend, from arrays to arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import riverrun.ops  # noqa: F401
from riverrun.backends.cpu import CpuBackend
from riverrun.backends.guard import UNWRITTEN
from riverrun.backends.harness import Built, execute
from riverrun.backends.native import PLAIN, NativeBackend
from riverrun.graph import Graph, Value
from riverrun.graph.dtype import dtype


@cache
def cpu(threads: int = 1) -> CpuBackend:
    """A backend with that many threads, made once."""
    return CpuBackend(threads, oversubscribe=True)


def feed(g: Graph, arrays: dict[str, np.ndarray]) -> list[Value]:
    """An input for each array."""
    names = {"f4": "f32", "f2": "f16", "i4": "i32"}
    return [g.input(k, a.shape, names[a.dtype.str[1:]]) for k, a in arrays.items()]


def run_graph(
    g: Graph, arrays: dict[str, np.ndarray], threads: int = 1, rows: int | None = None
) -> dict[str, np.ndarray]:
    """All outputs of a graph by name; memory that nothing wrote to reads as NaN."""
    return execute(cpu(threads), Built(g, g.nodes[-1], arrays, {}), rows=rows)


def compute(
    op: str, *arrays: np.ndarray, threads: int = 1, rows: int | None = None, **attributes: Any
) -> Any:
    """What a kernel makes of its inputs: an array, or a tuple of several."""
    g = Graph(op)
    named = {f"x{i}": a for i, a in enumerate(arrays)}
    results = getattr(g, op)(*feed(g, named), **attributes)
    several = isinstance(results, tuple)
    for i, value in enumerate(results if several else (results,)):
        g.output(f"y{i}", value)
    out = run_graph(g, named, threads, rows)
    return tuple(out.values()) if several else out["y0"]


def bits(x: np.ndarray) -> np.ndarray:
    """The bytes of an array, in which -0.0 and NaN compare as they are."""
    return np.ascontiguousarray(x).view(np.uint8)


def unwritten(x: np.ndarray) -> bool:
    """Whether memory is still as the harness filled it."""
    return bool((bits(x) == UNWRITTEN).all())


def normal(seed: int, *shape: int) -> np.ndarray:
    """Fixed normal values, f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def refusals(backend: NativeBackend) -> dict[str, list[str]]:
    """Why the kernels of a product refuse a weight that none multiplies by -> those that say so."""
    i32, f32 = dtype("i32").ggml_id, dtype("f32").ggml_id
    inputs = [(f32, PLAIN, (3, 64), (256, 4)), (i32, PLAIN, (16, 64), (256, 4))]
    outputs = [(f32, PLAIN, (3, 16), (64, 4))]
    kernel, why = backend.table.find(backend.module.Node("mul_mat", inputs, outputs, {}))
    assert kernel is None
    parts = [part.partition(": ") for part in why.split("; ")]
    found = {reason: names.split(", ") for names, _, reason in parts}
    assert len(found) == len(parts), f"a reason is said again: {why}"
    return found


def check_refusals(backend: NativeBackend) -> None:
    """Every reason is said once, and every kind of kernel named once under a reason."""
    found = refusals(backend)
    kinds = [k["isa"] for k in backend.kernels if k["op"] == "mul_mat"]
    assert {name for names in found.values() for name in names} == set(kinds)
    assert all(len(set(names)) == len(names) for names in found.values())
    assert len(found) < len(kinds)
