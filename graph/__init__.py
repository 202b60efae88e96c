"""The intermediate representation: values, ops, graphs, their checks and their memory plan."""

from typing import TYPE_CHECKING

from .late import late_names

if TYPE_CHECKING:
    from .builder import Graph
    from .data import HostTensor, host_tensor
    from .dtype import DType, dtype
    from .memory import MemoryPlan, plan_memory
    from .node import Node, Value
    from .op import OPS, Cost, Op, make_op, register
    from .spec import TensorSpec
    from .text import parse, to_text
    from .verify import verify

__all__ = late_names(
    __name__,
    {
        ".builder": "Graph",
        ".data": "HostTensor host_tensor",
        ".dtype": "DType dtype",
        ".memory": "MemoryPlan plan_memory",
        ".node": "Node Value",
        ".op": "OPS Cost Op make_op register",
        ".spec": "TensorSpec",
        ".text": "parse to_text",
        ".verify": "verify",
    },
)
