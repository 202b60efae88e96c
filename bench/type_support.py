"""Which types of weights are read, multiplied and written where, asked of registries and
backends."""

from __future__ import annotations

from collections.abc import Iterator

from ..backends import Backend
from ..backends.native import PLAIN, NativeBackend, type_id
from ..graph import Graph, Node, TensorSpec
from ..graph.dtype import DType, dtype, i32
from ..models.architecture import Want

ROWS, COLUMNS, EXPERTS = 32, 512, 4


def weight_types() -> list[DType]:
    """All that matrices may have, by the bits of one weight."""
    types = Want("output.weight", (ROWS, COLUMNS)).types
    return sorted(map(dtype, types), key=lambda d: (-bits(d), d.name))


def bits(kind: DType) -> float:
    """Bits of a weight in a file."""
    return 8 * kind.nbytes / kind.block


def readers(kind: DType) -> Iterator[Node]:
    """Nodes that read weights of a type: products, those of experts, rows of an embedding."""
    g = Graph()
    x, rows = g.input("x", (2, COLUMNS)), g.input("rows", (2,), i32)
    w = g.weight("w", TensorSpec((ROWS, COLUMNS), kind))
    experts = g.weight("experts", TensorSpec((EXPERTS, ROWS, COLUMNS), kind))
    yield g.mul_mat(x, w).node
    yield g.mul_mat_id(x, experts, g.input("ids", (2, 1), i32)).node
    yield g.get_rows(w, rows).node


def refusals(kind: DType, backend: Backend) -> list[str]:
    """The ops that read weights of a type elsewhere, and not on a backend."""
    return [node.op.name for node in readers(kind) if not backend.supports(node).ok]


def kept_bits(kind: DType, backend: NativeBackend) -> float | None:
    """Bits of a weight in memory where products read it rearranged; None where as in the file."""
    layouts = backend.choose(next(readers(kind)), exact=True).layouts
    layout = max(layouts, default=PLAIN)
    if layout == PLAIN:
        return None
    size = backend.module.packed_bytes(type_id(kind), layout, ROWS, COLUMNS)
    return 8 * size / (ROWS * COLUMNS)
