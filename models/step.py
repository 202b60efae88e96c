"""What one step's graph is built for, and the inputs it has: the contract of models and engine."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import DType, Graph, TensorSpec, Value
from ..graph.dtype import f16, i32
from ..graph.errors import GraphError

PAGE = 256  # positions in a page of attention memory


@dataclass(frozen=True)
class Capacity:
    """The session's memory: attention pages, pages of the longest sequence, recurrent rows."""

    n_pages: int
    pages_per_seq: int
    n_seqs: int
    k_dtype: DType = f16
    v_dtype: DType = f16


@dataclass(frozen=True)
class StepShape:
    """Static sizes of a step: flat tokens, sequences, rows that want logits.

    n_out == n_tokens means every row, in order. hidden: also give the rows after the final norm."""

    n_tokens: int
    n_seqs: int
    n_out: int
    hidden: bool = False


@dataclass(frozen=True)
class Inputs:
    """Per-step data. N tokens lie flat; sequence b owns seq_offsets[b] .. seq_offsets[b+1].

    tokens i32[N]; positions i32[N], each in its own sequence; seq_offsets i32[B+1];
    kv_rows i32[N], the pool row that a token's key and value go to, < 0 for padding;
    block_table i32[B, P], pages of each sequence; state_rows i32[B], its recurrent row;
    out_rows i32[M], the rows that want logits (absent when every row does)."""

    tokens: Value
    positions: Value
    seq_offsets: Value
    kv_rows: Value
    block_table: Value
    state_rows: Value
    out_rows: Value | None


class StepGraph:
    """A graph being built for one step: inputs, weights by GGUF name, states by layer."""

    def __init__(
        self, name: str, shape: StepShape, capacity: Capacity, weights: dict[str, TensorSpec]
    ) -> None:
        self.g = Graph(name)
        self.shape, self.capacity, self.weights = shape, capacity, weights
        n, b = shape.n_tokens, shape.n_seqs
        g = self.g
        self.inputs = Inputs(
            tokens=g.input("tokens", (n,), i32),
            positions=g.input("positions", (n,), i32),
            seq_offsets=g.input("seq_offsets", (b + 1,), i32),
            kv_rows=g.input("kv_rows", (n,), i32),
            block_table=g.input("block_table", (b, capacity.pages_per_seq), i32),
            state_rows=g.input("state_rows", (b,), i32),
            out_rows=g.input("out_rows", (shape.n_out,), i32) if shape.n_out != n else None,
        )

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self.weights

    def w(self, name: str) -> Value:
        """The weight of this GGUF name."""
        if name not in self.weights:
            raise GraphError(f"weight {name!r} is not in the model file")
        return self.g.weight(name, self.weights[name])

    def cache(self, layer: int, n_head_kv: int, dim_k: int, dim_v: int) -> tuple[Value, Value]:
        """Key and value pools of a layer: [pages * PAGE, n_head_kv, dim]."""
        rows, c = self.capacity.n_pages * PAGE, self.capacity
        return (
            self.g.state(f"cache_k.{layer}", (rows, n_head_kv, dim_k), c.k_dtype),
            self.g.state(f"cache_v.{layer}", (rows, n_head_kv, dim_v), c.v_dtype),
        )

    def recurrent(self, layer: int, tail: int, state: int) -> tuple[Value, Value]:
        """Convolution tail and delta-net state of a layer: [n_seqs, size], f32."""
        rows = self.capacity.n_seqs
        return (
            self.g.state(f"conv_state.{layer}", (rows, tail)),
            self.g.state(f"ssm_state.{layer}", (rows, state)),
        )
