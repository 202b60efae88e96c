"""Wherever a generation ends inside a block of accepted drafts, everything ends at that token: ids,
text, counts, statistics, the session, and what it goes on with."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from riverrun.engine.constraints import compile_constraint
from riverrun.speculative import Speculator
from rollback_rig import STRATEGIES, Plain, require_state, tiny
from spec_rig import (
    GREEDY,
    KINDS,
    TEXTS,
    Follower,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

PROMPT = TEXTS["p17"]
SOURCES = ("scripted", "mtp", "draft", "ngram-cache")


def text(n: int = 200) -> list[int]:
    """The prompt and what follows it greedily."""
    return [*PROMPT, *plain(demo(), PROMPT, n, temperature=0.0).tokens]


def of(source: str, draft_max: int = 8, rollback: str = "auto", n_ctx: int = 512) -> Speculator:
    """Drafters for the prompt; the scripted one is always right."""
    with scripted(right(text())):
        kinds = KINDS.get(source, (source,))
        return speculator(demo(), speculation(kinds, draft_max), n_ctx, rollback=rollback)


def generate(spec: Speculator, n: int = -1, **options: Any) -> rr.Result:
    return demo().generate(PROMPT, n, speculative=spec, **(GREEDY | options)).result


def require_end(spec: Speculator, got: rr.Result, want: rr.Result, held: int) -> None:
    """Result and counts are those of plain decoding, the session holds its text as far as the
    context reaches, of which it and its drafters have seen `held` tokens, and it goes on as one
    that never had a draft."""
    model, session = demo(), spec.session
    require_equal(got, want)
    require_sums(got)
    whole = [*PROMPT, *want.tokens]
    assert spec.sequences.evaluated() == held and session.memory.pending(0) == 0
    assert session.tokens() == whole[: session.n_ctx]
    spec.close()  # of rounds without drafts, drafters have not seen the last ones yet
    for drafter in spec.drafters:
        if isinstance(drafter, Follower):
            assert drafter.text[0] == whole[:held]
    follow = [*session.tokens(), 799, 1415, 198]
    if len(follow) + 12 > session.n_ctx:
        return
    more = model.generate(
        follow, 12, speculative=spec, cache_prompt=True, ignore_eos=True, **GREEDY
    ).result
    assert more.timings["cache_n"] == held
    assert more.tokens == plain(model, follow, 12, temperature=0.0).tokens


@pytest.mark.parametrize(
    "source,n",
    [*product(["scripted", "mtp"], (0, 1, 2, 5, 9, 10, 11)), *product(SOURCES[2:], (5, 23))],
)
def test_token_limit(source: str, n: int) -> None:
    spec = of(source)
    got = generate(spec, n, ignore_eos=True)
    require_end(spec, got, plain(demo(), PROMPT, n, temperature=0.0), 17 + max(0, n - 1))


@pytest.mark.parametrize("at", range(3, 19))
def test_end_token(at: int) -> None:
    """A draft that is right ends the text in the middle of itself, at every place."""
    model, end = demo(), 6141
    whole = text()
    # The end is made the likeliest token where the text stands for the first time.
    with pytest.MonkeyPatch.context() as patch:
        stop = whole[17 + at]
        patch.setattr(model.tokenizer, "eog_ids", frozenset({stop, end}))
        first = whole[17:].index(stop)
        want = model.generate(PROMPT, -1, n_ctx=512, **GREEDY).result
        assert want.finish_reason == "stop" and len(want.tokens) == first
        spec = of("scripted", rollback=STRATEGIES[at % 4])
        got = generate(spec)
        # The end token itself is sampled and not evaluated.
        require_end(spec, got, want, 17 + first)
    assert got.finish_reason == "stop"


@pytest.mark.parametrize("source", ["scripted", "mtp"])
@pytest.mark.parametrize("stop", ["return", "arr[0]\n    else", "]\n\n\nd", "_slice(", "r", "zzz"])
def test_stop_texts(stop: str, source: str) -> None:
    """Also those that span tokens, or end in the middle of one."""
    model = demo()
    plainly = model.session(512)
    want = model.generate(PROMPT, 90, session=plainly, stop=stop, ignore_eos=True, **GREEDY).result
    spec = of(source)
    got = generate(spec, 90, stop=stop, ignore_eos=True)
    require_end(spec, got, want, plainly.sequences.evaluated())


@pytest.mark.parametrize(
    "source,room",
    [*product(["scripted", "draft"], (0, 1, 2, 3, 5, 16, 17, 18, 40)), ("mtp", 3), ("mtp", 40)],
)
def test_context_end(room: int, source: str) -> None:
    """Sixteen drafts meet less room than that."""
    n_ctx = 17 + room
    plainly = demo().session(n_ctx)
    want = demo().generate(PROMPT, -1, session=plainly, ignore_eos=True, **GREEDY).result
    spec = of(source, 16, n_ctx=n_ctx)
    got = generate(spec, -1, ignore_eos=True)
    assert want.finish_reason == "length" and len(want.tokens) == room + 1
    require_end(spec, got, want, n_ctx)
    for drafter in spec.drafters:
        for _, length, limit in getattr(drafter, "asked", ()):
            assert length + limit < n_ctx


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_three_places_left(rollback: str) -> None:
    """The session is filled to three before its end by a prompt."""
    prompt, n_ctx = text()[:125], 128
    want = demo().generate(prompt, -1, n_ctx=n_ctx, ignore_eos=True, **GREEDY).result
    with scripted(right(text())):
        spec = speculator(demo(), speculation(("scripted",), 16), n_ctx, rollback=rollback)
    got = demo().generate(prompt, -1, speculative=spec, ignore_eos=True, **GREEDY).result
    require_equal(got, want)
    assert got.finish_reason == "length" and spec.sequences.evaluated() == n_ctx
    assert got.timings["draft_n"] >= 1


@pytest.mark.parametrize("taken", range(1, 12))
@pytest.mark.parametrize("source", ["scripted", "mtp"])
def test_breaking_off(source: str, taken: int) -> None:
    """The consumer leaves in the middle of a block."""
    model, spec = demo(), of(source)
    generation = model.generate(PROMPT, 60, speculative=spec, ignore_eos=True, **GREEDY)
    pieces = []
    for piece in generation:
        pieces.append(piece)
        if len(pieces) == taken:
            break
    generation.close()
    got = generation.tokens
    result = generation.result
    # A round is taken whole, whoever leaves before its last piece.
    assert got == text()[17 : 17 + len(got)] and result.text.startswith("".join(pieces))
    assert result.text == model.tokenizer.decode(got) and result.finish_reason == "cancelled"
    timings, statistics = result.timings, spec.statistics_in_all
    assert (timings["draft_n"], timings["draft_rounds"]) == (statistics.drafted, statistics.rounds)
    assert spec.session.tokens() == text()[: 17 + len(got)]
    # Between rounds the newest token is not evaluated, in a block the same holds.
    assert spec.sequences.evaluated() == 17 + len(got) - 1
    assert spec.session.memory.pending(0) == 0
    for drafter in spec.drafters:
        if isinstance(drafter, Follower):
            assert drafter.text[0] == text()[: 17 + len(got) - 1]
    rest = model.generate(
        text()[: 17 + len(got)], 30, speculative=spec, cache_prompt=True, ignore_eos=True, **GREEDY
    ).result
    assert rest.timings["cache_n"] == 17 + len(got) - 1
    assert rest.tokens == text()[17 + len(got) : 47 + len(got)]


def test_an_error_of_what_takes_the_tokens_leaves_no_draft_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even while the error, and with it the unfinished round, is still held."""
    spec = of("scripted")
    generation = demo().generate(PROMPT, 40, speculative=spec, ignore_eos=True, **GREEDY)
    take = generation.request.take

    def broken(token: int, logits: np.ndarray | None = None) -> None:
        if len(generation.tokens) == 4:
            raise LookupError
        take(token, logits)

    monkeypatch.setattr(generation.request, "take", broken)
    with pytest.raises(LookupError) as caught:
        list(generation)
    assert caught.value.__traceback__ is not None
    assert spec.session.memory.pending(0) == 0
    assert spec.session.tokens() == text()[: 17 + 4]


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_breaking_off_leaves_the_state_of_plain_decoding(rollback: str) -> None:
    model, prompt = tiny("qwen35"), [5, 9, 100, 42]
    whole = [*prompt, *plain(model, prompt, 80, temperature=0.0).tokens]
    like = Plain(model, whole)
    for n in (6, 8, 11, 13):
        with scripted(right(whole, 5)):
            spec = speculator(model, speculation(("scripted",), 8), rollback=rollback)
        generation = model.generate(prompt, n, speculative=spec, **GREEDY)
        assert generation.result.tokens == whole[4 : 4 + n]
        assert spec.sequences.evaluated() == 4 + n - 1
        require_state(spec.session, 0, like)
        assert spec.session.length() == 4 + n


@pytest.mark.parametrize("name", ["mtp", "scripted", "all"])
def test_turns_of_a_conversation(name: str) -> None:
    """The session continues without the cache of prompts, turn by turn, as without drafts."""
    model, plainly, spec = demo(), demo().session(512), of(name, 4)
    turns = [PROMPT, [799, 1415, 198], [325, 220, 949], [258]]
    for i, turn in enumerate(turns):
        options: dict[str, Any] = {"ignore_eos": True, **GREEDY}
        want = model.generate(turn, 20 + i, session=plainly, **options).result
        got = model.generate(turn, 20 + i, speculative=spec, **options).result
        assert got.tokens == want.tokens
        assert spec.session.tokens() == plainly.tokens()


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "def"]}, "maxItems": 3},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}


def constrained(spec: Speculator | None, prompt: list[int], **sampling: Any) -> rr.Result:
    model = demo()
    constraint = compile_constraint(model.tokenizer, "json_schema", SCHEMA)
    n_ctx = None if spec else 512
    return model.generate(
        prompt, 120, n_ctx=n_ctx, speculative=spec, constraint=constraint, **sampling
    ).result


@pytest.mark.parametrize("sampling", [GREEDY, {"temperature": 0.9, "seed": 8}], ids=str)
@pytest.mark.parametrize("prompt", ["p3", "p17", "p64", "p200"])
@pytest.mark.parametrize("name", ["mtp", "draft", "all"])
def test_constrained_text(name: str, prompt: str, sampling: dict[str, Any]) -> None:
    """The matcher follows accepted tokens alone; the end of the text may lie within a draft."""
    pytest.importorskip("llguidance")
    want = constrained(None, TEXTS[prompt], **sampling)
    spec = speculator(demo(), speculation(KINDS[name], 4))
    got = constrained(spec, TEXTS[prompt], **sampling)
    require_equal(got, want)
    require_sums(got)
    if got.finish_reason == "stop":
        assert set(json.loads(got.text)) == {"name", "count", "tags"}


@pytest.mark.parametrize("illegal_at", range(6))
def test_illegal_drafts_are_quietly_dropped(illegal_at: int) -> None:
    """Nothing from the first illegal token of a draft on is verified."""
    pytest.importorskip("llguidance")
    model, prompt = demo(), TEXTS["p17"]
    want = constrained(None, prompt, **GREEDY)
    whole = [*prompt, *want.tokens]
    newline = model.tokenize("\x00")[0]

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        draft = whole[len(context) : len(context) + limit]
        return [*draft[:illegal_at], newline, *draft[illegal_at:]]

    with scripted(script):
        spec = speculator(model, speculation(("scripted",), 6), rollback=STRATEGIES[illegal_at % 4])
    got = constrained(spec, prompt, **GREEDY)
    require_equal(got, want)
    require_sums(got)
    assert got.timings["draft_n"] == got.timings["draft_n_accepted"]
    longest = max((n for _, n, _ in spec.drafters[0].judged), default=0)  # type: ignore[attr-defined]
    assert longest == illegal_at
