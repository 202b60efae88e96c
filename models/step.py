"""What one step's graph is built for, and the inputs it has: the contract of models and engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..graph import DType, Graph, TensorSpec, Value
from ..graph.dtype import f64, i32
from ..graph.errors import GraphError
from .memories import (
    PAGE,
    REPLAY,
    RING,
    Capacity,
    Heads,
    RecurrentPart,
    attention_states,
    suffix,
)

__all__ = ["CANDIDATES", "DRAFT_HEAD", "NEXT_TOKEN", "PAGE", "Capacity", "Choice", "Inputs"]
__all__ += ["Pages", "StateValue", "StepGraph", "StepShape"]

# The state of programs whose passes pick their own tokens, f32 [Capacity.rows, 1]: each sequence's
# newest token. Ids up to 2^24 are exact.
NEXT_TOKEN = "next_token"
# Of how many of the largest logits such passes draw: the default top_k is 40, Gemma's authors
# recommend 64, and 64 of every 1024 logits are few enough that a card sorts a vocabulary of up to
# 2^18 tokens in three launches. For requests that ask for more the host chooses.
CANDIDATES = 64
DRAFT_HEAD = "draft_head.weight"  # the first rows of the head, where a model was loaded with them


@dataclass(frozen=True)
class Choice:
    """What a pass gives instead of the logits of its rows: of the first n_vocab tokens the k with
    the largest logits, and, if drawn, the one that op `sample` draws from these. n_logits: so many
    rows' logits are given beside them."""

    n_vocab: int
    k: int = 1
    drawn: bool = False
    n_logits: int = 0


@dataclass(frozen=True)
class StepShape:
    """Static sizes of a step: flat tokens, sequences, rows that want logits.

    n_out == n_tokens means every row, in order; 0 asks for no logits. hidden: also give the rows
    of all tokens after the final norm; with neither, a pass only brings memory up to its tokens,
    and computes nothing else. head: logits of the draft head's tokens only. candidates:
    in programs that pick their tokens, of how many of the largest logits: CANDIDATES, or 1, which
    takes the first one and is cheaper; in others more than 1 gives so many beside the logits.
    choice: in these, what they give instead."""

    n_tokens: int
    n_seqs: int
    n_out: int
    hidden: bool = False
    head: bool = False
    candidates: int = 1
    choice: Choice | None = None


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


class StateValue(NamedTuple):
    """A part of a layer's recurrent memory: its state, and the other arguments by which its op
    finds planes or a log, where there are any."""

    state: Value
    where: dict[str, Any]


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
        self._own: dict[str, Value] = {}
        n, b = shape.n_tokens, shape.n_seqs
        g = self.g
        pages = self._pages(0)
        self.inputs = Inputs(
            tokens=self._picked() if picks else g.input("tokens", (n,), i32),
            positions=g.input("positions", (n,), i32),
            seq_offsets=g.input("seq_offsets", (b + 1,), i32),
            pages=pages,
            window_pages=self._pages(1) if capacity.window_pages else pages,
            state_rows=g.input("state_rows", (b,), i32),
            out_rows=g.input("out_rows", (shape.n_out,), i32) if 0 < shape.n_out != n else None,
        )
        names = (*(RING if capacity.planes else ()), *(REPLAY if capacity.log else ()))
        self._kept: dict[str, Any] = {name: self.input(name, (b,)) for name in names}

    def again(self, name: str, shape: StepShape, weights: dict[str, TensorSpec]) -> StepGraph:
        """Another graph that begins as this one, with all that there is so far, for a shape of as
        many tokens and sequences."""
        made = copy(self)
        made.g = self.g.copy(name)
        made.shape, made.weights, made._own = shape, weights, dict(self._own)
        return made

    def input(self, name: str, shape: tuple[int, ...], dtype: DType = i32) -> Value:
        """The input of this name, the same one whenever it is asked for: what a memory's own class
        in the engine fills."""
        if name not in self._own:
            self._own[name] = self.g.input(name, shape, dtype)
        return self._own[name]

    def states(self, specs: Mapping[str, TensorSpec]) -> list[Value]:
        """States as a MemorySpec declares them, in its order."""
        return [self.g.state(name, spec.shape, spec.dtype) for name, spec in specs.items()]

    def _picked(self) -> Value:
        g, n = self.g, self.shape.n_tokens
        self._newest = g.state(NEXT_TOKEN, (self.capacity.rows, 1))
        tokens = g.get_rows(self._newest, g.input("token_slots", (n,), i32), name="newest")
        return g.cast(g.reshape(tokens, shape=(n,)), to="i32")

    def output_logits(self, logits: Value) -> None:
        """What becomes of the logits [M, V] of a pass: output "logits", or the tokens picked. With
        candidates the K largest of each row, too: "largest" f32 [M, K], descending, and
        "candidates" i32 [M, K], their ids.

        With a choice the K largest in place of "logits", and, if drawn, "token" i32 [M, 1] in place
        of "candidates", with the inputs of Architecture.ahead that say how; "logits" [n_logits, V]
        beside them are those of the rows that input "logit_rows" i32 [n_logits] names, or of all,
        where that is as many."""
        if self._picks:
            self._pick(logits)
        elif self.shape.choice is not None:
            self._choose(logits, self.shape.choice)
        else:
            self.g.output("logits", logits)
            if self.shape.candidates > 1:
                self._candidates(self._largest(logits, logits.shape[1], self.shape.candidates))

    def _pick(self, logits: Value) -> None:
        """Outputs and inputs of Architecture.ahead."""
        g, n = self.g, logits.shape[0]
        largest, ids = self._largest(logits, self._picks, self.shape.candidates)
        token = self._draw(largest, ids)
        g.output("token", token)
        g.output("largest", largest)
        g.write_rows(self._newest, g.cast(token, to="f32"), g.input("next_slots", (n,), i32))

    def _choose(self, logits: Value, choice: Choice) -> None:
        """Outputs and inputs of a choice."""
        g, n = self.g, choice.n_logits
        largest, ids = self._largest(logits, choice.n_vocab, choice.k)
        if choice.drawn:
            g.output("token", self._draw(largest, ids))
            g.output("largest", largest)
        else:
            self._candidates((largest, ids))
        if n == logits.shape[0]:
            g.output("logits", logits)
        elif n:
            g.output("logits", g.get_rows(logits, g.input("logit_rows", (n,), i32)))

    def _largest(self, logits: Value, n_vocab: int, k: int) -> tuple[Value, Value]:
        """The k largest of the first n_vocab logits of each row, and their ids."""
        if n_vocab < logits.shape[1]:
            logits = self.g.view(logits, axis=1, start=0, stop=n_vocab)
        largest, ids = self.g.top_k(logits, k=min(k, logits.shape[1]), name="candidates")
        return largest, ids

    def _candidates(self, found: tuple[Value, Value]) -> None:
        self.g.output("largest", found[0])
        self.g.output("candidates", found[1])

    def _draw(self, largest: Value, ids: Value) -> Value:
        """A token i32 [n, 1] for each row of candidates; the only one needs no draw."""
        g, n = self.g, largest.shape[0]
        if largest.shape[1] == 1:
            return ids
        top_k = g.input("top_k", (n,), i32)
        temperature, top_p, min_p = (
            g.input(name, (n,), f64) for name in ("temperature", "top_p", "min_p")
        )
        seed, position = g.input("seed", (n, 2), i32), g.input("draw_position", (n,), i32)
        return g.sample(
            largest, ids, top_k, temperature, top_p, min_p, seed, position, name="token"
        )

    def _pages(self, window: int) -> Pages:
        n, b, end = self.shape.n_tokens, self.shape.n_seqs, suffix(window)
        return Pages(
            self.input(f"kv_rows{end}", (n,)),
            self.input(f"block_table{end}", (b, self.capacity.pages_per_seq)),
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

    def cache(self, layer: int, heads: Heads, window: int = 0) -> tuple[Value, Value]:
        """Key and value pools of a layer: [pages * PAGE, heads, dim]."""
        k, v = self.states(attention_states(layer, heads, window, self.capacity))
        return k, v

    def recurrent(self, layer: int, parts: Sequence[RecurrentPart]) -> list[StateValue]:
        """A layer's recurrent memory, part by part."""
        c, found = self.capacity, list[StateValue]()
        for part in parts:
            (state,) = self.states(dict([part.state(layer, c)]))
            log = self.states(dict([part.log(layer, c)])) if c.log else []
            named = dict(zip(("log",), log, strict=False))
            found.append(StateValue(state, {**named, **self._kept}))
        return found
