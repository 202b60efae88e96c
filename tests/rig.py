"""One op on the CPU backend, bound to states that stay from run to run."""

from __future__ import annotations

from typing import Any

import numpy as np
from one_op import cpu
from riverrun.backends.base import Pools
from riverrun.graph import OPS, Graph, Value, make_op

NAMES = {"f4": "f32", "f2": "f16", "u2": "bf16", "i4": "i32"}


def spec_of(array: np.ndarray) -> tuple[tuple[int, ...], str]:
    """Shape and dtype name; uint16 stands for bf16."""
    return array.shape, NAMES[array.dtype.str[1:]]


class Rig:
    """A plan of one op, from the first values of its inputs and of its states."""

    def __init__(
        self,
        op: str,
        arrays: dict[str, np.ndarray],
        states: dict[str, np.ndarray],
        threads: int = 1,
        **attributes: Any,
    ) -> None:
        g = Graph(op)
        values: list[Value | None] = []
        for name in (n.strip("?*") for n in OPS[op].inputs):
            if name in states:
                values.append(g.state(name, *spec_of(states[name])))
            else:
                values.append(g.input(name, *spec_of(arrays[name])) if name in arrays else None)
        node = g.apply(make_op(op, attributes), tuple(values))
        for i, label in enumerate(node.output_names()):
            g.output(label, node.value(i))
        plan = cpu(threads).compile(g)
        self.pools = Pools(plan.states)
        for name, array in states.items():
            self.pools.array(name)[...] = array
        self.bound = plan.bind(plan.own_weights(), self.pools)
        self.first = OPS[op].outputs[0]
        self.arrays = arrays

    def run(self, **changed: np.ndarray) -> np.ndarray:
        """The first output; memory that nothing wrote to reads as NaN."""
        for name, array in {**self.arrays, **changed}.items():
            self.bound.inputs[name][...] = array
        self.bound.scratch[...] = 0xFF
        self.bound.run()
        return np.array(self.bound.outputs[self.first])

    def state(self, name: str) -> np.ndarray:
        """A copy of a state as it is now."""
        return self.pools.array(name).copy()
