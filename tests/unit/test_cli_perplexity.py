"""`riverrun perplexity` and the scoring behind it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from cli import DEVICE, run_cli
from demo import demo
from paths import DEMO, ROOT
from riverrun.bench.perplexity import Perplexity, Span, cut, estimate, token_losses
from riverrun.graph.errors import BackendError, RequestError
from tiny_models import llama

CTX = 32
TEXT = (ROOT / "bench" / "perplexity.py").read_text()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def plain(model: rr.Model, ctx: int, n: int) -> np.ndarray:
    """Losses of the scored span of n chunks, straight from single tokens' logits."""
    tokens, out = model.tokenizer.encode(TEXT), []
    session = model.session(ctx)
    for i in range(n):
        chunk = tokens[i * ctx : (i + 1) * ctx]
        session.clear()
        for at, token in enumerate(chunk[:-1]):
            row = session.decode(token).astype(np.float64)
            if at >= ctx // 2:
                out.append(math.log(np.exp(row).sum()) - row[chunk[at + 1]])
    return np.array(out)


def test_span() -> None:
    assert (Span(512).first, Span(512).last, Span(512).length) == (257, 511, 255)
    assert (Span(5).first, Span(5).last, Span(5).length) == (3, 4, 2)


def test_token_losses() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((37, 50)).astype(np.float32) * 20
    logits[3] += 3000
    targets = rng.integers(0, 50, 37).tolist()
    wide = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    want = np.log(np.exp(wide).sum(-1)) - wide[np.arange(37), targets]
    np.testing.assert_allclose(token_losses(logits, targets), want, rtol=1e-12, atol=1e-12)


def test_uniform_logits_give_the_vocabulary() -> None:
    losses = token_losses(np.full((6, 100), 7.5, np.float32), [0, 1, 2, 3, 98, 99])
    result = estimate([losses[:3], losses[3:]])
    assert result.perplexity == pytest.approx(100)
    assert (result.nll_error, result.tokens, result.chunks) == (pytest.approx(0), 6, 2)


def test_standard_error() -> None:
    losses = np.random.default_rng(1).uniform(1, 4, 4000)
    result = estimate([losses])
    assert result.nll_error == pytest.approx(3 / math.sqrt(12) / math.sqrt(4000), rel=0.05)
    assert result.perplexity_error == pytest.approx(result.perplexity * result.nll_error)


def test_losses_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(BackendError, match="1 of 2 tokens"):
        estimate([np.array([1.0, np.inf])])


def test_equals_the_plain_computation() -> None:
    model = demo()
    want = plain(model, CTX, 3)
    got = Perplexity(model, CTX).run(cut(model, TEXT, CTX, 3))
    assert got.tokens == len(want) == 3 * Span(CTX).length
    assert got.nll == pytest.approx(want.mean(), rel=1e-9)
    assert got.perplexity == pytest.approx(math.exp(want.mean()), rel=1e-9)


@pytest.mark.parametrize("ctx", [4, 33, 64])
def test_several_sequences_give_the_same_losses(ctx: int) -> None:
    model = demo()
    chunks = cut(model, TEXT, ctx, 6)
    alone = np.concatenate(Perplexity(model, ctx, 1).losses(chunks[:1]))
    for seqs in (3, 4):
        measured = Perplexity(model, ctx, seqs)
        assert measured.run(chunks) == Perplexity(model, ctx, 1).run(chunks)
        np.testing.assert_array_equal(measured.losses(chunks[:1])[0], alone)


def test_small_passes_give_the_same_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the bound on the memory of logits is."""
    model = demo()
    chunks = cut(model, TEXT, CTX, 2)
    want = Perplexity(model, CTX, 2).losses(chunks)
    monkeypatch.setattr("riverrun.bench.perplexity.LOGIT_BYTES", 4 * model.n_vocab * 5)
    small = Perplexity(model, CTX, 2)
    assert small._scored_rows == 2
    np.testing.assert_array_equal(small.losses(chunks), want)


def test_progress_tells_of_every_pass() -> None:
    seen: list[int] = []
    model = demo()
    chunks = cut(model, TEXT, CTX, 5)
    Perplexity(model, CTX, 2).run(chunks, lambda so_far: seen.append(so_far.chunks))
    assert seen == [2, 4, 5]


def test_chunks_start_with_the_begin_token_where_the_model_wants_one(tmp_path: Path) -> None:
    source = llama()
    source.vocab = "gpt2"
    for wanted in (True, False):
        source.extra = {"tokenizer.ggml.add_bos_token": wanted}
        model = rr.load(source.write(tmp_path / "model.gguf"), device="reference")
        chunks = cut(model, "one two three four five", 8)
        tokens = model.tokenizer.encode("one two three four five", add_special=True)
        assert len(chunks) == len(tokens) // 8 >= 2
        assert [chunk[1:] for chunk in chunks] == [
            tokens[i * 8 + 1 : i * 8 + 8] for i in range(len(chunks))
        ]
        begins = [chunk[0] == model.tokenizer.bos_id for chunk in chunks]
        assert begins == [wanted] * len(chunks)


def test_texts_that_are_too_short() -> None:
    with pytest.raises(RequestError, match="less than one chunk of 512"):
        cut(demo(), "import os\n", 512)


def test_report(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    options = ("--device", DEVICE, "-c", CTX, "--chunks", 4, "--json")
    reports = []
    for seqs in (1, 4):
        outcome = run_cli(capsys, "perplexity", DEMO, file, *options, "--seqs", seqs)
        assert (outcome.code, outcome.err) == (0, "")
        reports.append(json.loads(outcome.out))
    one, four = reports
    assert one["seconds"] > 0 and (one["seqs"], four["seqs"]) == (1, 4)
    assert one["scored"] == [17, 31] and one["tokens"] == 4 * 15
    assert one["perplexity"] == four["perplexity"] and 1 < one["perplexity"] < 1e4
    assert 0 < one["perplexity_error"] < one["perplexity"]


def test_text_output_says_what_was_scored(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    options = ("--device", DEVICE, "-c", CTX, "--chunks", 2)
    outcome = run_cli(capsys, "perplexity", DEMO, file, *options)
    assert outcome.code == 0
    first, second = outcome.out.splitlines()
    assert first.startswith("perplexity ") and " +/- " in first
    assert second == "30 tokens scored, numbers 17 to 31 (from 0) of each of 2 chunks of 32"
    assert DEMO.name in outcome.err


@pytest.mark.parametrize("options", [("-c", "3"), ("--chunks", "0"), ("--seqs", "0")], ids=" ".join)
def test_usage_errors(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    outcome = run_cli(capsys, "perplexity", "no-such-model.gguf", "no-such-text.txt", *options)
    assert outcome.is_short_error(2), outcome


def test_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, data, words in (
        ("missing", None, "missing"),
        ("short", b"import os", "less than one chunk"),
    ):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        outcome = run_cli(capsys, "perplexity", DEMO, path, "--device", DEVICE)
        assert outcome.is_short_error(1) and words in outcome.err, outcome
    (tmp_path / "latin").write_bytes(b"caf\xe9 " * 99)
    outcome = run_cli(capsys, "perplexity", DEMO, tmp_path / "latin", "--device", DEVICE)
    assert outcome.is_short_error(2) and "byte 3 is not UTF-8" in outcome.err, outcome
