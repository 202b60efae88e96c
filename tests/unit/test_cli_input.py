"""What `riverrun run` reads: prompts, files, standard input, stop texts, constraints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import riverrun
from cli import DEVICE, feed, run_cli
from paths import DEMO

BASE = ("run", DEMO, "--device", DEVICE, "--temp", 0, "-n", 3)
ABSENT = ("run", "no-such-model.gguf")


def text_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Prompt and continuation."""
    outcome = run_cli(capsys, *BASE, *arguments)
    assert outcome.code == 0, outcome
    return outcome.out


def test_a_prompt_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = text_of(capsys, "-p", "for é in ")
    for raw in ("for é in ", "for é in \n"):
        feed(monkeypatch, raw.encode())
        assert text_of(capsys, "-p", "-") == wanted
        feed(monkeypatch, raw.encode())
        assert text_of(capsys) == wanted
        (tmp_path / "prompt.txt").write_text(raw, encoding="utf-8")
        assert text_of(capsys, "-f", tmp_path / "prompt.txt") == wanted
    assert text_of(capsys, "-p", "for é in \n") != wanted


def test_standard_input_is_left_alone_where_a_prompt_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(monkeypatch, b"not this")
    assert text_of(capsys, "-p", "def ").startswith("def ")
    assert sys.stdin.read() == "not this"


@pytest.mark.parametrize(
    ("arguments", "raw", "words"),
    [
        ((), b"", "neither"),
        (("-p", "x", "-f", "y"), b"", "both"),
        (("-p", "x", "-f", "y", "--tokens", "1"), b"", "all"),
        (("-p", "-"), b"a\xffb", "byte 1 is not UTF-8"),
        ((), b"\xc3", "byte 0 is not UTF-8"),
        (("-p", "x", "--stop", "a\udcff"), b"", "'--stop'"),
        (("-p", "x", "--regex", "a\udc80"), b"", "'--regex'"),
        (("-p", "x", "--json-schema", "{", "--regex", "a"), b"", "give one of them"),
    ],
)
def test_wrong_input(
    arguments: tuple[str, ...],
    raw: bytes,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feed(monkeypatch, raw)
    outcome = run_cli(capsys, *ABSENT, *arguments)
    assert outcome.is_short_error(2) and words in outcome.err, outcome


@pytest.mark.parametrize("flag", ["-f", "--grammar-file"])
def test_files_that_cannot_be_read(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = () if flag == "-f" else ("-p", "x")
    for path, words, code in (
        (tmp_path / "gone", "no such file; check the path", 1),
        (tmp_path, "is a folder", 1),
        (tmp_path / "latin", "byte 2 is not UTF-8", 2),
    ):
        (tmp_path / "latin").write_bytes(b"ab\xe9")
        outcome = run_cli(capsys, *ABSENT, *prompt, flag, path)
        assert outcome.is_short_error(code), outcome
        assert words in outcome.err and str(path) in outcome.err and "Errno" not in outcome.err


def test_files_of_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "none" / "file"
    read = run_cli(capsys, "perplexity", DEMO, gone, "--device", DEVICE)
    written = run_cli(capsys, "graph", DEMO, "--device", DEVICE, "-o", gone)
    assert read.is_short_error(1) and f"{gone}: no such file; check the path" in read.err
    assert written.is_short_error(1) and f"{gone.parent} is not there" in written.err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_a_file_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "closed"
    path.touch(0)
    outcome = run_cli(capsys, *ABSENT, "-f", path)
    assert outcome.is_short_error(1) and "cannot be read" in outcome.err


@pytest.mark.parametrize(
    ("flag", "source", "words"),
    [
        ("--json-schema", "{", "not JSON"),
        ("--json-schema", "[1]", "expected an object"),
        ("--json-schema", '{"type": "strin"}', "strin"),
        ("--regex", "a(", "regex"),
        ("--grammar", "start: nowhere", "nowhere"),
        ("--grammar", "root ::= leaf", "leaf"),
    ],
)
def test_constraints_are_checked_before_the_model_is_opened(
    flag: str, source: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llguidance")
    outcome = run_cli(capsys, *ABSENT, "-p", "x", flag, source)
    assert outcome.is_short_error(2) and words in outcome.err and flag in outcome.err, outcome


def test_good_constraints_pass_that_check(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    for flag, source in (
        ("--json-schema", '{"type": "string"}'),
        ("--regex", "a+"),
        ("--grammar", 'start: "a" | "b"'),
        ("--grammar", 'root ::= "a" root | "b"'),
    ):
        outcome = run_cli(capsys, *ABSENT, "-p", "x", flag, source)
        assert outcome.is_short_error(1) and "no such file" in outcome.err, outcome


def test_a_biased_token_and_a_banned_one(capsys: pytest.CaptureFixture[str]) -> None:
    def tokens(*more: object) -> list[int]:
        return json.loads(run_cli(capsys, *BASE, "-p", "def ", "--json", *more).out)["tokens"]

    plain = tokens()
    assert tokens("--logit-bias", "300=1e9") == [300] * 3
    assert plain[0] not in tokens("--logit-bias", f"{plain[0]}=-inf", "--logit-bias", "5=-1")[:1]
    outside = run_cli(capsys, *BASE, "-p", "x", "--logit-bias", "99999999=1")
    assert outside.is_short_error(1) and "99999999" in outside.err


def test_stop_tokens_reach_the_generation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    generate = riverrun.Model.generate

    def spy(self: riverrun.Model, *arguments: Any, **options: Any) -> riverrun.Generation:
        seen.update(options)
        return generate(
            self, *arguments, **{k: options[k] for k in options if k != "stop_token_ids"}
        )

    monkeypatch.setattr(riverrun.Model, "generate", spy)
    text_of(capsys, "-p", "def ", "--stop-token-ids", "7,11", "--stop", "a", "--stop", "b")
    assert (seen["stop_token_ids"], seen["stop"]) == ([7, 11], ("a", "b"))


def test_the_seed_stands_in_the_object(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*more: object) -> dict[str, Any]:
        line = ("run", DEMO, "--device", DEVICE, "-p", "def ", "-n", 4, "--json", *more)
        return json.loads(run_cli(capsys, *line).out)

    first = run("--temp", 1.5)
    assert run("--temp", 1.5, "--seed", first["seed"])["tokens"] == first["tokens"]
    assert run("--temp", 0)["seed"] is None
