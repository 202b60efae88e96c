"""The intermediate representation: values, ops, graphs, their checks and their memory plan."""

from .builder import Graph
from .data import HostTensor, host_tensor
from .dtype import DType, dtype
from .memory import MemoryPlan, plan_memory
from .node import Node, Value
from .op import OPS, Cost, Op, make_op, register
from .spec import TensorSpec
from .text import parse, to_text
from .verify import verify

__all__ = [
    "OPS",
    "Cost",
    "DType",
    "Graph",
    "HostTensor",
    "MemoryPlan",
    "Node",
    "Op",
    "TensorSpec",
    "Value",
    "dtype",
    "host_tensor",
    "make_op",
    "parse",
    "plan_memory",
    "register",
    "to_text",
    "verify",
]
