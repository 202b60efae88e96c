"""Drafters with faults: the request that was asked for ends with an error that names the drafter,
and the others go on as if nothing had been."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from engine_rig import finish, solo
from riverrun.graph.errors import DrafterError, RequestError
from riverrun.speculative import Draft, Speculation
from riverrun.speculative.drafter import Draw
from spec_rig import GREEDY, TEXTS, Follower, plain, right, scripted, speculation, speculator

N = 20
BAD, GOOD = TEXTS["p17"], TEXTS["p64"]
Made = Callable[[list[int]], Any]


def sure(token: int, ids: Sequence[int] | None = None, p: Sequence[float] = (1.0,)) -> Any:
    """A distribution that gives this token."""
    return np.array([token] if ids is None else ids), np.array(p)


ANSWERS: dict[str, tuple[Made, str]] = {
    "None": (lambda t: None, "should return a list of 1 Draft"),
    "tokens": (lambda t: [t], "should return a list of 1 Draft"),
    "too many": (lambda t: [Draft(t), Draft(t)], "should return a list of 1 Draft"),
    "text": (lambda t: [Draft("abc")], "list of token ids, got 'abc'"),
    "no list": (lambda t: [Draft(None)], "list of token ids, got None"),
    "floats": (lambda t: [Draft([1.0, 2.5])], r"list of token ids, got \[1.0, 2.5\]"),
    "a token None": (lambda t: [Draft([t[0], None])], "list of token ids"),
    "few distributions": (
        lambda t: [Draft(t, [sure(token) for token in t[1:]])],
        "a Draft of 3 tokens should have as many distributions, or None, got 2",
    ),
    "many distributions": (
        lambda t: [Draft(t, [sure(token) for token in [*t, 1]])],
        "as many distributions, or None, got 4",
    ),
    "another token's": (lambda t: [Draft(t, [sure(token + 1) for token in t])], "drawn token"),
    "unequal arrays": (lambda t: [Draft(t, [sure(x, [x, 1]) for x in t])], "one length"),
    "a sum of 2": (lambda t: [Draft(t, [sure(x, p=[2.0]) for x in t])], "a sum of 1"),
    "NaN": (lambda t: [Draft(t, [sure(x, p=[np.nan]) for x in t])], "a sum of 1"),
    "lists": (lambda t: [Draft(t, [([x], [1.0]) for x in t])], "arrays"),
}


def two_requests(spec: Any) -> tuple[rr.Engine, Any, Any]:
    """A request that the faults are for, and one beside it with the same drafters."""
    engine = rr.Engine(demo(), n_seqs=2, n_ctx=256, draft_max=3)
    asked = spec.open(engine.sequences)
    requests = [
        engine.submit(ids, N, speculative=asked, ignore_eos=True, **GREEDY) for ids in (BAD, GOOD)
    ]
    return engine, *requests


def require_alone(bad: Any, good: Any, words: str) -> None:
    """The one has failed, the other has what it gives alone."""
    assert bad.result.finish_reason == "error"
    assert isinstance(bad.error, DrafterError) and re.search(words, str(bad.error))
    assert bad.result.error == str(bad.error) and "drafter 'scripted'" in bad.result.error
    assert good.result.finish_reason == "length"
    assert good.tokens == solo(demo(), {"prompt": GOOD, "max_tokens": N, **GREEDY}).tokens


@pytest.mark.parametrize("what", ANSWERS)
def test_a_wrong_answer(what: str) -> None:
    made, words = ANSWERS[what]
    text = [*BAD, *plain(demo(), BAD, 60, temperature=0.0).tokens]

    def draft(self: Any, asks: Any) -> Any:
        if len(asks) > 1:
            return None
        if asks[0].context[0] == GOOD[0]:
            return [Draft([])]
        return made(text[len(asks[0].context) :][:3])

    assert BAD[0] != GOOD[0]
    with scripted(right(text), draft=draft):
        engine, bad, good = two_requests(speculation(("scripted",), 3))
        finish(engine)
        require_alone(bad, good, words)
        engine.close()


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("method", ["begin", "draft", "observe", "accept"])
def test_a_method_that_raises(method: str, at: int) -> None:
    """At its first call for the request, or at a later one."""
    text = [*BAD, *plain(demo(), BAD, 60, temperature=0.0).tokens]
    calls: list[int] = []

    def wrong(self: Any, first: Any, *more: Any) -> Any:
        seqs = [ask.seq for ask in first] if method == "draft" else [first]
        if 0 in seqs and len(seqs) == 1:
            calls.append(0)
            if len(calls) >= (1 if method == "begin" else at):
                raise ValueError("planted")
        if len(seqs) > 1:
            raise ValueError("planted")
        return getattr(Follower, method)(self, first, *more)

    with scripted(right(text, 1), **{method: wrong}):
        engine, bad, good = two_requests(speculation(("scripted",), 3))
        finish(engine)
        words = f"drafter 'scripted': {method} raised ValueError: planted"
        require_alone(bad, good, words)
        assert isinstance(bad.error.__cause__, ValueError)
        again = engine.submit(GOOD, N, speculative=None, ignore_eos=True, **GREEDY)
        finish(engine)
        assert again.tokens == good.tokens
        engine.close()


def test_errors_of_the_package_stay_what_they_are() -> None:
    def draft(self: Any, asks: Any) -> Any:
        raise RequestError("not for these")

    with scripted(right([]), draft=draft), pytest.raises(RequestError, match=r"^not for these$"):
        asked = speculation(("scripted",), 3)
        list(demo().generate(BAD, 4, speculative=asked, **GREEDY))


def test_tokens_may_be_integers_of_any_kind() -> None:
    want = plain(demo(), BAD, N, temperature=0.0)
    straight = right([*BAD, *want.tokens])
    for kind in (np.int64, np.int32, lambda t: t):

        def script(seq: int, context: list[int], limit: int, kind: Any = kind) -> Any:
            return tuple(kind(t) for t in straight(seq, context, limit))

        with scripted(script):
            spec = speculator(demo(), speculation(("scripted",), 3))
            got = demo().generate(BAD, N, ignore_eos=True, speculative=spec, **GREEDY).result
        assert got.tokens == want.tokens and got.timings["draft_n_accepted"] == 14


def test_a_draw_with_its_distributions_is_fine() -> None:
    """What the check of distributions lets pass is what drawing drafters give."""
    asked = speculation(("mtp",), 3, acceptance="rejection")
    spec = speculator(demo(), asked)
    got = demo().generate(BAD, N, speculative=spec, temperature=0.8, seed=4, ignore_eos=True).result
    assert got.timings["draft_n"] > 10 and Draw(0.8, 4).seed == 4


def test_traces_that_are_no_functions() -> None:
    with pytest.raises(RequestError, match="trace: expected a function, True or False, got 3"):
        Speculation(("mtp",), trace=3)  # type: ignore[arg-type]
