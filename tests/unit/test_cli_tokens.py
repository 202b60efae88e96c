"""`riverrun tokenize` and `riverrun detokenize`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli import feed, run_cli
from gguf_bytes import Image, array, scalar
from paths import DEMO
from riverrun.models.load import open_tokenizer

TEXT = "def f(x):\n\treturn 'é中😀'\r\n<|im_end|>"


def tokens_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[int]:
    outcome = run_cli(capsys, "tokenize", DEMO, *arguments, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert len(found["pieces"]) == len(found["tokens"])
    pieces = [p.encode() if isinstance(p, str) else bytes(p) for p in found["pieces"]]
    tokenizer = open_tokenizer(DEMO)
    assert pieces == [tokenizer.token_bytes(token, special=True) for token in found["tokens"]]
    return found["tokens"]


def test_text_file_and_standard_input(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = open_tokenizer(DEMO).encode(TEXT, parse_special=True)
    assert tokens_of(capsys, TEXT) == wanted
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT.encode())
    assert tokens_of(capsys, "-f", file) == wanted
    for arguments in ((), ("-",)):
        feed(monkeypatch, TEXT.encode())
        assert tokens_of(capsys, *arguments) == wanted
    feed(monkeypatch, b"a\n")
    assert tokens_of(capsys) == open_tokenizer(DEMO).encode("a\n")


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = open_tokenizer(DEMO)
    assert tokens_of(capsys, TEXT, "--no-parse-special") == tokenizer.encode(TEXT)
    assert tokens_of(capsys, "e\u0301", "--no-normalize") == (
        open_tokenizer(DEMO, normalize=False).encode("e\u0301")
    )
    assert tokens_of(capsys, "e\u0301") == tokenizer.encode("é")


def test_no_bos(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = open_tokenizer(DEMO)
    real.add_bos, real.bos_id = True, 6142
    monkeypatch.setattr("riverrun.models.load.open_tokenizer", lambda path, normalize: real)
    assert tokens_of(capsys, "a")[0] == 6142
    assert tokens_of(capsys, "a", "--no-bos")[0] != 6142


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    ids = open_tokenizer(DEMO).encode("a 😀")
    outcome = run_cli(capsys, "tokenize", DEMO, "a 😀")
    lines = outcome.out.splitlines()
    assert [int(line.split()[0]) for line in lines] == ids
    assert lines[0].endswith("'a'")
    assert outcome.err == f"{len(ids)} tokens\n"


def test_there_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ",".join(map(str, open_tokenizer(DEMO).encode(TEXT, parse_special=True)))
    plain = TEXT.removesuffix("<|im_end|>")
    assert run_cli(capsys, "detokenize", DEMO, ids).out == plain + "\n"
    assert run_cli(capsys, "detokenize", DEMO, ids, "--special").out == TEXT + "\n"
    outcome = run_cli(capsys, "detokenize", DEMO, ids, "--json")
    assert json.loads(outcome.out) == {"text": plain}


def test_vocabulary_without_weights(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    keys = [
        scalar("general.architecture", "str", "of another program"),
        scalar("tokenizer.ggml.model", "str", "gpt2"),
        scalar("tokenizer.ggml.pre", "str", "gpt-2"),
        array("tokenizer.ggml.tokens", "str", ["a", "b", "ab"]),
        array("tokenizer.ggml.merges", "str", ["a b"]),
    ]
    Image(keys).write(path)
    outcome = run_cli(capsys, "tokenize", path, "abb", "--json")
    assert json.loads(outcome.out) == {"tokens": [2, 1], "pieces": ["ab", "b"]}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("tokenize", DEMO, "a", "-f", "b"), 2, "got both"),
        (("tokenize",), 2, "MODEL"),
        (("tokenize", "gone.gguf", "a"), 1, "no such file"),
        (("tokenize", DEMO, "-f", "gone.txt"), 1, "gone.txt: no such file"),
        (("detokenize", DEMO), 2, "ID,ID"),
        (("detokenize", DEMO, "1,x"), 2, "expected integers"),
        (("detokenize", DEMO, "1,99999"), 1, "token id must be 0 to 6143, got 99999"),
        (("detokenize", DEMO, -1), 1, "token id must be 0 to 6143, got -1"),
        (("detokenize", DEMO, "--json", "-1,5"), 1, "token id must be 0 to 6143, got -1"),
        (("detokenize", DEMO, "5,-1"), 1, "token id must be 0 to 6143, got -1"),
        (("detokenize", DEMO, "-1x"), 2, "expected integers"),
        (("detokenize", DEMO, "5", "--jsn"), 2, "No such option: --jsn"),
        (("tokenize", DEMO, "-1"), 2, "No such option: -1"),
    ],
)
def test_wrong_use(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], code: int, words: str
) -> None:
    outcome = run_cli(capsys, *arguments)
    assert outcome.is_short_error(code), outcome
    assert words in outcome.err


def test_no_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("riverrun.tools.tokens.piped", lambda: False)
    outcome = run_cli(capsys, "tokenize", DEMO)
    assert outcome.is_short_error(2)
    assert "got neither" in outcome.err
    feed(monkeypatch, b"\xff")
    outcome = run_cli(capsys, "tokenize", DEMO, "-")
    assert outcome.is_short_error(2)
    assert "byte 0 is not UTF-8" in outcome.err
