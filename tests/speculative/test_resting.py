"""Rounds in which no drafter is asked: what they tell drafters and count, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
from demo import demo
from riverrun.engine.rounds import Rounds
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


def without_ideas(**more: Any) -> tuple[Speculator, Any]:
    """A text whose drafter is asked in every round and never has an idea."""
    with scripted(lambda seq, context, limit: []):
        spec = speculator(demo(), speculation(("scripted",), **more))
        return spec, decoded(spec)


def test_a_round_without_ideas_is_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted once, as empty; the host chooses in none of them."""
    want = plain(demo(), PROMPT, N, **GREEDY)
    on_host: list[Any] = []
    complete = Rounds._complete
    monkeypatch.setattr(
        Rounds, "_complete", lambda self, turns: (on_host.append(turns), complete(self, turns))
    )
    spec, got = without_ideas()
    assert got.tokens == want.tokens and not on_host
    assert got.timings["draft_rounds"] == N - 1
    # There is no room for a draft in front of the last token.
    assert (got.timings["draft_empty"], got.timings["draft_skipped"]) == (N - 2, 1)
    assert spec.drafters[0].asked  # type: ignore[attr-defined]
    assert got.timings["verify_ms"] > 0


def test_every_round_is_shown_where_rounds_are_traced() -> None:
    shown: list[Any] = []
    _, got = without_ideas(trace=shown.append)
    assert len(shown) == N - 1
    assert [token for each in shown for token in each.chosen] == got.tokens[1:]


def test_drafters_see_a_text_to_its_end() -> None:
    """When the next one begins, or at the latest when they are closed."""
    spec, got = without_ideas()
    seen = spec.drafters[0].text[0]  # type: ignore[attr-defined]
    held = [*PROMPT, *got.tokens[:-1]]
    assert seen == held[: len(seen)] and len(seen) < len(held)
    spec.close()
    assert spec.drafters[0].text[0] == held  # type: ignore[attr-defined]
