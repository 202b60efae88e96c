"""Compiled plans: those of sessions to come are bounded in number, those in use stay."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from riverrun.engine.plan_cache import PlanCache
from tiny_models import VARIANTS


class Thing:
    """What stands for a plan."""


def test_the_least_recently_used_go() -> None:
    cache, made = PlanCache(3), []

    def get(key: int) -> object:
        return cache.get(key, lambda: made.append(key) or Thing())  # type: ignore[func-returns-value, arg-type, return-value]

    first = get(1)
    for key in (2, 3, 1, 4):  # 2 is the one that nobody asked for in the longest time
        get(key)
    assert len(cache) == 3 and get(1) is first and made == [1, 2, 3, 4]
    get(2)
    assert made == [1, 2, 3, 4, 2] and len(cache) == 3
    for key in range(100):
        get(key)
    assert len(cache) == 3
    cache.clear()
    assert len(cache) == 0


def test_threads_compile_a_plan_once() -> None:
    cache, made = PlanCache(2), []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        cache.get("same", lambda: made.append(1) or Thing())  # type: ignore[func-returns-value, arg-type, return-value]

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


@pytest.mark.filterwarnings("ignore:a context of")
@pytest.mark.parametrize("variant", ["llama", "qwen35,mtp"])
def test_sessions_of_ever_larger_contexts(tmp_path: Path, variant: str) -> None:
    """Each size has plans of its own. A session whose plans the cache let go goes on with them, and
    with the session they go."""
    model = rr.load(VARIANTS[variant]().write(tmp_path / "m.gguf"), "cpu", 1)
    model.plans = PlanCache(6)
    oldest = model.session(n_ctx=64)
    logits = oldest.evaluate([(0, [5, 6, 7])]).logits[-1]
    seen = []
    for pages in range(1, 7):
        session = model.session(n_ctx=256 * pages)
        session.evaluate([(0, [5, 6, 7])])
        session.decode(8)
        seen += [weakref.ref(plan) for plan in model.plans._plans.values()]
        assert len(model.plans) <= 6
    before = set(model.plans._plans)
    fresh = model.session(n_ctx=64)
    np.testing.assert_array_equal(fresh.evaluate([(0, [5, 6, 7])]).logits[-1], logits)
    assert not before >= set(model.plans._plans), "the cache let go of the plans of the first size"
    oldest.clear(0)
    np.testing.assert_array_equal(oldest.evaluate([(0, [5, 6, 7])]).logits[-1], logits)
    del session, fresh, oldest
    gc.collect()
    alive = {id(plan) for plan in (ref() for ref in seen) if plan is not None}
    assert alive <= {id(plan) for plan in model.plans._plans.values()}


def test_a_plan_that_takes_its_time_keeps_no_other_waiting() -> None:
    cache, begun, go = PlanCache(4), threading.Event(), threading.Event()

    def slow() -> Thing:
        begun.set()
        assert go.wait(30)
        return Thing()

    thread = threading.Thread(target=lambda: cache.get("slow", slow))  # type: ignore[arg-type, return-value]
    thread.start()
    assert begun.wait(30)
    found = cache.get("other", Thing)  # type: ignore[arg-type]
    assert cache.get("other", Thing) is found  # type: ignore[arg-type]
    go.set()
    thread.join()
    assert len(cache) == 2


def test_one_that_cannot_be_compiled_is_tried_again() -> None:
    cache = PlanCache(2)

    def fails() -> Thing:
        raise ValueError("no such plan")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such plan"):
            cache.get("a", fails)  # type: ignore[arg-type]
    assert cache.get("a", Thing) is not None  # type: ignore[arg-type]
