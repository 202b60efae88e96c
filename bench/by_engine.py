"""Decoding and prompts as an engine runs them for its users, behind contexts of any depth."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..engine import Engine, Model, Session
from ..engine.buckets import MAX_TOKENS
from ..engine.memory import Reservation
from ..engine.sequences import Sequences
from .measure import Times

if TYPE_CHECKING:
    from .throughput import Workload

PROMPT = 16
WARM = 8  # tokens until passes follow one another steadily
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


class FilledSequences(Sequences):
    """Sequences that can be made to hold tokens without evaluating them. Memory is as it was when
    made, zero: how long a pass takes does not depend on what it holds."""

    def fill(self, seq: int, n: int) -> None:
        """So many more tokens."""
        while n > 0:
            part = min(n, MAX_TOKENS)
            batch = [Reservation(seq, part, part)]
            self.memory.reserve(batch)
            self.memory.commit_all(batch)
            self._tokens[seq].extend([0] * part)
            n -= part


def decode_context(n: int, depth: int) -> int:
    """Tokens of the sequence in the end."""
    return depth + PROMPT + WARM + n + 2


def decode(model: Model, test: Workload, repetitions: int, ids: list[int]) -> dict[str, Any]:
    """Rates of n tokens behind `depth` ones: on a device that runs ahead, each pass starts from the
    token that the one before has chosen there, and is started before that one is read."""
    kind = test.cache_type
    plan = model.plan_session(
        decode_context(test.n, test.depth), cache_type_k=kind, cache_type_v=kind, cache_bytes=0
    )
    with Session(model, plan, FilledSequences) as session, Engine(model, session=session) as engine:
        # One unmeasured run warms up.
        seconds = [_decode(engine, test, ids) for _ in range(repetitions + 1)][1:]
    times = Times(tuple(seconds))
    return {**times.rates(test.n), "ms_median": 1e3 * times.median / test.n}


def _decode(engine: Engine, test: Workload, ids: list[int]) -> float:
    """Seconds of n tokens."""
    sequences = engine.sequences
    assert isinstance(sequences, FilledSequences)
    sequences.clear(0)
    sequences.fill(0, test.depth)
    request = engine.submit(ids[:PROMPT], WARM + test.n, **GREEDY)
    while len(request.tokens) < WARM and not request.ending:
        engine.step()
    before, began = len(request.tokens), time.perf_counter()
    while request.result is None:
        engine.step()
    took = time.perf_counter() - began
    if request.error is not None:
        raise request.error
    return took * test.n / (len(request.tokens) - before)


def prompt(model: Model, test: Workload, repetitions: int, ids: list[int]) -> dict[str, Any]:
    """Rates of a prompt from its start to its first token, in a session that keeps states along
    prompts as sessions do by default."""
    seconds = []
    with Engine(model, n_ctx=test.n + 1) as engine:
        for _ in range(repetitions + 1):
            request = engine.submit(ids, 1, **GREEDY)
            while request.result is None:
                engine.step()
            if request.error is not None:
                raise request.error
            seconds.append(request.timings.prompt_ms / 1e3)
    times = Times(tuple(seconds[1:]))
    return {**times.rates(test.n), "ms_median": 1e3 * times.median}
