"""Embeddings: what they are, that company and cuts do not change them, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cli import DEVICE, feed, run_cli
from demo import PROMPTS, demo
from engine_rig import LONG
from paths import DEMO
from riverrun.backends.base import Capabilities
from riverrun.engine import Model, embedding
from riverrun.graph.errors import BackendError, RequestError
from tiny_models import VARIANTS

TEXTS = ["import os", "def add(a, b):\n    return a + b", "x", "class A:\n    pass\n" * 6]
POOLED = {
    "mean": lambda rows: rows.astype(np.float64).mean(0),
    "last": lambda rows: rows[-1],
    "cls": lambda rows: rows[0],
}


def rows_of(model: Model, ids: list[int]) -> np.ndarray:
    """The rows after the final norm, from passes of one token."""
    session = model.session(max(64, len(ids)))
    return np.concatenate(
        [np.array(session.evaluate([(0, [i])], want="none", hidden=True).hidden) for i in ids]
    )


@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_pooled_rows(pooling: str) -> None:
    model = demo()
    raw = model.embed(TEXTS, pooling=pooling, normalize=False)
    assert isinstance(raw, np.ndarray) and raw.dtype == np.float32
    assert raw.shape == (len(TEXTS), model.source.arch.hp.n_embd)
    for text, vector in zip(TEXTS, raw, strict=True):
        want = POOLED[pooling](rows_of(model, model.tokenize(text)))
        np.testing.assert_allclose(vector, want, rtol=1e-6, atol=1e-7)
    unit = np.asarray(model.embed(TEXTS, pooling=pooling))
    lengths = np.linalg.norm(raw.astype(np.float64), axis=-1, keepdims=True)
    np.testing.assert_allclose(unit, raw / lengths, rtol=1e-6)


def test_all_rows() -> None:
    model = demo()
    found = model.embed(TEXTS, pooling="none", normalize=False)
    assert isinstance(found, list)
    for text, rows in zip(TEXTS, found, strict=True):
        np.testing.assert_array_equal(rows, rows_of(model, model.tokenize(text)))


def inexact(monkeypatch: pytest.MonkeyPatch, model: Model, chunk: int = 512) -> None:
    """As if prompt kernels were not row-exact."""
    able = Capabilities(threads=model.backend.threads, prompt_chunk=chunk, prompt_exact=False)
    monkeypatch.setattr(model.backend, "capabilities", able)


@pytest.mark.parametrize("exact", [True, False])
def test_company_does_not_change_a_bit(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    model = demo()
    if not exact:
        inexact(monkeypatch, model)
    short = embedding.SHORT
    texts: list[Any] = [LONG[:n] for n in (3, short, short + 1, 513)]
    texts += [LONG[i : i + 5] for i in range(18)]  # more than one pass takes
    together = np.asarray(model.embed(texts))
    alone = np.concatenate([np.asarray(model.embed([text])) for text in texts])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("exact", [True, False])
def test_long_texts_go_in_chunks(monkeypatch: pytest.MonkeyPatch, exact: bool) -> None:
    model = demo()
    if not exact:
        inexact(monkeypatch, model, chunk=128)
    ids = LONG[:700]
    (rows,) = model.embed([ids], pooling="none", normalize=False)
    assert len(rows) == 700
    session = model.session(1024)
    want = [
        np.array(session.evaluate([(0, ids[at : at + 100])], hidden=True).hidden)
        for at in range(0, 700, 100)
    ]
    np.testing.assert_allclose(rows, np.concatenate(want), rtol=1e-3, atol=1e-4)
    (mean,) = model.embed([ids], pooling="mean", normalize=False)
    np.testing.assert_allclose(mean, rows.astype(np.float64).mean(0), rtol=1e-5, atol=1e-6)


def test_one_text_no_text_and_ids() -> None:
    model = demo()
    one = np.asarray(model.embed("import os"))
    assert one.shape == (1, model.source.arch.hp.n_embd)
    np.testing.assert_array_equal(one, model.embed([model.tokenize("import os")]))
    assert np.asarray(model.embed([])).shape == (0, model.source.arch.hp.n_embd)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a", ""], "text 1 is empty"),
        ([[]], "text 0 is empty"),
        ([""], "text 0 is empty"),
        ([[1, -1]], "token ids are from 0"),
        ([5], "token ids should be a series"),
        (None, "texts should be a list"),
        (7, "texts should be a list"),
    ],
    ids=str,
)
def test_what_is_no_text_is_refused(texts: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        demo().embed(texts)


@pytest.mark.parametrize("options", [{"pooling": "max"}, {"cache_type_k": "q9"}], ids=str)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((RequestError, rr.errors.DTypeError), match=next(iter(options))):
        demo().embed(["a"], **options)


@pytest.mark.parametrize(
    ("kind", "pooling"), [(None, "mean"), (0, "none"), (1, "mean"), (2, "cls"), (3, "last")]
)
def test_the_file_says_how_to_pool(tmp_path: Path, kind: int | None, pooling: str) -> None:
    tiny = VARIANTS["qwen3,untied"]()
    if kind is not None:
        tiny.keys["pooling_type"] = kind
    model = rr.load(tiny.write(tmp_path / "model.gguf"), "cpu", 1)
    got, want = model.embed([[5, 6, 7]]), model.embed([[5, 6, 7]], pooling=pooling)
    np.testing.assert_array_equal(got, want)


def test_a_file_that_ranks_gives_no_embedding_unless_told(tmp_path: Path) -> None:
    tiny = VARIANTS["qwen3,untied"]()
    tiny.keys["pooling_type"] = 4
    model = rr.load(tiny.write(tmp_path / "model.gguf"), "cpu", 1)
    with pytest.raises(RequestError, match="pooling_type is 4"):
        model.embed([[5, 6, 7]])
    assert np.asarray(model.embed([[5, 6, 7]], pooling="last")).shape[0] == 1


def test_values_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    tiny = VARIANTS["qwen3,untied"]()
    tiny.tensors["output_norm.weight"][3] = np.nan
    model = rr.load(tiny.write(tmp_path / "model.gguf"), "cpu", 1)
    with pytest.raises(BackendError, match="text 0 is not finite"):
        model.embed([[5, 6, 7]])


def test_texts_in_memory_follow_from_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = demo()
    plain = np.asarray(model.embed(TEXTS))
    monkeypatch.setattr(embedding, "MEMORY", 1)
    sizes: list[int] = []
    plan = Model.plan_session

    def spied(self: Model, n_ctx: int, n_seqs: int, **options: Any) -> Any:
        sizes.append(n_seqs)
        return plan(self, n_ctx, n_seqs, **options)

    monkeypatch.setattr(Model, "plan_session", spied)
    np.testing.assert_array_equal(model.embed(TEXTS), plain)
    assert set(sizes) == {1}


BASE = ("embed", DEMO, "--device", DEVICE)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = PROMPTS["p17"]["text"].splitlines()[0]
    want = np.asarray(demo().embed([text, "import os"], pooling="last"))
    file = tmp_path / "texts.txt"
    file.write_text("\nimport os\n\n")
    asked = (*BASE, "-p", text, "-f", file, "--pooling", "last")
    outcome = run_cli(capsys, *asked, "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 0 and [row["index"] for row in found["data"]] == [0, 1]
    np.testing.assert_array_equal(np.float32([row["embedding"] for row in found["data"]]), want)
    n = len(demo().tokenize(text)) + len(demo().tokenize("import os"))
    assert found["usage"] == {"prompt_tokens": n, "total_tokens": n}
    assert (found["model"], found["pooling"]) == (DEMO.name, "last")
    lines = run_cli(capsys, *asked).out.splitlines()
    np.testing.assert_array_equal(np.float32([line.split() for line in lines]), want)


def test_the_command_shows_rows_and_reads_what_is_piped_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(monkeypatch, b"import os\nx\n")
    outcome = run_cli(capsys, *BASE, "--pooling", "none", "--raw")
    groups = [group.splitlines() for group in outcome.out.strip().split("\n\n")]
    want = demo().embed(["import os", "x"], pooling="none", normalize=False)
    for lines, rows in zip(groups, want, strict=True):
        np.testing.assert_array_equal(np.float32([line.split() for line in lines]), rows)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-p", ""), 2, "-p"),
        (("-p", "x", "--pooling", "max"), 2, "--pooling"),
        (("-f", "/nowhere/texts.txt"), 1, "no such file"),
    ],
)
def test_what_the_command_refuses(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    outcome = run_cli(capsys, *BASE, *arguments)
    assert outcome.is_short_error(code) and words in outcome.err
