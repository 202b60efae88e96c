"""Log-probabilities: what they are, and that drafts, company and constraints do not change them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from cli import DEVICE, run_cli
from demo import PROMPTS, demo
from engine_rig import GREEDY, constrained, finish
from paths import DEMO
from riverrun.engine.logprobs import Logprobs
from riverrun.graph.errors import RequestError
from spec_rig import KINDS, speculation

IDS = PROMPTS["p17"]["ids"]
SAMPLED: dict[str, Any] = {"temperature": 1.3, "top_k": 30, "seed": 9, "ignore_eos": True}
SHAPED: dict[str, Any] = GREEDY | {"repeat_penalty": 1.4, "logit_bias": {300: 3.0}}


def _run(**options: Any) -> rr.Result:
    return demo().generate(IDS, 14, n_ctx=256, **options).result


def _reference(tokens: list[int]) -> np.ndarray:
    """Log-softmax of the logits before each generated token, from passes of the session, f64."""
    model = demo()
    session = model.session(256)
    rows = [session.prefill(IDS).copy()]
    rows += [session.decode(token).copy() for token in tokens[:-1]]
    x = np.array(rows, np.float64)[:, : model.tokenizer.n_vocab]
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, SHAPED], ids=["greedy", "sampled", "shaped"])
def test_they_are_of_the_models_own_logits(options: dict[str, Any]) -> None:
    result = _run(logprobs=5, **options)
    assert result.logprobs is not None and len(result.logprobs) == len(result.tokens) == 14
    want = _reference(result.tokens)
    for row, token, entry in zip(want, result.tokens, result.logprobs, strict=True):
        assert entry["token"] == token
        assert entry["logprob"] == pytest.approx(row[token], abs=1e-9)
        likeliest = np.argsort(-row, kind="stable")[:5].tolist()
        assert [t["token"] for t in entry["top"]] == likeliest
        assert [t["logprob"] for t in entry["top"]] == pytest.approx(row[likeliest], abs=1e-9)
    assert b"".join(bytes(e["bytes"]) for e in result.logprobs).decode() == result.text
    assert all(e["text"] == bytes(e["bytes"]).decode("utf-8", "replace") for e in result.logprobs)


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, SHAPED], ids=["greedy", "sampled", "shaped"])
def test_asking_for_them_changes_no_token(options: dict[str, Any]) -> None:
    plain = _run(**options)
    asked = _run(logprobs=0, **options)
    assert plain.logprobs is None
    assert (asked.tokens, asked.text) == (plain.tokens, plain.text)
    assert set(asked.as_dict()) - set(plain.as_dict()) == {"logprobs"}
    assert asked.logprobs is not None and all(entry["top"] == [] for entry in asked.logprobs)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_change_no_number(kinds: str, options: dict[str, Any]) -> None:
    plain = _run(logprobs=3, **options)
    drafts = _run(logprobs=3, speculative=speculation(KINDS[kinds], 4), **options)
    assert drafts.tokens == plain.tokens
    assert drafts.logprobs == plain.logprobs  # floats included: bit for bit


def test_rejected_and_replaced_drafts_have_those_of_their_own_rows() -> None:
    rule = speculation(("mtp",), 4, acceptance="rejection")
    result = _run(logprobs=0, speculative=rule, **SAMPLED)
    want = _reference(result.tokens)
    assert result.logprobs is not None
    assert result.timings["draft_n"] > result.timings["draft_n_accepted"] > 0
    for row, token, entry in zip(want, result.tokens, result.logprobs, strict=True):
        assert entry["logprob"] == pytest.approx(row[token], abs=1e-9)


def test_a_constraint_forbids_tokens_and_changes_no_number() -> None:
    pytest.importorskip("llguidance")
    spec = constrained() | {"logprobs": 4}
    model = demo()
    plain = model.generate(n_ctx=256, **spec).result
    drafts = model.generate(n_ctx=256, speculative=speculation(("mtp",), 3), **spec).result
    assert plain.logprobs == drafts.logprobs and plain.logprobs
    ids = [*model.tokenize(PROMPTS["p17"]["text"])]
    assert ids == list(IDS)
    want = _reference(plain.tokens)
    likeliest = [entry["top"][0]["token"] for entry in plain.logprobs]
    assert likeliest == want.argmax(-1).tolist() != plain.tokens


def test_they_end_where_the_tokens_do() -> None:
    model = demo()
    end = next(iter(model.tokenizer.eog_ids))
    ended = model.generate(IDS, 8, logit_bias={end: 1e4}, logprobs=2, **{"temperature": 0}).result
    assert (ended.tokens, ended.logprobs) == ([], [])
    stopped = model.generate(IDS, 40, stop="return", logprobs=2, **GREEDY).result
    assert stopped.finish_reason == "stop" and stopped.logprobs is not None
    assert [entry["token"] for entry in stopped.logprobs] == stopped.tokens


def test_requests_of_an_engine_have_their_own() -> None:
    model = demo()
    with rr.Engine(model, n_seqs=3, n_ctx=256, draft_max=4) as engine:
        plain = engine.submit(IDS, 14, **GREEDY)
        asked = engine.submit(IDS, 14, logprobs=3, **GREEDY)
        drafted = engine.submit(
            IDS, 14, logprobs=3, speculative=speculation(("ngram-mod", "mtp"), 4), **GREEDY
        )
        while not asked.tokens:
            engine.step()
        assert asked.logprobs is not None and len(asked.logprobs) == len(asked.tokens)
        finish(engine)
    alone = _run(logprobs=3, **GREEDY)
    assert plain.on_device and not asked.on_device
    assert plain.result is not None and plain.result.logprobs is None and plain.logprobs is None
    for request in (asked, drafted):
        assert request.result is not None and request.result.logprobs == alone.logprobs


def test_a_batch_gives_each_prompt_its_own_number() -> None:
    results = demo().generate_batch([IDS, IDS], max_tokens=3, logprobs=[None, 2], **GREEDY)
    assert results[0].logprobs is None and results[1].logprobs is not None
    assert [len(entry["top"]) for entry in results[1].logprobs] == [2, 2, 2]


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
def test_a_number_out_of_range_is_refused(wrong: Any) -> None:
    with pytest.raises(RequestError, match="logprobs"):
        demo().generate(IDS, 1, logprobs=wrong)


def test_as_many_as_there_are_and_ties_and_impossible_tokens() -> None:
    tokenizer = demo().tokenizer
    row = np.array([0.0, 2.0, -np.inf, 2.0, 1.0, 9.0], np.float32)  # the last one is padding
    everything = Logprobs(tokenizer, 100, 5)
    everything.add(4, row)
    entry = everything.entries[0]
    assert [t["token"] for t in entry["top"]] == [1, 3, 4, 0]
    assert math.fsum(math.exp(t["logprob"]) for t in entry["top"]) == pytest.approx(1)
    first = Logprobs(tokenizer, 1, 5)
    first.add(4, row)
    assert first.entries[0]["top"] == entry["top"][:1]


def test_the_command_prints_them_in_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ",".join(map(str, IDS))
    base = ("run", DEMO, "--device", DEVICE, "--tokens", tokens, "-n", 3, "--temp", 0)
    outcome = run_cli(capsys, *base, "--json", "--logprobs", 2, "--spec", "mtp")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    alone = _run(logprobs=2, **GREEDY).logprobs
    assert alone is not None and found["logprobs"] == alone[:3]
    for wrong in (("--logprobs", 2), ("--json", "--logprobs", -1)):
        refused = run_cli(capsys, *base, *wrong)
        assert refused.is_short_error(2) and "--logprobs" in refused.err
