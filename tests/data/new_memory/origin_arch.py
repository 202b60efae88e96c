"""origin: as llama, but each layer's input also has the embedding of the sequence's first token,
which is kept in a memory of its own kind."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import TensorSpec, Value
from ..architecture import register_architecture
from ..memories import Capacity, MemorySpec, States
from ..step import StepGraph
from .llama import Llama


@dataclass(frozen=True)
class OriginSpec(MemorySpec):
    """State origin, f32 [sequences, width]; inputs origin_write i32 [N], the row that a token goes
    to, < 0 for none, and origin_read i32 [N], the row that it reads."""

    width: int

    @property
    def layers(self) -> tuple[int, ...]:
        """None in particular: it is kept once, with the first."""
        return (0,)

    def layer_states(self, layer: int, c: Capacity) -> States:
        """The one state."""
        return {"origin": TensorSpec((c.size("origins"), self.width))}


@register_architecture
class Origin(Llama):
    """A llama with one memory more."""

    name = "origin"

    def memories(self) -> tuple[MemorySpec, ...]:
        """Attention, and the first token's embedding."""
        return (*super().memories(), OriginSpec(self.hp.n_embd))

    def trunk(self, s: StepGraph, x: Value) -> Value:
        """Keep, then add what is kept."""
        n = s.shape.n_tokens
        (kept,) = s.states(OriginSpec(self.hp.n_embd).states(s.capacity))
        kept = s.g.write_rows(kept, x, s.input("origin_write", (n,)), name="keep_origin")
        x = s.g.add(x, s.g.get_rows(kept, s.input("origin_read", (n,)), name="origins"))
        return super().trunk(s, x)
