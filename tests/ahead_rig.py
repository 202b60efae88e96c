"""What tests of decoding ahead share: the processor as a device that runs late, and generations
whose tokens the device or the host chooses, with what they leave behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import riverrun as rr
from riverrun.backends import Backend, BoundPlan, Plan, Pools
from riverrun.backends.delegate import Delegate
from riverrun.engine.chooser import Chooser
from riverrun.engine.generate import Generation
from riverrun.engine.plan_cache import PlanCache
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.graph import Graph, Node
from riverrun.graph.errors import BackendError
from riverrun.graph.random import uniform
from riverrun.models.step import NEXT_TOKEN

PROMPT = [5, 17, 3, 90, 41, 8]
RECURRENT = ("conv_state.", "ssm_state.")


@dataclass
class Queue:
    """Runs that were started, in order. fail, refuse: numbers, counted from 0, of those that fail
    or cannot be started; spoil: of those that compute logits that are not finite, in these rows.
    broken, damaged: sequences whose every pass fails, or computes such logits."""

    waiting: list[LateBound] = field(default_factory=list)
    started: int = 0
    fail: set[int] = field(default_factory=set)
    refuse: set[int] = field(default_factory=set)
    spoil: dict[int, Sequence[int]] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    most: int = 0  # runs that were waiting at once

    def reset(self) -> None:
        """Count anew, and let nothing fail."""
        self.started = self.most = 0
        for numbers in (self.fail, self.refuse, self.spoil, self.broken, self.damaged):
            numbers.clear()

    def until(self, last: LateBound | None = None) -> None:
        """Run what was started, up to this one, or all of it."""
        while self.waiting and (last is None or last.number is not None):
            self.waiting.pop(0).work()


class LatePools(Pools):
    """Memory that is read and written after the runs that were started before."""

    def __init__(self, specs: Mapping[str, Any], queue: Queue) -> None:
        super().__init__(specs)
        self.queue = queue

    def read(self, name: str, at: Any, out: Any = None) -> np.ndarray:
        self.queue.until()
        return super().read(name, at, out)

    def write(self, name: str, at: Any, values: Any) -> None:
        self.queue.until()
        super().write(name, at, values)

    def copy(self, name: str, src: Any, dst: Any) -> None:
        self.queue.until()
        super().copy(name, src, dst)

    def raw(self, name: str) -> np.ndarray:
        self.queue.until()
        return super().raw(name)

    def load(self, name: str, raw: np.ndarray) -> None:
        self.queue.until()
        super().load(name, raw)


class LateBound(BoundPlan):
    """Runs when it is waited for; outputs of passes that pick tokens lie apart from the arena."""

    def __init__(self, inner: BoundPlan, queue: Queue, pools: Pools, ahead: bool) -> None:
        self.inner, self.queue, self.pools, self.ahead = inner, queue, pools, ahead
        self.inputs = inner.inputs
        self.outputs = {n: a.copy() for n, a in inner.outputs.items()} if ahead else inner.outputs
        self.number: int | None = None
        self._given: dict[str, np.ndarray] = {}
        self._fault = ""

    def run(self, rows: int | None = None) -> None:
        self.queue.until()
        self.inner.run(rows)
        if self.ahead:
            self._ran()
            self._raise()

    def start(self) -> None:
        assert self.number is None, "started again before it was over"
        number = self.queue.started
        self.queue.started += 1
        if number in self.queue.refuse:
            raise BackendError("the device is gone")
        self.number, self._fault = number, ""
        self._given = {n: a.copy() for n, a in self.inputs.items()}
        self.queue.waiting.append(self)
        self.queue.most = max(self.queue.most, len(self.queue.waiting))

    def work(self) -> None:
        """The run, at last."""
        for name, given in self._given.items():
            np.testing.assert_array_equal(self.inputs[name], given, f"input {name} was changed")
        self.inner.run()
        self._ran()
        if self.number in self.queue.spoil:
            self.outputs["largest"][self.queue.spoil[self.number]] = np.nan
        if self.number in self.queue.fail:
            self._fail(f"run {self.number} failed")
        self.number = None

    def finish(self) -> None:
        self.queue.until(self)
        self._raise()

    def _ran(self) -> None:
        for name, array in self.outputs.items():
            array[...] = self.inner.outputs[name]
        slots = self.inputs["next_slots"].tolist()
        self.outputs["largest"][[seq in self.queue.damaged for seq in slots]] = np.nan
        if self.queue.broken & set(slots):
            self._fail("a run failed")

    def _fail(self, fault: str) -> None:
        """What fails leaves the recurrent states of its sequences in pieces."""
        self._fault = fault
        rows = [seq for seq in self.inputs["next_slots"].tolist() if seq >= 0]
        for name in self.pools.specs:
            if name.startswith(RECURRENT):
                self.pools.array(name)[rows] = np.nan

    def _raise(self) -> None:
        if self._fault:
            fault, self._fault = self._fault, ""
            raise BackendError(fault)


class LatePlan(Plan):
    def __init__(self, inner: Plan, queue: Queue) -> None:
        super().__init__(inner.graph, inner.kind)
        self.inner, self.queue, self.memory = inner, queue, inner.memory

    def bind(self, weights: Any, pools: Pools) -> BoundPlan:
        ahead = NEXT_TOKEN in self.states
        return LateBound(self.inner.bind(weights, pools), self.queue, pools, ahead)

    def own_weights(self) -> Any:
        return self.inner.own_weights()


class LateBackend(Delegate, Backend):
    """Another backend whose runs take place when they are waited for."""

    def __init__(self, inner: Backend) -> None:
        self.inner, self.queue = inner, Queue()
        self.capabilities = replace(inner.capabilities, runs_ahead=True)

    def supports(self, node: Node) -> Any:
        return self.inner.supports(node)

    def compile(self, graph: Graph, kind: str = "step") -> Plan:
        return LatePlan(self.inner.compile(graph, kind), self.queue)

    def pools(self, states: Mapping[str, Any]) -> Pools:
        return LatePools(states, self.queue)

    def load_weights(
        self, weights: Mapping[str, Any], progress: Callable[[int], None] | None = None
    ) -> Any:
        return self.inner.load_weights(weights, progress)


def late(model: rr.Model) -> tuple[rr.Model, Queue]:
    """The same model on such a device, and its queue."""
    other, backend = copy.copy(model), LateBackend(model.backend)
    other.backend, other.plans = backend, PlanCache()
    return other, backend.queue


class Free:
    """A constraint that allows everything: the host chooses what the device might have."""

    finished = False

    def mask(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def allows(self, token: int) -> bool:
        return True

    def accept(self, token: int) -> None:
        pass

    def rollback(self, n: int) -> None:
        pass

    def validate(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def clone(self) -> Free:
        return self


def begin(
    session: rr.Session, device: bool, n: int = -1, prompt: Iterable[int] = PROMPT, **asked: Any
) -> Generation:
    """A generation for which the device chooses, or the host."""
    more = {"ignore_eos": True, **asked} | ({} if device else {"constraint": Free()})
    return session.model.generate(list(prompt), n, session=session, **more)


def text(session: rr.Session, device: bool, n: int = -1, **more: Any) -> tuple[list[int], str]:
    """The tokens of a generation and why it ended."""
    generation = begin(session, device, n, **more)
    result, request = generation.result, generation.request
    assert request.on_device == (request.draw is not None)
    return result.tokens, result.finish_reason


def broken_off(session: rr.Session, device: bool, taken: int, **more: Any) -> list[int]:
    """The tokens of a generation that is closed when it has so many."""
    with begin(session, device, **more) as generation:
        while len(generation.tokens) < taken:
            generation.engine.step()
    assert len(generation.tokens) == taken
    return generation.tokens


def chooser(model: rr.Model, **asked: Any) -> Chooser:
    """As a request has it."""
    n_vocab = model.tokenizer.n_vocab or model.n_vocab
    return Chooser(Sampler(SamplerParams(**asked), n_vocab), n_vocab)


def left_behind(session: rr.Session, more: int = 3, seq: int = 0) -> tuple[Any, ...]:
    """What a sequence holds, and the logits of some further tokens."""
    held = session.length(seq), session.tokens(seq), session.memory.pending(seq)
    logits = [session.decode(7 + i, seq).tobytes() for i in range(more)]
    return *held, logits, session.save(seq)


def sampling(backend: Backend, n: int, width: int, k: int) -> Plan:
    """Draws from the k largest of `width` logits, or fewer of them, in n rows."""
    g = Graph("sampling")
    values, ids = g.top_k(g.input("logits", (n, width), "f32"), k=k)
    asked = [g.input("top_k", (n,), "i32")]
    asked += [g.input(name, (n,), "f64") for name in ("temperature", "top_p", "min_p")]
    seed, position = g.input("seed", (n, 2), "i32"), g.input("position", (n,), "i32")
    g.output("token", g.sample(values, ids, *asked, seed, position))
    return backend.compile(g)


def words(seeds: Iterable[int]) -> np.ndarray:
    """Seeds as i32 [n, 2]."""
    pairs = [(seed & 0xFFFFFFFF, seed >> 32) for seed in seeds]
    return np.array(pairs, np.uint32).view(np.int32)


def draws(backend: Backend, k: int, rounds: int) -> None:
    """Samplers' tokens for random logits, seeds, positions and parameters. A token may only differ
    where the number drawn lies on the border of two."""
    n, width = 16, 500
    plan, rng, near = sampling(backend, n, width, k), np.random.default_rng(k), 0
    for i in range(rounds):
        logits = (rng.standard_normal((n, width)) * rng.choice([0.5, 3, 10])).astype(np.float32)
        if i % 4 == 0:
            logits = np.round(logits)  # many equal ones
        asked = {
            "top_k": rng.choice([1, 2, (k + 1) // 2, k, k], n).astype(np.int32),
            "temperature": rng.choice([0.0, 0.1, 0.8, 1.0, 1.7, 5.0, 1e-3], n),
            "top_p": rng.choice([1.0, 0.95, 0.5, 0.9999, 1e-6], n),
            "min_p": rng.choice([0.0, 0.05, 0.3, 1.0, 1e-5], n),
        }
        seeds = [int(s) for s in rng.integers(0, 2**64, n, dtype=np.uint64)]
        position = rng.integers(0, 2**20, n).astype(np.int32)
        got = plan(logits=logits, seed=words(seeds), position=position, **asked)[:, 0]
        for r in range(n):
            given = {name: values[r].item() for name, values in asked.items()}
            sampler = Sampler(SamplerParams(seed=seeds[r], **given), width)
            if got[r] == sampler.sample(logits[r], int(position[r])):
                continue
            ids, probs = sampler.probs(logits[r])
            u, at = uniform(seeds[r], int(position[r])), ids.tolist().index(got[r])
            edges = np.cumsum(probs)[[max(0, at - 1), at]]
            assert np.abs(edges - u).min() < 1e-14, (given, seeds[r], position[r])
            near += 1
    assert near <= 1


def boundary(backend: Backend) -> None:
    """Of two candidates the border lies at 1 / (1 + exp(-1 / temperature)): temperatures on both
    sides of where it meets the number drawn tell that number to its last bits."""
    found = [
        (s, p, u) for s in range(2**63, 2**63 + 4) for p in range(8) if (u := uniform(s, p)) > 0.51
    ]
    assert len(found) > 8
    n = len(found)
    plan = sampling(backend, n, 2, 2)
    u = np.array([u for *_, u in found])
    at = 1 / (np.log(u) - np.log1p(-u))
    common = {
        "logits": np.tile(np.array([1, 0], np.float32), (n, 1)),
        "top_k": np.full(n, 2, np.int32),
        "top_p": np.ones(n),
        "min_p": np.zeros(n),
        "seed": words(s for s, *_ in found),
        "position": np.array([p for _, p, _ in found], np.int32),
    }
    for part, want in ((-1e-13, 0), (1e-13, 1)):
        # The hotter, the lower the border.
        token = plan(temperature=at * (1 + part / (1 - u)), **common)
        assert token[:, 0].tolist() == [want] * n
