"""What `riverrun inspect` prints, of whole files and of files that do not run."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import riverrun
from cli import run_cli
from gguf_bytes import Image, array, info, scalar
from paths import DEMO


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Standard output of a command that has nothing to complain of."""
    outcome = run_cli(capsys, "inspect", *arguments)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


def table(text: str) -> dict[str, str]:
    """The lines of a summary by their first words."""
    lines = text.split("\n\n")[0].splitlines()
    return {line[:13].strip(): line[13:].strip() for line in lines}


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A file with a key of every awkward kind, and a tensor of no known type."""
    keys = [
        scalar("general.architecture", "str", "marvin"),
        scalar("general.name", "str", "[red]a\x1b[31mb\nc[/red]"),
        scalar("long", "str", "x" * 200),
        scalar("bytes", "str", b"\xff"),
        scalar("nan", "f32", math.nan),
        scalar("yes", "bool", True),
        array("many", "i32", list(range(100))),
        array("few", "f32", [0.5, math.inf]),
        array("words", "str", ["a\nb", "ü"]),
    ]
    infos = [info("w[0]", (8,), 0, 0), info("odd", (5,), 250, 32)]
    return Image(keys, infos, bytes(52)).write(tmp_path / "odd.gguf")


def test_object(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, DEMO, "--json", "-c", 100, "--cache-type-k", "q8_0")
    assert text.count("\n") == 1
    assert json.loads(text) == riverrun.inspect(DEMO, n_ctx=100, cache_type_k="q8_0").as_dict()


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    found = riverrun.inspect(DEMO, n_ctx=100)
    text = printed(capsys, DEMO, "-c", 100)
    lines = table(text)
    assert lines["file"] == str(DEMO) and lines["supported"] == "yes"
    assert lines["parameters"] == f"{found.n_params} in {len(found.tensors)} tensors"
    assert lines["tokenizer"] == "gpt2, pre-tokenizer qwen35, 6144 tokens"
    assert "for 100 tokens (attention " in lines["memory"] and "missing" not in lines
    rows = [line.split() for line in text.split("\n\n")[1].splitlines()]
    assert rows[1:] == [[n, str(s.count), str(s.bytes)] for n, s in found.types.items()]
    assert all(line == line.rstrip() for line in text.splitlines())


def test_tensors_and_keys(capsys: pytest.CaptureFixture[str], odd: Path) -> None:
    text = printed(capsys, odd, "--tensors", "--metadata")
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    assert ["w[0]", "f32", "8         32"] in lines
    assert ["odd", "type", "250  5         20"] in lines
    rest = {line[0]: line[1:] for line in lines if len(line) == 3}
    assert rest["long"] == ["str", "x" * 64 + "... (200 characters)"]
    assert rest["bytes"] == ["str", "(text that is not UTF-8)"]
    assert rest["many"] == ["array[i32]", "[0, 1, 2, 3, 4, 5, 6, 7, ... 100 items]"]
    assert rest["few"] == ["array[f32]", '[0.5, "inf"]'] and rest["yes"] == ["bool", "True"]
    assert "\x1b" not in text and table(text)["name"] == "[red]a\\x1b[31mb\\nc[/red]"
    assert "architecture 'marvin' is not supported" in table(text)["supported"]


def test_tensors_and_keys_as_json(capsys: pytest.CaptureFixture[str], odd: Path) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    text = printed(capsys, odd, "--tensors", "--metadata", "--json")
    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert found["tensors"] == 2
    assert found["tensor_list"] == [
        {"name": "w[0]", "type": "f32", "shape": [8], "bytes": 32},
        {"name": "odd", "type": "type 250", "shape": [5], "bytes": 20},
    ]
    keys = found["metadata"]
    assert list(keys)[:2] == ["general.architecture", "general.name"] and len(keys) == 9
    assert keys["many"] == {"n_items": 100, "first": list(range(64))}
    assert (keys["nan"], keys["few"], keys["bytes"]) == ("nan", [0.5, "inf"], None)


def test_the_value_of_a_key(capsys: pytest.CaptureFixture[str], odd: Path) -> None:
    def value(key: str, *more: str) -> str:
        return printed(capsys, odd, "--metadata", key, *more)

    assert value("general.name") == "[red]a\x1b[31mb\nc[/red]\n"
    assert value("words") == '"a\\nb"\n"\\u00fc"\n'
    assert value("many") == "".join(f"{i}\n" for i in range(100))
    assert value("yes") == "true\n"
    assert json.loads(value("many", "--json")) == {"many": list(range(100))}
    with_template = printed(capsys, DEMO, "--metadata", "tokenizer.chat_template")
    assert with_template == f"{riverrun.inspect(DEMO).metadata['tokenizer.chat_template']}\n"


def test_a_terminal_gets_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, odd: Path
) -> None:
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert printed(capsys, odd, "--metadata", "general.name") == "[red]a\\x1b[31mb\nc[/red]\n"


def test_a_cut_file(capsys: pytest.CaptureFixture[str], odd: Path) -> None:
    odd.write_bytes(odd.read_bytes()[:-30])
    lines = table(printed(capsys, odd))
    assert lines["missing"] == "the last 10 bytes" and lines["supported"].startswith("no: ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("no-such.gguf",), 1, "no such file; check the path"),
        ((DEMO, "--metadata", "general.nam"), 1, "did you mean general.name?"),
        ((DEMO, "--metadata", "%%%"), 1, "--metadata lists those that it has"),
        ((DEMO, "general.name"), 2, "needs --metadata, got 'general.name'"),
        ((DEMO, "-c", "0"), 2, "'-c' / '--ctx-size'"),
        ((DEMO, "--cache-type-k", "q2_k"), 2, "expected one of f32, f16"),
        ((), 2, "Missing argument 'FILE'"),
        ((__file__,), 1, "not a GGUF file"),
    ],
)
def test_errors(
    arguments: tuple[object, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_cli(capsys, "inspect", *arguments)
    assert outcome.is_short_error(code) and words in outcome.err, outcome
