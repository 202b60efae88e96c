"""States along prompts stay on the card that holds the session's, and go back from there."""

from __future__ import annotations

import gc
from functools import cache

import numpy as np
import pytest
from cuda_rig import EMULATED, MIB, backend, needs_cuda, scarce
from paged_rig import check_pages
from riverrun.backends.base import SPARE
from riverrun.backends.cuda import CudaPools
from riverrun.backends.cuda_kept import KeptPart
from riverrun.engine import Engine
from riverrun.engine.memory import PagedKV, Reservation
from riverrun.engine.session import Session
from riverrun.graph import TensorSpec
from riverrun.models.memories import PAGE
from rollback_rig import stream, tiny

pytestmark = needs_cuda
PROMPT, OTHER = stream(100, 60), stream(101, 20)
GRID = 16


class Crossing:
    """Bytes of states that went to the host and came from there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.written = 0
        read, write = CudaPools.read, CudaPools.write

        def reads(
            pools: CudaPools, name: str, at: object, out: np.ndarray | None = None
        ) -> np.ndarray:
            found = read(pools, name, at, out)  # type: ignore[arg-type]
            self.read += found.nbytes
            return found

        def writes(pools: CudaPools, name: str, at: object, values: np.ndarray | int) -> None:
            write(pools, name, at, values)  # type: ignore[arg-type]
            self.written += 0 if isinstance(values, int) else values.nbytes

        monkeypatch.setattr(CudaPools, "read", reads)
        monkeypatch.setattr(CudaPools, "write", writes)
        for name in ("raw", "load", "array"):
            monkeypatch.setattr(CudaPools, name, None)


def evaluate(session: Session, tokens: list[int]) -> np.ndarray:
    """As `prefill`, in passes that end on a finer grid; the last row of logits."""
    storage = session.sequences.storage
    storage.grid = GRID
    while tokens:
        n = GRID - session.length() % GRID
        logits = session.evaluate([(0, tokens[:n])]).logits[-1].copy()
        storage.remember(0)
        tokens = tokens[n:]
    return logits


def run(session: Session) -> list[np.ndarray]:
    """A prompt, and two that part from it; what each ends with."""
    found = [evaluate(session, PROMPT)]
    for common, kept in ((40, 32), (20, 16)):
        prompt = PROMPT[:common] + OTHER
        assert session.reuse(prompt) == kept
        found.append(evaluate(session, prompt[kept:]))
    return found


@cache
def cold(common: int, *more: int) -> np.ndarray:
    """What a session without states along prompts gives."""
    return evaluate(tiny("qwen35", "cuda").session(256, cache_bytes=0), [*PROMPT[:common], *more])


def check(found: list[np.ndarray]) -> None:
    """What `run` has found is what cold sessions give."""
    for got, want in zip(found, (cold(60), cold(40, *OTHER), cold(20, *OTHER)), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("strategy", ["replay", "snapshots"])
def test_no_state_passes_through_the_host(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tiny("qwen35", "cuda").session(256, rollback=strategy, n_rs_seq=2)
    with monkeypatch.context() as within:
        crossed = Crossing(within)
        found = run(session)
    assert (crossed.read, crossed.written) == (0, 0)
    states = session.sequences.storage.prompt_states
    assert states.positions(0) == [16, 32] and states.nbytes == 2 * session.plan.bytes.kept
    check(found)


def kept_parts(session: Session) -> list[KeptPart]:
    states = session.sequences.storage.prompt_states.before(0, session.length())
    return [part for _, state in states for parts in state.values() for part in parts]


def test_where_a_card_has_no_room_pinned_memory_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same results, and nobody waits for the copies."""
    session = tiny("qwen35", "cuda").session(256)
    evaluate(session, PROMPT)
    assert all(part.lent.on_card for part in kept_parts(session))
    session.clear()
    session = tiny("qwen35", "cuda").session(256)
    with scarce(SPARE - MIB), monkeypatch.context() as within:
        crossed = Crossing(within)
        found = run(session)
        assert not any(part.lent.on_card for part in kept_parts(session))
    assert (crossed.read, crossed.written) == (0, 0)
    check(found)


def test_what_pinned_memory_keeps_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = backend().pools({"s": TensorSpec((3, 5))})
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    pools.write("s", slice(0, 3), rows)
    for free in (SPARE - MIB, SPARE + (MIB << 3)):
        with scarce(free):
            kept = pools.keep({"s": [(2,), slice(0, 2)]})
        assert [part.lent.on_card for part in kept["s"]] == [free > SPARE] * 2
        np.testing.assert_array_equal(pools.to_host("s", kept["s"][0]), rows[2])
        np.testing.assert_array_equal(pools.to_host("s", kept["s"][1]), rows[:2])
        pools.put_back("s", (0,), kept["s"][0])
        np.testing.assert_array_equal(pools.read("s", 0), rows[2])
        pools.write("s", 0, rows[0])


@pytest.mark.skipif(not EMULATED, reason="what a card has free is rounded, and others use it, too")
def test_memory_of_states_is_bounded_used_again_and_given_back() -> None:
    one = tiny("qwen35", "cuda").plan_session(256).bytes.kept
    session = tiny("qwen35", "cuda").session(256, cache_bytes=2 * one)
    card = session.model.backend.card  # type: ignore[attr-defined]
    evaluate(session, PROMPT)
    states, before = session.sequences.storage.prompt_states, card.free_bytes
    for _ in range(3):
        assert len(states.positions(0)) == 2 and states.nbytes == 2 * one
        session.clear()
        evaluate(session, PROMPT)
    assert card.free_bytes == before
    session.close()
    gc.collect()
    assert card.free_bytes - before >= 2 * one


def test_rows_behind_a_window_stay_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are gone, put back into others."""
    specs = {"cache_k.0": TensorSpec((6 * PAGE, 1, 2)), "cache_v.0": TensorSpec((6 * PAGE, 3, 1))}
    kv = PagedKV(1, 6, 2048, backend().pools(specs), specs, window=300, slack=256)

    def grow(value: int) -> None:
        kv.reserve([Reservation(0, 350)])
        for page in kv.held(0):
            row = kv.block_table.item(0, page) * PAGE
            for name in specs:
                kv.pools.write(name, slice(row, row + PAGE), value + page)
        kv.commit(0, 350)

    def rows() -> dict[str, np.ndarray]:
        return {name: array[-300:] for name, array in kv.save(0).items()}

    grow(100)
    grow(200)
    want, parts = rows(), kv.to_keep(0)
    with monkeypatch.context() as within:
        crossed = Crossing(within)
        kept = kv.pools.keep(parts)
        assert (crossed.read, crossed.written) == (0, 0)
    grow(300)
    grow(400)
    assert not kv.can_remove(0, 700) and kv.can_rewind(0, 700, kept)
    assert not kv.can_rewind(0, 699 - PAGE, kept)
    with monkeypatch.context() as within:
        crossed = Crossing(within)
        kv.rewind(0, 700, kept)
        assert (crossed.read, crossed.written) == (0, 0)
    assert kv.length(0) == 700
    check_pages(kv)
    for name, array in rows().items():
        np.testing.assert_array_equal(array, want[name])


def test_texts_go_to_host_memory_and_come_back() -> None:
    """Pages for one text: those of the other, and its states, cross to the host and back."""
    first, second = stream(110, 600), stream(111, 600)
    greedy = {"temperature": 0.0, "ignore_eos": True, "cache_prompt": True}
    with Engine(tiny("qwen35", "cuda"), n_ctx=1024, host_cache_bytes=MIB << 8) as e:
        asked = []
        for prompt in (first, second, first):
            asked.append(e.submit(prompt, 4, **greedy))
            while not e.idle:
                e.step()
        assert e.occupancy().host_bytes > 0
        # The last place before its end that the text could be cut at.
        grid = e.session.sequences.storage.grid
        assert grid and [request.timings.cache_n for request in asked] == [0, 0, 600 // grid * grid]
        assert asked[0].tokens == asked[2].tokens
        for part in e.session.memory.parts:
            if isinstance(part, PagedKV):
                check_pages(part)
