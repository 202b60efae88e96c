"""The trace of rounds, and the counters of timings, against rounds that are known."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import riverrun as rr
from cli import run_cli
from demo import demo
from engine_rig import finish
from paths import DEMO
from riverrun.speculative import Traced
from spec_rig import GREEDY, KINDS, TEXTS, plain, right, scripted, speculation

PROMPT = TEXTS["p17"]
LINE = re.compile(
    r"riverrun: sequence (\d+), position (\d+): "
    r"(?:(no draft|not asked)|(\S+) kept (\d+) of (\d+): (.*?))(?:, then (.*))?"
)


def truth(n: int = 80) -> list[int]:
    return [*PROMPT, *plain(demo(), PROMPT, n, temperature=0.0).tokens]


def test_a_round_says_who_drafted_what_and_what_was_kept() -> None:
    text, seen = truth(), list[Traced]()
    with scripted(right(text, 2)):
        asked = speculation(("scripted",), 4, trace=seen.append)
        got = demo().generate(PROMPT, 12, speculative=asked, ignore_eos=True, **GREEDY).result
    # The prompt gave the first token, and the last round has no room for a draft.
    assert [(t.position, t.drafter, t.kept, len(t.drafted)) for t in seen] == [
        (18, "scripted", 2, 4),
        (21, "scripted", 2, 4),
        (24, "scripted", 2, 4),
        (27, "scripted", 1, 1),
    ]
    chosen = [token for t in seen for token in t.chosen]
    assert [got.tokens[0], *chosen] == got.tokens
    for t in seen:
        assert t.chosen[0] == text[t.position] and t.seq == 0
        assert t.chosen[: t.kept] == t.drafted[: t.kept]
        assert t.drafted_text == tuple(demo().tokenizer.decode([x]) for x in t.drafted)


def test_rounds_of_several_requests_and_drafters_are_told_apart() -> None:
    seen = list[Traced]()
    asked = speculation(("ngram-cache", "mtp"), 3, trace=seen.append)
    with rr.Engine(demo(), n_seqs=3, n_ctx=512, spec=asked) as engine:
        prompts = [TEXTS["p17"], TEXTS["p64"], TEXTS["p200"]]
        requests = [engine.submit(p, 40, ignore_eos=True, **GREEDY) for p in prompts]
        finish(engine)
    assert {t.drafter for t in seen} >= {"ngram-cache", "mtp"}
    for request in requests:
        mine = [t for t in seen if t.seq == request.seq]
        times = request.result.timings
        assert [t.chosen[0] for t in mine] == [
            request.tokens[t.position - len(request.prompt)] for t in mine
        ]
        assert len(mine) == times["draft_rounds"]
        require_counters(times, mine)


def require_counters(times: dict[str, Any], seen: list[Traced]) -> None:
    """Timings are the sums of what was traced."""
    drafted = [t for t in seen if t.drafter]
    assert times["draft_n"] == sum(len(t.drafted) for t in drafted)
    assert times["draft_n_accepted"] == sum(t.kept for t in drafted)
    assert times["draft_rejected"] == sum(t.kept == 0 for t in drafted)
    assert times["draft_empty"] == sum(t.asked and t.drafter is None for t in seen)
    assert times["draft_skipped"] == sum(not t.asked for t in seen)
    assert times["draft_by_drafter"] == {
        name: {
            "rounds": len(own),
            "drafted": sum(len(t.drafted) for t in own),
            "accepted": sum(t.kept for t in own),
            "rejected": sum(t.kept == 0 for t in own),
        }
        for name in dict.fromkeys(t.drafter for t in drafted)
        for own in [[t for t in drafted if t.drafter == name]]
    }


@pytest.mark.parametrize("name", KINDS)
def test_counters_are_the_sums_of_the_rounds(name: str) -> None:
    seen = list[Traced]()
    asked = speculation(KINDS[name], 3, trace=seen.append)
    got = demo().generate(TEXTS["p64"], 60, speculative=asked, ignore_eos=True, **GREEDY).result
    require_counters(got.timings, seen)
    assert got.timings["draft_rounds"] == len(seen)
    by = got.timings["draft_by_drafter"].values()
    for field, total in (("drafted", "draft_n"), ("accepted", "draft_n_accepted")):
        assert sum(each[field] for each in by) == got.timings[total]
    assert sum(each["rejected"] for each in by) == got.timings["draft_rejected"]


def test_full_rejections_are_neither_empty_nor_skipped() -> None:
    with scripted(right(truth(), 0)):
        asked = speculation(("scripted",), 2)
        got = demo().generate(PROMPT, 20, speculative=asked, ignore_eos=True, **GREEDY).result
    times = got.timings
    assert (times["draft_rounds"], times["draft_rejected"]) == (19, 18)
    assert (times["draft_empty"], times["draft_skipped"]) == (0, 1)  # no room in the last round
    assert times["draft_by_drafter"]["scripted"]["accepted"] == 0


def test_a_trace_that_raises_ends_its_request() -> None:
    def trace(traced: Traced) -> None:
        raise ValueError("no paper")

    asked = speculation(("mtp",), 2, trace=trace)
    with pytest.raises(ValueError, match="no paper"):
        list(demo().generate(PROMPT, 20, speculative=asked, **GREEDY))


ARGUMENTS = ("run", DEMO, "-p", "def add(self, ", "-n", 16, "--temp", 0, "--device", "cpu")
DRAFTS = ("--spec", "ngram-simple,mtp", "--draft-max", 3, "--no-adaptive", "--json")


@pytest.mark.parametrize("how", ["--trace", "RIVERRUN_DEBUG", ""])
def test_the_command_prints_a_line_for_each_round(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.delenv("RIVERRUN_DEBUG", raising=False)
    if how == "RIVERRUN_DEBUG":
        monkeypatch.setenv("RIVERRUN_DEBUG", "1")
    outcome = run_cli(capsys, *ARGUMENTS, *DRAFTS, *([how] if how == "--trace" else []))
    assert outcome.code == 0
    found = [m for m in map(LINE.fullmatch, outcome.err.splitlines()) if m]
    times = json.loads(outcome.out)["timings"]
    if not how:
        assert not found
        return
    assert len(found) == times["draft_rounds"] > 0
    assert sum(int(m[5] or 0) for m in found) == times["draft_n_accepted"]
    assert {m[4] for m in found} <= {"mtp", "ngram-simple", None}
    named = [re.findall(r"(\d+) ('.*?'|\".*?\")(?= |$)", m[7]) for m in found if m[7]]
    assert all(
        demo().tokenizer.decode([int(token)]) == eval(text)
        for each in named
        for token, text in each
    )
