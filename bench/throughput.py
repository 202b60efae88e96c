"""Tokens per second: passes of given sizes, and decoding token by token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ..backends import BoundPlan, Plan
from ..backends.delegate import Delegate
from ..engine import Model
from ..engine.runner import Runner
from ..engine.sequences import Sequences
from ..graph import Node, Value
from ..models.step import StepShape
from . import by_engine
from .measure import Times, repeat

MAX_STEP = 64
PROMPT = by_engine.PROMPT


@dataclass(frozen=True)
class Workload:
    """One measurement. name: "pass" evaluates n tokens of an empty sequence; "decode" evaluates n
    tokens, one at a time and greedily, after a prompt of 16 and, before that, `depth` tokens, with
    attention memory of a type; "prompt" evaluates n tokens as an engine does for a request."""

    name: str
    n: int
    depth: int = 0
    cache_type: str = "f16"

    @property
    def kind(self) -> str:
        """Which plans it runs.

        "step" up to 64 tokens, with logits of every token, as a check of drafts needs them;
        "prefill" beyond, in chunks of the backend's, with logits of the last."""
        if self.name == "prompt":
            return "prefill"
        return "prefill" if self.name == "pass" and self.n > MAX_STEP else "step"

    @property
    def by_engine(self) -> bool:
        """Whether an engine runs it, in a session of its own, whatever the device."""
        return self.name == "prompt" or self.depth > 0 or self.cache_type != "f16"

    @property
    def context(self) -> int:
        """Tokens that the sequence holds in the end."""
        if self.by_engine and self.name == "decode":
            return by_engine.decode_context(self.n, self.depth)
        return self.n + (PROMPT if self.name == "decode" else 0)

    @property
    def label(self) -> str:
        """What tables call it."""
        depth = f" at {self.depth}" if self.depth else ""
        kind = f" {self.cache_type}" if self.cache_type != "f16" else ""
        return f"{self.name} {self.n}{depth}{kind}"


def make_tests(
    sizes: Sequence[int],
    decode: int,
    depths: Sequence[int] = (),
    cache_types: Sequence[str] = ("f16",),
    prompts: Sequence[int] = (),
) -> list[Workload]:
    """Passes of the given sizes, prompts of the given lengths, then decoding of that many tokens
    unless it is 0: behind nothing and at each depth, with each type of attention memory."""
    tests = [Workload("pass", n) for n in sizes] + [Workload("prompt", n) for n in prompts]
    if decode:
        behind = [(depth, kind) for depth in (0, *depths) for kind in cache_types]
        tests += [Workload("decode", decode, depth, kind) for depth, kind in behind]
    return tests


def session_context(tests: Sequence[Workload]) -> int:
    """Tokens of the session that those share which have none of their own."""
    return max((test.context for test in tests if not test.by_engine), default=PROMPT)


def token_ids(n_vocab: int, n: int) -> list[int]:
    """The same n ids every time; speed does not depend on which."""
    return np.random.default_rng(0).integers(0, n_vocab, n).tolist()


class TimedBoundPlan(Delegate, BoundPlan):
    """A bound plan that keeps the duration of its last run and of all, in seconds."""

    def __init__(self, inner: BoundPlan) -> None:
        self.inner = inner
        self.seconds = self.total = 0.0

    def run(self, rows: int | None = None) -> None:
        """Run and time it."""
        began = time.perf_counter()
        self.inner.run(rows)
        self.seconds = time.perf_counter() - began
        self.total += self.seconds

    def start(self) -> None:
        """A run that is over, and timed, when this returns."""
        self.run()


class TimedRunner(Runner):
    """Runs plans that are timed apart from the Python around them."""

    def bind(self, shape: StepShape, kind: str, program: str) -> TimedBoundPlan:
        """A plan that keeps its duration."""
        return TimedBoundPlan(super().bind(shape, kind, program))

    @property
    def single(self) -> TimedBoundPlan:
        """The plan of passes of one token."""
        bound = self.step(1, 1, 1).bound
        assert isinstance(bound, TimedBoundPlan)
        return bound


class Bench:
    """Measurements over one session."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        self.model = model
        self.session = Sequences(model, model.plan_session(n_ctx, cache_bytes=0), TimedRunner)
        self._tokens = token_ids(model.tokenizer.n_vocab or model.n_vocab, n_ctx)

    def measure(self, test: Workload, repetitions: int) -> dict[str, Any]:
        """A row of results: rates (t_s_*), their spread, and ms_median, the time of a pass; for
        decoding that of one token, with decode_overhead_us, the part of it outside the plan, where
        the host chooses tokens. On a device that runs ahead it decodes as engines do, of kind
        "ahead", and passes with logits of all tokens have t_s_on_device, the rate of the pass when
        these stay there."""
        head = {"test": test.name, "n": test.n, "kind": test.kind, "label": test.label}
        if test.name == "decode":
            head |= {"depth": test.depth, "cache_type": test.cache_type}
        ahead = self.model.backend.runs_ahead
        if test.name == "prompt":
            return head | by_engine.prompt(self.model, test, repetitions, self._ids(test.n))
        if test.name == "decode" and (ahead or test.by_engine):
            head["kind"] = "ahead" if ahead else test.kind
            return head | by_engine.decode(self.model, test, repetitions, self._ids(PROMPT))
        run = self._decode if test.name == "decode" else self._pass
        return head | run(test, repetitions)

    def _ids(self, n: int) -> list[int]:
        return token_ids(self.model.tokenizer.n_vocab or self.model.n_vocab, n)

    def _pass(self, test: Workload, repetitions: int) -> dict[str, float]:
        tokens = self._tokens[: test.n]

        def step() -> None:
            self.session.evaluate([(0, tokens)], want="all")

        def prefill() -> None:
            self.session.prefill(tokens)

        run = step if test.kind == "step" else prefill
        times = repeat(run, repetitions, self.session.clear)
        found = {**times.rates(test.n), "ms_median": 1e3 * times.median}
        if self.model.backend.runs_ahead and test.kind == "step":
            found["t_s_on_device"] = test.n / self._on_device(test.n, repetitions).median
        return found

    def _on_device(self, n: int, repetitions: int) -> Times:
        """The plan of the last pass over n tokens once more, its results left on the device."""
        last: Any = self.session.runner.step(n, 1, n).bound
        bound = last.plan.bind(self.model.weights, self.session.pools, host_outputs=False)
        for name, array in bound.inputs.items():
            array[...] = last.inputs[name]
        return repeat(bound.run, repetitions)

    def _decode(self, test: Workload, repetitions: int) -> dict[str, float]:
        overheads: list[float] = []
        token = 0

        def prompt() -> None:
            nonlocal token
            self.session.clear()
            token = int(np.argmax(self.session.prefill(self._tokens[:PROMPT])))

        def decode() -> None:
            nonlocal token
            assert isinstance(self.session.runner, TimedRunner)
            plan = self.session.runner.single
            for _ in range(test.n):
                began = time.perf_counter()
                token = int(np.argmax(self.session.decode(token)))
                overheads.append(time.perf_counter() - began - plan.seconds)

        times = repeat(decode, repetitions, prompt)
        return {
            **times.rates(test.n),
            "ms_median": 1e3 * times.median / test.n,
            "decode_overhead_us": 1e6 * statistics.median(overheads[test.n :]),
        }

    def weight_bytes(self) -> int:
        """Bytes of weights, as they lie in the file, that evaluating one token reads."""
        shape = StepShape(1, 1, 1)
        return weight_bytes(self.model.plan(shape, self.session.plan.capacity, "step"))

    def launches(self) -> int | None:
        """How many kernels a pass of one token launches; None where that is not counted."""
        assert isinstance(self.session.runner, TimedRunner)
        return self.session.runner.single.launches


def weight_bytes(plan: Plan) -> int:
    """Bytes of the constants that a run of the plan reads; of tables, the rows looked up, and of
    experts at most as many as are chosen."""
    whole: dict[str, int] = {}
    rows = 0
    for node in plan.graph.nodes:
        for value in node.inputs:
            if value is None or value.node.op.name != "constant":
                continue
            if node.op.name == "get_rows":
                rows += value.spec.nbytes // value.shape[0] * node.specs[0].shape[0]
            else:
                whole[value.node.name] = int(value.spec.nbytes * _chosen(node, value))
    return sum(whole.values()) + rows


def _chosen(node: Node, value: Value) -> Fraction:
    """The share of a weight that a node may read: of experts those that its ids name, if all
    differ."""
    if "ids" not in node.op.inputs or len(value.shape) != 3:
        return Fraction(1)
    ids = node.inputs[node.op.inputs.index("ids")]
    return min(Fraction(1), Fraction(ids.spec.size if ids else 0, value.shape[0]))
