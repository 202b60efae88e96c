"""What the recurrent ops of a pass take longer because they first carry out logged tokens."""

from __future__ import annotations

import statistics

from ..backends import BoundPlan
from ..graph import OPS
from ..graph.errors import RequestError
from ..models.memories import REPLAY
from .bound_step import Part
from .memory import Reservation
from .session import Session

RUNS = 7
N_REPLAY = REPLAY[1]  # how many logged tokens a pass folds


def fold_seconds(session: Session, n_tokens: int, n_replay: int, runs: int = RUNS) -> float:
    """Seconds that a pass of one newest token and n_tokens - 1 drafts takes longer in the recurrent
    ops when it first folds n_replay logged tokens into the state: the sum over their nodes of the
    medians of `runs` runs with and without, which take turns. 0.0 where rollback keeps no log.

    session: all its sequences are empty, and are so again afterwards. Raises RequestError when
    they are not, for numbers that the log has no room for, and where a device does not time its
    nodes."""
    memory = session.memory
    if any(memory.length(seq) or memory.pending(seq) for seq in range(session.n_seqs)):
        raise RequestError("the cost of folding is measured in an empty session; clear it first")
    if not session.capacity.log or n_replay == 0:
        return 0.0
    if n_tokens < 1 or not 0 <= n_replay <= session.capacity.log - (n_tokens - 1):
        raise RequestError(
            f"a log of {session.capacity.log} tokens cannot hold {n_replay} to fold and those of a "
            f"pass of {n_tokens}; use fewer"
        )
    step = session.sequences.runner.step(n_tokens, 1, n_tokens)
    memory.reserve([Reservation(0, n_tokens, 1)])
    times: dict[int, list[list[int]]] = {n_replay: [], 0: []}
    try:
        step.fill([Part(0, [0] * n_tokens, 0, 0)], n_tokens)
        for _ in range(runs + 1):
            for n, found in times.items():
                step.bound.inputs[N_REPLAY][0] = n
                found.append(_recurrent_times(step.bound, n_tokens))
    finally:
        # A pass with a sure token counts as having touched the state, which is emptied then.
        memory.lose(0)
    # Medians node by node: whatever else the machine does hits other nodes in each run.
    with_, without = (
        sum(statistics.median(node) for node in zip(*found[1:], strict=True))
        for found in times.values()
    )
    return (with_ - without) / 1e9


def _recurrent_times(bound: BoundPlan, n_tokens: int) -> list[int]:
    """Nanoseconds of each recurrent node of a run."""
    recurrent = {name for name, op in OPS.items() if op.recurrent}
    found = [ns for label, ns in bound.profile(n_tokens) if label.split(" ")[0] in recurrent]
    if not found:
        raise RequestError("this device does not time its nodes; measure folding on the cpu")
    return found
