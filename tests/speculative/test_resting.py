"""Rounds in which no drafter is asked: what they tell drafters and count, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from demo import demo
from riverrun.speculative import Speculator
from riverrun.speculative.speculator import BEHIND_PROMPT, MOST_UNREAD
from spec_rig import GREEDY, TEXTS, Follower, plain, right, scripted, speculation, speculator

PROMPT, N = TEXTS["p17"], 90


def decoded(spec: Speculator) -> Any:
    options: dict[str, Any] = {"session": spec.session, "ignore_eos": True}
    return spec.sequences.model.generate(PROMPT, N, speculative=spec, **options, **GREEDY).result


@pytest.mark.parametrize("wrong_at", [None, 0])
def test_drafters_have_seen_all_when_they_are_asked(wrong_at: int | None) -> None:
    """The script's drafter compares what it is asked about with what it was shown."""
    want = plain(demo(), PROMPT, N, **GREEDY)
    with scripted(right([*PROMPT, *want.tokens], wrong_at)):
        spec = speculator(demo(), speculation(("scripted",), adaptive=True))
        got = decoded(spec)
    assert got.tokens == want.tokens
    assert got.timings["draft_skipped"] > 0
    assert spec.drafters[0].asked  # type: ignore[attr-defined]


def test_tokens_are_shown_before_many_have_come() -> None:
    """What drafters keep of tokens that they have not seen is bounded."""
    longest = 0

    class Watching(Follower):
        def observe(self, seq: int, tokens: Any, hidden: Any, context: Any) -> None:
            nonlocal longest
            longest = max(longest, len(tokens)) if len(context) > len(PROMPT) else longest
            super().observe(seq, tokens, hidden, context)

    with scripted(lambda seq, context, limit: [], Watching):
        spec = speculator(demo(), speculation(("scripted",), adaptive=True))
        spec.limit = lambda drafter, company: 0  # type: ignore[method-assign]
        got = decoded(spec)
    assert got.timings["draft_skipped"] == got.timings["draft_rounds"] == N - 1
    assert 1 < longest <= MOST_UNREAD


def test_passes_behind_a_prompt_are_no_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    with scripted(lambda seq, context, limit: []):
        spec = speculator(demo(), speculation(("scripted",), adaptive=True))
        spec.limit = lambda drafter, company: 0  # type: ignore[method-assign]
        note = spec._times.note
        monkeypatch.setattr(spec._times, "note", lambda n, s, k=1: (noted.append(k), note(n, s, k)))
        for texts in (1, 2):
            decoded(spec)
            spec.statistics(0)
            assert sum(noted) == texts * (N - 1 - BEHIND_PROMPT)
