"""Many requests at once: an engine's tokens per second, beside what its passes alone would give."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..backends import BoundPlan
from ..engine import Engine, Model
from ..engine.bound_step import Part
from ..engine.runner import Runner
from ..engine.sequences import Sequences
from ..models.step import StepShape
from .throughput import TimedBoundPlan, token_ids

PROMPT, WARM, RAW_RUNS, GAPLESS = 16, 8, 9, 32
Progress = Callable[[int], None]


class _TimedRunner(Runner):
    """Every plan keeps the time of its runs, of which all are added up."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.timed: list[TimedBoundPlan] = []

    def bind(self, shape: StepShape, kind: str, program: str) -> BoundPlan:
        """A plan that keeps its duration."""
        self.timed.append(TimedBoundPlan(super().bind(shape, kind, program)))
        return self.timed[-1]

    @property
    def seconds(self) -> float:
        """Of all runs so far."""
        return sum(plan.total for plan in self.timed)


class _TimedSequences(Sequences):
    def __init__(self, model: Model, plan: Any) -> None:
        super().__init__(model, plan, _TimedRunner)


@dataclass(frozen=True)
class Row:
    """requests: that decode at once; t_s: tokens per second of all; pass_t_s: what the passes for
    their rows give by themselves, logits included; share: t_s of pass_t_s; python_us: microseconds
    of a step outside its passes, None on a device that runs ahead, where they are hidden; busy: the
    share of the time in which such a device computes, None for others."""

    requests: int
    t_s: float
    pass_t_s: float
    share: float
    python_us: float | None
    busy: float | None


class BatchBench:
    """Measures an engine with given numbers of requests. options: of each request, as for
    Engine.submit."""

    def __init__(self, model: Model, n_tokens: int, options: dict[str, Any]) -> None:
        self.model, self.n = model, n_tokens
        self.options = {"ignore_eos": True, **options}
        self.n_ctx = PROMPT + WARM + n_tokens + 2
        self.ids = token_ids(model.tokenizer.n_vocab or model.n_vocab, 4096)

    def run(
        self, counts: Sequence[int], repetitions: int, progress: Progress = lambda n: None
    ) -> list[dict[str, Any]]:
        """A row for each number of requests, the median of its repetitions by tokens per second."""
        rows = []
        for count in counts:
            progress(count)
            found = sorted((self._row(count) for _ in range(repetitions)), key=lambda r: r.t_s)
            rows.append(asdict(found[len(found) // 2]))
        return rows

    def _row(self, count: int) -> Row:
        overlaps = self.model.backend.runs_ahead
        kind = Sequences if overlaps else _TimedSequences
        with Engine(self.model, n_seqs=count, n_ctx=self.n_ctx, sequences=kind) as engine:
            requests = [
                engine.submit(self._prompt(i), WARM + self.n, **self.options) for i in range(count)
            ]
            while any(len(r.tokens) < WARM for r in requests):
                engine.step()
            runner, steps = engine.sequences.runner, 0
            before = sum(len(r.tokens) for r in requests)
            passes = getattr(runner, "seconds", 0.0)
            began = time.perf_counter()
            while not any(r.result for r in requests):
                engine.step()
                steps += 1
            took = time.perf_counter() - began
            tokens = sum(len(r.tokens) for r in requests) - before
            python = None
            if not overlaps:
                python = 1e6 * (took - (getattr(runner, "seconds", 0.0) - passes)) / steps
            pass_s = self._pass_seconds(engine.sequences, count)
            busy = None
            if overlaps:
                busy = _picking_seconds(engine.sequences, count) * tokens / count / took
        rate = tokens / took
        return Row(count, rate, count / pass_s, rate * pass_s / count, python, busy)

    def _prompt(self, i: int) -> list[int]:
        return self.ids[i * PROMPT : (i + 1) * PROMPT]

    def _pass_seconds(self, sequences: Sequences, count: int) -> float:
        """The median time of a bare pass over so many rows, with their logits on the host."""
        step = sequences.runner.step(count, count, count)
        step.fill(_last_tokens(sequences, count), count)
        seconds = []
        for _ in range(RAW_RUNS):
            began = time.perf_counter()
            step.bound.run(count)
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)


def _picking_seconds(sequences: Sequences, count: int) -> float:
    """The time of a pass that picks its tokens, of many that a device runs without a gap: two plans
    take turns, so that one waits while the other runs."""
    shape = StepShape(count, count, count)
    bound = [sequences.runner.bind(shape, "step", "ahead") for _ in range(2)]
    for plan in bound:
        sequences.storage.step(plan).fill(_last_tokens(sequences, count), count)
        plan.inputs["token_slots"][:] = plan.inputs["next_slots"][:] = range(count)
    bound[0].start()
    began = time.perf_counter()
    for i in range(GAPLESS):
        bound[(i + 1) % 2].start()
        bound[i % 2].finish()
    took = time.perf_counter() - began
    bound[GAPLESS % 2].finish()
    return took / GAPLESS


def _last_tokens(sequences: Sequences, count: int) -> list[Part]:
    """A pass over the last position of each sequence once more, for its time alone."""
    return [Part(seq, (0,), 0, sequences.evaluated(seq) - 1) for seq in range(count)]
