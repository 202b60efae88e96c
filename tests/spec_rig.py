"""What tests of speculation share: a drafter that follows a script, plain decoding to compare with,
and models of two sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import riverrun as rr
from demo import PROMPTS, demo
from riverrun.speculative import Speculation, Speculator
from riverrun.speculative.drafter import DRAFTERS, Ask, Draft, Drafter, register_drafter

Script = Callable[[int, list[int], int], list[int]]
NGRAMS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
KINDS: dict[str, tuple[str, ...]] = {name: (name,) for name in ("draft", "mtp", *NGRAMS)}
KINDS |= {"all": (*NGRAMS, "draft", "mtp"), "mod,mtp": ("ngram-mod", "mtp")}
TEXTS = {name: PROMPTS[name]["ids"] for name in ("p1", "p3", "p17", "p64", "p200")}
GREEDY: dict[str, Any] = {"temperature": 0.0}


class Follower(Drafter):
    """Proposes what a script says, and checks what it is told: that observed tokens, prompts and
    asked contexts are one and the same text."""

    priority, default_max = 1, 8
    script: Script

    def __init__(self) -> None:
        self.text: dict[int, list[int]] = {}
        self.judged: list[tuple[int, int, int]] = []
        self.asked: list[tuple[int, int, int]] = []  # sequence, length of the context, limit

    def begin(self, seq: int, prompt: Sequence[int], kept: int = 0) -> None:
        self.text[seq] = list(prompt[:kept])

    def draft(self, asks: Sequence[Ask]) -> list[Draft]:
        for ask in asks:
            assert list(ask.context[:-1]) == self.text[ask.seq]
            self.asked.append((ask.seq, len(ask.context), ask.limit))
        return [Draft(type(self).script(a.seq, list(a.context), a.limit)) for a in asks]

    def observe(self, seq: int, tokens: Sequence[int], hidden: Any, context: Sequence[int]) -> None:
        self.text[seq] = [*self.text.get(seq, ()), *tokens]
        assert self.text[seq] == list(context)

    def accept(self, seq: int, n_drafted: int, n_accepted: int) -> None:
        self.judged.append((seq, n_drafted, n_accepted))

    def clear(self, seq: int) -> None:
        self.text.pop(seq, None)


@contextmanager
def scripted(script: Script, base: type[Follower] = Follower, **members: Any) -> Iterator[None]:
    """Within the block there is a drafter `scripted`; members: methods that differ from those of
    its base."""
    members |= {"name": "scripted", "script": script}
    register_drafter(type("Scripted", (base,), members))
    try:
        yield
    finally:
        del DRAFTERS["scripted"]


def right(text: Sequence[int], wrong_at: int | None = None) -> Script:
    """Drafts of the true text; the one at index wrong_at of each draft is another token."""

    def script(seq: int, context: list[int], limit: int) -> list[int]:
        draft = list(text[len(context) : len(context) + limit])
        if wrong_at is not None and wrong_at < len(draft):
            draft[wrong_at] = (draft[wrong_at] + 1) % 256
        return draft

    return script


def draft_model(kinds: Sequence[str], device: str = "cpu") -> rr.Model | None:
    """The small demo model where a drafter needs it; skips the test where it is absent."""
    return demo(device, "draft-q8_0") if "draft" in kinds else None


def speculation(kinds: Sequence[str], draft_max: int | None = None, **more: Any) -> Speculation:
    """Drafts at full length unless told otherwise."""
    more = {"adaptive": False, "draft_model": draft_model(kinds)} | more
    return Speculation(tuple(kinds), draft_max, **more)


def speculator(
    model: rr.Model,
    asked: Speculation,
    n_ctx: int = 512,
    n_seqs: int = 1,
    rollback: str = "auto",
    **options: Any,
) -> Speculator:
    """Drafters over a session that can forget what they propose."""
    options = {"n_rs_seq": asked.longest} | options
    return Speculator(model.session(n_ctx, n_seqs, rollback=rollback, **options), asked)


@cache
def _plain(model: rr.Model, prompt: tuple[int, ...], n: int, more: tuple[Any, ...]) -> rr.Result:
    options = {k: dict(v) if isinstance(v, frozenset) else v for k, v in more}
    kv = options.pop("kv", None)
    session = model.session(512, cache_type_k=kv, cache_type_v=kv) if kv else None
    options.setdefault("ignore_eos", True)
    n_ctx = None if session else 512
    return model.generate(prompt, n, n_ctx=n_ctx, session=session, **options).result


def plain(model: rr.Model, prompt: Sequence[int], n: int, **options: Any) -> rr.Result:
    """The result without drafts, computed once. kv: type of attention memory."""
    frozen = ((k, frozenset(v.items()) if isinstance(v, dict) else v) for k, v in options.items())
    return _plain(model, tuple(prompt), n, tuple(sorted(frozen, key=lambda item: item[0])))


def require_equal(got: rr.Result, want: rr.Result) -> None:
    """Same ids, text, reason and counts."""
    assert got.tokens == want.tokens
    assert (got.text, got.finish_reason) == (want.text, want.finish_reason)
    assert got.timings["predicted_n"] == want.timings["predicted_n"]
    assert got.timings["prompt_n"] == want.timings["prompt_n"]


def require_sums(result: rr.Result) -> None:
    """Each pass gives a token of its own beside accepted drafts, and the prompt gives one; only
    where the text stops at an accepted draft does the last pass give none."""
    t = result.timings
    if t["predicted_n"]:
        over = 1 + t["draft_rounds"] + t["draft_n_accepted"] - t["predicted_n"]
        assert over == 0 or (over == 1 and result.finish_reason == "stop")
    assert t["draft_n_accepted"] <= t["draft_n"]
    per = t["draft_accepted_per_position"]
    assert sum(per) == t["draft_n_accepted"] and per == sorted(per, reverse=True)
    assert t["draft_empty"] + t["draft_skipped"] <= t["draft_rounds"]


def bound_type(spec: Speculator) -> type:
    """The class whose `run` is a pass, of the target's and of a drafter's model."""
    return type(spec.sequences.runner.bound_plans[0])
