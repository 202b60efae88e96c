"""Prompts that share a start with what a sequence holds: as much as can be is kept, and what comes
out is bit for bit what a cold run gives."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
import riverrun as rr
from demo import PROMPTS, demo
from paged_rig import check_pages
from riverrun.engine import session_plan
from riverrun.engine.memory import PagedKV
from riverrun.engine.prompt_states import PromptStates, planned
from riverrun.engine.session import Session
from riverrun.engine.session_memory import Reuse
from rollback_rig import STRATEGIES, stream, tiny
from tiny_models import N_VOCAB

N_CTX, GENERATED = 1024, 10
PROMPT, OTHER = stream(100, 700), stream(101, 700)


def generate(session: Session, logits: np.ndarray, seq: int = 0) -> tuple[list[int], np.ndarray]:
    """Ten greedy tokens, and the logits that they came from."""
    tokens, rows = [], [logits.copy()]
    for _ in range(GENERATED):
        tokens.append(int(rows[-1].argmax()))
        rows.append(session.decode(tokens[-1], seq).copy())
    return tokens, np.stack(rows)


@cache
def cold(model: rr.Model, prompt: tuple[int, ...], n_ctx: int) -> tuple[list[int], np.ndarray]:
    session = model.session(n_ctx=n_ctx)
    return generate(session, session.prefill(prompt))


def require_like_cold(session: Session, prompt: list[int], kept: int, seq: int = 0) -> list[int]:
    """Run a prompt of which `kept` tokens are reused; returns what was generated."""
    assert session.reuse(prompt, seq) == kept
    assert session.length(seq) == kept and session.tokens(seq) == prompt[:kept]
    tokens, rows = generate(session, session.prefill(prompt[kept:], seq), seq)
    want, want_rows = cold(session.model, tuple(prompt), session.n_ctx)
    assert tokens == want
    np.testing.assert_array_equal(rows, want_rows)
    return tokens


def changed(n: int) -> list[int]:
    """PROMPT's first n tokens, then others."""
    return PROMPT[:n] + [(t + 1) % N_VOCAB for t in PROMPT[n:]]


# By name: a prompt after PROMPT, how much of PROMPT is kept for it, and how much of it for PROMPT
# again. Of PROMPT, states are kept at a multiple of 512 and shortly before its end.
SECOND_PROMPTS: dict[str, tuple[list[int], int, int]] = {
    "identical": (PROMPT, 696, 696),
    "another last token": (changed(699), 696, 696),
    "parts at 696": (changed(696), 696, 696),
    "parts at 695": (changed(695), 512, 512),
    "a third": (changed(233), 0, 0),
    "nothing": (OTHER, 0, 0),
    "extends the prompt": (PROMPT + OTHER[:50], 696, 696),
    "shorter": (PROMPT[:600], 512, 596),
    "shorter, one token too short": (PROMPT[:512], 0, 508),
    "much shorter": (PROMPT[:40], 0, 0),
    "one token": (PROMPT[:1], 0, 0),
}


@pytest.mark.parametrize("second", SECOND_PROMPTS)
@pytest.mark.parametrize("strategy", ["none", *STRATEGIES])
def test_a_hybrid_goes_back_to_kept_states(strategy: str, second: str) -> None:
    options = {} if strategy == "none" else {"rollback": strategy, "n_rs_seq": 8}
    session = tiny().session(n_ctx=N_CTX, **options)
    require_like_cold(session, PROMPT, 0)
    prompt, kept, kept_back = SECOND_PROMPTS[second]
    require_like_cold(session, prompt, kept)
    require_like_cold(session, PROMPT, kept_back)


@pytest.mark.parametrize("second", SECOND_PROMPTS)
def test_plain_attention_keeps_all_that_is_common(second: str) -> None:
    session = tiny("llama").session(n_ctx=N_CTX)
    held = PROMPT + require_like_cold(session, PROMPT, 0)
    prompt, *_ = SECOND_PROMPTS[second]
    common = 0
    while common < min(len(prompt) - 1, len(held)) and held[common] == prompt[common]:
        common += 1
    require_like_cold(session, prompt, common)


@pytest.mark.parametrize("strategy", ["none", *STRATEGIES])
def test_a_conversation_goes_on_where_it_was(strategy: str) -> None:
    options = {} if strategy == "none" else {"rollback": strategy, "n_rs_seq": 8}
    session = tiny().session(n_ctx=N_CTX, n_seqs=2, **options)
    for seq in (1, 0):
        said = list(PROMPT[:80])
        said += require_like_cold(session, said, 0, seq)
        for turn in range(3):
            kept, said = len(said), said + OTHER[turn * 30 : turn * 30 + 30]
            said += require_like_cold(session, said, kept, seq)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rejected_and_pending_drafts_do_not_count(strategy: str) -> None:
    session = tiny().session(n_ctx=N_CTX, rollback=strategy, n_rs_seq=8)
    session.prefill(PROMPT[:100])
    session.verify([(0, changed(103)[100:106])])
    session.commit(0, 3)
    session.verify([(0, changed(103)[103:109])])
    require_like_cold(session, PROMPT[:150], 103)
    session.verify([(0, OTHER[:5])])
    session.commit(0, 4)
    # Behind the newest tokens lies what rollback still reaches.
    assert session.can_remove(0, 162)
    generated = session.tokens()[150:160]
    require_like_cold(session, PROMPT[:150] + generated + OTHER[:2] + PROMPT[:5], 162)


def test_a_draft_that_cannot_go_takes_the_state_with_it() -> None:
    session = tiny().session(n_ctx=N_CTX)
    session.prefill(PROMPT[:200])
    session.verify([(0, OTHER[:3])])
    assert not session.can_commit(0, 0)
    require_like_cold(session, PROMPT[:250], 200)


def test_windows_go_back_as_far_as_they_hold() -> None:
    session = tiny("gemma3").session(n_ctx=4096)
    assert session.capacity.window_pages
    prompt = stream(102, 1300)
    require_like_cold(session, prompt, 0)
    require_like_cold(session, prompt[:1250] + OTHER[:20], 1250)
    require_like_cold(session, prompt[:500] + OTHER[:20], 0)


@pytest.mark.parametrize("n_seqs", [1, 3])
def test_behind_a_window_kept_rows_serve(n_seqs: int) -> None:
    """Pages behind the window are gone; what was kept at multiples of 512 comes in their place."""
    session = tiny("gemma3").session(n_ctx=4096, n_seqs=n_seqs)
    prompt = stream(105, 2300)
    for seq in range(n_seqs):
        require_like_cold(session, prompt, 0, seq)
    require_like_cold(session, prompt[:1700] + OTHER[:20], 1536)
    require_like_cold(session, prompt[:1024] + OTHER[:300], 1024)
    require_like_cold(session, prompt[:1023] + OTHER[:300], 512)
    near = session.memory.parts[1]
    assert isinstance(near, PagedKV)
    check_pages(near)
    for seq in range(1, n_seqs):
        assert session.tokens(seq)[: len(prompt)] == prompt
        require_like_cold(session, prompt[:600] + OTHER[:7], 512, seq)
    check_pages(near)


def test_where_every_page_fits_windows_keep_nothing() -> None:
    session = tiny("gemma3").session(n_ctx=800)
    assert not session.sequences.storage.remembers
    require_like_cold(session, PROMPT, 0)
    require_like_cold(session, PROMPT[:90] + OTHER[:20], 90)


def reuse(session: Session, common: int) -> Reuse:
    return session.sequences.storage.reuse(0, common)


def test_what_is_not_reused_has_a_reason() -> None:
    one = tiny().plan_session(N_CTX).bytes.kept
    session = tiny().session(n_ctx=N_CTX, cache_bytes=2 * one)
    session.prefill(PROMPT)
    assert reuse(session, 700) == Reuse(700, "")
    kept, why = reuse(session, 650)
    assert kept == 512 and "512 of 650 common tokens are reused" in why and "512, 696" in why
    assert reuse(session, 512) == Reuse(512, "")
    kept, why = reuse(session, 80)
    assert kept == 0 and "does not go back by 432 tokens" in why
    for room, said in ((0, "keeps no state"), (one - 1, "cache_bytes of 0.0 MiB keeps no state")):
        session = tiny().session(n_ctx=N_CTX, cache_bytes=room)
        session.prefill(PROMPT)
        kept, why = reuse(session, 699)
        assert kept == 0 and said in why
    session = tiny("llama").session(n_ctx=N_CTX)
    session.prefill(PROMPT)
    assert reuse(session, 3) == Reuse(3, "")


def test_states_are_kept_on_the_grid_alone_where_there_is_one() -> None:
    session = tiny().session(n_ctx=2048)
    session.sequences.storage.grid = 512
    prompt = stream(106, 1300)
    assert session.sequences.cuts(0, len(prompt)) == [512, 512, 276]
    session.prefill(prompt)
    assert session.sequences.storage.prompt_states.positions(0) == [512, 1024]
    require_like_cold(session, prompt[:1200] + OTHER[:5], 1024)


def test_by_default_there_is_room_for_two_states_of_each_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_plan, "KEPT_BYTES", 1)
    long = stream(107, 3000)
    for n_seqs in (1, 3):
        session = tiny().session(n_ctx=3072, n_seqs=n_seqs)
        one = session.plan.bytes.kept
        assert session.plan.cache_bytes == 2 * n_seqs * one
        for seq in range(n_seqs):
            session.prefill(long, seq)
        states = session.sequences.storage.prompt_states
        for seq in range(n_seqs):
            assert 1 <= len(states.positions(seq)) <= 2 * n_seqs
        assert states.positions(n_seqs - 1)[-1] == 2996
        kept, _ = session.sequences.storage.reuse(n_seqs - 1, 2900)
        assert kept >= 1024


def test_the_demo_model_reuses_its_prompt() -> None:
    session = demo().session(n_ctx=512, n_rs_seq=4)
    prompt = list(PROMPTS["p200"]["ids"])
    require_like_cold(session, prompt, 0)
    require_like_cold(session, [*prompt[:-1], 77], len(prompt) - 4)
    require_like_cold(session, prompt, len(prompt) - 4)
    require_like_cold(session, prompt[:100], 0)


def test_random_prompts() -> None:
    """Prompts that part anywhere: kept is never more than common, results are those of a cold
    run."""
    rng = random.Random(7)
    session = tiny().session(n_ctx=2048, n_rs_seq=4)
    source, prompts = stream(103, 1500), [[1]]
    for _ in range(20):
        base = rng.choice(prompts)
        part = rng.randint(0, len(base))
        prompt = base[:part] + source[: rng.randint(1, 1300 - part)]
        prompts.append(prompt)
        held = session.tokens()
        kept = session.reuse(prompt)
        assert kept < len(prompt) and prompt[:kept] == held[:kept] == session.tokens()
        got = session.prefill(prompt[kept:]).copy()
        fresh = tiny().session(n_ctx=2048)
        np.testing.assert_array_equal(got, fresh.prefill(prompt))


def test_kept_states_stay_within_their_bytes() -> None:
    one = tiny().plan_session(N_CTX).bytes.recurrent
    long = stream(104, 3000)
    for room in (0, one - 1, one, 2 * one + 1):
        session = tiny().session(n_ctx=3072, cache_bytes=room)
        session.prefill(long)
        states = session.sequences.storage.prompt_states
        assert states.nbytes <= room
        assert states.nbytes == len(states.positions(0)) * one == room // one * one
        if room >= one:
            assert states.positions(0)[-1] == 2996
        kept = session.reuse([*long[:2999], 5])
        assert kept == (2996 if room >= one else 0)
        session.clear()
        assert states.nbytes == 0 and not states.positions(0)


def state(size: int = 4) -> dict[str, list[np.ndarray]]:
    return {"ssm_state.0": [np.zeros(size, np.float32)]}


def kept_of(states: PromptStates, n_seqs: int) -> list[list[int]]:
    return [states.positions(seq) for seq in range(n_seqs)]


def test_states_that_lie_close_together_go_first() -> None:
    states = PromptStates(2, limit=4 * 16)
    for seq, position in ((0, 512), (0, 520), (1, 600), (0, 1024)):
        states.add(seq, position, state())
    states.add(0, 2000, state())
    assert kept_of(states, 2) == [[520, 1024, 2000], [600]]
    assert states.nbytes == 4 * 16
    states.add(0, 2000, state())
    assert states.nbytes == 4 * 16


def worst_ratio(at: list[int], end: int) -> float:
    """Of all edits: tokens that run again to tokens behind the edit, both and 512."""
    starts = [0, *at]
    return max(
        (end - max(p for p in starts if p <= edit) + 512) / (end - edit + 512)
        for edit in range(0, end, 64)
    )


@pytest.mark.parametrize("room", [3, 5, 8])
def test_of_a_growing_prompt_an_edit_near_the_end_runs_little_again(room: int) -> None:
    states = PromptStates(1, limit=room * 16)
    for step in range(1, 65):
        states.add(0, 512 * step, state())
        at, end = states.positions(0), 512 * step
        assert len(at) == min(step, room) and at[-1] == end
        # Neighbours of equal ratios would give the root.
        assert worst_ratio(at, end) <= 2 * ((end + 512) / 512) ** (1 / room)


@pytest.mark.parametrize("room", [-1, 0, 1, 2, 4, 9, 40])
@pytest.mark.parametrize("end", [1, 512, 513, 700, 8000, 32_000])
def test_states_of_a_prompt_are_planned(end: int, room: int) -> None:
    at = sorted(planned(end, room, 512))
    assert all(p % 512 == 0 and 0 < p < end for p in at)
    assert len(at) == max(0, min(room, (end - 1) // 512))
    room = max(0, room)
    # As above, and what a multiple of 512 can be off.
    assert worst_ratio([*at, end], end) <= 2 * ((end + 512) / 512) ** (1 / (room + 1)) + 1


@pytest.mark.parametrize("n_seqs", [1, 2, 3])
def test_bookkeeping_with_every_number_of_sequences_and_size_of_cache(n_seqs: int) -> None:
    """Random states, of several sizes; sequences that keep none among them."""
    for limit in range(0, 200, 7):
        rng = random.Random(limit)
        states = PromptStates(n_seqs, limit)
        end = [0] * n_seqs
        for _ in range(60):
            seq = rng.randrange(n_seqs)
            if rng.random() < 0.15:
                end[seq] = rng.randint(0, end[seq])
                states.cut(seq, end[seq])
            else:
                end[seq] += rng.choice((4, 512))
                size = rng.choice((1, 4, 9, 40))
                states.add(seq, end[seq], state(size))
                assert (end[seq] in states.positions(seq)) == (4 * size <= limit)
            kept = [state for s in range(n_seqs) for _, state in states.before(s, end[s])]
            found = sum(len(states.positions(s)) for s in range(n_seqs))
            assert len(kept) == found
            assert states.nbytes == 4 * sum(len(x["ssm_state.0"][0]) for x in kept) <= limit


def test_several_sequences_share_a_small_cache() -> None:
    """The first prompt fills the cache while the other sequence keeps nothing."""
    one = tiny().plan_session(N_CTX).bytes.kept
    for room in (one, 2 * one):
        session = tiny().session(n_ctx=N_CTX, n_seqs=2, cache_bytes=room)
        for seq in (0, 1, 0):
            session.clear(seq)
            require_like_cold(session, PROMPT, 0, seq)
            assert session.sequences.storage.prompt_states.positions(seq)[-1] == 696


def test_states_too_large_are_not_kept_at_the_cost_of_others() -> None:
    states = PromptStates(1, limit=40)
    states.add(0, 10, state())
    states.add(0, 20, state(size=11))
    assert states.positions(0) == [10] and states.nbytes == 16
    assert [at for at, _ in states.before(0, 9)] == []
    states.add(0, 30, state())
    assert [at for at, _ in states.before(0, 40)] == [30, 10]
    states.cut(0, 29)
    assert states.positions(0) == [10] and states.nbytes == 16


def test_without_room_for_states_prompts_are_not_cut_for_them() -> None:
    session = tiny("qwen35").session(n_ctx=512, cache_bytes=0)
    prompt = [5 + i % 90 for i in range(100)]
    assert session.sequences.cuts(0, len(prompt)) == [100]
    session.prefill(prompt)
    assert session.reuse([*prompt[:99], 4]) == 0
