"""`riverrun bench spec --url` against a server that answers by script."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("httpx", reason="asking servers needs httpx")
from cli import run_cli
from riverrun.bench.serve_client import Reply
from riverrun.bench.spec_prompts import PROMPTS
from riverrun.bench.spec_serve import Pair, row_of, speed
from scripted_server import Body, Said, Script, as_events, as_json, scripted

TWO = ("--prompts", "code_cpp,translation", "-n", 6)


def off(body: Body) -> bool:
    return body.get("speculative") is False or body.get("speculative.n_max") == 0


def told(path: str, body: Body, *, text: str = "a b c", **timings: float) -> Said:
    """A server whose drafts make it twice as fast."""
    if path == "/v1/models":
        return as_json({"data": [{"id": "m"}]})
    drafts = {} if off(body) else {"draft_n": 5, "draft_n_accepted": 4}
    times = {"predicted_per_second": 100.0 if off(body) else 200.0, **drafts, **timings}
    parts = [{"choices": [{"text": part, "finish_reason": None}]} for part in text]
    parts[-1]["choices"][0]["finish_reason"] = "length"
    usage = {"prompt_tokens": 50, "completion_tokens": body["max_tokens"]}
    return as_events([*parts, {"choices": [], "usage": usage, "timings": times}])


def report_of(
    capsys: pytest.CaptureFixture[str], script: Script, *options: object, code: int = 0
) -> tuple[Any, list[Body]]:
    with scripted(script) as server:
        outcome = run_cli(capsys, "bench", "spec", "--url", server.url, *options, "--json")
    assert outcome.code == code, outcome
    return json.loads(outcome.out), [body for _, body, _ in server.asked]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    report, bodies = report_of(capsys, told, *TWO, "-r", 2)
    assert report["passed"] and report["plain"] and report["model"] == "m"
    assert (report["drafted"], report["accepted"], report["rate"]) == (10, 8, 0.8)
    assert report["speedup"] == pytest.approx(2)
    for row, name in zip(report["rows"], ("code_cpp", "translation"), strict=True):
        assert (row["prompt"], row["prompt_n"], row["predicted"]) == (name, 50, 6)
        assert (row["plain_t_s"], row["t_s"], row["speedup"]) == (100.0, 200.0, 2.0)
        assert row["equal"] and row["first_difference"] is None and row["rate"] == 0.8
    asked = [(body["prompt"], off(body)) for body in bodies[-8:]]
    turns = [False, True, False, True]
    wanted = [(PROMPTS[n], not served) for n in ("code_cpp", "translation") for served in turns]
    assert asked == wanted
    assert all(body["temperature"] == 0 and body["ignore_eos"] for body in bodies[-8:])


def test_texts_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Body) -> Said:
        wrong = body.get("prompt") == PROMPTS["translation"] and not off(body)
        return told(path, body, text="a x" if wrong else "a b c")

    report, _ = report_of(capsys, script, *TWO, code=1)
    assert [row["equal"] for row in report["rows"]] == [True, False]
    assert report["rows"][1]["first_difference"] == 2 and not report["passed"]
    with scripted(script) as server:
        outcome = run_cli(capsys, "bench", "spec", "--url", server.url, *TWO)
    assert outcome.code == 1 and "no, from character 2" in outcome.out
    assert outcome.err.endswith("1 of 2 checks failed\n")


def test_a_server_that_takes_one_of_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Body) -> Said:
        refused = "speculative" in body or "ignore_eos" in body
        return as_json({"error": {"message": "no"}}, 400) if refused else told(path, body)

    report, bodies = report_of(capsys, script, *TWO)
    assert report["plain"] and report["passed"] and len(report["rows"]) == 2
    assert [body.get("speculative.n_max") for body in bodies[-4:]] == [0, None, 0, None]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_server_without_a_choice(refuses: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """It refuses both fields, or passes them over and drafts all the same, now and then."""

    def script(path: str, body: Body) -> Said:
        if refuses and off(body):
            return as_json({"error": {"message": "no"}}, 422)
        quiet = body.get("prompt") == PROMPTS["code_cpp"]
        kept = {"speculative": False} if quiet and off(body) else {}
        without = {k: v for k, v in body.items() if not k.startswith("speculative")}
        return told(path, {**without, **kept})

    report, _ = report_of(capsys, script, *TWO)
    assert report["passed"] and not report["plain"] and report["speedup"] is None
    assert all(row["plain_t_s"] is row["equal"] is row["speedup"] is None for row in report["rows"])
    assert all(row["t_s"] == 200.0 and row["rate"] == 0.8 for row in report["rows"])
    with scripted(script) as server:
        outcome = run_cli(capsys, "bench", "spec", "--url", server.url, *TWO)
    assert "does not let requests turn speculation off" in outcome.out and outcome.code == 0


def test_a_server_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Body) -> Said:
        fails = body.get("prompt") == PROMPTS["translation"]
        return as_json({"error": {"message": "busy"}}, 503) if fails else told(path, body)

    with scripted(script) as server:
        outcome = run_cli(capsys, "bench", "spec", "--url", server.url, *TWO)
    assert outcome.is_short_error(1) and "translation: HTTP 503: busy" in outcome.err, outcome


@pytest.mark.parametrize(
    "options",
    [
        ("m.gguf",),
        ("--spec", "mtp"),
        ("--draft-max", 3),
        ("--draft-model", "d.gguf"),
        ("--no-adaptive",),
        ("--rollback", "replay"),
        ("--n-rs-seq", 0),
        ("--device", "cpu"),
        ("-t", 1),
        ("-c", 512),
        ("--keep-drafters",),
        ("--synthetic-acceptance", 0.5),
        ("--plot", "p.html"),
    ],
)
def test_what_needs_a_model_here_is_refused(
    options: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, "bench", "spec", "--url", "http://127.0.0.1:1", *options)
    assert outcome.is_short_error(2) and "a server is asked (--url)" in outcome.err, outcome
    named = "MODEL" if options == ("m.gguf",) else options[0]
    assert f"{named}'" in outcome.err


def test_what_needs_a_server_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--api-key", "--served-model"):
        outcome = run_cli(capsys, "bench", "spec", option, "x")
        assert outcome.is_short_error(2) and f"'{option}'" in outcome.err, outcome
    outcome = run_cli(capsys, "bench", "spec", "--url", "x")
    assert outcome.is_short_error(2) and "'--url'" in outcome.err


def test_speed_without_timings_is_that_of_events() -> None:
    reply = Reply(0.0, events=[1.0, 1.5, 2.0], usage={"completion_tokens": 9})
    assert speed(reply) == 8.0
    reply.timings = {"predicted_per_second": 55}
    assert speed(reply) == 55.0
    assert speed(Reply(0.0)) == 0.0 == speed(Reply(0.0, events=[1.0]))


def test_a_row_is_of_median_speed_and_all_texts_are_compared() -> None:
    def replies(*speeds: float) -> list[Reply]:
        return [Reply(0.0, text="abc", timings={"predicted_per_second": s}) for s in speeds]

    pair = Pair("p", replies(10, 30, 20), replies(90, 60, 30))
    row = row_of(pair)
    assert (row["t_s"], row["plain_t_s"], row["speedup"], row["equal"]) == (60, 20, 3, True)
    assert row["drafted"] is row["rate"] is None
    pair.plain[2].text = "ab"  # type: ignore[index]
    assert row_of(pair)["first_difference"] == 2
