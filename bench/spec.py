"""Speculative decoding measured: prompts by drafters by rollback strategies, each beside plain
decoding of the same prompt, and each with a check that it gave the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..engine import Model, Session
from ..engine.fold_cost import fold_seconds
from ..graph.errors import ModelError, RequestError
from ..speculative import Entry, Proposal, Speculation, Speculator, Statistics
from .spec_synthetic import Coins, SyntheticSpeculation, token_range

NONE = "none"
WARM = 16  # tokens of the unmeasured run that binds the plans of a prompt
DEFAULTS = (("ngram-mod",), ("mtp",))
Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class Options:
    """n: tokens to generate for each prompt; repetitions: of every measurement; rollbacks: values
    of SessionOptions.rollback; n_rs_seq: as there, None for the longest draft; n_ctx: None for
    what the longest prompt needs; keep: drafters remember earlier prompts and share
    n-grams; rates: acceptance by coins (spec_synthetic.Coins), None for the real one."""

    n: int = 192
    repetitions: int = 1
    rollbacks: tuple[str, ...] = ("auto",)
    n_rs_seq: int | None = None
    n_ctx: int | None = None
    keep: bool = False
    rates: tuple[float, ...] | None = None


@dataclass
class Round:
    """Seconds of a round: whole, from its start to that of the next one, and of its parts. tokens:
    of the target's pass, those that ran again included; folded: logged tokens that the pass
    carried out first."""

    began: float
    tokens: int = 0
    folded: int = 0
    whole_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    rollback_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """A generation: its tokens, seconds in all and from the first token to the last, what
    speculation did; no statistics and rounds without it."""

    tokens: list[int]
    wall_s: float
    predicted_s: float
    statistics: Statistics | None = None
    rounds: list[Round] = field(default_factory=list)


class TimedSpeculator(Speculator):
    """A speculator that keeps the times of its rounds, and can begin anew."""

    def __init__(self, session: Session, asked: Speculation) -> None:
        super().__init__(session, asked)
        self.rounds: list[Round] = []
        self._last: Round | None = None  # the round before, if nothing came after it

    def restart(self, keep: bool) -> None:
        """Clear the sequence and the counts; unless `keep`, drafters forget all they learnt."""
        self.clear(0)
        self.statistics_in_all = Statistics()
        self.rounds, self._last = [], None
        if not keep:
            for drafter in self.drafters:
                drafter.forget()
            self.adapt_anew()

    def propose(self, entries: Sequence[Entry], company: int) -> list[Proposal]:
        """The start of a round, which ends the one before."""
        stats, now = self.statistics_in_all, time.perf_counter()
        if self._last is not None:
            self._last.whole_s = now - self._last.began
        # Until `finish`, the times hold what they have to be subtracted from.
        this = Round(now, 0, 0, 0.0, stats.draft_s, stats.verify_s, stats.rollback_s)
        this.tokens = self.sequences.memory.rerun(0)
        self.rounds.append(this)
        self._last = this
        return super().propose(entries, company)

    def note_rest(
        self, seqs: Sequence[int], company: int, times: tuple[float, float] | None
    ) -> None:
        """A round without drafts, which has no times of its own."""
        self._last = None
        super().note_rest(seqs, company, times)

    def withdraw(self, company: int) -> None:
        """The round that was begun has no drafts either."""
        self.rounds.pop()
        self._last = None
        super().withdraw(company)

    def note_pass(self, tokens: int, sequences: int, again: bool, seconds: float) -> None:
        """The pass of the round."""
        super().note_pass(tokens, sequences, again, seconds)
        self.rounds[-1].tokens += tokens
        self.rounds[-1].folded = self.sequences.storage.folded(0)

    def finish(
        self,
        proposal: Proposal,
        tokens: Sequence[int],
        ended: bool = False,
        hidden: np.ndarray | None = None,
    ) -> None:
        """The round's end, for now."""
        super().finish(proposal, tokens, ended, hidden)
        stats, this = self.statistics_in_all, self.rounds[-1]
        this.draft_s = stats.draft_s - this.draft_s
        this.verify_s = stats.verify_s - this.verify_s
        this.rollback_s = stats.rollback_s - this.rollback_s
        this.whole_s = time.perf_counter() - this.began


class Runner:
    """One way to generate: drafters and a rollback strategy over a session of their own, or plain
    decoding. rollback: as asked for; strategy: what came of it, None where nothing rolls back."""

    def __init__(
        self, model: Model, n_ctx: int, asked: Speculation | None, rollback: str, n_rs_seq: int
    ) -> None:
        """Raises what making the session and opening the drafters raises."""
        self.model, self.asked = model, asked
        self.drafter = "+".join(asked.kinds) if asked else NONE
        self.rollback = rollback if asked else NONE
        kept: dict[str, Any] = {"rollback": rollback, "n_rs_seq": n_rs_seq} if asked else {}
        self.session = model.session(n_ctx, cache_bytes=0, **kept)
        plan = self.session.plan
        self.strategy = plan.strategy.name if asked and plan.bytes.recurrent else None
        self.speculator: TimedSpeculator | None = None
        if asked:
            self.speculator = TimedSpeculator(self.session, asked)

    @property
    def name(self) -> str:
        """Drafters, and strategy where there is one."""
        return " ".join([self.drafter, *([self.strategy] if self.strategy else [])])

    def run(self, prompt: Sequence[int], n: int, keep: bool = False, seed: int = 0) -> Run:
        """Generate n tokens greedily in the emptied session. seed: of coins."""
        speculator = self.speculator
        if speculator:
            speculator.restart(keep)
        else:
            self.session.clear()
        began = time.perf_counter()
        result = self.model.generate(
            prompt,
            n,
            ignore_eos=True,
            session=self.session,
            speculative=speculator,
            temperature=0.0,
            seed=seed,
        ).result
        wall = time.perf_counter() - began
        seconds = result.timings["predicted_ms"] / 1e3
        if speculator is None:
            return Run(result.tokens, wall, seconds)
        return Run(result.tokens, wall, seconds, speculator.statistics_in_all, speculator.rounds)

    def fold_table(self, rounds: Sequence[Round]) -> list[tuple[int, float]]:
        """(tokens folded, seconds of it) at a few numbers up to the rounds' greatest, rising; empty
        where nothing was folded or the device does not time its nodes. Empties the session."""
        most = max((r.folded for r in rounds), default=0)
        if most == 0:
            return []
        if self.speculator:
            self.speculator.clear(0)
        tokens = int(np.median([r.tokens for r in rounds]))
        sizes = sorted({most, *(1 << i for i in range(most.bit_length()))})
        try:
            return [(n, fold_seconds(self.session, tokens, n)) for n in sizes]
        except RequestError:
            return []


@dataclass(frozen=True)
class Outcome:
    """All repetitions of a prompt with one runner. place: where its tokens first differ from those
    of plain decoding; state: with coins, the first state that differs from what plain evaluation of
    the same tokens leaves; both None where all is well."""

    prompt: str
    prompt_n: int
    runner: Runner
    runs: list[Run]
    place: int | None
    state: str | None

    @property
    def passed(self) -> bool:
        """Whether the check beside the times holds."""
        return self.place is None and self.state is None

    @property
    def median(self) -> Run:
        """The run of median time (the faster one of the two in the middle)."""
        by_time = sorted(self.runs, key=lambda run: run.predicted_s)
        return by_time[(len(by_time) - 1) // 2]


class SpecBench:
    """Runs every prompt plainly and with each speculation and rollback strategy, in turns."""

    def __init__(
        self,
        model: Model,
        prompts: Mapping[str, str],
        asked: Sequence[Speculation],
        options: Options,
    ) -> None:
        """Raises RequestError for a context that is too small, and what opening drafters and
        sessions raises."""
        self.model, self.options = model, options
        self.prompts = {name: model.tokenize(text) for name, text in prompts.items()}
        if options.rates is not None:
            asked = [synthetic(model, one, options.rates) for one in asked]
        if options.keep:
            asked = [replace(one, share_ngrams=True) for one in asked]
        longest = max(one.longest for one in asked)
        need = max(map(len, self.prompts.values())) + options.n
        self.n_ctx = options.n_ctx or need + longest + 2
        if self.n_ctx < need:
            raise RequestError(
                f"the longest prompt and {options.n} tokens need a context of {need}, got "
                f"{self.n_ctx}; use a larger one (n_ctx), or fewer tokens or prompts"
            )
        self.runners = [Runner(model, self.n_ctx, None, NONE, 0)]
        for one in asked:
            window = one.longest if options.n_rs_seq is None else options.n_rs_seq
            for rollback in options.rollbacks:
                self.runners.append(Runner(model, self.n_ctx, one, rollback, window))

    def run(self, progress: Progress = lambda prompt, runner: None) -> list[Outcome]:
        """Measure all; outcomes by prompt, plain decoding first."""
        for name, tokens in self.prompts.items():
            progress(name, "warming up")
            for runner in self.runners:
                runner.run(tokens, min(self.options.n, WARM))
        for runner in self.runners:
            if runner.speculator:
                runner.speculator.restart(keep=False)
        outcomes: list[Outcome] = []
        for seed, name in enumerate(self.prompts):
            outcomes += self._measure(name, seed, progress)
        return outcomes

    def _measure(self, name: str, seed: int, progress: Progress) -> list[Outcome]:
        """Repetitions of all runners take turns, so that all see the same machine."""
        options, tokens = self.options, self.prompts[name]
        runs: list[list[Run]] = [[] for _ in self.runners]
        for _ in range(options.repetitions):
            for runner, mine in zip(self.runners, runs, strict=True):
                progress(name, runner.name)
                mine.append(runner.run(tokens, options.n, options.keep, seed))
        wanted = runs[0][0].tokens
        outcomes = []
        for runner, mine in zip(self.runners, runs, strict=True):
            place = state = None
            if options.rates is not None and runner.asked:
                state = state_difference(self.runners[0].session, runner.session, len(tokens))
            else:
                places = [parting(run.tokens, wanted) for run in mine]
                place = min((at for at in places if at is not None), default=None)
            outcomes.append(Outcome(name, len(tokens), runner, mine, place, state))
        return outcomes


def default_chains(model: Model) -> list[tuple[str, ...]]:
    """Drafters to measure when none are named: those of DEFAULTS that the model has."""
    try:
        model.plan_session(1, program="mtp")
    except ModelError:
        return [kinds for kinds in DEFAULTS if "mtp" not in kinds]
    return list(DEFAULTS)


def synthetic(model: Model, asked: Speculation, rates: tuple[float, ...]) -> Speculation:
    """The same drafters, judged by coins; the last of them always proposes."""
    given = {f.name: getattr(asked, f.name) for f in fields(asked)}
    given["rule"] = Coins(rates, token_range(model))
    return SyntheticSpeculation(**given)


def state_difference(plain: Session, session: Session, prompt_n: int) -> str | None:
    """The first state of a session, once settled, that is not bit for bit what plain evaluation of
    the same tokens leaves; None when all are. prompt_n: leading tokens that are a prompt's.

    plain: a session of the same model, which is emptied for it."""
    tokens = session.tokens()
    plain.clear()
    plain.prefill(tokens[:prompt_n])
    for token in tokens[prompt_n:]:
        plain.decode(token)
    session.settle()
    wanted, got = plain.memory.save(0), session.memory.save(0)
    if wanted.keys() != got.keys():
        return ", ".join(sorted(wanted.keys() ^ got.keys()))
    differing = (name for name in wanted if wanted[name].tobytes() != got[name].tobytes())
    return next(differing, None)


def parting(got: Sequence[object], wanted: Sequence[object]) -> int | None:
    """The first place at which two texts differ, None for none."""
    for at, (a, b) in enumerate(zip(got, wanted, strict=False)):
        if a != b:
            return at
    return min(len(got), len(wanted)) if len(got) != len(wanted) else None
