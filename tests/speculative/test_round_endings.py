"""Generations that end, break off or fail inside a round: what is given, what the session holds and
how it goes on are as without drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from riverrun.engine.constraints import Constraint
from riverrun.graph.errors import RequestError
from riverrun.speculative import Speculation, Speculator
from rollback_rig import STRATEGIES, tiny
from spec_rig import (
    GREEDY,
    TEXTS,
    Script,
    bound_type,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

BLOCK = 6
PROMPT = TEXTS["p1"]
# Its first 18 tokens are all different: the prompt's own, two whole rounds and more.
PLACES = range(16)
N = 40


class Pair:
    """One session without drafts and one with them; both get the same requests."""

    def __init__(
        self, model: rr.Model, n_ctx: int, rollback: str = "auto", most: int = BLOCK
    ) -> None:
        self.model = model
        self.texts: list[list[int]] = []
        self.spoil: Callable[[list[int]], list[int]] = list
        self.plain = model.session(n_ctx)
        with scripted(self._script):
            self.spec = speculator(model, speculation(["scripted"], most), n_ctx, rollback=rollback)

    def _script(self, seq: int, context: list[int], limit: int) -> list[int]:
        for text in self.texts:
            if text[: len(context)] == context:
                return self.spoil(right(text)(seq, context, limit))[:limit]
        return []

    def know(self, text: Sequence[int]) -> None:
        """Draft what follows in this text, where none that was known before is the same so far."""
        self.texts.append(list(text))

    def clear(self) -> None:
        self.plain.clear()
        self.spec.clear(0)
        self.texts.clear()
        self.spoil = list

    def generate(self, prompt: Sequence[int], n: int = N, **more: Any) -> rr.Result:
        """The result, which both have in common; both sessions hold the same then."""
        more = {"ignore_eos": True} | GREEDY | more
        before = [] if more.get("cache_prompt") else self.plain.tokens()
        want = self.model.generate(prompt, n, session=self.plain, **more).result
        self.know([*before, *prompt, *want.tokens])
        drafted = self.spec.statistics.drafted
        got = self.model.generate(prompt, n, speculative=self.spec, **more).result
        assert (got.tokens, got.text) == (want.tokens, want.text)
        assert got.finish_reason == want.finish_reason
        assert got.timings["predicted_n"] == want.timings["predicted_n"]
        assert self.spec.statistics.drafted > drafted or len(got.tokens) < 4
        self.require_same()
        return got

    def require_same(self) -> None:
        """Both sessions hold the same tokens, none of them pending."""
        assert self.spec.session.tokens() == self.plain.tokens()
        assert self.spec.session.memory.pending(0) == 0
        assert self.spec.session.length() == self.plain.length()

    def go_on(self, after: rr.Result, text: Sequence[int]) -> None:
        """A continuation, and then a prompt that is all text so far and more."""
        self.generate([*after.tokens[-1:], 300, 301], 12)
        self.generate([*text, *after.tokens, 302], 12, cache_prompt=True)


@cache
def _demo_pair(rollback: str) -> Pair:
    return Pair(demo(), 128, rollback)


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Pair:
    """Sessions of the demo model, empty."""
    made = _demo_pair(getattr(request, "param", "auto"))
    made.clear()
    return made


def truth(n: int = N) -> list[int]:
    """What follows PROMPT."""
    return plain(demo(), PROMPT, n, **GREEDY).tokens


class Delta:
    """How the counts of drafts change within a block."""

    def __init__(self, spec: Speculator) -> None:
        self._spec = spec
        self._from = self._now()

    def _now(self) -> tuple[int, int, int]:
        s = self._spec.statistics
        return s.rounds, s.drafted, s.accepted

    def get(self) -> tuple[int, int, int]:
        """Rounds, drafts, accepted drafts since."""
        return tuple(b - a for a, b in zip(self._from, self._now(), strict=True))  # type: ignore[return-value]


def counts(at: int) -> tuple[int, int, int]:
    """Rounds, drafts and accepted drafts when all are right and the token `at` is the last."""
    whole, inside = divmod(at, BLOCK + 1)
    return whole + (inside > 0), BLOCK * whole + inside, BLOCK * whole + inside


class TestEnds:
    @pytest.mark.parametrize("at", PLACES)
    @pytest.mark.parametrize("pair", ["replay", "checkpoint:host"], indirect=True)
    def test_end_token(self, pair: Pair, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drafts behind the end are not counted."""
        text = truth()
        assert text[at] not in text[:at]
        pair.know([*PROMPT, *text])
        monkeypatch.setattr(pair.model.tokenizer, "eog_ids", frozenset({text[at]}))
        since = Delta(pair.spec)
        got = pair.generate(PROMPT, ignore_eos=False)
        assert got.finish_reason == "stop" and got.tokens == text[:at]
        assert got.timings["predicted_n"] == at + 1
        assert since.get() == counts(at)
        monkeypatch.undo()
        if at:
            pair.go_on(got, PROMPT)

    @pytest.mark.parametrize("at", PLACES)
    @pytest.mark.parametrize("pair", ["replay", "snapshots"], indirect=True)
    def test_stop_text(self, pair: Pair, at: int) -> None:
        """One token's text, and a text that begins in it and ends in the next one."""
        text, decode = truth(), demo().tokenizer.decode
        first, both = decode(text[at : at + 1]), decode(text[at : at + 2])
        for stop, last in ((first, at), (both[len(first) - 1 : len(first) + 1], at + 1)):
            pair.clear()
            whole = decode(text[: last + 1])
            if whole.find(stop) < len(whole) - len(both) - 1:
                continue
            pair.know([*PROMPT, *text])
            since = Delta(pair.spec)
            want = pair.model.generate(PROMPT, N, stop=stop, session=pair.plain, **GREEDY).result
            got = pair.model.generate(PROMPT, N, stop=stop, speculative=pair.spec, **GREEDY).result
            require_equal(got, want)
            assert got.finish_reason == "stop" and len(got.tokens) <= last + 1
            assert since.get() == counts(len(got.tokens) - 1)
            pair.require_same()
            pair.go_on(got, PROMPT)

    @pytest.mark.parametrize("n", range(10))
    @pytest.mark.parametrize("pair", STRATEGIES, indirect=True)
    def test_most_tokens(self, pair: Pair, n: int) -> None:
        got = pair.generate(PROMPT, n)
        assert (got.finish_reason, got.tokens) == ("length", truth()[:n])
        if n:
            pair.go_on(got, PROMPT)

    @pytest.mark.parametrize("room", range(1, 18))
    def test_context(self, room: int) -> None:
        """The context ends at every place of the first rounds."""
        model, prompt = tiny("qwen35"), [5, 9, 100, 42]
        text = [*prompt, *plain(model, prompt, N, **GREEDY).tokens]
        pair = Pair(model, len(prompt) + room, STRATEGIES[room % 4])
        pair.know(text)
        got = pair.generate(prompt, -1)
        assert got.finish_reason == "length" and got.tokens == text[4 : 5 + room]
        assert pair.spec.session.length() == pair.spec.session.n_ctx
        require_sums(got)
        for more in ({"session": pair.plain}, {"speculative": pair.spec}):
            with pytest.raises(RequestError, match="do not fit in a context of"):
                model.generate([1], 3, **more)
        pair.generate(text[: 2 + room], -1, cache_prompt=True)

    @pytest.mark.parametrize("rollback", STRATEGIES)
    @pytest.mark.parametrize("left", [0, 1, 2, 3])
    def test_long_drafts_with_few_places_left(self, rollback: str, left: int) -> None:
        model, prompt = tiny("qwen35"), [7, 1, 250] * 12
        text = [*prompt, *plain(model, prompt, N, **GREEDY).tokens]
        pair = Pair(model, len(prompt) + left, rollback, most=16)
        pair.know(text)
        got = pair.generate(prompt, -1)
        assert got.finish_reason == "length" and got.tokens == text[36 : 37 + left]
        assert pair.spec.statistics.drafted <= max(0, left - 1)

    @pytest.mark.parametrize("kind", ["mtp", "draft"])
    def test_models_draft_up_to_the_end_of_the_context(self, kind: str) -> None:
        prompt = TEXTS["p64"]
        for left in (3, 20) if kind == "mtp" else (3,):
            spec = speculator(demo(), speculation([kind], 16), len(prompt) + left)
            got = demo().generate(prompt, speculative=spec, ignore_eos=True, **GREEDY).result
            assert got.tokens == plain(demo(), prompt, left + 1, **GREEDY).tokens
            assert got.finish_reason == "length"


class TestBreakingOff:
    @pytest.mark.parametrize("pieces", range(1, 17))
    @pytest.mark.parametrize("pair", ["replay", "checkpoint:device"], indirect=True)
    def test_close(self, pair: Pair, pieces: int) -> None:
        text = truth()
        pair.know([*PROMPT, *text])
        options: dict[str, Any] = {"ignore_eos": True, **GREEDY}
        since = Delta(pair.spec)
        for more in ({"session": pair.plain}, {"speculative": pair.spec}):
            generation = pair.model.generate(PROMPT, N, **more, **options)
            assert len(list(islice(generation, pieces))) == pieces
            generation.close()
            got = generation.tokens
            assert got == text[: len(got)] and len(got) >= pieces
        pair.require_same()
        assert pair.spec.session.tokens() == [*PROMPT, *got[:-1]]
        assert since.get() == counts(len(got) - 1)
        result = generation.result
        assert result.tokens == got and result.finish_reason == "error"
        assert (result.timings["draft_n"], result.timings["draft_rounds"]) == (
            pair.spec.statistics.drafted,
            pair.spec.statistics.rounds,
        )
        rest = pair.generate(got[-1:], N - len(got))
        assert rest.tokens == text[len(got) :]

    def test_error_of_what_takes_the_tokens(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even while the error is being handled, no draft is pending."""
        text = truth()
        pair.know([*PROMPT, *text])
        options: dict[str, Any] = {"ignore_eos": True, **GREEDY}
        generation = pair.model.generate(PROMPT, N, speculative=pair.spec, **options)
        take = generation._take

        def broken(token: int) -> str:
            if len(generation.tokens) == 4:
                raise Broken
            return take(token)

        monkeypatch.setattr(generation, "_take", broken)
        with pytest.raises(Broken) as caught:
            list(generation)
        assert caught.value.__traceback__ is not None
        assert pair.spec.session.memory.pending(0) == 0
        assert pair.spec.session.tokens() == [*PROMPT, *text[:4]]


class Broken(Exception):
    """What a broken pass raises."""


class TestFailures:
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("at", [1, 2, 3])
    @pytest.mark.parametrize("pair", STRATEGIES, indirect=True)
    def test_failing_pass(self, pair: Pair, at: int, after: bool) -> None:
        """The pass of the prompt, of the first and of the second round, broken before or after its
        work is done; then the session serves the same request, with drafts and without."""
        text = truth()
        pair.know([*PROMPT, *text])
        bound, calls = bound_type(pair.spec), 0
        run = bound.run  # type: ignore[attr-defined]

        def broken(self: Any, rows: int | None = None) -> None:
            nonlocal calls
            calls += 1
            if calls == at and not after:
                raise Broken
            run(self, rows)
            if calls == at:
                raise Broken

        options: dict[str, Any] = {"ignore_eos": True, **GREEDY}
        generation = pair.model.generate(PROMPT, N, speculative=pair.spec, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bound, "run", broken)
            with pytest.raises(Broken):
                list(generation)
        got = generation.tokens
        assert got == text[: (0, 1, 2 + BLOCK)[at - 1]]
        assert pair.spec.session.memory.pending(0) == 0
        assert (
            pair.spec.session.tokens()
            == [*PROMPT, *got][: len(PROMPT) * (at > 1) + len(got)][
                : len(PROMPT) + max(0, len(got) - 1)
            ]
        )
        for more in ({"speculative": pair.spec}, {"session": pair.spec.session}):
            prompt = [*PROMPT, *got]
            again = pair.model.generate(
                prompt, N - len(got), cache_prompt=True, **more, **options
            ).result
            assert again.tokens == text[len(got) :]

    def test_failing_session(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        text, session = truth(), pair.spec.session
        pair.know([*PROMPT, *text])
        generation = pair.model.generate(PROMPT, N, speculative=pair.spec, **GREEDY)
        pieces = iter(generation)
        for _ in range(3):
            next(pieces)
        with monkeypatch.context() as patch:
            patch.setattr(session, "_run", _raise)
            with pytest.raises(Broken):
                list(pieces)
        fresh = Speculation(("mtp",), 4, adaptive=False)
        with pytest.raises(StopIteration):
            next(pieces)
        again = pair.model.generate(
            PROMPT, N, cache_prompt=True, session=session, speculative=fresh, **GREEDY
        )
        assert again.result.tokens == text


def _raise(*args: Any) -> None:
    raise Broken


class TestPromptReuse:
    PROMPT = TEXTS["p200"]

    @pytest.mark.parametrize(
        "kinds,rollback",
        [
            (("mtp",), "replay"),
            (("mtp",), "checkpoint:host"),
            (("draft",), "snapshots"),
            (("ngram-mod", "mtp"), "checkpoint:device"),
        ],
    )
    def test_the_same_one_differing_and_a_third(
        self, kinds: tuple[str, ...], rollback: str
    ) -> None:
        """A recurrent state goes back to where the prompt's was kept, four tokens before its end;
        none was kept at the third."""
        prompt = self.PROMPT
        third = len(prompt) // 3
        prompts = {
            "first": (prompt, 0),
            "again": (prompt, 196),
            "last differs": ([*prompt[:-1], 77], 196),
            "a third": ([*prompt[:third], *TEXTS["p64"]], 0),
            "the first": (prompt, 0),
        }
        spec = speculator(demo(), speculation(kinds, 4), rollback=rollback)
        for what, (tokens, kept) in prompts.items():
            got = demo().generate(
                tokens, 24, speculative=spec, cache_prompt=True, ignore_eos=True, **GREEDY
            )
            want = plain(demo(), tokens, 24, **GREEDY)
            assert got.result.tokens == want.tokens, what
            assert got.result.text == want.text, what
            assert got.timings.cache_n == kept, what
            assert got.timings.prompt_n == len(tokens) - kept, what
            assert spec.session.tokens() == [*tokens, *want.tokens[:-1]], what
        assert spec.statistics.accepted > 0

    def test_all_is_kept_without_recurrent_memory(self) -> None:
        model, prompt = tiny("llama"), [t % 256 for t in self.PROMPT]
        third = len(prompt) // 3
        pair = Pair(model, 512)
        for tokens, kept in (
            (prompt, 0),
            (prompt, 199),
            ([*prompt[:-1], 77], 199),
            ([*prompt[:third], *range(20)], third),
        ):
            got = pair.generate(tokens, 20, cache_prompt=True)
            assert got.timings["cache_n"] == kept


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name", "sizes", "kind"],
    "additionalProperties": False,
}


@cache
def _compiled() -> Constraint:
    return demo().constraint("json_schema", SCHEMA)


@cache
def _unaided(prompt: str) -> rr.Result:
    """Under the constraint, without drafts."""
    constraint = _compiled().clone()
    return demo().generate(TEXTS[prompt], 80, constraint=constraint, **GREEDY).result


@cache
def _opened(kinds: tuple[str, ...]) -> Speculator:
    return speculator(demo(), speculation(kinds, BLOCK))


def require_state(constraint: Constraint, tokens: Sequence[int]) -> None:
    """It is in the state of one that saw just these tokens."""
    fresh = _compiled().clone()
    for token in tokens:
        fresh.accept(token)
    row = np.linspace(-1, 1, demo().n_vocab, dtype=np.float32)
    assert constraint.mask(row).tobytes() == fresh.mask(row).tobytes()
    assert constraint.finished == fresh.finished


class TestConstraint:
    """The constraint sees the tokens that were chosen and no others."""

    def check(self, spec: Speculator, prompt: str, n: int) -> None:
        spec.clear(0)
        constraint, want = _compiled().clone(), _unaided(prompt)
        got = (
            demo()
            .generate(TEXTS[prompt], n, speculative=spec, constraint=constraint, **GREEDY)
            .result
        )
        assert got.tokens == want.tokens[:n]
        if n >= 80:
            assert (got.text, got.finish_reason) == (want.text, want.finish_reason)
        if got.finish_reason == "length":
            require_state(constraint, got.tokens)

    @pytest.mark.parametrize("prompt", ["p3", "p17", "p64"])
    @pytest.mark.parametrize("kinds", [("mtp",), ("ngram-simple", "mtp")], ids=",".join)
    def test_drafters_of_their_own(self, kinds: tuple[str, ...], prompt: str) -> None:
        for n in (80, 5, 9):
            self.check(_opened(kinds), prompt, n)

    @pytest.mark.parametrize("wrong_at", range(BLOCK))
    @pytest.mark.parametrize("how", ["illegal", "legal elsewhere", "end"])
    def test_scripted(self, pair: Pair, how: str, wrong_at: int) -> None:
        """Right up to a place, where a token stands that may not, or is not, or ends the text."""
        other = {"illegal": demo().tokenize("}")[0], "legal elsewhere": 5, "end": 6141}[how]
        for n in (80, 3, 6, 7, 8, 13):
            pair.clear()
            pair.know([*TEXTS["p17"], *_unaided("p17").tokens])
            pair.spoil = lambda draft: [*draft[:wrong_at], other, *draft[wrong_at + 1 :]]
            since = Delta(pair.spec)
            self.check(pair.spec, "p17", n)
            assert wrong_at == 0 or since.get()[2] > 0

    @pytest.mark.parametrize("pieces", range(1, 10))
    def test_close(self, pair: Pair, pieces: int) -> None:
        constraint = _compiled().clone()
        pair.know([*TEXTS["p17"], *_unaided("p17").tokens])
        generation = pair.model.generate(
            TEXTS["p17"], 80, speculative=pair.spec, constraint=constraint, **GREEDY
        )
        assert len(list(islice(generation, pieces))) == pieces
        generation.close()
        require_state(constraint, generation.tokens)
        assert pair.spec.session.tokens() == [*TEXTS["p17"], *generation.tokens[:-1]]
