"""The memory of a session as it is allocated: pools, attention pages, recurrent rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import Backend, BoundPlan
from ..graph.errors import BackendError
from .bound_step import BoundStep
from .memory import HybridMemory, Memory, PagedKV, RecurrentMemory
from .prompt_states import PromptStates
from .saved import pack, unpack
from .session_plan import LOGS, RECURRENT, SessionPlan, slack

WITHIN = 0.05  # of the planned bytes must be what is allocated


class SessionMemory:
    """What a plan asks for. caches: pages of all layers or, where some have a window, of those
    without and those with one; recurrent: None for models that only attend."""

    def __init__(self, plan: SessionPlan, backend: Backend) -> None:
        self.plan = plan
        self.pools = backend.pools(plan.states)
        _check_size(plan, self.pools.nbytes)
        self.caches = self._caches()
        self.recurrent = self._recurrent()
        parts: list[Memory] = [*self.caches, *([self.recurrent] if self.recurrent else [])]
        self.memory = HybridMemory(parts)
        self.prompt_states = PromptStates(plan.options.n_seqs, plan.options.cache_bytes)

    def step(self, bound: BoundPlan) -> BoundStep:
        """A bound plan with the buffers that a pass fills."""
        return BoundStep(bound, self.caches, self.recurrent)

    @property
    def remembers(self) -> bool:
        """Whether recurrent states are kept along prompts."""
        return self.recurrent is not None and self.prompt_states.limit > 0

    @property
    def reruns(self) -> bool:
        """Whether committed tokens run again after a rejection."""
        return self.recurrent is not None and self.recurrent.reruns

    @property
    def forgets_last(self) -> bool:
        """Whether the last committed token can be forgotten without running others again."""
        r = self.recurrent
        return r is None or (r.window >= 1 and not r.reruns)

    @property
    def host_bytes(self) -> int:
        """Bytes that rollback has copied between state and host memory so far."""
        return self.recurrent.host_bytes if self.recurrent else 0

    @property
    def copy_s(self) -> float:
        """Seconds that rollback's copies of states have taken so far."""
        return self.recurrent.copy_s if self.recurrent else 0.0

    def folded(self, seq: int = 0) -> int:
        """Tokens of earlier passes that the last pass brought into the recurrent state."""
        return self.recurrent.folded(seq) if self.recurrent else 0

    def remember(self, seq: int) -> None:
        """Keep the recurrent state of now, so that a later prompt may go on from here."""
        if self.recurrent is not None and self.remembers:
            self.prompt_states.add(seq, self.memory.length(seq), self.recurrent.save(seq))

    def reuse(self, seq: int, common: int) -> int:
        """Go back to at most `common` tokens, as near as the memory can; returns how many."""
        if self.memory.can_remove(seq, common):
            self.memory.remove(seq, common)
            return common
        for position, arrays in self.prompt_states.before(seq, common):
            if self.recurrent and all(c.can_remove(seq, position) for c in self.caches):
                for cache in self.caches:
                    cache.remove(seq, position)
                self.recurrent.rewind(seq, position, arrays)
                self.memory.rewind(seq, position)
                return position
        self.memory.remove(seq, 0)
        return 0

    def forget_states(self, seq: int, start: int) -> None:
        """Drop kept states of positions after start."""
        self.prompt_states.cut(seq, start)

    def save(self, model: str, seq: int, tokens: Sequence[int]) -> bytes:
        """A settled sequence as bytes."""
        return pack(model, self._kinds(), tokens, self.memory.save(seq))

    def restore(self, model: str, seq: int, data: bytes) -> list[int]:
        """A saved sequence into an empty one; its tokens."""
        tokens, arrays = unpack(data, model, self._kinds())
        self.memory.restore(seq, len(tokens), arrays)
        return tokens

    def _kinds(self) -> dict[str, Any]:
        options = self.plan.options
        return {
            "cache_type_k": options.cache_type_k,
            "cache_type_v": options.cache_type_v,
            "program": options.program,
        }

    def _caches(self) -> list[PagedKV]:
        plan, options = self.plan, self.plan.options
        names = [n for n in plan.states if not n.startswith((*RECURRENT, *LOGS))]
        near = [n for n in names if int(n.rsplit(".", 1)[1]) in plan.windows]
        capacity, n_seqs = plan.capacity, options.n_seqs
        if not capacity.window_pages:
            return [PagedKV(n_seqs, capacity.n_pages, plan.n_ctx, self.pools, names)]
        far = [n for n in names if n not in near]
        window = max(plan.windows.values())
        return [
            PagedKV(n_seqs, capacity.n_pages, plan.n_ctx, self.pools, far),
            PagedKV(
                n_seqs,
                capacity.window_pages,
                plan.n_ctx,
                self.pools,
                near,
                window=window,
                slack=slack(options),
            ),
        ]

    def _recurrent(self) -> RecurrentMemory | None:
        names = [n for n in self.plan.states if n.startswith(RECURRENT)]
        if not names:
            return None
        options = self.plan.options
        return self.plan.strategy(options.n_seqs, self.pools, names, options.n_rs_seq)


def _check_size(plan: SessionPlan, allocated: int) -> None:
    """Raise BackendError when memory is not what was announced."""
    if abs(allocated - plan.bytes.device) > WITHIN * max(plan.bytes.device, 1):
        raise BackendError(
            f"session memory should take {plan.bytes.device} bytes as planned, it takes {allocated}"
        )
