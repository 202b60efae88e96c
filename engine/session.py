"""A session: sequences over a model, safe to hand around."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..backends import Pools
from ..graph.errors import RequestError
from ..models.step import Capacity
from .guard import Call, Guard
from .memory import HybridMemory
from .rows import Pass
from .sequences import Sequences
from .session_options import SessionOptions
from .session_plan import SessionPlan, plan_session

if TYPE_CHECKING:
    from .model import Model

__all__ = ["Pass", "Session"]
P = ParamSpec("P")
R = TypeVar("R")


def _guarded(
    method: Callable[Concatenate[Sequences, P], R],
) -> Callable[Concatenate[Session, P], R]:
    """A method of Sequences as one of a session, which one caller at a time may use."""

    @functools.wraps(method)
    def call(self: Session, /, *args: P.args, **kwargs: P.kwargs) -> R:
        mine = Call()
        try:
            self.guard.enter(mine)
            return method(self.sequences, *args, **kwargs)
        finally:
            self.guard.leave(mine)

    return call


class Session:
    """Evaluates tokens of n_seqs sequences of up to n_ctx tokens each.

    One caller at a time: another thread, and anyone while a generation has the session, gets
    SessionBusy. After an exception inside a call each sequence is as it was before, or lost: its
    calls raise SequenceLost until `clear`. A model may serve many sessions."""

    def __init__(
        self,
        model: Model,
        plan: SessionPlan | None = None,
        sequences: type[Sequences] = Sequences,
    ) -> None:
        """plan: by default that of SessionOptions(); sequences: a class of one's own that looks
        into passes."""
        self.sequences = sequences(model, plan or plan_session(model, SessionOptions()))
        self.guard = Guard()

    def __repr__(self) -> str:
        plan = self.plan
        return f"<Session {self.model.name} on {self.model.device}, {plan.summary}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free its memory; later calls raise RequestError."""
        call = Call()
        try:
            self.guard.enter(call)
            if hasattr(self, "sequences"):
                del self.sequences
        finally:
            self.guard.leave(call)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name == "sequences":
                raise RequestError("this session is closed; make another with model.session()")
            raise AttributeError(f"a session has no attribute {name!r}")

    clear = _guarded(Sequences.clear)
    evaluate = _guarded(Sequences.evaluate)
    verify = _guarded(Sequences.verify)
    decode = _guarded(Sequences.decode)
    prefill = _guarded(Sequences.prefill)
    commit = _guarded(Sequences.commit)
    remove = _guarded(Sequences.remove)
    append = _guarded(Sequences.append)
    reuse = _guarded(Sequences.reuse)
    settle = _guarded(Sequences.settle)
    copy = _guarded(Sequences.copy)
    save = _guarded(Sequences.save)
    restore = _guarded(Sequences.restore)

    def length(self, seq: int = 0) -> int:
        """Tokens of a sequence, those included that are still to be evaluated, pending ones not."""
        return self.sequences.length(seq)

    def tokens(self, seq: int = 0) -> list[int]:
        """The tokens that `length` counts."""
        return self.sequences.tokens(seq)

    def can_commit(self, seq: int, n: int) -> bool:
        """Whether the first n pending tokens of a sequence can stay and the others go."""
        return self.sequences.can_commit(seq, n)

    def can_remove(self, seq: int, start: int) -> bool:
        """Whether the tokens from position start on can be forgotten."""
        return self.sequences.can_remove(seq, start)

    @property
    def model(self) -> Model:
        """The model."""
        return self.sequences.model

    @property
    def plan(self) -> SessionPlan:
        """What it was asked for and what that takes."""
        return self.sequences.plan

    @property
    def n_ctx(self) -> int:
        """Tokens of the longest sequence."""
        return self.plan.n_ctx

    @property
    def n_seqs(self) -> int:
        """How many sequences it has."""
        return self.plan.options.n_seqs

    @property
    def capacity(self) -> Capacity:
        """The sizes of its memory, as graphs see them."""
        return self.plan.capacity

    @property
    def memory(self) -> HybridMemory:
        """What sequences hold."""
        return self.sequences.memory

    @property
    def pools(self) -> Pools:
        """The memory of its states."""
        return self.sequences.pools
