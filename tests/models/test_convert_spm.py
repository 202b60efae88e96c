"""Checkpoints with a tokenizer.model: what reads it is imported for it alone, and says nothing on
standard error."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sentencepiece
from cli import run_cli
from riverrun.graph.errors import ModelError, RequestError
from riverrun.models.convert.spm_model import read_spm
from small_checkpoint import checkpoint

WIRE = "sentencepiece.sentencepiece_model_pb2"
LOGGED = 0  # the library's least level of messages, which is where it starts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("trained")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the weather", "whether leather", "together"] * 40),
        model_prefix=str(folder / "m"),
        model_type="bpe",
        vocab_size=32,
        minloglevel=2,
    )
    return (folder / "m.model").read_bytes()


@pytest.fixture(autouse=True)
def talkative() -> Iterator[None]:
    """The library prints what it wants to, before and after."""
    sentencepiece.SetMinLogLevel(LOGGED)
    yield
    sentencepiece.SetMinLogLevel(LOGGED)


@pytest.fixture
def real() -> ModuleType:
    """The module of the format's messages, which a process can make only once."""
    return import_module(WIRE)


@pytest.fixture
def afresh(real: ModuleType, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """That module is looked for anew."""
    monkeypatch.delitem(sys.modules, WIRE, raising=False)
    monkeypatch.delattr(sentencepiece, "sentencepiece_model_pb2", raising=False)
    return monkeypatch


def message(number: int, body: bytes) -> bytes:
    """A field of a protobuf message, shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(body)]) + body


def with_model(folder: Path, model: bytes) -> Path:
    """A checkpoint with this tokenizer.model."""
    checkpoint(folder)
    (folder / "tokenizer.model").write_bytes(model)
    return folder


def test_converting_imports_no_protobuf() -> None:
    code = (
        "import sys, riverrun.models.convert.writing, riverrun.tools.convert;"
        "print([m for m in ('google.protobuf', 'sentencepiece') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_pieces(tmp_path: Path, trained: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained)
    found = read_spm(path)
    peer = sentencepiece.SentencePieceProcessor(model_proto=trained)
    assert found.tokens == [peer.id_to_piece(i) for i in range(peer.vocab_size())]
    assert found.types[:4] == [2, 3, 3, 1] and found.add_space_prefix


DAMAGED = {
    "cut": (lambda raw: raw[:-30], "its bytes are no message"),
    "empty": (lambda raw: b"", "it holds no pieces"),
    "pointer": (lambda raw: b"version https://git-lfs.github.com/spec/v1", "no message"),
    "piece twice": (lambda raw: raw.replace(b"weather", b"leather"), "leather is already defined"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files(
    case: str, tmp_path: Path, trained: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil, words = DAMAGED[case]
    path = tmp_path / "tokenizer.model"
    path.write_bytes(spoil(trained))
    with pytest.raises(ModelError) as caught:
        read_spm(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: is no SentencePiece model: ") and words in said
    assert "src/" not in said and said.endswith("fetch it again")
    assert capfd.readouterr().err == ""


def test_what_the_library_says_by_itself_is_not_shown(
    tmp_path: Path, trained: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Versions up to 0.2.0 print each text of which a model's own test fails."""
    sample = message(1, b"the weather") + message(2, b"th e wea th er")
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained + message(4, message(1, sample)))
    try:
        assert len(read_spm(path).tokens) == 32
    except ModelError as error:
        assert "Self-test failures" in str(error)
    assert capfd.readouterr().err == ""


class Warns(Loader):
    """Finds the module of the messages, and warns of it."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.asked = module, 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == WIRE else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        self.asked += 1
        warnings.warn("Protobuf gencode version is older than its runtime", stacklevel=2)


def test_warnings_about_versions_are_not_shown(
    tmp_path: Path,
    real: ModuleType,
    afresh: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finder = Warns(real)
    afresh.setattr(sys, "meta_path", [finder, *sys.meta_path])
    folder = with_model(tmp_path / "c", b"\xff" * 50)
    outcome = run_cli(capsys, "convert", folder, tmp_path / "x.gguf")
    assert finder.asked == 1
    assert outcome.is_short_error(1) and len(outcome.err.splitlines()) == 1
    assert f"{folder / 'tokenizer.model'}: is no SentencePiece model" in outcome.err


def test_without_protobuf_the_extra_is_named(
    tmp_path: Path, trained: bytes, afresh: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    afresh.setitem(sys.modules, WIRE, None)
    folder = with_model(tmp_path / "c", trained)
    outcome = run_cli(capsys, "convert", folder, tmp_path / "x.gguf")
    assert outcome.is_short_error(1) and len(outcome.err.splitlines()) == 1
    assert "tokenizer.model: reading it needs the package protobuf" in outcome.err
    assert "pip install 'riverrun[convert]'" in outcome.err


class Refuses:
    """Refuses the module of the messages, as protobuf does that is older than it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == WIRE:
            raise TypeError("Runtime version cannot be older\nthan the gencode version")


def test_a_version_of_protobuf_that_does_not_fit(
    tmp_path: Path, afresh: pytest.MonkeyPatch
) -> None:
    afresh.setattr(sys, "meta_path", [Refuses(), *sys.meta_path])
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(RequestError, match=r"pip install -U protobuf .*Runtime version cannot"):
        read_spm(tmp_path / "tokenizer.model")
