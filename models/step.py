"""What one step's graph is built for, and the inputs it has: the contract of models and engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..graph import DType, Graph, TensorSpec, Value
from ..graph.dtype import f16, f64, i32
from ..graph.errors import GraphError

PAGE = 256  # positions in a page of attention memory
# The state of programs whose passes pick their own tokens, f32 [Capacity.rows, 1]: each sequence's
# newest token. Ids up to 2^24 are exact.
NEXT_TOKEN = "next_token"
# Of how many of the largest logits such passes draw: the default top_k is 40, Gemma's authors
# recommend 64, and 64 of every 1024 logits are few enough that a card sorts a vocabulary of up to
# 2^18 tokens in three launches. For requests that ask for more the host chooses.
CANDIDATES = 64
DRAFT_HEAD = "draft_head.weight"  # the first rows of the head, where a model was loaded with them


@dataclass(frozen=True)
class Capacity:
    """The session's memory: attention pages, pages of the longest sequence, rows.

    rows: of recurrent states and of NEXT_TOKEN, no fewer than sequences; window_pages: pages of the
    layers whose attention has a window, where they have their own; planes: states kept for each
    recurrent row, 0 for one alone; log: entries of its replay log."""

    n_pages: int
    pages_per_seq: int
    rows: int
    k_dtype: DType = f16
    v_dtype: DType = f16
    window_pages: int = 0
    planes: int = 0
    log: int = 0


@dataclass(frozen=True)
class StepShape:
    """Static sizes of a step: flat tokens, sequences, rows that want logits.

    n_out == n_tokens means every row, in order; 0 asks for no logits. hidden: also give the rows
    of all tokens after the final norm. head: logits of the draft head's tokens only. candidates:
    in programs that pick their tokens, of how many of the largest logits: CANDIDATES, or 1, which
    takes the first one and is cheaper."""

    n_tokens: int
    n_seqs: int
    n_out: int
    hidden: bool = False
    head: bool = False
    candidates: int = 1


@dataclass(frozen=True)
class Pages:
    """Where attention memory lies: kv_rows i32[N], the pool row that a token's key and value go
    to, < 0 for none; block_table i32[B, P], the pages of each sequence."""

    kv_rows: Value
    block_table: Value


@dataclass(frozen=True)
class Inputs:
    """Per-step data. N tokens lie flat; sequence b owns seq_offsets[b] .. seq_offsets[b+1].

    tokens i32[N], an input, or what the state NEXT_TOKEN holds; positions i32[N], each in its own
    sequence; seq_offsets i32[B+1]; pages, and those of layers with a window; state_rows i32[B], the
    recurrent row; out_rows i32[M], the rows that want logits (absent when every row does)."""

    tokens: Value
    positions: Value
    seq_offsets: Value
    pages: Pages
    window_pages: Pages
    state_rows: Value
    out_rows: Value | None


@dataclass(frozen=True)
class Recurrence:
    """A layer's recurrent memory: convolution tail and delta-net state. conv, delta: the other
    arguments by which their ops find planes or a log, where there are any."""

    tail: Value
    state: Value
    conv: dict[str, Any]
    delta: dict[str, Any]


class StepGraph:
    """A graph being built for one step: inputs, weights by GGUF name, states by layer."""

    def __init__(
        self,
        name: str,
        shape: StepShape,
        capacity: Capacity,
        weights: dict[str, TensorSpec],
        picks: int = 0,
    ) -> None:
        """picks: of how many tokens of the vocabulary the pass picks the next ones, where it takes
        its own from what was picked before; 0 for passes whose tokens are an input."""
        self.g = Graph(name)
        self.shape, self.capacity, self.weights = shape, capacity, weights
        self._picks = picks
        n, b = shape.n_tokens, shape.n_seqs
        g = self.g
        pages = self._pages("")
        self.inputs = Inputs(
            tokens=self._picked() if picks else g.input("tokens", (n,), i32),
            positions=g.input("positions", (n,), i32),
            seq_offsets=g.input("seq_offsets", (b + 1,), i32),
            pages=pages,
            window_pages=self._pages("_window") if capacity.window_pages else pages,
            state_rows=g.input("state_rows", (b,), i32),
            out_rows=g.input("out_rows", (shape.n_out,), i32) if 0 < shape.n_out != n else None,
        )
        names = ["start", "head"] if capacity.planes else []
        names += ["log_head", "n_replay", "n_held", "n_direct"] if capacity.log else []
        self._kept: dict[str, Any] = {name: g.input(name, (b,), i32) for name in names}

    def _picked(self) -> Value:
        g, n = self.g, self.shape.n_tokens
        self._newest = g.state(NEXT_TOKEN, (self.capacity.rows, 1))
        tokens = g.get_rows(self._newest, g.input("token_slots", (n,), i32), name="newest")
        return g.cast(g.reshape(tokens, shape=(n,)), to="i32")

    def output_logits(self, logits: Value) -> None:
        """What becomes of the logits [M, V] of a pass: output "logits", or the tokens picked."""
        if self._picks:
            self._pick(logits)
        else:
            self.g.output("logits", logits)

    def _pick(self, logits: Value) -> None:
        """Outputs and inputs of Architecture.ahead."""
        g, n = self.g, logits.shape[0]
        if self._picks < logits.shape[1]:
            logits = g.view(logits, axis=1, start=0, stop=self._picks)
        k = min(self.shape.candidates, logits.shape[1])
        largest, token = g.top_k(logits, k=k, name="candidates")
        if k > 1:
            top_k = g.input("top_k", (n,), i32)
            temperature, top_p, min_p = (
                g.input(name, (n,), f64) for name in ("temperature", "top_p", "min_p")
            )
            seed, position = g.input("seed", (n, 2), i32), g.input("draw_position", (n,), i32)
            token = g.sample(
                largest, token, top_k, temperature, top_p, min_p, seed, position, name="token"
            )
        g.output("token", token)
        g.output("largest", largest)
        g.write_rows(self._newest, g.cast(token, to="f32"), g.input("next_slots", (n,), i32))

    def _pages(self, suffix: str) -> Pages:
        n, b = self.shape.n_tokens, self.shape.n_seqs
        return Pages(
            self.g.input(f"kv_rows{suffix}", (n,), i32),
            self.g.input(f"block_table{suffix}", (b, self.capacity.pages_per_seq), i32),
        )

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name."""
        return name in self.weights

    def w(self, name: str) -> Value:
        """The weight of this GGUF name."""
        if name not in self.weights:
            raise GraphError(f"weight {name!r} is not in the model file")
        return self.g.weight(name, self.weights[name])

    def pages(self, window: int) -> Pages:
        """The pages of a layer with this window, 0 for none."""
        return self.inputs.window_pages if window else self.inputs.pages

    def cache(
        self, layer: int, n_head_kv: int, dim_k: int, dim_v: int, window: int = 0
    ) -> tuple[Value, Value]:
        """Key and value pools of a layer: [pages * PAGE, n_head_kv, dim]."""
        c = self.capacity
        rows = (c.window_pages if window and c.window_pages else c.n_pages) * PAGE
        return (
            self.g.state(f"cache_k.{layer}", (rows, n_head_kv, dim_k), c.k_dtype),
            self.g.state(f"cache_v.{layer}", (rows, n_head_kv, dim_v), c.v_dtype),
        )

    def recurrent(
        self, layer: int, tail: int, state: int, conv_entry: int, delta_entry: int
    ) -> Recurrence:
        """A layer's convolution tail and delta-net state, f32 [rows, size] or [rows, planes,
        size]; entries: elements of one token in their logs, f32 [rows, log, entry]."""
        c = self.capacity
        planes = (c.planes,) if c.planes else ()

        def kept(name: str, size: int) -> Value:
            return self.g.state(f"{name}.{layer}", (c.rows, *planes, size))

        def log(name: str, entry: int) -> dict[str, Any]:
            if not c.log:
                return self._kept
            return {"log": self.g.state(f"{name}.{layer}", (c.rows, c.log, entry)), **self._kept}

        return Recurrence(
            kept("conv_state", tail),
            kept("ssm_state", state),
            log("conv_log", conv_entry),
            log("ssm_log", delta_entry),
        )
