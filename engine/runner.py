"""Runs passes: the step for each size, compiled and bound when it is first asked for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..backends import BoundPlan, Plan
from ..graph.dtype import f32
from ..models.step import Choice, StepShape
from .bound_step import BoundStep
from .buckets import MAX_TOKENS, TOKENS, sequence_bucket, token_bucket
from .draws import Draws
from .pieces import Need, Piece, gathered
from .prompts import LEAST_ROWS
from .session_memory import SessionMemory
from .session_plan import SessionPlan

if TYPE_CHECKING:
    from .model import Model

# Rows of a pass over several prompts at least.
JOINED_ROWS = 128


class Runner:
    """The steps of one session. To look into passes, derive from it and override `bind`."""

    def __init__(self, model: Model, plan: SessionPlan, storage: SessionMemory) -> None:
        self.model, self.plan, self._storage = model, plan, storage
        self.pools = storage.pools
        self._bound: dict[tuple[StepShape, str, str], BoundPlan] = {}
        self._steps: dict[tuple[object, ...], BoundStep] = {}
        self._draws: dict[BoundPlan, Draws] = {}

    def step(
        self,
        total: int,
        n_items: int,
        wanted: int,
        hidden: bool = False,
        kind: str = "step",
        candidates: int = 1,
        choice: Choice | None = None,
    ) -> BoundStep:
        """The step for total tokens of n_items sequences, of which `wanted` rows get logits.

        hidden: it also gives the rows of all tokens after the final norm; with neither it only
        fills memory. candidates: and if more than 1, so many of each row's largest logits; choice:
        what it gives instead of all logits but those of n_logits rows at least."""
        key = (total, n_items, wanted, hidden, kind, candidates, choice)
        step = self._steps.get(key)
        if step is None:
            shape = self._shape(total, n_items, wanted, hidden, kind, candidates, choice)
            bound = self._bind_once(shape, kind, self.plan.options.program)
            step = self._steps[key] = self._storage.step(bound)
            if choice is not None and choice.drawn:
                step.draws = self._draws.setdefault(bound, Draws(bound.inputs))
        return step

    def prepare_step(
        self,
        total: int,
        n_items: int,
        wanted: int,
        hidden: bool = False,
        kind: str = "step",
        candidates: int = 1,
        choice: Choice | None = None,
    ) -> None:
        """Compile what `step` gives, at once or as a piece."""
        pieces = gathered()
        if pieces is None:
            self.step(total, n_items, wanted, hidden, kind, candidates, choice)
            return
        shape = self._shape(total, n_items, wanted, hidden, kind, candidates, choice)
        key = (shape, kind, self.plan.options.program)
        if key not in self._bound:
            compiled, attached = partial(self._compiled, key), partial(self._bind_once, *key)
            pieces.append(Piece(_order(shape, kind), compiled, attached))

    def _compiled(self, key: tuple[StepShape, str, str]) -> Plan:
        shape, kind, program = key
        return self.model.plan(shape, self.plan.capacity, kind, program)

    def _shape(
        self,
        total: int,
        n_items: int,
        wanted: int,
        hidden: bool,
        kind: str,
        candidates: int,
        choice: Choice | None,
    ) -> StepShape:
        """Of the plan for these."""
        n, b = self._bucket(total, n_items, kind)
        every = wanted == total and n == token_bucket(total)
        out = n if every else wanted and min(n, token_bucket(max(wanted, b)))
        if choice is not None and choice.n_logits:
            n_logits = min(out, token_bucket(max(choice.n_logits, b)))
            choice = replace(choice, n_logits=n_logits)
        return StepShape(n, b, out, hidden, self.plan.options.draft_head, candidates, choice)

    def rows(self, total: int, kind: str) -> int:
        """Rows of the plans that passes of total tokens of one sequence run."""
        return self._bucket(total, 1, kind)[0]

    def _bucket(self, total: int, n_items: int, kind: str) -> tuple[int, int]:
        """Rows and sequences that a plan for these is compiled for."""
        n, n_seqs = token_bucket(total), self.plan.options.n_seqs
        if kind != "prefill":
            return n, sequence_bucket(n_items, n_seqs)
        if self._storage.cuts_freely and self._storage.grid is not None:
            n = max(n, LEAST_ROWS)
        # Few plans for many prompts at once: numbers of both would multiply.
        return (n, 1) if n_items == 1 else (max(n, min(JOINED_ROWS, self._storage.chunk)), n_seqs)

    def fold_step(self) -> BoundStep:
        """The pass without tokens that completes what replay logs hold."""
        key = ("folds",)
        if key not in self._steps:
            bound = self._bind_once(StepShape(1, 1, 1), "step", "folds")
            self._steps[key] = self._storage.step(bound)
        return self._steps[key]

    def bind(self, shape: StepShape, kind: str, program: str) -> BoundPlan:
        """A program's plan for these sizes, with this session's memory."""
        plan, able = self.model.plan(shape, self.plan.capacity, kind, program), self.model.backend
        more: dict[str, Any] = {}
        if able.capabilities.places_inputs and kind == "prefill":
            # Values for a prompt's tokens: too many to pass through another place on the host.
            more["placed"] = [name for name, spec in plan.inputs.items() if spec.dtype is f32]
        return plan.bind(self.model.weights, self.pools, **more)

    def prepare(
        self,
        want: str,
        least: int,
        most: int,
        n_items: int = 1,
        hidden: bool = False,
        choice: Choice | None = None,
    ) -> None:
        """Compile what step passes of n_items sequences and least to most tokens run.

        want, choice: as for `Passes.evaluate`."""
        for n in TOKENS:
            if least <= n <= token_bucket(min(most, MAX_TOKENS)):
                wanted = {"all": n, "last": n_items, "none": 0}[want]
                self.prepare_step(n, n_items, wanted, hidden, choice=choice)

    @property
    def bound_plans(self) -> list[BoundPlan]:
        """The plans bound so far."""
        return list(self._bound.values())

    def _bind_once(self, shape: StepShape, kind: str, program: str) -> BoundPlan:
        key = (shape, kind, program)
        if key not in self._bound:
            self._bound[key] = self.bind(shape, kind, program)
        return self._bound[key]


def _order(shape: StepShape, kind: str) -> tuple[int, ...]:
    """Of a plan among those to come: short prompts before long ones."""
    several = shape.n_seqs > 1
    if kind == "prefill":
        need = Need.SEVERAL if several else Need.LENGTHS
    else:
        need = Need.ROUNDS if several else Need.ALONE
    return need, shape.n_seqs, shape.n_tokens, shape.hidden, shape.candidates
