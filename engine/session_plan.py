"""What a session will hold, worked out before anything is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ..graph import TensorSpec
from ..graph.errors import DTypeError, GraphError, RequestError, Unsupported
from ..models.architecture import Architecture
from ..models.memories import PAGE, Capacity, MemorySpec, Program
from ..models.step import StepShape
from .buckets import MAX_TOKENS, MOST_PROMPT
from .memory import Demand, Layout, MemoryBytes, RecurrentMemory, layouts
from .session_options import SessionOptions, cache_type
from .sizes import mib

if TYPE_CHECKING:
    from .model import Model

# Memory for states along prompts unless asked for: this or, if more, room for so many of each
# sequence, so that one before the prompt's end is always among them.
KEPT_BYTES, KEPT_STATES = 256 << 20, 2


@dataclass(frozen=True)
class SessionPlan:
    """A session before it is made: what it was asked for and what that takes. chunk: tokens of a
    prompt in one pass at most."""

    options: SessionOptions
    n_ctx: int
    n_vocab: int
    capacity: Capacity
    layouts: tuple[Layout, ...]
    states: Mapping[str, TensorSpec]
    bytes: MemoryBytes
    chunk: int = MAX_TOKENS
    why: str = ""

    @property
    def strategy(self) -> type[RecurrentMemory]:
        """How recurrent state forgets tokens; where there is none, that it does not."""
        found = (layout.strategy for layout in self.layouts if layout.strategy is not None)
        return next(found, RecurrentMemory)

    @property
    def cache_bytes(self) -> int:
        """The most bytes for states along prompts, on their device while it has room for them
        beside what plans need, else in host memory."""
        asked = self.options.cache_bytes
        room = KEPT_STATES * self.options.n_seqs * self.bytes.kept
        return max(KEPT_BYTES, room) if asked is None else asked

    @property
    def summary(self) -> str:
        """One line of sizes."""
        b = self.bytes
        parts = [f"attention {mib(b.attention)}"]
        if b.recurrent:
            parts.append(f"recurrent state {mib(b.recurrent)}")
        if b.rollback or b.host:
            where = f" and {mib(b.host)} of host memory" if b.host else ""
            parts.append(
                f"rollback of {self.options.n_rs_seq} tokens ({self.strategy.name}) "
                f"{mib(b.rollback)}{where}" + (f" ({self.why})" if self.why else "")
            )
        if b.kept and self.cache_bytes:
            parts.append(f"states along prompts up to {mib(self.cache_bytes)}")
        shared = self.options.n_ctx_total
        some = f", {shared} in all" if shared is not None else ""
        return f"memory for {self.n_ctx} x {self.options.n_seqs} tokens{some}: {', '.join(parts)}"


def plan_session(model: Model, options: SessionOptions) -> SessionPlan:
    """Sizes and strategy of a session. Raises RequestError for options that do not fit the model,
    Unsupported when its backend takes none of the strategies asked for. Warns of a context longer
    than the model was trained for."""
    program = model.source.arch.programs().get(options.program)
    if program is None:
        known = ", ".join(model.source.arch.programs())
        raise RequestError(f"program should be one of {known}, got {options.program!r}")
    n_ctx = check_context(options.n_ctx, model.n_ctx_train)
    able = model.backend.capabilities
    chunk = min(able.prompt_chunk, MOST_PROMPT)
    choices = _choices(model.source.arch, program, options, n_ctx, able.on_host, chunk)
    refused: Unsupported | None = None
    for choice in _in_order(choices, options.budget):
        try:
            states = model.plan(StepShape(1, 1, 1), choice.capacity, "step", options.program).states
        except Unsupported as error:
            refused = error
            continue
        _check_declared(options.program, states, program.memories, choice.capacity)
        why = _why(choice, choices) if options.rollback == "auto" else ""
        return SessionPlan(
            options,
            n_ctx,
            model.n_vocab,
            choice.capacity,
            choice.layouts,
            states,
            choice.nbytes,
            chunk,
            why,
        )
    assert refused is not None
    raise refused


def session_bytes(arch: Architecture, options: SessionOptions) -> tuple[int, MemoryBytes]:
    """Tokens of the longest sequence, and what a session would take, its states in host memory, of
    a model that is not loaded. Raises and warns as `plan_session` does."""
    n_ctx = check_context(options.n_ctx, arch.hp.n_ctx_train)
    return n_ctx, _best(arch, "trunk", options, n_ctx, True, MAX_TOKENS).nbytes


def session_capacity(arch: Architecture, program: str, options: SessionOptions) -> Capacity:
    """Sizes of a session of a model that is not loaded, its states on a card. Raises as
    `plan_session` does, and warns of nothing."""
    n_ctx = options.n_ctx or usual_context(arch.hp.n_ctx_train)
    return _best(arch, program, options, n_ctx, False, MOST_PROMPT).capacity


class _Choice(NamedTuple):
    """Layouts of all memories of a program, a session's capacity with them, and their bytes."""

    layouts: tuple[Layout, ...]
    capacity: Capacity
    nbytes: MemoryBytes

    @property
    def name(self) -> str:
        """Of its strategy."""
        return next((x.strategy.name for x in self.layouts if x.strategy is not None), "")


def _best(
    arch: Architecture,
    program: str,
    options: SessionOptions,
    n_ctx: int,
    on_host: bool,
    chunk: int,
) -> _Choice:
    choices = _choices(arch, arch.programs()[program], options, n_ctx, on_host, chunk)
    return _in_order(choices, options.budget)[0]


def _choices(
    arch: Architecture,
    program: Program,
    options: SessionOptions,
    n_ctx: int,
    on_host: bool,
    chunk: int,
) -> list[_Choice]:
    """What would do for a program's memories, sized, best first. chunk: tokens of a prompt's
    pass."""
    plain = _plain_capacity(options, n_ctx)
    _check_head_sizes(arch, plain)
    demand = Demand(
        n_ctx,
        options.n_seqs,
        max(MAX_TOKENS, chunk),
        options.rollback,
        options.n_rs_seq,
        on_host,
        plain.n_pages,
    )
    return [_sized(found, plain) for found in _combinations(program, demand)]


def _combinations(program: Program, demand: Demand) -> Iterator[tuple[Layout, ...]]:
    """One layout for each memory, the best combination first."""
    return product(*(layouts(spec, demand) for spec in program.memories))


def _sized(found: tuple[Layout, ...], c: Capacity) -> _Choice:
    for layout in found:
        c = layout.size(c)
    return _Choice(found, c, sum((layout.nbytes(c) for layout in found), MemoryBytes()))


def _in_order(choices: Sequence[_Choice], budget: int) -> list[_Choice]:
    """Those within the budget as they come, then the others, smallest first."""
    able = [c for c in choices if all(x.affordable(c.capacity, budget) for x in c.layouts)]
    rest = [c for c in choices if c not in able]
    return [*able, *sorted(rest, key=lambda c: c.nbytes.rollback)]


def _why(choice: _Choice, choices: Sequence[_Choice]) -> str:
    """What rollback=auto has chosen among."""
    others = ", ".join(
        f"{c.name} {mib(c.nbytes.rollback + c.nbytes.host)}" for c in choices[:3] if c is not choice
    )
    return f"auto rather than {others}" if others else ""


def _check_declared(
    name: str, states: Mapping[str, TensorSpec], memories: Sequence[MemorySpec], c: Capacity
) -> None:
    """Raise GraphError where a program's graph has other states than its memories declare."""
    declared = {k: v for spec in memories for k, v in spec.states(c).items()}
    if declared != dict(states):
        unlike = sorted(k for k in {*declared, *states} if declared.get(k) != states.get(k))
        raise GraphError(
            f"program {name!r}: its graph should have the states that `memories` declares; unlike "
            f"are {', '.join(unlike)}"
        )


def _plain_capacity(options: SessionOptions, n_ctx: int) -> Capacity:
    pages, total = -(-n_ctx // PAGE), options.n_ctx_total
    if total is not None and total < n_ctx:
        raise RequestError(
            f"n_ctx_total: expected room for one context of {n_ctx} tokens at least, got {total}",
            "n_ctx_total",
        )
    every = pages * options.n_seqs
    return Capacity(
        n_pages=every if total is None else -(-total // PAGE),
        pages_per_seq=pages,
        rows=options.n_seqs,
        k_dtype=cache_type("cache_type_k", options.cache_type_k),
        v_dtype=cache_type("cache_type_v", options.cache_type_v),
    )


def check_context(n_ctx: int | None, n_ctx_train: int) -> int:
    """The context to use: asked for, or the model's own up to 4096. Warns of one longer than the
    model was trained for."""
    if n_ctx is None:
        return usual_context(n_ctx_train)
    if 0 < n_ctx_train < n_ctx:
        warnings.warn(
            f"a context of {n_ctx} tokens is longer than the {n_ctx_train} that the model was "
            "trained for; what it says beyond them may be worse",
            RuntimeWarning,
            stacklevel=2,
        )
    return n_ctx


def usual_context(n_ctx_train: int) -> int:
    """The context where none is asked for."""
    return max(1, min(n_ctx_train or 4096, 4096))


def _check_head_sizes(arch: Architecture, capacity: Capacity) -> None:
    hp = arch.hp
    for argument, kind, size in (
        ("cache_type_k", capacity.k_dtype, hp.head_dim_k),
        ("cache_type_v", capacity.v_dtype, hp.head_dim_v),
    ):
        if size % kind.block:
            raise DTypeError(
                f"{argument}: {kind.name} takes head sizes that are multiples of {kind.block}, and "
                f"this model's is {size}; use f16"
            )
