"""`riverrun run` with wrong input, and the boundary where errors become exit codes."""

from __future__ import annotations

import inspect
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import riverrun
from cli import DEVICE, LIMIT, run_cli, start_cli
from gguf_bytes import string
from paths import DEMO
from riverrun.engine.bound_step import BoundStep
from riverrun.engine.sequences import Sequences
from riverrun.tools.generating import drain
from riverrun.tools.run import run

DEMO_RUN = ("run", DEMO, "--device", DEVICE, "--temp", 0)


def _replace_value(key: str, value: str) -> bytes:
    """The demo model with another text of the same length under a key."""
    raw = DEMO.read_bytes()
    start = raw.index(string(key) + struct.pack("<i", 8)) + len(string(key)) + 4
    old = struct.unpack_from("<Q", raw, start)[0]
    new = value[:old].ljust(old, "x").encode()
    return raw[: start + 8] + new + raw[start + 8 + old :]


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "text": (lambda: b"once upon a time there was a model\n" * 20, "not a GGUF file"),
    "empty": (lambda: b"", "empty"),
    "cut-header": (lambda: DEMO.read_bytes()[:10], "header"),
    "cut-metadata": (lambda: DEMO.read_bytes()[:2000], "truncated"),
    "cut-last-byte": (lambda: DEMO.read_bytes()[:-1], "truncated"),
    "architecture": (lambda: _replace_value("general.architecture", "weird"), "weirdx"),
    "pre-tokenizer": (lambda: _replace_value("tokenizer.ggml.pre", "odd"), "oddxxx"),
}


@pytest.mark.parametrize("fault", BAD_FILES)
@pytest.mark.parametrize("command", [("run", "-p", "x", "-n", 1), ("bench",)], ids=["run", "bench"])
def test_bad_file(
    fault: str, command: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = BAD_FILES[fault]
    path = tmp_path / "model.gguf"
    path.write_bytes(make())
    outcome = run_cli(capsys, *command, path, "--device", DEVICE)
    assert outcome.is_short_error(1), outcome
    assert words in outcome.err and str(path) in outcome.err


@pytest.mark.parametrize("length", [20, 50_000, 300_000, -1])
def test_a_cut_draft_model_is_refused_before_any_text(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "draft.gguf"
    path.write_bytes(DEMO.read_bytes()[:length])
    drafts = ("--spec", "draft", "--draft-model", path)
    outcome = run_cli(capsys, "run", DEMO, "-p", "x", "--device", DEVICE, *drafts)
    assert outcome.is_short_error(1) and str(path) in outcome.err, outcome


def test_missing_file_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = run_cli(capsys, "run", tmp_path / "none.gguf", "-p", "x")
    assert missing.is_short_error(1) and "no such file" in missing.err
    folder = run_cli(capsys, "run", tmp_path, "-p", "x")
    assert folder.is_short_error(1) and "folder" in folder.err


USAGE = {
    "threads": (("-p", "x", "-t", -1), "-t"),
    "no-threads": (("-p", "x", "-t", 0), "-t"),
    "temperature": (("-p", "x", "--temp", -0.5), "temperature"),
    "temperature-nan": (("-p", "x", "--temp", "nan"), "temperature"),
    "top-p": (("-p", "x", "--top-p", 1.5), "top_p"),
    "min-p": (("-p", "x", "--min-p", -1), "min_p"),
    "repeat-penalty": (("-p", "x", "--repeat-penalty", 0), "repeat_penalty"),
    "seed": (("-p", "x", "--seed", -2), "seed"),
    "context": (("-p", "x", "-c", 0), "-c"),
    "count": (("-p", "x", "-n", -2), "-n"),
    "count-text": (("-p", "x", "-n", "many"), "-n"),
    "stop": (("-p", "x", "--stop", ""), "--stop"),
    "cache-type": (("-p", "x", "--cache-type-k", "q9"), "--cache-type-k"),
    "tokens-syntax": (("--tokens", "1,,2"), "--tokens"),
    "tokens-text": (("--tokens", "a"), "--tokens"),
    "tokens-empty": (("--tokens", ""), "--tokens"),
    "tokens-negative": (("--tokens", "1,-2"), "--tokens"),
    "both": (("-p", "x", "--tokens", "1"), "both"),
    "neither": ((), "neither"),
    "no-value": (("-p",), "-p"),
    "drafts": (("-p", "x", "--draft-max", 3), "'--draft-max': there are no drafters; add --spec"),
    "drafts-none": (("-p", "x", "--spec", "none", "--p-min", 0.5), "--p-min"),
    "unknown-option": (("-p", "x", "--fast"), "--fast"),
    "extra": (("second.gguf", "-p", "x"), "second.gguf"),
}


@pytest.mark.parametrize("case", USAGE)
def test_usage_error(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = USAGE[case]
    outcome = run_cli(capsys, "run", "no-such-model.gguf", *arguments)
    assert outcome.is_short_error(2), outcome
    assert words in outcome.err
    assert "no such file" not in outcome.err, "usage should be checked before the model is opened"


@pytest.mark.parametrize("arguments", [(), ("walk",), ("--fast",), ("devices", "now")], ids=str)
def test_usage_error_outside_run(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(capsys, *arguments).is_short_error(2)


REFUSED = {
    "prompt-too-long": (("-p", "one two three four five six", "-c", 3), "-c"),
    "empty-prompt": (("-p", ""), "no tokens"),
    "token-outside": (("--tokens", "1,99999999"), "99999999"),
    "device": (("-p", "x", "--device", "cuda:99"), "cuda"),
    "device-name": (("-p", "x", "--device", "toaster"), "toaster"),
    "context-beyond-memory": (("-p", "x", "-c", 10**13), "use a smaller context (-c)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_the_model(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = REFUSED[case]
    outcome = run_cli(capsys, *DEMO_RUN, *arguments)
    assert outcome.is_short_error(1), outcome
    assert words in outcome.err


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (RecursionError("maximum depth"), "maximum depth"),
        (MemoryError(), "out of memory"),
        (ZeroDivisionError("division\nby zero\n\n\nat line 3"), "division by zero"),
        (RuntimeError("\x1b[31m" + "long " * 500), "long"),
    ],
    ids=["recursion", "memory", "bug", "long"],
)
def test_unforeseen_fault(
    fault: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.delenv("RIVERRUN_DEBUG", raising=False)
    monkeypatch.setattr(riverrun, "load", fail)
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "x")
    assert outcome.is_short_error(1), outcome
    assert words in outcome.err and "\x1b" not in outcome.err


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIVERRUN_DEBUG", "1")
    outcome = run_cli(capsys, "run", "no-such-model.gguf", "-p", "x")
    assert outcome.code == 1 and "Traceback" in outcome.err and "no such file" in outcome.err


def _break_second_step(monkeypatch: pytest.MonkeyPatch, fault: BaseException) -> None:
    """Of decoding whose tokens the device chooses."""
    calls = []

    def breaking(step: Callable[..., object]) -> Callable[..., object]:
        def broken(*arguments: object, **options: object) -> object:
            calls.append(step)
            if len(calls) == 2:
                raise fault
            return step(*arguments, **options)

        return broken

    monkeypatch.setattr(Sequences, "advance", breaking(Sequences.advance))


def test_interrupt_keeps_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 2).out
    _break_second_step(monkeypatch, KeyboardInterrupt())
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 4)
    assert (outcome.code, outcome.out) == (130, whole)
    assert "| cancelled |" in outcome.err and len(outcome.err.splitlines()) == 1


def test_the_object_of_an_interrupted_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _break_second_step(monkeypatch, KeyboardInterrupt())
    options = ("--temp", 1, "--seed", 9, "--json")
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 4, *options)
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err, outcome.out.count("\n")) == (130, "", 1)
    assert (found["finish_reason"], found["seed"], len(found["tokens"])) == ("cancelled", 9, 2)


def test_an_interrupt_in_the_middle_of_the_prompt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: BoundStep, *_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BoundStep, "fill", interrupted)
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 4)
    assert (outcome.code, outcome.out) == (130, "def \n")
    assert "| cancelled |" in outcome.err and len(outcome.err.splitlines()) == 1
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 4, "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err) == (130, "")
    assert (found["finish_reason"], found["error"], found["tokens"]) == ("cancelled", "", [])


def test_interrupt_between_two_pieces() -> None:
    generation = riverrun.load(DEMO, DEVICE).generate("def ", 6, temperature=0)

    def emit(piece: str) -> None:
        raise KeyboardInterrupt

    assert isinstance(drain(generation, emit), KeyboardInterrupt)
    assert len(generation.result.tokens) == 1 and generation.result.text


def test_fault_in_mid_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 2).out
    _break_second_step(monkeypatch, riverrun.errors.BackendError("kernel 'add' failed"))
    outcome = run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 4)
    assert (outcome.code, outcome.out) == (1, whole)
    assert "kernel 'add' failed" in outcome.err and len(outcome.err.splitlines()) <= 3


def test_full_disk() -> None:
    arguments = (*DEMO_RUN, "-p", "def ", "-n", 2)
    with open("/dev/full", "wb") as full, start_cli(*arguments, stdout=full) as process:
        _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert b"standard output cannot be written: No space left" in err
    assert len(err.splitlines()) <= 3 and b"Traceback" not in err and b"Errno" not in err


def test_progress_bar_for_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", screen)
        assert run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 0).code == 0
    assert "loading" in screen.getvalue()
    assert "loading" not in run_cli(capsys, *DEMO_RUN, "-p", "def ", "-n", 0).err


def test_defaults_are_the_samplers() -> None:
    shown = inspect.signature(run).parameters
    wanted = riverrun.SamplerParams()
    assert shown["temp"].default == wanted.temperature
    names = ("top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n")
    for name in (*names, "frequency_penalty", "presence_penalty"):
        assert shown[name].default == getattr(wanted, name), name
