"""Tokens with drafts equal tokens without: greedy, sampled, beside other sequences, with every
rollback strategy; and the account of drafts says what happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import riverrun as rr
from demo import demo
from riverrun.engine.chooser import Chooser
from riverrun.engine.sampler import Sampler, SamplerParams
from riverrun.speculative import Speculator
from riverrun.speculative.speculator import Entry
from rollback_rig import STRATEGIES
from spec_rig import (
    GREEDY,
    NGRAMS,
    TEXTS,
    Follower,
    Script,
    plain,
    require_equal,
    right,
    scripted,
    speculation,
    speculator,
)

ACCOUNT = (
    "predicted_n",
    "draft_rounds",
    "draft_n",
    "draft_n_accepted",
    "draft_accepted_per_position",
    "draft_empty",
    "draft_skipped",
)
SAMPLING: dict[str, dict[str, Any]] = {
    "seed 1": {"temperature": 0.8, "seed": 1},
    "seed 2": {"temperature": 0.8, "seed": 2},
    "top_k": {"temperature": 0.8, "top_k": 5, "top_p": 1.0, "min_p": 0.0, "seed": 3},
    "top_p": {"temperature": 0.8, "top_k": 0, "top_p": 0.7, "min_p": 0.0, "seed": 4},
    "repeat": {"temperature": 0.8, "repeat_penalty": 1.3, "repeat_last_n": 32, "seed": 5},
    "frequency": {"temperature": 0.8, "frequency_penalty": 0.4, "seed": 6},
    "presence": {"temperature": 0.8, "presence_penalty": 0.6, "repeat_last_n": -1, "seed": 7},
    "bias": {"temperature": 0.8, "logit_bias": {270: 3.0, 258: -2.0, 19: -100.0}, "seed": 8},
}
WRONG: list[int | None] = [None, 0, 1, 2, 3, 4]
MOST = 5


def run(spec: Speculator, prompt: Sequence[int], n: int, **options: Any) -> rr.Result:
    options = {"ignore_eos": True} | GREEDY | options
    return spec.session.model.generate(prompt, n, speculative=spec, **options).result


def equal(
    kinds: Sequence[str],
    text: str,
    draft_max: int,
    rollback: str = "auto",
    adaptive: bool = False,
    n: int = 96,
    **sampling: Any,
) -> rr.Result:
    """A result that was found to be that of plain decoding."""
    spec = speculator(demo(), speculation(kinds, draft_max, adaptive=adaptive), rollback=rollback)
    got = run(spec, TEXTS[text], n, **sampling)
    require_equal(got, plain(demo(), TEXTS[text], n, **(GREEDY | sampling)))
    return got


def account(result: rr.Result) -> dict[str, Any]:
    """What the result says of its drafts, times left out."""
    return {name: result.timings[name] for name in ACCOUNT}


class TestGreedy:
    @pytest.mark.parametrize("draft_max", [1, 4, 8])
    @pytest.mark.parametrize("rollback", STRATEGIES)
    def test_mtp(self, rollback: str, draft_max: int) -> None:
        got = equal(["mtp"], "p64", draft_max, rollback)
        assert got.timings["draft_n_accepted"] > 30

    @pytest.mark.parametrize("rollback", STRATEGIES)
    def test_adaptive_mtp(self, rollback: str) -> None:
        equal(["mtp"], "p17", 8, rollback, adaptive=True)

    @pytest.mark.parametrize(
        ("rollback", "draft_max"),
        [*((rollback, 4) for rollback in STRATEGIES), ("replay", 1), ("checkpoint:host", 8)],
    )
    def test_draft_model(self, rollback: str, draft_max: int) -> None:
        got = equal(["draft"], "p17", draft_max, rollback, draft_max == 8)
        assert draft_max == 8 or got.timings["draft_n_accepted"] > 20

    @pytest.mark.parametrize("draft_max", [1, 4, 8])
    @pytest.mark.parametrize("name", NGRAMS)
    def test_ngrams(self, name: str, draft_max: int) -> None:
        """The middle length goes back by another way, the longest ones adapt."""
        other = STRATEGIES[1 + NGRAMS.index(name) % 3]
        rollback = other if draft_max == 4 else "replay"
        got = equal([name], "p64", draft_max, rollback, draft_max == 8)
        assert draft_max == 8 or got.timings["draft_n_accepted"] > 0

    @pytest.mark.parametrize("rollback", STRATEGIES)
    @pytest.mark.parametrize("kinds", [("ngram-mod", "mtp"), ("ngram-cache", "mtp")], ids=",".join)
    def test_chains(self, kinds: tuple[str, ...], rollback: str) -> None:
        got = equal(kinds, "p64", 4, rollback)
        assert got.timings["draft_n_accepted"] > 30

    def test_adaptive_chain(self) -> None:
        equal(["ngram-mod", "mtp"], "p17", 8, adaptive=True)

    @pytest.mark.parametrize("rollback", ["replay", "checkpoint:device"])
    def test_q8_0_attention(self, rollback: str) -> None:
        kv = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        spec = speculator(demo(), speculation(["mtp"], 4), rollback=rollback, **kv)
        got = run(spec, TEXTS["p64"], 96)
        require_equal(got, plain(demo(), TEXTS["p64"], 96, kv="q8_0", **GREEDY))
        assert got.timings["draft_n_accepted"] > 30


class TestSampled:
    @pytest.mark.parametrize("kind", ["mtp", "ngram-cache"])
    @pytest.mark.parametrize("sampling", SAMPLING)
    def test_same_seed_same_tokens(self, sampling: str, kind: str) -> None:
        at = list(SAMPLING).index(sampling)
        options = SAMPLING[sampling]
        got = equal([kind], "p17", 4, STRATEGIES[at % 2], **options)
        assert got.timings["draft_n"] > 0
        assert got.tokens != plain(demo(), TEXTS["p17"], 96, **GREEDY).tokens

    def test_other_seed_other_tokens(self) -> None:
        first, second = (equal(["mtp"], "p17", 4, temperature=0.8, seed=s) for s in (1, 2))
        assert first.tokens != second.tokens


def expected(n: int, wrong_at: int | None) -> dict[str, Any]:
    """The account of n tokens when every draft is right before wrong_at."""
    made, rounds, drafted, per, skipped = 1, 0, 0, [0] * MOST, 0
    while made < n:
        k = min(MOST, n - made - 1)
        a = k if wrong_at is None else min(k, wrong_at)
        rounds, drafted, made, skipped = rounds + 1, drafted + k, made + a + 1, skipped + (not k)
        per = [count + (i < a) for i, count in enumerate(per)]
    return dict(zip(ACCOUNT, (n, rounds, drafted, sum(per), per, 0, skipped), strict=True))


class TestScripted:
    @pytest.mark.parametrize("wrong_at", WRONG)
    @pytest.mark.parametrize("rollback", STRATEGIES)
    def test_every_number_of_accepted_drafts(self, rollback: str, wrong_at: int | None) -> None:
        n, prompt = 96, TEXTS["p17"]
        want = plain(demo(), prompt, n, **GREEDY)
        with scripted(right([*prompt, *want.tokens], wrong_at)):
            spec = speculator(demo(), speculation(["scripted"], MOST), rollback=rollback)
            got = run(spec, prompt, n)
        require_equal(got, want)
        assert account(got) == expected(n, wrong_at)
        assert (
            got.timings["predicted_n"]
            == 1 + got.timings["draft_rounds"] + (got.timings["draft_n_accepted"])
        )
        (drafter,) = spec.drafters
        assert isinstance(drafter, Follower)
        whole = [a for _, k, a in drafter.judged if k == MOST]
        assert len(whole) > 10 and set(whole) == {MOST if wrong_at is None else wrong_at}

    def test_always_wrong(self) -> None:
        """Not one token of a draft is right, so that each pass gives one."""
        n, prompt = 96, TEXTS["p17"]
        want = plain(demo(), prompt, n, **GREEDY)
        text = [(token + 1) % 256 for token in [*prompt, *want.tokens]]
        with scripted(right(text)):
            got = run(speculator(demo(), speculation(["scripted"], MOST)), prompt, n)
        require_equal(got, want)
        assert account(got) == expected(n, 0)
        assert got.timings["draft_rounds"] == n - 1

    @pytest.mark.parametrize("at", [10, 11, 12, 13, 14, 15])
    def test_end_inside_a_draft(self, at: int) -> None:
        """A round that ends with a draft gives no token of its own."""
        prompt, model = TEXTS["p200"], demo()
        text = plain(model, prompt, 96, **GREEDY).tokens
        stop = model.tokenizer.decode(text[at - 5 : at + 1])
        want = plain(model, prompt, 96, stop=(stop,), **GREEDY)
        assert want.finish_reason == "stop" and len(want.tokens) == at + 1
        with scripted(right([*prompt, *text])):
            spec = speculator(model, speculation(["scripted"], MOST))
            got = run(spec, prompt, 96, stop=(stop,))
        require_equal(got, want)
        # One token is the prompt's, then come rounds of MOST drafts and a token.
        own = 1 + got.timings["draft_rounds"]
        inside = at % (MOST + 1) != 0
        assert got.timings["predicted_n"] == own + got.timings["draft_n_accepted"] - inside
        assert spec.session.length() == len(prompt) + at


def play(spec: Speculator, prompts: Mapping[int, Sequence[int]], n: int) -> dict[int, list[int]]:
    """n greedy tokens of each sequence, all of them in each round until they have theirs."""
    model = spec.session.model
    choosers: dict[int, Chooser] = {}
    tokens: dict[int, list[int]] = {}
    for seq, prompt in prompts.items():
        logits = spec.prompt(seq, prompt)
        sampler = Sampler(SamplerParams(temperature=0.0), model.n_vocab, prompt)
        choosers[seq] = Chooser(sampler, model.n_vocab)
        tokens[seq] = [choosers[seq].choose(logits, len(prompt))]
    while open_ := [seq for seq in tokens if len(tokens[seq]) < n]:
        entries = [Entry(s, tokens[s][-1], choosers[s], n - len(tokens[s])) for s in open_]
        for judged in spec.round(entries):
            seq, rule = judged.entry.seq, spec.asked.judge
            chosen = list(rule(choosers[seq], judged.logits, judged.draft, judged.position))
            spec.finish(judged, chosen)
            tokens[seq] += chosen
    return tokens


def counted(spec: Speculator, patch: pytest.MonkeyPatch) -> list[list[int]]:
    """A list that gets, for each pass over drafts, the number of tokens of each sequence."""
    passes: list[list[int]] = []
    verify: Callable[..., Any] = spec.session.verify

    def counting(items: Any, *args: Any, **more: Any) -> Any:
        passes.append([len(tokens) for _, tokens in items])
        return verify(items, *args, **more)

    patch.setattr(spec.session, "verify", counting)
    return passes


class TestTogether:
    LENGTHS = (0, 1, 3, 5)

    def script(self, texts: Mapping[int, Sequence[int]]) -> Script:
        """A draft's length is the sequence's own; now and then one of its tokens is wrong."""

        def propose(seq: int, context: list[int], limit: int) -> list[int]:
            n = min(limit, self.LENGTHS[seq])
            wrong_at = len(context) % 7
            return right(texts[seq], wrong_at)(seq, context, n)

        return propose

    @pytest.mark.parametrize("rollback", ["replay", "checkpoint:host"])
    def test_unequal_drafts(self, rollback: str, monkeypatch: pytest.MonkeyPatch) -> None:
        n, model = 48, demo()
        prompts = dict(enumerate(TEXTS[name] for name in ("p17", "p64", "p3", "p200")))
        alone = {seq: plain(model, p, n, **GREEDY).tokens for seq, p in prompts.items()}
        texts = {seq: [*p, *alone[seq]] for seq, p in prompts.items()}
        with scripted(self.script(texts)):
            spec = speculator(model, speculation(["scripted"], MOST), n_seqs=4, rollback=rollback)
            passes = counted(spec, monkeypatch)
            assert play(spec, prompts, n) == alone
        assert len(passes) == spec.statistics.rounds == n - 1
        assert passes[0] == [1 + length for length in self.LENGTHS]
        assert 0 < spec.statistics.accepted < spec.statistics.drafted
        for seq, text in texts.items():
            assert spec.session.tokens(seq) == text[:-1]

    @pytest.mark.parametrize("kinds", [("mtp",), ("ngram-mod", "mtp")], ids=",".join)
    def test_drafters_own_drafts(self, kinds: tuple[str, ...]) -> None:
        n, model = 48, demo()
        prompts = dict(enumerate(TEXTS[name] for name in ("p200", "p3", "p64", "p17")))
        spec = speculator(model, speculation(kinds, MOST), n_seqs=4, rollback="replay")
        alone = {seq: plain(model, p, n, **GREEDY).tokens for seq, p in prompts.items()}
        assert play(spec, prompts, n) == alone
        assert spec.statistics.accepted > 0

    @pytest.mark.parametrize(
        ("kind", "rollback"),
        [
            ("mtp", "replay"),
            ("draft", "replay"),
            ("ngram-simple", "replay"),
            ("ngram-map-k", "checkpoint:host"),
        ],
    )
    def test_slot_makes_no_difference(self, kind: str, rollback: str) -> None:
        """The same prompt in every slot, one after the other; those before stay as they are."""
        n, model, prompt = 48, demo(), TEXTS["p64"]
        want = plain(model, prompt, n, **GREEDY).tokens
        spec = speculator(model, speculation([kind], MOST), n_seqs=4, rollback=rollback)
        accounts = []
        for seq in range(4):
            with pytest.MonkeyPatch.context() as patch:
                judged: list[tuple[int, int]] = []
                (drafter,) = spec.drafters
                patch.setattr(drafter, "accept", _noting(drafter.accept, judged))
                assert play(spec, {seq: prompt}, n)[seq] == want
            accounts.append(judged)
        assert accounts[0] and accounts == [accounts[0]] * 4
        assert sum(a for _, a in accounts[0]) > 0


def _noting(accept: Callable[..., None], judged: list[tuple[int, int]]) -> Callable[..., None]:
    def noting(seq: int, n_drafted: int, n_accepted: int) -> None:
        judged.append((n_drafted, n_accepted))
        accept(seq, n_drafted, n_accepted)

    return noting


class TestAccount:
    @pytest.mark.parametrize("kinds", [("mtp",), ("draft",), ("ngram-mod", "mtp")], ids=",".join)
    def test_strategies_agree(self, kinds: tuple[str, ...]) -> None:
        results = [equal(kinds, "p64", 4, rollback) for rollback in STRATEGIES]
        first = account(results[0])
        assert [account(r) for r in results] == [first] * 4
        assert first["predicted_n"] == 1 + first["draft_rounds"] + first["draft_n_accepted"]
        assert sum(first["draft_accepted_per_position"]) == first["draft_n_accepted"] > 0

    def test_strategies_agree_on_a_script(self) -> None:
        """Accepted 0 to MOST drafts, depending on the place."""
        n, prompt, model = 96, TEXTS["p64"], demo()
        text = [*prompt, *plain(model, prompt, n, **GREEDY).tokens]

        def script(seq: int, context: list[int], limit: int) -> list[int]:
            wrong_at = random.Random(len(context)).randrange(MOST + 1)
            return right(text, wrong_at)(seq, context, limit)

        accounts = []
        for rollback in STRATEGIES:
            with scripted(script):
                spec = speculator(model, speculation(["scripted"], MOST), rollback=rollback)
                got = run(spec, prompt, n)
            assert got.tokens == text[len(prompt) :]
            (drafter,) = spec.drafters
            assert isinstance(drafter, Follower)
            accounts.append((account(got), drafter.judged))
        assert accounts == [accounts[0]] * 4
        assert {a for _, _, a in accounts[0][1]} == set(range(MOST + 1))


class TestRejection:
    @pytest.mark.parametrize("kinds", [("mtp",), ("draft",), ("ngram-mod", "mtp")], ids=",".join)
    def test_seed_repeats(self, kinds: tuple[str, ...]) -> None:
        def once(seed: int, rollback: str) -> rr.Result:
            asked = speculation(kinds, 4, acceptance="rejection", adaptive=True)
            spec = speculator(demo(), asked, rollback=rollback)
            return run(spec, TEXTS["p17"], 96, temperature=0.8, seed=seed)

        first = once(11, "replay")
        for rollback in ("replay", "checkpoint:host"):
            again = once(11, rollback)
            require_equal(again, first)
            assert account(again) == account(first)
        assert 0 < first.timings["draft_n_accepted"] < first.timings["draft_n"]
        assert once(12, "replay").tokens != first.tokens

    @pytest.mark.parametrize("kind", ["mtp", "draft", "ngram-cache"])
    def test_temperature_0_is_greedy(self, kind: str) -> None:
        prompt = TEXTS["p200"]
        spec = speculator(demo(), speculation([kind], 4, acceptance="rejection"))
        got = run(spec, prompt, 96)
        require_equal(got, plain(demo(), prompt, 96, **GREEDY))
        assert account(got) == account(equal([kind], "p200", 4))
        assert got.timings["draft_n_accepted"] > 0
