"""What `riverrun run`, `devices` and `--version` print when all goes well."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import riverrun
from cli import DEVICE, LIMIT, run_cli, start_cli
from paths import DEMO
from riverrun.engine.sequences import Sequences

BASE = ("run", DEMO, "--device", DEVICE)
GREEDY = (*BASE, "--temp", 0)
FIELDS = "text tokens prompt_tokens finish_reason timings model device seed error"
TIMINGS = (
    "cache_n prompt_n prompt_ms prompt_per_token_ms prompt_per_second "
    "predicted_n predicted_ms predicted_per_token_ms predicted_per_second"
)


def object_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The one object that a command prints; nothing may stand beside it."""
    outcome = run_cli(capsys, *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)


def test_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, *GREEDY, "-p", "def ", "-n", 3)
    assert list(found) == FIELDS.split()
    assert list(found["timings"]) == TIMINGS.split()
    assert (found["model"], found["device"]) == (DEMO.name, DEVICE)
    assert len(found["tokens"]) == 3 == found["timings"]["predicted_n"]
    assert found["prompt_tokens"] == found["timings"]["prompt_n"] > 0
    assert found["finish_reason"] == "length" and found["text"] and found["error"] == ""
    times = found["timings"]
    assert times["predicted_per_second"] == pytest.approx(2e3 / times["predicted_ms"])
    assert times["prompt_per_token_ms"] == pytest.approx(times["prompt_ms"] / times["prompt_n"])


def test_the_demo_is_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, "run", "-p", "def ", "-n", 0, "--device", DEVICE)
    assert found["model"] == DEMO.name


def test_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, *GREEDY, "-p", "def ", "-n", 0)
    assert (found["text"], found["tokens"], found["finish_reason"]) == ("", [], "length")
    assert found["timings"]["predicted_n"] == 0 == found["timings"]["predicted_per_second"]


def test_until_the_context_ends(capsys: pytest.CaptureFixture[str]) -> None:
    found = object_of(capsys, *GREEDY, "--tokens", "295,4304,508", "-n", -1, "-c", 6)
    # The last token is not evaluated, so it needs no room.
    assert len(found["tokens"]) == 6 - 3 + 1
    assert found["finish_reason"] == "length"


def test_end_token(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = object_of(capsys, *GREEDY, "-p", "def ", "-n", 3)
    load = riverrun.load

    def with_end(*arguments: Any, **options: Any) -> riverrun.Model:
        model = load(*arguments, **options)
        monkeypatch.setattr(model.tokenizer, "eog_ids", frozenset(plain["tokens"][2:]))
        return model

    monkeypatch.setattr(riverrun, "load", with_end)
    found = object_of(capsys, *GREEDY, "-p", "def ", "-n", -1, "-c", 32)
    assert (found["finish_reason"], found["tokens"]) == ("stop", plain["tokens"][:2])
    ignored = object_of(capsys, *GREEDY, "-p", "def ", "-n", 3, "--ignore-eos")
    assert ignored["tokens"] == plain["tokens"]


def test_stop_strings(capsys: pytest.CaptureFixture[str]) -> None:
    whole = object_of(capsys, *GREEDY, "-p", "def ", "-n", 5)["text"]
    stop = whole[len(whole) // 2 :][:2]
    found = object_of(capsys, *GREEDY, "-p", "def ", "-n", 5, "--stop", "-never-", "--stop", stop)
    assert found["finish_reason"] == "stop"
    assert found["text"] == whole[: whole.index(stop)]


def test_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    def tokens(seed: int) -> list[int]:
        options = ("--temp", 2, "--top-k", 0, "--top-p", 1, "--min-p", 0)
        return object_of(capsys, *BASE, "-p", "def ", "-n", 4, *options, "--seed", seed)["tokens"]

    first = tokens(7)
    assert tokens(7) == first
    assert tokens(8) != first
    assert tokens(-1) != tokens(-1)


def test_sampling_options_reach_the_sampler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    generate = riverrun.Model.generate

    def spy(self: riverrun.Model, *arguments: Any, **options: Any) -> riverrun.Generation:
        generation = generate(self, *arguments, **options)
        seen.update(vars(generation.sampler.params), capacity=generation.session.capacity)
        return generation

    monkeypatch.setattr(riverrun.Model, "generate", spy)
    wanted = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.125,
        "repeat_penalty": 1.25,
        "repeat_last_n": 5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "seed": 11,
    }
    flags = [
        part
        for name, value in wanted.items()
        for part in ("--temp" if name == "temperature" else "--" + name.replace("_", "-"), value)
    ]
    types = ("--cache-type-k", "f32", "--cache-type-v", "bf16")
    object_of(capsys, *BASE, "-p", "def ", "-n", 1, *flags, *types)
    assert {name: seen[name] for name in wanted} == wanted
    assert (seen["capacity"].k_dtype.name, seen["capacity"].v_dtype.name) == ("f32", "bf16")


def test_tokens_stand_for_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    ids = riverrun.load(DEMO, DEVICE).tokenize("def ")
    text = object_of(capsys, *GREEDY, "-p", "def ", "-n", 3)
    same = object_of(capsys, *GREEDY, "--tokens", ",".join(map(str, ids)), "-n", 3)
    assert (same["tokens"], same["text"]) == (text["tokens"], text["text"])


def test_plain_output(capsys: pytest.CaptureFixture[str]) -> None:
    text = object_of(capsys, *GREEDY, "-p", "-def ", "-n", 3)["text"]
    outcome = run_cli(capsys, *GREEDY, "-p", "-def ", "-n", 3)
    assert (outcome.code, outcome.out) == (0, f"-def {text}\n")
    summary = outcome.err.splitlines()
    assert len(summary) == 1
    for part in ("generated 3 tokens", "t/s", "length", DEMO.name, f"on {DEVICE}"):
        assert part in summary[0]
    assert "seed" not in summary[0]
    sampled = run_cli(capsys, *BASE, "-p", "def ", "-n", 1, "--seed", 5)
    assert "seed 5" in sampled.err


def test_object_of_a_failed_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise riverrun.errors.BackendError("kernel 'add' failed")

    monkeypatch.setattr(Sequences, "advance", fail)
    outcome = run_cli(capsys, *GREEDY, "-p", "def ", "-n", 3, "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["finish_reason"], len(found["tokens"])) == (1, "error", 1)
    assert "kernel 'add' failed" in outcome.err and "kernel 'add' failed" in found["error"]


ENDLESS = (*GREEDY, "-p", "def ", "-n", -1, "--ignore-eos", "-c", 4096)


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored"])
def parent(request: pytest.FixtureRequest) -> Iterator[None]:
    """What this process, which starts the command, does at an interrupt."""
    before = signal.signal(signal.SIGINT, request.param)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("parent")
def test_streams_and_stops_at_an_interrupt() -> None:
    with start_cli(*ENDLESS) as process:
        assert process.stdout is not None
        head = process.stdout.read(len("def ") + 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert (head + out).startswith(b"def ") and out.endswith(b"\n")
    assert len(head + out) < io.DEFAULT_BUFFER_SIZE, "text should not wait for a full buffer"
    assert b"| cancelled |" in err and len(err.splitlines()) == 1


def test_reader_that_goes_away() -> None:
    with start_cli(*ENDLESS) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(LIMIT) == 141
    assert err == b""


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, "devices", "--json")
    rows = json.loads(outcome.out)["devices"]
    assert [row["name"] for row in rows] == [device.name for device in riverrun.devices()]
    assert all(row["description"] for row in rows)
    plain = run_cli(capsys, "devices").out.splitlines()
    assert [line.split()[0] for line in plain] == [row["name"] for row in rows]
    assert "threads by default" in plain[0]


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("run", "--help")], ids=str)
def test_information(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run_cli(capsys, *arguments)
    assert (outcome.code, outcome.err) == (0, "") and "riverrun" in outcome.out
