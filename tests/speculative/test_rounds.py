"""Rounds of one and of several sequences: what is accepted, what is counted, what a failure
leaves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from demo import demo
from riverrun.engine.chooser import Chooser
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.graph.errors import DrafterError, RequestError
from riverrun.speculative import Entry, Speculation, Speculator
from rollback_rig import STRATEGIES, Plain, require_state, tiny
from spec_rig import (
    GREEDY,
    KINDS,
    TEXTS,
    Follower,
    Script,
    bound_type,
    plain,
    require_equal,
    require_sums,
    right,
    scripted,
    speculation,
    speculator,
)

PROMPT = [5, 9, 100, 42]
N_DRAFTS = 6


def truth(model: rr.Model, n: int = 120, prompt: list[int] = PROMPT) -> list[int]:
    """The prompt and what follows it greedily."""
    return [*prompt, *plain(model, prompt, n, temperature=0.0).tokens]


def greedy(model: rr.Model) -> Chooser:
    return Chooser(Sampler(SamplerParams(temperature=0.0), model.n_vocab), model.n_vocab)


def judge(spec: Speculator, entries: list[Entry]) -> list[list[int]]:
    """A whole round; the tokens of each entry."""
    found = []
    for proposal, logits in spec.round(entries):
        tokens = list(spec.judge(proposal, logits.copy()))
        found.append(tokens)
        spec.finish(proposal, tokens)
    return found


@pytest.mark.parametrize("accepted", range(N_DRAFTS + 1))
@pytest.mark.parametrize("rollback", STRATEGIES)
def test_every_acceptance_leaves_the_state_of_plain_decoding(rollback: str, accepted: int) -> None:
    """Attention, convolution and matrix states, after one round and after the next."""
    model = tiny("qwen35")
    text = truth(model)
    with scripted(right(text, accepted)):
        spec = speculator(model, speculation(("scripted",), N_DRAFTS), rollback=rollback)
    spec.prompt(0, PROMPT)
    like = Plain(model, text)
    at = len(PROMPT)
    for _ in range(3):
        (tokens,) = judge(spec, [Entry(0, text[at], greedy(model))])
        assert tokens == text[at + 1 : at + 2 + accepted]
        at += len(tokens)
        assert spec.session.length() == at
        require_state(spec.session, 0, like)


def rounds_of(
    spec: Speculator, model: rr.Model, texts: list[list[int]], starts: list[int], rounds: int
) -> tuple[list[list[int]], int]:
    """Tokens of every sequence after so many rounds together, and the target's passes."""
    for seq, (text, at) in enumerate(zip(texts, starts, strict=True)):
        spec.prompt(seq, text[:at])
    newest = [text[at] for text, at in zip(texts, starts, strict=True)]
    found: list[list[int]] = [[] for _ in texts]
    passes = 0
    bound = bound_type(spec)
    run = bound.run

    def counted(self: Any, rows: int | None = None) -> None:
        nonlocal passes
        passes += 1
        run(self, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "run", counted)
        for _ in range(rounds):
            entries = [Entry(s, token, greedy(model)) for s, token in enumerate(newest)]
            for seq, tokens in enumerate(judge(spec, entries)):
                found[seq] += tokens
                newest[seq] = tokens[-1]
    return found, passes


def unequal(texts: list[list[int]]) -> Script:
    """Drafts of another length, right up to another place, for each sequence."""

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        return right(texts[seq], (None, 2, 0, 4)[seq])(seq, context, min(limit, (6, 3, 1, 5)[seq]))

    return script


@pytest.mark.parametrize("rollback", STRATEGIES)
def test_four_sequences_share_one_pass_a_round(rollback: str) -> None:
    model = tiny("qwen35")
    prompts = [[5, 9, 100, 42], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9], [200, 13]]
    texts = [truth(model, 120, p) for p in prompts]
    with scripted(unequal(texts)):
        spec = speculator(model, speculation(("scripted",), 6), n_seqs=4, rollback=rollback)
        found, passes = rounds_of(spec, model, texts, [len(p) for p in prompts], 12)
    assert spec.statistics_in_all.rounds == 12
    # Where drafts are rejected again and again, checkpoints catch up in passes of their own.
    assert passes == 12 or (rollback.startswith("checkpoint") and passes < 20)
    for seq, (tokens, text, prompt) in enumerate(zip(found, texts, prompts, strict=True)):
        assert tokens == text[len(prompt) + 1 :][: len(tokens)]
        assert len(tokens) == 12 * (7, 3, 1, 5)[seq]
        assert spec.session.tokens(seq) == text[: len(prompt) + len(tokens)]
    drafter = spec.drafters[0]
    assert isinstance(drafter, Follower)
    want = {(0, 6, 6), (1, 3, 2), (2, 1, 0), (3, 5, 4)}
    assert set(drafter.judged) == want and len(drafter.judged) == 48


@pytest.mark.parametrize(
    "rollback,name",
    [*product(STRATEGIES, ["mtp"]), ("replay", "draft"), ("checkpoint:host", "ngram-cache")],
)
def test_sequences_together_get_what_they_get_alone(rollback: str, name: str) -> None:
    """Tokens and acceptance of every place; model drafters share their passes, too."""
    model, asked = demo(), speculation(KINDS[name], 3)
    texts = [[*ids, *plain(model, ids, 60, temperature=0.0).tokens] for ids in TEXTS.values()]
    texts, starts = texts[:4], [len(ids) for ids in TEXTS.values()][:4]
    alone, most = [], 0
    for text, at in zip(texts, starts, strict=True):
        spec = speculator(model, asked, rollback=rollback)
        (tokens,), passes = rounds_of(spec, model, [text], [at], 9)
        alone.append(tokens)
        most = max(most, passes)
    spec = speculator(model, asked, n_seqs=4, rollback=rollback)
    together, passes = rounds_of(spec, model, texts, starts, 9)
    assert together == alone
    # Checkpoints run accepted tokens again in passes of their own only where there are many.
    assert passes <= most


@pytest.mark.parametrize("seq", range(4))
def test_every_slot_drafts_alike(seq: int) -> None:
    model = demo()
    spec = speculator(model, speculation(("mtp",), 3), n_seqs=4)
    text, at = [*TEXTS["p64"], *plain(model, TEXTS["p64"], 60, temperature=0.0).tokens], 64
    spec.prompt(seq, text[:at])
    newest = text[at]
    for _ in range(10):
        (tokens,) = judge(spec, [Entry(seq, newest, greedy(model))])
        newest = tokens[-1]
    first = speculator(model, speculation(("mtp",), 3))
    rounds_of(first, model, [text], [at], 10)
    assert spec.statistics_in_all.accepted_at == first.statistics_in_all.accepted_at
    assert spec.statistics_in_all.accepted > 10


BAD: dict[str, Callable[[list[int]], list[int]]] = {
    "too long": lambda draft: draft * 3,
    "beyond the vocabulary": lambda draft: [*draft[:2], 10**6, *draft[2:]],
    "the first id beyond": lambda draft: [draft[0], 6144, *draft[1:]],
    "negative": lambda draft: [-1, *draft],
    "nothing": lambda draft: [],
    "the newest again": lambda draft: draft[:1] * 8,
}


@pytest.mark.parametrize("bad", BAD)
def test_senseless_drafts_do_no_harm(bad: str) -> None:
    model, n = demo(), 60
    want = plain(model, TEXTS["p17"], n, temperature=0.0)
    straight = right([*TEXTS["p17"], *want.tokens])

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        draft = straight(seq, context, limit)
        return BAD[bad](draft) if draft else draft

    with scripted(script):
        spec = speculator(model, speculation(("scripted",), 5))
        got = model.generate(TEXTS["p17"], n, ignore_eos=True, speculative=spec, **GREEDY).result
    require_equal(got, want)
    require_sums(got)


def test_padding_ids_are_never_verified() -> None:
    """The embedding may have rows that stand for no token."""
    model, n = demo(), 40
    want = plain(model, TEXTS["p17"], n, temperature=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.tokenizer, "n_vocab", 6100)
        with scripted(lambda seq, context, limit: [6120] * limit):
            spec = speculator(model, speculation(("scripted",), 5))
            got = model.generate(TEXTS["p17"], n, speculative=spec, ignore_eos=True, **GREEDY)
            assert got.result.tokens == want.tokens
    # In the last round no draft has room.
    assert spec.statistics_in_all.drafted == 0 and spec.statistics_in_all.empty == 38


@pytest.mark.parametrize("name", KINDS)
def test_statistics_are_the_same_for_every_strategy(name: str) -> None:
    found = []
    for rollback in STRATEGIES:
        spec = speculator(demo(), speculation(KINDS[name], 4), rollback=rollback)
        got = demo().generate(TEXTS["p17"], 100, speculative=spec, ignore_eos=True, **GREEDY)
        require_sums(got.result)
        s = spec.statistics_in_all
        found.append(
            (s.rounds, s.drafted, s.accepted, s.drafted_at, s.accepted_at, s.empty, s.skipped)
        )
        assert sum(s.drafted_at) == s.drafted
    assert all(f == found[0] for f in found[1:])


@pytest.mark.parametrize("name", ["draft", "mtp"])
def test_rejection_repeats_with_a_seed(name: str) -> None:
    """Also where lengths would follow the clock, and whichever way drafts are rolled back."""

    def run(seed: int, rollback: str) -> tuple[list[int], list[int]]:
        asked = speculation(KINDS[name], 4, acceptance="rejection", adaptive=True)
        spec = speculator(demo(), asked, rollback=rollback)
        got = demo().generate(
            TEXTS["p64"], 80, speculative=spec, temperature=1.0, seed=seed, ignore_eos=True
        )
        tokens = got.result.tokens
        require_sums(got.result)
        return tokens, spec.statistics_in_all.accepted_at

    first = run(5, "replay")
    assert sum(first[1]) > 5
    assert all(run(5, rollback) == first for rollback in STRATEGIES)
    assert run(6, "replay") != first


def test_rejection_with_temperature_zero_is_greedy() -> None:
    asked = speculation(("mtp",), 4, acceptance="rejection")
    got = demo().generate(
        TEXTS["p17"], 80, speculative=speculator(demo(), asked), ignore_eos=True, **GREEDY
    )
    require_equal(got.result, plain(demo(), TEXTS["p17"], 80, temperature=0.0))


class Broken(Exception):
    """What a broken pass raises."""


def break_pass(patch: pytest.MonkeyPatch, bound: type, at: int) -> None:
    """The pass number `at` from now fails after it has run."""
    run, count = bound.run, 0  # type: ignore[attr-defined]

    def fail(self: Any, rows: int | None = None) -> None:
        nonlocal count
        count += 1
        run(self, rows)
        if count == at:
            raise Broken

    patch.setattr(bound, "run", fail)


@pytest.mark.parametrize("at", [1, 2, 3, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("name", ["mtp", "draft", "scripted"])
def test_a_failing_pass_loses_drafts_only(name: str, at: int) -> None:
    """What was handed out stays, and a new call goes on as if nothing had been."""
    rollback = STRATEGIES[at % 4]
    model, prompt, n = demo(), TEXTS["p64"], 60
    want = plain(model, prompt, n, temperature=0.0)
    whole = [*prompt, *want.tokens]
    with scripted(right(whole, 2)):
        kinds = ("scripted",) if name == "scripted" else KINDS[name]
        spec = speculator(model, speculation(kinds, 3), rollback=rollback)
    generation = model.generate(prompt, n, speculative=spec, ignore_eos=True, **GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        break_pass(patch, bound_type(spec), at)
        with pytest.raises((Broken, DrafterError)) as raised:
            list(generation)
        # A pass of a drafter's own model fails in a call into the drafter.
        assert Broken in (type(raised.value), type(raised.value.__cause__))
    session, got = spec.session, generation.tokens
    assert session.memory.pending(0) == 0
    generation.close()
    held = session.tokens()
    assert got == generation.tokens == want.tokens[: len(got)]
    assert held == whole[: len(held)]
    assert session.memory.pending(0) == 0
    assert len(held) == len(prompt) + len(got) or (at < 4 and not got)
    rest = model.generate(
        whole[: len(prompt) + max(1, len(got))],
        n - max(1, len(got)),
        speculative=spec,
        cache_prompt=True,
        ignore_eos=True,
        **GREEDY,
    ).result
    assert rest.tokens == want.tokens[max(1, len(got)) :]


def test_penalties_follow_what_was_accepted() -> None:
    """Rejected drafts would change the counts that frequency penalties go by."""
    model, n = demo(), 80
    sampling: dict[str, Any] = {"temperature": 0.0, "frequency_penalty": 0.4, "repeat_last_n": 30}
    want = plain(model, TEXTS["p17"], n, **sampling)
    choosers = []
    whole = [*TEXTS["p17"], *want.tokens]
    for wrong_at in (0, 1, 3, None):
        with scripted(right(whole, wrong_at)):
            spec = speculator(model, speculation(("scripted",), 4))
            generation = model.generate(
                TEXTS["p17"], n, speculative=spec, ignore_eos=True, **sampling
            )
            require_equal(generation.result, want)
        state = generation.sampler._state.window
        choosers.append((state.ids.tolist(), state.counts.tolist()))
    assert all(c == choosers[0] for c in choosers)
    ids, counts = choosers[0]
    tail = whole[-30:]
    assert dict(zip(ids, counts, strict=True)) == {t: tail.count(t) for t in set(tail)}


def test_drafts_keep_out_of_what_the_request_leaves() -> None:
    """The last token of a request needs no draft behind it."""
    model = tiny("qwen35")
    text = truth(model)
    with scripted(right(text)):
        spec = speculator(model, speculation(("scripted",), 8))
        got = model.generate(PROMPT, 12, speculative=spec, **GREEDY).result
    assert got.tokens == text[4:16]
    drafter = spec.drafters[0]
    assert isinstance(drafter, Follower)
    assert [limit for _, _, limit in drafter.asked] == [8, 1]
    assert got.timings["draft_n"] == got.timings["draft_n_accepted"] == 9


def test_a_session_that_can_forget_nothing_is_refused() -> None:
    session = tiny("qwen35").session(64)
    with pytest.raises(RequestError, match=r"cannot forget drafts.*n_rs_seq .* here 3") as refused:
        tiny("qwen35").generate(PROMPT, 4, session=session, speculative=Speculation(("mtp",)))
    # It is free for others, also while the error is kept.
    assert refused.value.__traceback__ is not None
    assert session.decode(PROMPT[0]).shape == (tiny("qwen35").n_vocab,)


def test_a_round_of_hidden_rows_is_the_plain_one() -> None:
    """Rows that drafters get do not depend on what was drafted beside them."""
    model, seen = demo(), {}
    whole = [*TEXTS["p17"], *plain(model, TEXTS["p17"], 60, temperature=0.0).tokens]

    class Watcher(Follower):
        wants_hidden = True

        def observe(self, seq: int, tokens: Any, hidden: Any, context: Any) -> None:
            super().observe(seq, tokens, hidden, context)
            assert hidden.shape == (len(tokens), 256)
            for i, row in enumerate(hidden):
                seen.setdefault(len(context) - len(tokens) + i, []).append(row.copy())

    for wrong_at in (0, 2, None):
        with scripted(right(whole, wrong_at)) as _, pytest.MonkeyPatch.context() as patch:
            from riverrun.speculative.drafter import DRAFTERS

            watcher = type(
                "W", (Watcher,), {"name": "scripted", "script": DRAFTERS["scripted"].script}
            )
            patch.setitem(DRAFTERS, "scripted", watcher)
            spec = speculator(model, speculation(("scripted",), 4))
            model.generate(TEXTS["p17"], 50, speculative=spec, ignore_eos=True, **GREEDY).result  # noqa: B018
            spec.close()
    assert len(seen) > 60
    for at, rows in seen.items():
        assert len(rows) == 3, at
        for row in rows[1:]:
            np.testing.assert_array_equal(row, rows[0])
