"""The memory of a session as it is allocated: pools, attention pages, recurrent rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..backends import Backend, BoundPlan, Pools
from ..backends.base import KeptParts
from ..graph.errors import BackendError, OutOfMemory
from .bound_step import BoundStep
from .buckets import MAX_TOKENS
from .memory import HybridMemory
from .memory.pages import MOST_PARKED
from .prompt_states import PromptStates, planned
from .prompts import LAST
from .saved import pack, unpack
from .session_plan import SessionPlan, mib


class Reuse(NamedTuple):
    """How many tokens of a sequence a prompt reuses, and why not all that they have in common;
    empty when all."""

    kept: int
    why: str


WITHIN = 0.05  # of the planned bytes must be what is allocated


class SessionMemory:
    """What a plan asks for. memory: has a part for each memory that the program declares.

    grid: a prompt that is continued gives what a cold one gives from multiples of it on, so states
    are kept only there; None for any position. cuts_freely: passes of prompts may end at any
    multiple of it, and hold several prompts, and give the same. chunk: tokens of a prompt in one
    pass at most; where cuts are not free, requests that decode wait for whole chunks, which are
    short ones then."""

    def __init__(self, plan: SessionPlan, backend: Backend, prompt_grid: int = 0) -> None:
        """prompt_grid: `Plan.prompt_grid` of its prompts."""
        self.plan, self.cuts_freely = plan, prompt_grid > 0
        joins = backend.capabilities.joins_prompts and plan.options.n_seqs > 1
        self.joins_prompts = joins and self.cuts_freely  # whether passes over prompts hold several
        self.chunk = plan.chunk if prompt_grid else min(plan.chunk, MAX_TOKENS)
        self.grid = None if prompt_grid == 1 else prompt_grid or self.chunk
        self.pools = _allocate(plan, backend)
        _check_size(plan, self.pools.nbytes)
        self.memory = HybridMemory([x.make(self.pools, plan.capacity) for x in plan.layouts])
        self.prompt_states = PromptStates(plan.options.n_seqs, plan.cache_bytes, MOST_PARKED)

    def step(self, bound: BoundPlan) -> BoundStep:
        """A bound plan with the buffers that a pass fills."""
        return BoundStep(bound, self.memory)

    @property
    def remembers(self) -> bool:
        """Whether states are kept along prompts: where memory cannot go back by itself."""
        return self.memory.reach is not None and self.prompt_states.limit > 0

    def remembers_last(self, back: int) -> bool:
        """Whether a prompt's evaluation should stop some `back` tokens before its end, to keep a
        state there: where a prompt that only ends differently would not reach it else."""
        reach = self.memory.reach
        return self.remembers and self.cuts_freely and reach is not None and reach < back

    @property
    def reruns(self) -> bool:
        """Whether committed tokens run again after a rejection."""
        return self.memory.reruns

    @property
    def forgets_last(self) -> bool:
        """Whether the last committed token can be forgotten without running others again."""
        return self.memory.forgets_last

    @property
    def host_bytes(self) -> int:
        """Bytes that rollback has copied between state and host memory so far."""
        return self.memory.copied().host_bytes

    @property
    def copy_s(self) -> float:
        """Seconds that rollback's copies of states have taken so far."""
        return self.memory.copied().seconds

    def folded(self, seq: int = 0) -> int:
        """Tokens of earlier passes that the last pass brought into the recurrent state."""
        return self.memory.folded(seq)

    def remember(self, seq: int, end: int | None = None) -> None:
        """Keep what it takes to come back to now, so that a later prompt may go on from here.

        end: the length of the prompt under evaluation, of which only as many states are kept as
        there is room for; None keeps this one in any case."""
        if self.can_remember(seq, end):
            length = self.memory.length(seq)
            self._keep(seq, length, self._is_last(length, end))

    def can_remember(self, seq: int, end: int | None = None) -> bool:
        """Whether `remember` keeps a state, where none is kept yet and there is room for one."""
        memory = self.memory
        due = memory.pending(seq) or memory.rerun(seq) or memory.unsettled(seq)
        return self.remembers and not due and self._worth_keeping(seq, memory.length(seq), end)

    def _keep(self, seq: int, length: int, last: bool) -> None:
        parts = self.memory.to_keep(seq)
        # Room first: where states lie on a device, there may be none for one more than the limit.
        if self.prompt_states.make_room(seq, length, self.pools.kept_bytes(parts), last):
            self.prompt_states.add(seq, length, self.pools.keep(parts))

    def _worth_keeping(self, seq: int, length: int, end: int | None) -> bool:
        grid = self.grid or 1
        if length % grid:
            return False
        if end is None or self._is_last(length, end):
            return True
        room = self.prompt_states.room(seq, self.plan.bytes.kept)
        return length in planned(end, room - self.remembers_last(LAST), self.chunk)

    def _is_last(self, length: int, end: int | None) -> bool:
        """Whether no state behind this one can be kept of a prompt that long."""
        return end is None or (self.cuts_freely and end - length < LAST + (self.grid or 1))

    def reuse(self, seq: int, common: int) -> Reuse:
        """Go back to at most `common` tokens, as near as the memory can, with nothing pending."""
        held = self.memory.length(seq)
        if self.memory.can_remove(seq, common):
            self.memory.remove(seq, common)
            return Reuse(common, "")
        states = self.prompt_states.before(seq, common)
        kept, why = 0, self._why_less(seq, common, held)
        for position, state in states:
            if self.memory.can_rewind(seq, position, state):
                self.memory.rewind(seq, position, state)
                kept = position
                break
        else:
            self.memory.remove(seq, 0)
        why = "" if kept == common else f"{kept} of {common} common tokens are reused: {why}"
        return Reuse(kept, why)

    def reachable(self, src: int, common: int) -> int:
        """From how many of the leading `common` tokens that src holds, a sequence or a parked
        text, another sequence can go on."""
        return self._adoptable(src, common)[0]

    def adopt(self, src: int, seq: int, common: int) -> Reuse:
        """Let the empty sequence go on from there; src stays as it is."""
        kept, state = self._adoptable(src, common)
        if kept:
            self.memory.adopt(src, seq, kept, state)
            self.prompt_states.share(src, seq, kept)
        # Short of it only where pages alone would do: they go on at the grid.
        whole = kept == common or (self.memory.reach is None and common - kept < (self.grid or 1))
        why = "" if whole else self._where(src)
        return Reuse(kept, why and f"{kept} of {common} common tokens are reused: {why}")

    def _adoptable(self, src: int, common: int) -> tuple[int, KeptParts]:
        able = self.memory.can_adopt
        if self.memory.reach is None:
            at = common // (self.grid or 1) * (self.grid or 1)
            return (at, {}) if at and able(src, at, {}) else (0, {})
        found = self.prompt_states.before(src, common)
        return next(((at, state) for at, state in found if able(src, at, state)), (0, {}))

    def to_host(self, state: KeptParts) -> KeptParts:
        """A kept state in host memory."""
        return {n: [self.pools.to_host(n, part) for part in parts] for n, parts in state.items()}

    def recall(
        self, seq: int, start: int, pages: Sequence[Mapping[str, np.ndarray]], kept: KeptParts
    ) -> None:
        """Let the empty sequence go on from `start` tokens whose pages and state lie in host
        memory; the state is kept here, too."""
        self.memory.recall(seq, start, pages, kept)
        if self.remembers:
            self.prompt_states.add(seq, start, kept)

    def in_place(self, seq: int, common: int) -> int:
        """How many of the leading `common` tokens `reuse` would keep."""
        if self.memory.can_remove(seq, common):
            return common
        found, able = self.prompt_states.before(seq, common), self.memory.can_rewind
        return next((at for at, state in found if able(seq, at, state)), 0)

    def _why_less(self, seq: int, common: int, held: int) -> str:
        """Why memory of `held` tokens does not go back to `common` ones."""
        size, limit = self.plan.bytes.kept, self.prompt_states.limit
        back = f"this memory does not go back by {held - common} tokens"
        if limit < size:
            return f"{back}, and cache_bytes of {mib(limit)} keeps no state of {mib(size)}"
        return f"{back}, and {self._where(seq)}"

    def _where(self, seq: int) -> str:
        """Where a text has states."""
        at = self.prompt_states.positions(seq)
        where = f"states are kept at {', '.join(map(str, at))}" if at else "no state is kept"
        size, limit = self.plan.bytes.kept, self.prompt_states.limit
        return f"{where} (cache_bytes of {mib(limit)}, {mib(size)} a state)"

    def forget_states(self, seq: int, start: int) -> None:
        """Drop kept states of positions after start."""
        self.prompt_states.cut(seq, start)

    def save(self, model: str, seq: int, tokens: Sequence[int]) -> bytes:
        """A settled sequence as bytes."""
        return pack(model, self._kinds(), tokens, self.memory.save(seq))

    def saved_tokens(self, model: str, data: bytes) -> list[int]:
        """The tokens of a saved sequence."""
        return unpack(data, model, self._kinds(), self.plan.n_vocab)[0]

    def restore(self, model: str, seq: int, data: bytes) -> list[int]:
        """A saved sequence into an empty one; its tokens."""
        tokens, arrays = unpack(data, model, self._kinds(), self.plan.n_vocab)
        self.memory.restore(seq, len(tokens), arrays)
        return tokens

    def _kinds(self) -> dict[str, Any]:
        options = self.plan.options
        return {
            "cache_type_k": options.cache_type_k,
            "cache_type_v": options.cache_type_v,
            "program": options.program,
        }


def _allocate(plan: SessionPlan, backend: Backend) -> Pools:
    """Raise OutOfMemory where there is less than the plan needs."""
    try:
        return backend.pools(plan.states)
    except OutOfMemory:
        raise
    except MemoryError:
        raise OutOfMemory(
            f"a session needs {plan.bytes.device} bytes, more than there are ({plan.summary}); use "
            "a smaller context (n_ctx), fewer sequences or smaller cache types"
        ) from None


def _check_size(plan: SessionPlan, allocated: int) -> None:
    """Raise BackendError when memory is not what was announced."""
    if abs(allocated - plan.bytes.device) > WITHIN * max(plan.bytes.device, 1):
        raise BackendError(
            f"session memory should take {plan.bytes.device} bytes as planned, it takes {allocated}"
        )
