"""Damage to sound files, random and field by field, gives a ModelError that names the field, or a
file that can be read to the end and run; with bounded memory and work."""

from __future__ import annotations

import re
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

import pytest
import riverrun as rr
from gguf_bytes import small
from gguf_mutants import Parts, mutant, take_apart
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.engine import Model
from riverrun.graph.errors import GgufError, ModelError
from riverrun.models import ModelFile, load_file
from riverrun.models.gguf import GgufFile, Metadata, open_gguf
from tiny_models import N_VOCAB, VARIANTS

SOUND = small().build()
EXTREMES = [b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x80", b"\1\0\0\0" * 2]
# Variants of tiny_models, and the vocabularies of their files.
MODELS = {"llama": "gpt2", "qwen35,mtp": "gpt2", "gemma3": "llama"}
# A mutant in so many of those that load runs a step in the short suite; in the full one all do.
RUN_ONE_IN = 10
CHUNK, SHORT, LONG = 167, 2, 20
MOST_BYTES = 50 << 20
MOST_SECONDS = 20.0
# What a refusal may name: a part of the file, a key, a tensor, or the tensors as a whole.
FIELD = re.compile(
    r": (header|metadata|tensor table|(key|tensor) (\d+ of \d+|['\"])|tensors do not match"
    r"|architecture|'token_embd|(general|tokenizer|llama|qwen35|qwen35moe|gemma3)\.\w)"
)


STATM = Path("/proc/self/statm")
NEEDS_PROC = pytest.mark.skipif(not STATM.exists(), reason="no /proc that tells address space")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "f.gguf"


@contextmanager
def bounded(extra: int = MOST_BYTES) -> Iterator[None]:
    """Within, address space may grow by `extra` bytes, and an endless loop is broken off."""
    pages = int(STATM.read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + extra
    before = signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _too_long(*_: object) -> NoReturn:
    raise RuntimeError(f"more than {MOST_SECONDS} s of work")


def read_all(f: GgufFile) -> None:
    """Touch every value and every byte, each of which may refuse with a ModelError only."""
    read_values(f.metadata)
    allowed(f.check_tensors)
    allowed(partial(read_tensors, f))


def read_values(metadata: Metadata) -> None:
    """Touch every value."""
    for key in metadata:
        allowed(partial(metadata.__getitem__, key))
        assert metadata.value_type(key)


def read_tensors(f: GgufFile) -> None:
    """Touch every byte of the weights."""
    size = f.path.stat().st_size
    for t in f.tensors.values():
        assert t.nbytes <= size and int(t.data.sum()) >= 0


def allowed(action: Callable[[], object]) -> ModelError | None:
    """The refusal, if there is one."""
    try:
        action()
    except ModelError as error:
        text = str(error)
        assert "f.gguf" in text and FIELD.search(text), text
        return error
    return None


def attack(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)
    allowed(lambda: read_all(open_gguf(path)))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(1, 255)), max_size=4),
    cut=st.one_of(st.none(), st.integers(0, len(SOUND))),
)
def test_flipped_and_truncated(path: Path, edits: list[tuple[int, int]], cut: int | None) -> None:
    raw = bytearray(SOUND)
    for at, mask in edits:
        raw[at] ^= mask
    attack(path, bytes(raw[:cut]))


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    at=st.integers(0, len(SOUND) - 8), word=st.sampled_from(EXTREMES), width=st.sampled_from([4, 8])
)
def test_extreme_words(path: Path, at: int, word: bytes, width: int) -> None:
    attack(path, SOUND[:at] + word[:width] + SOUND[at + width :])


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(tail=st.binary(max_size=200))
def test_random_body_behind_a_sound_header(path: Path, tail: bytes) -> None:
    attack(path, SOUND[:24] + tail)


@cache
def sound(variant: str, folder: Path) -> tuple[Parts, bytes]:
    """A tiny model with a vocabulary, whole and in pieces, after a step of it."""
    model = VARIANTS[variant]()
    model.kind, model.vocab = "q8_0", MODELS[variant]
    raw = model.write(folder / "sound.gguf").read_bytes()
    run_step(load_file(folder / "sound.gguf"))
    rr.inspect(folder / "sound.gguf")
    return take_apart(raw), raw


def run_step(source: ModelFile) -> None:
    """Load it onto the processor and run a token."""
    model = Model(source, "cpu", threads=1)
    assert model.session(n_ctx=8).decode(1).shape == (N_VOCAB,)


def examine(path: Path, run: bool) -> bool:
    """Inspect and load a file, which agree on whether it can be used; run a step of one that
    can. Whether it loads."""
    found: list[rr.Inspection] = []
    damaged = allowed(lambda: found.append(rr.inspect(path)))
    assert damaged is None or isinstance(damaged, GgufError)
    loaded: list[ModelFile] = []
    refused = allowed(lambda: loaded.append(load_file(path)))
    assert (refused is None) == bool(found and found[0].supported), (damaged, refused)
    if refused and found:
        # Of a cut file that could not be used whole either, each tells one of the two.
        assert found[0].why and (found[0].missing_bytes or found[0].why in str(refused))
        read_values(found[0].metadata)
    if loaded:
        read_all(loaded[0].file)
    if run and loaded:
        run_step(loaded[0])
    return bool(loaded)


CHUNKS = [pytest.param(at, marks=pytest.mark.full if at >= SHORT else ()) for at in range(LONG)]


@NEEDS_PROC
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("variant", MODELS)
def test_mutants(variant: str, chunk: int, path: Path) -> None:
    """Of models, made field by field: values, kinds, counts, rows, shapes, offsets, weights."""
    parts, raw = sound(variant, path.parent)
    loaded = 0
    for number in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        what, spoiled = mutant(parts, raw, f"{variant} {number}")
        # A new file, since rewriting one waits for the disk on some file systems.
        path.unlink(missing_ok=True)
        path.write_bytes(spoiled)
        run = chunk >= SHORT or number % RUN_ONE_IN == 0
        try:
            with warnings.catch_warnings(), bounded(MOST_BYTES + len(spoiled)):
                warnings.simplefilter("ignore")
                loaded += examine(path, run)
        except Exception as error:
            raise AssertionError(f"mutant {variant} {number} ({what}): {error!r}") from error
    assert CHUNK // 8 < loaded < CHUNK // 2, "mutants should be of both kinds"


@NEEDS_PROC
def test_bounds_hold() -> None:
    with bounded(), pytest.raises(MemoryError):
        # More than an arena of malloc may have reserved before.
        bytearray(MOST_BYTES + (1 << 27))
    with pytest.raises(RuntimeError, match="of work"):
        _too_long()
