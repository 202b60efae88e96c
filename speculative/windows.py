"""How many drafts a session can forget, and has room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine import Session
from ..engine.buckets import MAX_TOKENS
from ..engine.drafting import Entry
from ..engine.sequences import Sequences
from ..engine.session_plan import SessionPlan
from ..graph.errors import RequestError

if TYPE_CHECKING:
    from .options import Speculation


def window(plan: SessionPlan) -> int:
    """The most drafts that the memory of such a session can forget."""
    bounded = plan.bytes.recurrent and not plan.strategy.reruns
    return plan.options.n_rs_seq if bounded else MAX_TOKENS - 1


def check_window(session: Session | Sequences, asked: Speculation) -> None:
    """Raise RequestError for a session whose memory can forget nothing."""
    plan = session.plan
    if plan.bytes.recurrent and plan.options.n_rs_seq == 0:
        raise RequestError(
            "this session cannot forget drafts; make it with n_rs_seq of the most drafts, here "
            f"{asked.longest} (an Engine: with draft_max)"
        )


def room(sequences: Sequences, entry: Entry, company: int) -> int:
    """Drafts that the context, a pass of `company` sequences and the entry leave room for."""
    free = sequences.n_ctx - sequences.length(entry.seq)
    left = MAX_TOKENS if entry.left is None else entry.left
    share = MAX_TOKENS // company - 1 - sequences.memory.rerun(entry.seq)
    most = MAX_TOKENS if entry.most is None else entry.most
    return max(0, min(free - 2, left - 1, share, most))
