"""Compiling hand-built graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from riverrun.backends import Backend, Plan, open_backend
from riverrun.backends.debug import unwatched, watched
from riverrun.backends.scheduler import SplitBackend
from riverrun.graph import Graph, Value


def compile(
    graph: Graph,
    outputs: Value | Sequence[Value] | Mapping[str, Value] | None = None,
    device: str | Backend | Sequence[Backend] = "auto",
    kind: str = "step",
) -> Plan:
    """Compile a graph for a device; the plan is called with the inputs by name: `plan(x=array)`.

    outputs: a value, several (named "0", "1", ...), or a mapping of names; None where the graph
    has named outputs. device: a name, several with commas between them ("cpu,reference": what the
    first does not take runs on the next), a backend, or several. kind: "step" (every row's result
    independent of its company) or "prefill".
    Raises GraphError for graphs that mean nothing, Unsupported for ops that the device lacks."""
    if isinstance(outputs, Value):
        outputs = {"output": outputs}
    elif outputs is not None and not isinstance(outputs, Mapping):
        outputs = {str(i): value for i, value in enumerate(outputs)}
    for name, value in (outputs or {}).items():
        if graph.outputs.get(name) != value:
            graph.output(name, value)
    if isinstance(device, str):
        device = open_backend(device)
    elif not isinstance(device, Backend):
        device = SplitBackend([unwatched(backend) for backend in device])
    return watched(device).compile(graph, kind)
