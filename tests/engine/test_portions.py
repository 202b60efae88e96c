"""How much of a prompt goes into a pass while others decode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from engine_rig import GREEDY, finish, solo
from pass_rig import Watched, watched
from riverrun.engine.buckets import MAX_TOKENS
from riverrun.engine.portions import LEAST, RATE, TIME, Portions
from rollback_rig import stream, tiny

N = 200


def processor(tokens: int) -> float:
    """Milliseconds of a pass: every token takes its time."""
    return 25 + 7 * tokens


def experts(tokens: int) -> float:
    """Few tokens want most of the weights, which is what takes time."""
    return 600 + 10 * tokens


def settled(took: Callable[[int], float], decode_ms: float, noise: float, seed: int) -> list[int]:
    """Sizes of passes over long prompts, which take turns with decoding."""
    rng, portions, sizes = np.random.default_rng(seed), Portions(), list[int]()

    def noisy(ms: float) -> float:
        return ms / 1e3 * (1 + noise * abs(rng.standard_normal()))

    for _ in range(N):
        portions.note_decoding(noisy(decode_ms))
        sizes.append(portions.tokens())
        portions.note_prompts(sizes[-1], noisy(took(sizes[-1])))
    return sizes


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(
    ("took", "decode_ms"), [(processor, 60.0), (processor, 400.0), (experts, 100.0)]
)
def test_passes_are_the_shortest_that_keep_prompts_going(
    took: Callable[[int], float], decode_ms: float, noise: float
) -> None:

    def suits(size: int) -> bool:
        long = took(size) >= decode_ms * TIME / (1 - TIME)
        return size == MAX_TOKENS or (long and took(2 * size) >= 2 * RATE * took(size))

    best = next(LEAST << i for i in range(9) if suits(LEAST << i))
    sizes = settled(took, decode_ms, noise, 1)
    found = sizes[N // 2 :]
    assert np.mean([size == best for size in found]) >= (1.0 if noise == 0 else 0.8), found
    assert set(found) <= {best // 2, best, 2 * best}


def test_nothing_is_known_at_first() -> None:
    portions = Portions()
    portions.note_decoding(0.01)
    assert portions.tokens() == MAX_TOKENS


def test_short_prompts_alone_do_not_tell_how_long_ones_do() -> None:
    portions, sizes = Portions(), list[int]()
    for _ in range(9):
        portions.note_decoding(0.1)
        portions.note_prompts(32, experts(32) / 1e3)
    for _ in range(9):
        sizes.append(portions.tokens())
        portions.note_prompts(sizes[-1], experts(sizes[-1]) / 1e3)
    assert sizes[-1] == 64


def test_a_stall_is_not_taken_for_the_time_of_passes() -> None:
    portions = Portions()
    for _ in range(9):
        portions.note_decoding(0.06)
        for size in (16, 32, 64, MAX_TOKENS):
            portions.note_prompts(size, processor(size) / 1e3)
    before = portions.tokens()
    portions.note_decoding(60.0)
    portions.note_prompts(MAX_TOKENS, 60.0)
    portions.note_prompts(before, 60.0)
    assert portions.tokens() in (before, 2 * before)


def test_the_texts_are_those_of_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts beside decoding change no bit, whatever their sizes."""
    model = tiny()
    sizes = iter([16, 64, 32, 16, 128, 16, 256] * 40)
    monkeypatch.setattr(Portions, "tokens", lambda self: next(sizes))
    with watched(model, n_seqs=2) as engine:
        first = engine.submit(stream(1, 9), 60, **GREEDY)
        while not first.tokens:
            engine.step()
        Watched.seen.clear()
        second = engine.submit(stream(2, 700), 12, **GREEDY)
        finish(engine)
        passes = [size for (size,) in Watched.seen]
    assert sum(passes) == 700 and len(passes) > 8 and max(passes) <= 256
    for request, ids in ((first, stream(1, 9)), (second, stream(2, 700))):
        alone = solo(model, {"prompt": ids, "max_tokens": len(request.tokens), **GREEDY})
        assert request.tokens == alone.tokens


def test_cards_have_whole_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their short passes take about as long."""
    model = tiny("llama")
    monkeypatch.setattr(Portions, "tokens", None)
    monkeypatch.setattr(type(model.backend), "on_host", False)
    with watched(model, n_seqs=2) as engine:
        first = engine.submit(stream(3, 9), 60, **GREEDY)
        while not first.tokens:
            engine.step()
        Watched.seen.clear()
        engine.submit(stream(4, 600), 2, **GREEDY)
        finish(engine)
        assert Watched.seen[0] == [512]
