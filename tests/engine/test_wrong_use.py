"""Arguments that mean nothing: a clear error, and nothing has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from riverrun.engine.sampler import SamplerParams, Sampling
from riverrun.graph.errors import OutOfMemory, RequestError

IDS = [5, 6, 7]


@pytest.mark.parametrize(
    "token", ["x", 1.5, b"a", None, True, np.bool_(True), np.float32(2), [1]], ids=repr
)
def test_tokens_are_integers(token: Any) -> None:
    session = demo().session(32)
    for call in (
        lambda: session.decode(token),
        lambda: session.evaluate([(0, [5, token])]),
        lambda: session.verify([(0, (token,))]),
        lambda: session.prefill([token]),
        lambda: session.append(0, [token]),
        lambda: demo().generate([token, 5], 1, n_ctx=32),
    ):
        with pytest.raises(RequestError, match=r"integer|generate_batch"):
            call()
    assert session.length() == 0


@pytest.mark.parametrize("seq", ["0", 1.0, True, None, -1, 2], ids=repr)
def test_sequences_are_integers_in_range(seq: Any) -> None:
    session = demo().session(32, 2)
    session.prefill(IDS, 0)
    table = session.memory.parts[0].block_table.copy()  # type: ignore[attr-defined]
    for call in (
        lambda: session.evaluate([(seq, IDS)]),
        lambda: session.clear(seq),
        lambda: session.length(seq),
        lambda: session.commit(seq, 0),
    ):
        with pytest.raises(RequestError, match=r"a sequence should be|sequences are from 0 to 1"):
            call()
    assert session.tokens(0) == IDS
    np.testing.assert_array_equal(session.memory.parts[0].block_table, table)  # type: ignore[attr-defined]


def test_integers_of_numpy_will_do() -> None:
    session = demo().session(32)
    session.prefill(np.array(IDS))
    session.decode(np.int64(8), np.int32(0))  # type: ignore[arg-type]
    assert session.tokens() == [*IDS, 8]
    assert all(type(token) is int for token in session.tokens())


@pytest.mark.parametrize(
    "prompt,message",
    [
        (None, "series of integers, got None"),
        (7, "series of integers, got 7"),
        (["a", "b"], "generate_batch"),
        (np.zeros((2, 2), np.int32), "a token id should be an integer"),
        (b"text", "model.tokenize"),
        ([], "no tokens"),
        ("", "no tokens"),
        ([10**9], "token ids are from 0"),
        ([-1], "token ids are from 0"),
    ],
    ids=repr,
)
def test_prompts_are_texts_or_ids(prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        demo().generate(prompt, 1, n_ctx=32)


@pytest.mark.parametrize("n", [1.5, "5", None, True, -2], ids=repr)
def test_max_tokens_is_an_integer(n: Any) -> None:
    with pytest.raises(RequestError, match="max_tokens should be"):
        demo().generate(IDS, n, n_ctx=32)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"temprature": 0.5}, "did you mean temperature"),
        ({"topk": 4}, "did you mean top_k"),
        ({"session": "s"}, "session should be one of model.session"),
        ({"speculative": 5}, "speculative should be drafters' names"),
        ({"speculative": "mtq"}, "mtp"),
        ({"stop": [5]}, "stop: expected strings"),
        ({"stop_token_ids": ["x"]}, "a token id should be an integer"),
        ({"stop_token_ids": [10**7]}, "token ids are from 0"),
        ({"constraint": "abc"}, "constraint"),
    ],
    ids=str,
)
def test_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        demo().generate(IDS, 1, **options)


@pytest.mark.parametrize(
    "options", [{"n_ctx": 10**9}, {"n_ctx": 1.5}, {"n_seqs": 10**6}, {"n_rs_seq": 10**13}], ids=str
)
def test_sizes_have_limits(options: dict[str, Any]) -> None:
    with pytest.raises((RequestError, OutOfMemory), match=r"n_ctx|n_seqs|n_rs_seq|bytes"):
        demo().session(**options)


def test_the_keywords_for_type_checkers_are_the_fields() -> None:
    fields = SamplerParams.__dataclass_fields__
    assert list(Sampling.__annotations__) == list(fields)


def test_stop_texts_that_are_control_tokens_stop() -> None:
    model = demo()
    control = next(
        t for t in range(model.n_vocab) if model.tokenizer.token_type(t).name == "CONTROL"
    )
    text = model.tokenizer.token_text(control)
    bias = {control: 1e4}
    options: dict[str, Any] = {"logit_bias": bias, "temperature": 0.0, "ignore_eos": True}
    plain = model.generate(IDS, 4, n_ctx=32, **options).result
    assert plain.tokens == [control] * 4
    for stop in ({"stop": [text]}, {"stop_token_ids": [control]}):
        result = model.generate(IDS, 4, n_ctx=32, **stop, **options).result
        assert (result.tokens, result.finish_reason) == ([], "stop")


def test_a_closed_session_says_so() -> None:
    with demo().session(32) as session:
        session.prefill(IDS)
    with pytest.raises(RequestError, match="this session is closed"):
        session.decode(5)
    assert isinstance(rr.__version__, str)
