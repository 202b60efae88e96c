"""Compiling hand-built graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from riverrun.backends import Backend, Plan, open_backend
from riverrun.backends.debug import unwatched, watched
from riverrun.backends.scheduler import SplitBackend
from riverrun.graph import Graph, Value
from riverrun.graph.errors import RequestError


def compile(
    graph: Graph,
    outputs: Value | Sequence[Value] | Mapping[str, Value] | None = None,
    device: str | Backend | Sequence[str | Backend] = "auto",
    kind: str = "step",
) -> Plan:
    """Compile a graph for a device; the plan is called with the inputs by name: `plan(x=array)`.

    outputs: a value, several (named "0", "1", ...), or a mapping of names; None where the graph
    has named outputs. device: a name, several with commas between them ("cpu,reference": what the
    first does not take runs on the next), a backend, or a sequence of names and backends. kind:
    "step" (every row's result is independent of the other rows) or "prefill".
    Raises RequestError for arguments of other types, GraphError for graphs that mean nothing,
    Unsupported for ops that the device lacks, BackendError for unknown devices and kinds."""
    if not isinstance(graph, Graph):
        raise RequestError(f"graph should be a riverrun.Graph, got {type(graph).__name__}")
    for name, value in _named(outputs).items():
        if graph.outputs.get(name) != value:
            graph.output(name, value)
    return watched(_backend(device)).compile(graph, kind)


def _named(outputs: Any) -> Mapping[str, Value]:
    """Outputs by name."""
    if outputs is None:
        return {}
    if isinstance(outputs, Value):
        return {"output": outputs}
    named: Any = outputs
    if isinstance(outputs, Sequence) and not isinstance(outputs, str | bytes):
        named = {str(i): value for i, value in enumerate(outputs)}
    if not isinstance(named, Mapping):
        raise RequestError(
            "outputs should be a Value of the graph, several, or a mapping of names to them, "
            f"got {_shown(outputs)}"
        )
    for name, value in named.items():
        if not isinstance(name, str) or not isinstance(value, Value):
            raise RequestError(
                f"output {name!r} should be a Value of the graph under a name, got {_shown(value)}"
            )
    return named


def _backend(device: Any) -> Backend:
    """The backend that a device argument stands for."""
    if isinstance(device, str):
        return open_backend(device)
    if isinstance(device, Backend):
        return device
    several = isinstance(device, Sequence) and not isinstance(device, bytes)
    parts = list(device) if several else [device]
    for part in parts:
        if not isinstance(part, str | Backend):
            raise RequestError(
                "device should be a name such as 'cpu', a Backend, or several of them, "
                f"got {_shown(part)}"
            )
    opened = [open_backend(part) if isinstance(part, str) else part for part in parts]
    return SplitBackend([unwatched(backend) for backend in opened])


def _shown(value: object) -> str:
    """A value in a message: its type, and itself where it is short."""
    text = repr(value) if isinstance(value, str | bytes | int | float | None) else ""
    return f"{type(value).__name__} {text[:40]}".strip()
