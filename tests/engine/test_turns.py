"""The order in which prompts get their passes."""

from __future__ import annotations

from typing import Any

import pytest
import riverrun as rr
from ahead_rig import late
from engine_rig import finish
from riverrun.engine.prompts import Prompt
from rollback_rig import stream, tiny

N_CTX = 8192
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def turns(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], late: dict[int, list[int]] | None = None
) -> list[int]:
    """Whose prompt, by its place in `lengths`, each pass was of; late: prompts that come after so
    many passes."""
    order: list[int] = []
    step = Prompt.step

    def noted(self: Prompt) -> Any:
        order.append(seqs.index(self.seq))
        return step(self)

    seqs = list(range(8))
    monkeypatch.setattr(Prompt, "step", noted)
    with rr.Engine(tiny("llama"), n_seqs=8, n_ctx=N_CTX) as e:
        asked = [e.submit(stream(i, n), 1, **GREEDY) for i, n in enumerate(lengths)]
        for after, more in (late or {}).items():
            while len(order) < after:
                e.step()
            asked += [e.submit(stream(9, n), 1, **GREEDY) for n in more]
        finish(e)
        found = list(order)
        for request in asked:
            want = tiny("llama").generate(request.prompt, 1, n_ctx=N_CTX, **GREEDY).result
            assert request.tokens == want.tokens
    return found


def test_a_short_prompt_does_not_wait_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns(monkeypatch, [8 * 512, 20]) == [1, *[0] * 8]


def test_a_long_prompt_is_not_put_off_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one comes with every pass: the long one gets every third."""
    late = {n: [20] for n in range(9)}
    order = ["long" if seq == 0 else "short" for seq in turns(monkeypatch, [3 * 512], late)]
    assert [i for i, whose in enumerate(order) if whose == "long"] == [2, 5, 8]


def test_one_prompt_after_the_other_is_through_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns(monkeypatch, [1024, 1024]) == [0, 0, 1, 1]


def test_one_that_comes_late_goes_before_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns(monkeypatch, [6 * 512], {2: [20]}) == [0, 0, 1, 0, 0, 0, 0]


def test_a_prompt_that_ends_waits_for_no_pass_that_runs_ahead() -> None:
    """What decodes leaves nothing on the device in front of the last pass of a prompt."""
    model, queue = late(tiny("llama"))
    prompts, under_way = [stream(i, n) for i, n in enumerate((8, 20, 600, 9))], []
    with rr.Engine(model, n_seqs=4, n_ctx=N_CTX) as e:
        asked = [e.submit(prompt, 12, **GREEDY) for prompt in prompts]
        while not e.idle:
            before = [len(request.tokens) for request in asked]
            waiting = len(queue.waiting)
            e.step()
            for request, n in zip(asked, before, strict=True):
                if n == 0 and request.tokens:
                    under_way.append(waiting)
    assert queue.most > 1
    assert under_way == [0, 0, 0, 0]
    for request in asked:
        want = tiny("llama").generate(request.prompt, 12, n_ctx=N_CTX, **GREEDY).result
        assert request.tokens == want.tokens
