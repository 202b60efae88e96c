"""Several requests whose tokens the device chooses in one pass, while passes run ahead of the host:
each text is the one that the host chooses for it alone, whatever happens to the others, and its
sequence holds what decoding pass by pass leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import riverrun as rr
from ahead_rig import PROMPT, Free, Queue, late, left_behind
from interrupts import lines
from riverrun.engine.request import Request
from rollback_rig import stream
from tiny_models import VARIANTS

N_CTX = 64
# Of one device: what memory can go back, so that passes overlap; and what cannot.
OVERLAPPING = [
    ("llama", {}),
    ("gemma3", {}),
    ("qwen35", {"rollback": "replay", "n_rs_seq": 1}),
    ("qwen35", {"rollback": "snapshots", "n_rs_seq": 1}),
    ("qwen35", {"rollback": "replay", "n_rs_seq": 3}),
    ("qwen35", {"rollback": "snapshots", "n_rs_seq": 3}),
]
SINGLE = [
    ("qwen35", {"rollback": "checkpoint:host", "n_rs_seq": 1}),
    ("qwen35", {"rollback": "checkpoint:device", "n_rs_seq": 1}),
    ("qwen35", {"n_rs_seq": 0}),
]
ASKED: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"prompt": PROMPT, "max_tokens": 14, "temperature": 0.0},
    "default": {"prompt": [9, 200, 31], "max_tokens": 9, "seed": 3},
    "one": {"prompt": stream(1, 30), "max_tokens": 11, "seed": 5, "top_k": 1},
    "two": {"prompt": [77], "max_tokens": 17, "seed": 5, "top_k": 2, "temperature": 1.3},
    "all": {
        "prompt": stream(2, 11),
        "max_tokens": 21,
        "seed": 2**64 - 5,
        "top_k": 64,
        "top_p": 1.0,
    },
    "again": {"prompt": PROMPT, "max_tokens": 5, "seed": 4, "temperature": 1.7, "min_p": 0.0},
    "last": {"prompt": stream(3, 7), "max_tokens": 1, "seed": 6},
    "many": {"prompt": PROMPT, "max_tokens": 8, "seed": 4, "top_k": 65, "temperature": 1.7},
    "off": {"prompt": stream(2, 11), "max_tokens": 6, "seed": 8, "top_k": 0},
    "penalties": {"prompt": [9, 200, 31], "max_tokens": 12, "seed": 3, "repeat_penalty": 1.3},
}
THREE = ("greedy", "two", "all")
_files = TemporaryDirectory()


@cache
def plain(variant: str) -> rr.Model:
    path = Path(_files.name, f"{variant}.gguf")
    source = VARIANTS[variant]()
    source.vocab = "gpt2"
    return rr.load(source.write(path), device="cpu")


@cache
def ahead(variant: str) -> tuple[rr.Model, Queue]:
    return late(plain(variant))


def engine(way: tuple[str, dict], n_seqs: int = 3, n_ctx: int = N_CTX) -> tuple[rr.Engine, Queue]:
    model, queue = ahead(way[0])
    queue.reset()
    return rr.Engine(model, n_seqs=n_seqs, n_ctx=n_ctx, **way[1]), queue


def submit(e: rr.Engine, names: Sequence[str] = THREE, **more: Any) -> list[Request]:
    return [e.submit(**{"ignore_eos": True, **ASKED[name], **more}) for name in names]


@cache
def alone(variant: str, name: str, n_ctx: int = N_CTX, **more: Any) -> rr.Result:
    """What the host chooses for a request of its own."""
    asked = {"ignore_eos": True, **ASKED[name], **more}
    return plain(variant).generate(n_ctx=n_ctx, constraint=Free(), **asked).result


def until(e: rr.Engine, tokens: int, requests: Sequence[Request]) -> None:
    """Step until each request has so many tokens."""
    while any(len(request.tokens) < tokens for request in requests):
        e.step()


def finish(e: rr.Engine, queue: Queue) -> None:
    while not e.idle:
        e.step()
    assert not queue.waiting


def require_alone(variant: str, name: str, request: Request, **more: Any) -> None:
    """It has the text of the request that runs by itself, or its start where it was cancelled or
    failed."""
    want, got = alone(variant, name, **more), request.result
    assert got is not None
    if got.finish_reason in ("cancelled", "error"):
        assert got.tokens == want.tokens[: len(got.tokens)], name
    else:
        assert (got.tokens, got.finish_reason) == (want.tokens, want.finish_reason), name


def require_memory(e: rr.Engine, way: tuple[str, dict], requests: Sequence[Request]) -> None:
    """Sequences hold prompt and tokens, as after decoding pass by pass. Closes the engine."""
    e.close()
    for request in requests:
        like = plain(way[0]).session(e.session.n_ctx, **{"n_rs_seq": 1, **way[1]})
        like.prefill(request.prompt)
        for token in request.tokens[:-1]:
            like.decode(token)
        like.append(0, request.tokens[-1:])
        assert e.session.tokens(request.seq) == [*request.prompt, *request.tokens]
        assert left_behind(e.session, seq=request.seq) == left_behind(like)


@pytest.mark.parametrize("way", OVERLAPPING + SINGLE, ids=str)
def test_requests_that_begin_together(way: tuple[str, dict]) -> None:
    """They end one by one, and each is chosen for as it asked."""
    e, queue = engine(way, len(ASKED))
    requests = submit(e, list(ASKED))
    finish(e, queue)
    for name, request in zip(ASKED, requests, strict=True):
        assert request.on_device == (name not in ("many", "off", "penalties"))
        require_alone(way[0], name, request)
    assert queue.most == (2 if way in OVERLAPPING else 0)
    require_memory(e, way, requests)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 0])
def test_the_candidates_of_a_request_are_its_own(n: int) -> None:
    way = OVERLAPPING[0]
    e, queue = engine(way)
    requests = submit(e, THREE[:2])
    request = submit(e, ["again"], top_k=n, max_tokens=12)[0]
    finish(e, queue)
    assert request.on_device == (1 <= n <= 64)
    require_alone(way[0], "again", request, top_k=n, max_tokens=12)
    for name, other in zip(THREE, requests, strict=False):
        require_alone(way[0], name, other)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 12))]
)
@pytest.mark.parametrize("way", OVERLAPPING + SINGLE, ids=str)
def test_requests_come_and_go(way: tuple[str, dict], seed: int) -> None:
    """At random steps; some are cancelled at random ones, with passes under way."""
    rng = random.Random(seed)
    e, queue = engine(way)
    waiting = [rng.choice(list(ASKED)) for _ in range(9)]
    asked: list[tuple[str, Request]] = []
    while waiting or not e.idle:
        while waiting and (e.idle or rng.random() < 0.3):
            asked.append((waiting[-1], submit(e, [waiting.pop()])[0]))
        if rng.random() < 0.1:
            rng.choice(asked)[1].cancel()
        e.step()
    finish(e, queue)
    last = {request.seq: (name, request) for name, request in asked if request.tokens}
    for name, request in asked:
        require_alone(way[0], name, request)
    require_memory(e, way, [request for _, request in last.values()])


@pytest.mark.parametrize("taken", [1, 2, 5])
@pytest.mark.parametrize("way", OVERLAPPING, ids=str)
def test_one_is_cancelled_while_its_pass_runs(way: tuple[str, dict], taken: int) -> None:
    """Between steps, and within one: after a pass was started and before it is read."""
    e, queue = engine(way)
    requests = submit(e)
    until(e, taken, requests)
    requests[0].cancel()
    e.step()
    assert requests[0].result is not None
    work = queue.until

    def cancelling(*last: Any) -> None:
        requests[1].cancel()
        work(*last)

    queue.until = cancelling  # type: ignore[method-assign]
    e.step()
    del queue.until
    finish(e, queue)
    for name, request in zip(THREE, requests, strict=True):
        require_alone(way[0], name, request)
    assert [r.result.finish_reason for r in requests if r.result] == 2 * ["cancelled"] + ["length"]
    require_memory(e, way, requests)


@pytest.mark.parametrize("way", OVERLAPPING + SINGLE, ids=str)
def test_contexts_fill_up(way: tuple[str, dict]) -> None:
    """Those with longer prompts first, while others go on."""
    e, queue = engine(way, n_ctx=24)
    requests = submit(e, max_tokens=-1)
    finish(e, queue)
    for name, request in zip(THREE, requests, strict=True):
        assert len(request.tokens) == 24 - len(request.prompt) + 1
        require_alone(way[0], name, request, n_ctx=24, max_tokens=-1)


@pytest.mark.parametrize("way", OVERLAPPING + SINGLE, ids=str)
def test_stop_texts_are_found_late(way: tuple[str, dict]) -> None:
    """The token of the pass under way is dropped."""
    whole = alone(way[0], "all").text
    stop = next(whole[i : i + 2] for i in range(4, 30) if whole.index(whole[i : i + 2]) == i)
    e, queue = engine(way)
    requests = submit(e, stop=stop)
    finish(e, queue)
    for name, request in zip(THREE, requests, strict=True):
        require_alone(way[0], name, request, stop=stop)
    ends = [r.result.finish_reason for r in requests if r.result]
    assert ends[2] == "stop" and len(requests[2].tokens) < 21
    require_memory(e, way, requests)


@pytest.mark.parametrize("how", ["fail", "refuse"])
@pytest.mark.parametrize("number", [0, 1, 2, 5])
@pytest.mark.parametrize("way", OVERLAPPING, ids=str)
def test_a_pass_of_several_that_fails_once(way: tuple[str, dict], number: int, how: str) -> None:
    """Whose fault it was is not known, so each goes on by itself: none of them failed."""
    e, queue = engine(way)
    requests = submit(e)
    until(e, 1, requests)
    getattr(queue, how).add(queue.started + number)
    finish(e, queue)
    assert queue.started > max(getattr(queue, how))
    for name, request in zip(THREE, requests, strict=True):
        assert request.error is None
        require_alone(way[0], name, request)
    e.close()
    for request in requests:
        assert e.session.tokens(request.seq) == [*request.prompt, *request.tokens]


@pytest.mark.parametrize("what", ["broken", "damaged"])
@pytest.mark.parametrize("taken", [1, 2, 6])
@pytest.mark.parametrize("way", OVERLAPPING + SINGLE, ids=str)
def test_the_one_that_a_pass_fails_for_ends_alone(
    way: tuple[str, dict], taken: int, what: str
) -> None:
    e, queue = engine(way)
    requests = submit(e)
    until(e, taken, requests)
    getattr(queue, what).add(requests[1].seq)
    finish(e, queue)
    got = requests[1].result
    assert got is not None and got.finish_reason == "error"
    assert ("a run failed" if what == "broken" else "largest value is nan") in got.error
    # A pass may have been under way, and computed, when it began to fail.
    assert taken <= len(got.tokens) <= taken + 2
    for name, request in zip(THREE, requests, strict=True):
        require_alone(way[0], name, request)
    queue.reset()
    more = submit(e, ["again"])[0]
    finish(e, queue)
    require_alone(way[0], "again", more)
    e.close()


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("way", OVERLAPPING, ids=str)
def test_a_row_whose_logits_are_not_finite(way: tuple[str, dict], number: int) -> None:
    e, queue = engine(way)
    requests = submit(e)
    until(e, 1, requests)
    queue.spoil[queue.started + number] = [2]
    finish(e, queue)
    ends = [r.result.finish_reason for r in requests if r.result]
    assert ends == ["length", "length", "error"]
    for name, request in zip(THREE, requests, strict=True):
        require_alone(way[0], name, request)
    require_memory(e, way, requests)


@pytest.mark.parametrize("how", ["cancel", "join", "close"])
@pytest.mark.parametrize("way", OVERLAPPING, ids=str)
def test_a_failing_pass_that_is_waited_for_early(way: tuple[str, dict], how: str) -> None:
    """No exception rises, and whoever goes on is right."""
    e, queue = engine(way)
    requests = submit(e, THREE[:2])
    until(e, 3, requests)
    assert len(queue.waiting) == 1
    queue.fail.add(queue.started - 1)
    names = list(THREE[:2])
    if how == "cancel":
        requests[0].cancel()
    elif how == "join":
        requests += submit(e, ["again"])
        names.append("again")
    if how != "close":
        finish(e, queue)
    e.close()
    assert not queue.waiting
    for name, request in zip(names, requests, strict=True):
        require_alone(way[0], name, request)
        assert request.error is None
    require_memory(e, way, requests)


@pytest.mark.parametrize("way", OVERLAPPING, ids=str)
def test_an_exception_at_any_line_of_a_step(way: tuple[str, dict]) -> None:
    """With a pass under way: requests go on to the same text, or say that they are lost."""
    names = ("greedy", "two", "again", "off")
    e, queue = engine(way, len(names))
    requests: list[Request] = []
    ends: list[str] = []

    def prepare() -> Callable[[], object]:
        finish(e, queue)
        requests[:] = submit(e, names[:2])
        until(e, 2, requests)
        requests.extend(submit(e, names[2:]))
        for _ in range(rng.randrange(5)):
            e.step()
        return e.step

    rng = random.Random(0)
    prepare()()
    finish(e, queue)
    for _ in lines(prepare, step=10, first=5 * (OVERLAPPING.index(way) % 2)):
        finish(e, queue)
        for name, request in zip(names, requests, strict=True):
            require_alone(way[0], name, request)
            assert request.result is not None
            ends.append(request.result.finish_reason)
            assert request.error is None or "the request was lost" in request.result.error
    assert {"error", "length"} == set(ends)
    fresh = submit(e, names)
    finish(e, queue)
    for name, request in zip(names, fresh, strict=True):
        assert request.error is None
        require_alone(way[0], name, request)
    require_memory(e, way, fresh)
