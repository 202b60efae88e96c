"""`riverrun bench serve` against a server that answers by script."""

from __future__ import annotations

import asyncio
import builtins
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("httpx", reason="asking servers needs httpx")
import httpcore
from cli import Outcome, run_cli
from riverrun.bench.serve import Lengths, Load, Measured, optional_fields, pauses, words
from riverrun.bench.serve_client import Client, Reply, request_body
from riverrun.bench.serve_report import Slo, figures, make_report, spread
from riverrun.graph.errors import RequestError
from scripted_server import Body, Said, Script, as_events, as_json, scripted

OPTIONAL = {"stream_options", "ignore_eos"}


def piece(text: str, finish: str | None = None, api: str = "completions") -> Body:
    """An event with text."""
    said: Body = {"text": text} if api == "completions" else {"delta": {"content": text}}
    return {"choices": [{"index": 0, "finish_reason": finish, **said}]}


def ended(prompt_n: int, n: int, /, **timings: int) -> Body:
    """The last event, with counts."""
    usage = {"prompt_tokens": prompt_n, "completion_tokens": n}
    return {"choices": [], "usage": usage, **({"timings": timings} if timings else {})}


def prompt_of(body: Body) -> str:
    return body["prompt"] if "prompt" in body else body["messages"][0]["content"]


def tokens_of(body: Body) -> int:
    """This server's tokens: two for each word, three for the beginning."""
    return 3 + 2 * len(prompt_of(body).split())


def told(path: str, body: Body, **timings: int) -> Said:
    """An answer in events of two tokens each."""
    if path == "/v1/models":
        return as_json({"data": [{"id": "first"}, {"id": "second"}]})
    count, n = tokens_of(body), body["max_tokens"]
    if not body.get("stream"):
        return as_json({"usage": {"prompt_tokens": count}})
    api = "chat" if "chat" in path else "completions"
    texts = [piece("x y ", api=api) for _ in range(n // 2)]
    return as_events([*texts, piece("", "length", api), ended(count, n, **timings)])


def bench(
    capsys: pytest.CaptureFixture[str], script: Script, *options: object
) -> tuple[Outcome, list[tuple[str, Body, dict[str, str]]]]:
    with scripted(script) as server:
        outcome = run_cli(capsys, "bench", "serve", "--url", server.url, *options)
    return outcome, server.asked


def measured(
    capsys: pytest.CaptureFixture[str], script: Script, *options: object, code: int = 0
) -> tuple[Any, list[Body]]:
    """The report, and the bodies of measured requests by their prompts."""
    outcome, asked = bench(capsys, script, *options, "--json")
    assert outcome.code == code, outcome
    report = json.loads(outcome.out)
    bodies = [body for path, body, _ in asked if body.get("stream")]
    return report, bodies[-report["requests"] :]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--requests", 5, "--prompt-tokens", "43,103", "-n", 6, "--clients", 2)
    report, bodies = measured(capsys, told, *options, "--ignore-eos", "--seed", 3)
    assert (report["model"], report["requests"], report["failed"]) == ("first", 5, 0)
    assert (report["clients"], report["rate"], report["not_taken"]) == (2, None, [])
    assert report["prompt_n"] == 3 * 43 + 2 * 103 and report["predicted_n"] == 30
    assert report["events"] == 15 and report["finished"] == {"length": 5}
    assert [row["prompt_tokens"] for row in report["by_prompt"]] == [43, 103]
    assert [row["requests"] for row in report["by_prompt"]] == [3, 2]
    assert [row["prompt_n"] for row in report["by_prompt"]] == [129, 206]
    for spread_ in (report["first_ms"], report["gap_ms"], report["whole_ms"]):
        assert 0 <= spread_["p50"] <= spread_["p90"] <= spread_["p99"] <= spread_["max"]
    assert report["server"] is None and report["good"] == 5 and report["good_share"] == 1
    wanted = sorted(words(20 if i % 2 == 0 else 50, 3, i) for i in range(5))
    assert sorted(map(prompt_of, bodies)) == wanted
    for body in bodies:
        assert body["ignore_eos"] and body["stream_options"] == {"include_usage": True}
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("first", 6, 0.0)


def test_chat_the_key_and_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--api", "chat", "--requests", 2, "-n", 4, "--api-key", "k1", "--temp", 0.5)
    outcome, asked = bench(capsys, told, *options, "--served-model", "second", "--json")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert {path for path, _, _ in asked} == {"/v1/chat/completions"}
    assert all(headers["Authorization"] == "Bearer k1" for _, _, headers in asked)
    assert all(body["model"] == report["model"] == "second" for _, body, _ in asked)
    assert asked[-1][1]["messages"][0]["role"] == "user" and asked[-1][1]["temperature"] == 0.5
    assert report["predicted_n"] == 8 and "ignore_eos" not in asked[-1][1]


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Body) -> Said:
        return told(path, body, prompt_n=3, cache_n=40, draft_n=5, draft_n_accepted=4)

    options = ("--requests", 4, "--prompt-tokens", "43,63", "-n", 4, "--slo-ttft", 1e9)
    outcome, _ = bench(capsys, script, *options, "--slo-gap", 1e9)
    assert outcome.code == 0, outcome
    for text in (
        "first at http://127.0.0.1:",
        "completions, 1 clients, 4 tokens",
        "prompts 212 tokens, generated 16 in 8 events",
        "every gap within 1e+09 ms: 4 of 4 requests (100.0%)",
        "prompt tokens that were cached: 160 of 172",
        "drafts kept: 16 of 20",
    ):
        assert text in outcome.out, text
    rows = [line.split()[:3] for line in outcome.out.splitlines()]
    assert rows[2:5] == [["43", "2", "0"], ["63", "2", "0"], ["all", "4", "0"]]


def test_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    report, bodies = measured(capsys, told, "--rate", 2000, "--requests", 20, "-n", 2)
    assert report["clients"] is None and report["rate"] == 2000 and len(bodies) == 20
    assert report["requests"] == 20 and report["failed"] == 0


def test_time_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    report, _ = measured(capsys, told, "--rate", 1000, "--seconds", 0.05, "-n", 2, "--seed", 4)
    due, wanted = 0.0, 0
    for pause in pauses(1000, 4):
        due += pause
        if due >= 0.05:
            break
        wanted += 1
    assert report["requests"] == wanted > 20


def test_moments_come_at_the_rate_and_repeat() -> None:
    first = list(islice(pauses(50.0, 7), 4000))
    assert first == list(islice(pauses(50.0, 7), 4000)) != list(islice(pauses(50.0, 8), 4000))
    mean = sum(first) / len(first)
    assert mean == pytest.approx(1 / 50, rel=0.1)
    # Of exponential pauses a share of 1/e is longer than the mean.
    assert sum(p > mean for p in first) / len(first) == pytest.approx(0.368, abs=0.03)


@pytest.mark.parametrize("strict", [{"ignore_eos"}, {"stream_options"}, OPTIONAL])
def test_a_server_that_refuses_fields(strict: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    def script(path: str, body: Body) -> Said:
        known = strict & body.keys()
        if known:
            return as_json({"error": {"message": f"unknown: {known}"}}, 400)
        return told(path, body)

    report, bodies = measured(capsys, script, "--requests", 3, "-n", 2, "--ignore-eos")
    assert set(report["not_taken"]) == strict and report["failed"] == 0
    assert all(body.keys() & OPTIONAL == OPTIONAL - strict for body in bodies)


FAILURES: dict[str, Callable[[str, Body], Said]] = {
    "HTTP 503": lambda path, body: as_json({"error": {"message": "busy"}}, 503),
    "error in the stream": lambda path, body: as_events([piece("a"), {"error": "out of it"}]),
    "bad data": lambda path, body: as_events([piece("a"), "{oops"]),
    "cut short": lambda path, body: as_events([piece("a")]),
    "broken connection": lambda path, body: as_events([piece("a")], done=False, cut=True),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_requests_that_fail(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    failing = {words(20, 0, index) for index in (1, 2)}

    def script(path: str, body: Body) -> Said:
        fails = body and prompt_of(body) in failing
        return FAILURES[kind](path, body) if fails else told(path, body)

    options = ("--requests", 5, "--prompt-tokens", 43, "-n", 4)
    outcome, _ = bench(capsys, script, *options, "--json")
    report = json.loads(outcome.out)
    assert outcome.code == 1 and outcome.err.endswith("2 of 5 requests failed\n"), outcome
    assert report["errors"] == {kind: 2} and report["first_error"]
    assert report["predicted_n"] == 12 and report["good_share"] == 0.6
    table, _ = bench(capsys, script, *options)
    assert f"failed, {kind}: 2" in table.out and table.code == 1


def test_a_server_that_answers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def refusing(path: str, body: Body) -> Said:
        return as_json({"error": {"message": "a key is needed"}}, 401)

    def without(path: str, body: Body) -> Said:
        return as_json({"data": [{"id": "m"}]} if path == "/v1/models" else {"choices": []})

    for script, words_ in (
        (refusing, "HTTP 401: a key is needed"),
        (lambda path, body: as_json({"data": []}), "lists no model; name one (--served-model)"),
        (lambda path, body: as_json([1]), "expected a JSON object, got '[1]'"),
        (without, "no usage.prompt_tokens"),
    ):
        outcome, _ = bench(capsys, script)
        assert outcome.is_short_error(1) and words_ in outcome.err, outcome
    with scripted(told) as server:
        pass
    outcome = run_cli(capsys, "bench", "serve", "--url", server.url)
    assert outcome.is_short_error(1) and f"{server.url}/v1/models" in outcome.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--url", "ftp://x"), "--url"),
        (("--url", "nothing"), "--url"),
        ((), "--url"),
        (("--url", "http://x", "--clients", 2, "--rate", 1), "--rate"),
        (("--url", "http://x", "--clients", 0), "--clients"),
        (("--url", "http://x", "--rate", 0), "--rate"),
        (("--url", "http://x", "--rate", "nan"), "--rate"),
        (("--url", "http://x", "--seconds", -1), "--seconds"),
        (("--url", "http://x", "--prompt-tokens", "5,0"), "--prompt-tokens"),
        (("--url", "http://x", "--prompt-tokens", "a"), "--prompt-tokens"),
        (("--url", "http://x", "--api", "embeddings"), "--api"),
        (("--url", "http://x", "-n", 0), "-n"),
        (("--url", "http://x", "--temp", -1), "--temp"),
    ],
)
def test_misuse(
    options: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, "bench", "serve", *options)
    assert outcome.is_short_error(2) and named in outcome.err, outcome


def test_without_httpx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "httpx":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    outcome = run_cli(capsys, "bench", "serve", "--url", "http://127.0.0.1")
    assert outcome.is_short_error(1) and "pip install 'riverrun[serve]'" in outcome.err


def reply(times: list[float], error: str = "", **counts: Any) -> Reply:
    """An answer due at 10 s, with events at these milliseconds after it."""
    found = Reply(10.0, events=[10.0 + ms / 1e3 for ms in times], error=error, finish="stop")
    found.ended = 10.0 + (times[-1] if times else 0.0) / 1e3
    found.usage = {"prompt_tokens": 7, "completion_tokens": 2 * len(times), **counts}
    return found


def test_figures() -> None:
    replies = [reply([100, 110, 150]), reply([300, 305]), reply([50], "timeout"), reply([])]
    found = figures(replies, 2.0, Slo(200.0, 50.0))
    assert found["first_ms"] == pytest.approx({"p50": 200, "p90": 280, "p99": 298, "max": 300})
    assert found["gap_ms"]["p50"] == pytest.approx(10) and found["gap_ms"]["max"] == pytest.approx(
        40
    )
    assert (found["requests"], found["failed"], found["errors"]) == (4, 1, {"timeout": 1})
    assert (found["predicted_n"], found["predicted_per_second"]) == (10, 5.0)
    assert found["total_per_second"] == (21 + 10) / 2 and found["requests_per_second"] == 1.5
    assert (found["good"], found["good_share"], found["good_per_second"]) == (1, 0.25, 0.5)


@pytest.mark.parametrize(
    ("slo", "kept"),
    [
        (Slo(), True),
        (Slo(first_ms=100.5), True),
        (Slo(first_ms=99), False),
        (Slo(gap_ms=40.5), True),
        (Slo(gap_ms=39), False),
        (Slo(100.5, 39), False),
    ],
)
def test_good_answers(slo: Slo, kept: bool) -> None:
    assert slo.kept(reply([100, 110, 150])) == kept
    assert not slo.kept(reply([100, 110], "timeout")) and not slo.kept(reply([]))


def test_nothing_measured() -> None:
    found = figures([], 0.0, Slo())
    assert found["first_ms"] is found["predicted_per_second"] is found["good_share"] is None
    report = make_report("http://x/v1", Load(requests=1), Measured("m"), Slo())
    assert report["requests"] == 0 and report["by_prompt"][0]["requests"] == 0


def test_percentiles() -> None:
    assert spread([]) is None
    assert spread([5.0]) == {"p50": 5.0, "p90": 5.0, "p99": 5.0, "max": 5.0}
    assert spread(range(101)) == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}


def test_counts_come_from_usage_then_timings_then_events() -> None:
    found = Reply(0.0, events=[1.0, 2.0])
    assert (found.prompt_n, found.predicted_n) == (0, 2)
    found.timings = {"prompt_n": 3, "cache_n": 4, "predicted_n": 9}
    assert (found.prompt_n, found.predicted_n) == (7, 9)
    found.usage = {"prompt_tokens": 8, "completion_tokens": 11}
    assert (found.prompt_n, found.predicted_n) == (8, 11)


def test_reasoning_is_text_and_empty_events_are_none() -> None:
    found = Reply(0.0)
    deltas = ({"role": "assistant", "content": ""}, {"reasoning_content": "hm"}, {"content": "a"})
    for at, delta in enumerate((*deltas, {"content": None})):
        found.take(json.dumps({"choices": [{"delta": delta}], "usage": None}), float(at))
    assert (found.text, found.events, found.error) == ("hma", [1.0, 2.0], "")


def test_lengths() -> None:
    lengths = Lengths([(32, 3 + 64), (96, 3 + 192)])
    assert [lengths.words(n) for n in (1, 5, 43, 4003)] == [1, 1, 20, 2000]
    with pytest.raises(RequestError, match="cannot be made"):
        Lengths([(32, 5), (96, 5)])


def test_prompts_differ_and_repeat() -> None:
    made = {words(30, 0, index) for index in range(50)} | {words(30, 1, 0)}
    assert len(made) == 51 and words(30, 0, 7) in made
    assert all(len(text.split()) == 30 for text in made)


def test_optional_fields_are_tried_from_most_to_none() -> None:
    assert [sorted(each) for each in optional_fields(True)] == [
        ["ignore_eos", "stream_options"],
        ["stream_options"],
        ["ignore_eos"],
        [],
    ]
    assert [sorted(each) for each in optional_fields(False)] == [["stream_options"], []]


def test_a_silent_server_is_a_timeout() -> None:
    def silent(path: str, body: Body) -> Said:
        return Said(wait_then_nothing())

    def wait_then_nothing() -> Any:
        yield b"data: {}\n\n"
        release.wait(10)

    release = threading.Event()

    async def ask(url: str) -> Reply:
        async with Client(url, timeout=0.05) as client:
            return await client.stream("chat", request_body("chat", "m", "p", 3))

    with scripted(silent) as server:
        try:
            assert asyncio.run(ask(server.url)).error == "timeout"
        finally:
            release.set()


def test_many_requests_at_once_ask_only_their_own_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a client spends on the connections of others would count as the server's time."""
    n, looks = 24, 0
    together = threading.Barrier(n)
    is_idle = httpcore.AsyncHTTPConnection.is_idle

    def counting(self: Any) -> bool:
        nonlocal looks
        looks += 1
        return is_idle(self)

    def late(path: str, body: Body) -> Said:
        return replace(told(path, body), parts=after_all(told(path, body).parts))

    def after_all(parts: Iterable[bytes]) -> Iterator[bytes]:
        together.wait(60)
        yield from parts

    async def ask(url: str) -> list[Reply]:
        async with Client(url) as client:
            client.reserve(n // 2)
            body = request_body("completions", "m", "p", 4)
            return [
                reply
                for _ in range(3)
                for reply in await asyncio.gather(
                    *(client.stream("completions", body) for _ in range(n))
                )
            ]

    monkeypatch.setattr(httpcore.AsyncHTTPConnection, "is_idle", counting)
    with scripted(late) as server:
        replies = asyncio.run(ask(server.url))
    assert [reply.error for reply in replies] == [""] * 3 * n
    assert looks <= 8 * len(replies)
