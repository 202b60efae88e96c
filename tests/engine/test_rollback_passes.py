"""Rollback over several passes, after removals, copies and restores, at edges of pages and of the
context, and with prompts beside drafts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from demo import PROMPTS, demo
from riverrun.engine.session import Session
from riverrun.graph.errors import RequestError
from rollback_rig import (
    STRATEGIES,
    Moment,
    Plain,
    forgettable,
    peek,
    plain,
    require_state,
    stream,
    tiny,
)
from tiny_models import N_VOCAB

WINDOW = 8
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def session_of(strategy: str, device: str = "cpu", n_ctx: int = 256, n_seqs: int = 1) -> Session:
    return tiny("qwen35", device).session(
        n_ctx=n_ctx, n_seqs=n_seqs, rollback=strategy, n_rs_seq=WINDOW
    )


def evaluate(session: Session, n: int, seq: int = 0) -> None:
    """The next n tokens of the sequence's stream, all of which stay."""
    at = session.length(seq)
    session.evaluate([(seq, stream(seq)[at : at + n])], want="none")


def verify(session: Session, n: int, seq: int = 0) -> np.ndarray:
    """A pass over the next n tokens of the sequence's stream."""
    at = session.length(seq) + session.memory.pending(seq)
    return session.verify([(seq, stream(seq)[at : at + n])]).logits


def require_refused(session: Session, start: int) -> None:
    """Going back to `start` tokens is announced as impossible, refused, and changes nothing."""
    assert not session.can_remove(0, start)
    now = Moment(session)
    with pytest.raises(RequestError, match=f"cannot go back from {session.length()} to {start}"):
        session.remove(0, start)
    now.require_now()


@every_strategy
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_first_pass_can_be_undone_whole(strategy: str, device: str) -> None:
    session = session_of(strategy, device)
    for _ in range(2):
        verify(session, 4)
        session.commit(0, 0)
        assert session.length() == 0 and session.tokens() == []
        peek(session, [plain(device)])
    np.testing.assert_array_equal(verify(session, 5), plain(device).logits(0, 5))
    session.commit(0, 5)
    require_state(session, 0, plain(device))


@every_strategy
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("passes", [(1,), (1,) * 3, (1,) * 10, (3, 1, 4), (2, 12, 1)], ids=str)
def test_one_commit_for_several_passes(strategy: str, device: str, passes: tuple[int, ...]) -> None:
    session, like = session_of(strategy, device), plain(device)
    evaluate(session, 6)
    verify(session, 3)
    session.commit(0, 2)
    at, got = session.length(), []
    for n in passes:
        got.append(verify(session, n).copy())
    total = sum(passes)
    np.testing.assert_array_equal(np.concatenate(got), like.logits(at, at + total))
    now = Moment(session)
    for n in range(total + 1):
        can = total - n <= forgettable(strategy, WINDOW, total)
        assert session.can_commit(0, n) == can
        if can:
            session.commit(0, n)
            require_state(session, 0, like)
            now.back()
        else:
            with pytest.raises(RequestError, match="cannot keep"):
                session.commit(0, n)
            now.require_now()


@every_strategy
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_two_removals_equal_one_of_their_sum(strategy: str, device: str) -> None:
    session, like = session_of(strategy, device), plain(device)
    evaluate(session, 12)
    verify(session, 6)
    session.commit(0, 5)
    # Tokens after the last pass's start are in the log or behind the copy; planes reach further.
    reach = {"snapshots": WINDOW - 1}.get(strategy, 5)
    now = Moment(session)
    for first in range(1, reach + 1):
        for second in range(1, reach + 3 - first):
            now.back()
            session.remove(0, 17 - first)
            if first + second > reach:
                require_refused(session, 17 - first - second)
                require_state(session, 0, like)
                continue
            assert session.can_remove(0, 17 - first - second)
            session.remove(0, 17 - first - second)
            assert session.length() == 17 - first - second
            peek(session, [like])
            at = session.length()
            np.testing.assert_array_equal(verify(session, 3), like.logits(at, at + 3))
            session.commit(0, 1)
            require_state(session, 0, like)
    now.back()
    require_refused(session, 17 - reach - 1)
    session.remove(0, 0)
    require_state(session, 0, like)


@every_strategy
def test_pending_tokens_stand_in_the_way(strategy: str) -> None:
    session = session_of(strategy, n_seqs=2)
    evaluate(session, 4)
    verify(session, 3)
    require_refused(session, 4)
    now = Moment(session)
    for call in (session.settle, session.save, lambda: session.copy(0, 1)):
        with pytest.raises(RequestError, match=r"3 tokens are pending|3 pending"):
            call()
        now.require_now()
    with pytest.raises(RequestError, match="3 tokens are pending"):
        session.evaluate([(1, [5]), (0, [1])])
    with pytest.raises(RequestError, match="no later one is sure"):
        session.verify([(0, [1, 2])], sure=[1])
    now.require_now()
    session.commit(0, 1)
    peek(session, [plain(), plain(seed=1)])


@every_strategy
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_sure_tokens_stay_and_the_others_go(strategy: str, device: str) -> None:
    session, like = session_of(strategy, device), plain(device)
    evaluate(session, 3)
    session.verify([(0, like.tokens[3:13])], sure=[6])
    assert session.can_commit(0, 6)
    now = Moment(session)
    for n in range(6, 11):
        session.commit(0, n)
        require_state(session, 0, like)
        now.back()


@every_strategy
@pytest.mark.parametrize("other", STRATEGIES)
def test_rounds_go_on_in_another_session(strategy: str, other: str) -> None:
    session, like = session_of(strategy), plain()
    evaluate(session, 6)
    verify(session, 5)
    session.commit(0, 2)
    data = session.save()
    assert session.length() == 8
    there = session_of(other, n_seqs=2)
    there.restore(data, 1)
    assert there.length(1) == 8 and there.tokens(1) == like.tokens[:8]
    for session_, seq in ((there, 1), (session, 0)):
        logits = session_.verify([(seq, like.tokens[8:12])]).logits
        np.testing.assert_array_equal(logits, like.logits(8, 12))
        session_.commit(seq, 1)
        require_state(session_, seq, like)


@cache
def diverged(at: int) -> Plain:
    """The first stream, from position `at` on with other tokens."""
    tokens = stream(0)[: at + 12]
    return Plain(tiny(), tokens[:at] + [(t + 1) % N_VOCAB for t in tokens[at:]])


@every_strategy
@pytest.mark.parametrize("at", [8, 256, 300])
def test_a_copy_and_its_source_part_ways(strategy: str, at: int) -> None:
    session = session_of(strategy, n_ctx=512, n_seqs=3)
    likes = {0: plain(), 2: diverged(at)}
    evaluate(session, at - 2)
    verify(session, 4)
    session.commit(0, 2)
    session.copy(0, 2)
    source = session.save(0)
    session.verify([(2, likes[2].tokens[at : at + 6])])
    session.commit(2, 4)
    assert session.save(0) == source
    for keep in ({0: 1, 2: 2}, {0: 3, 2: 0}, {0: 0, 2: 3}):
        starts = {seq: session.length(seq) for seq in likes}
        items = [(seq, likes[seq].tokens[n : n + 3]) for seq, n in starts.items()]
        want = [likes[seq].logits(n, n + 3) for seq, n in starts.items()]
        np.testing.assert_array_equal(session.verify(items).logits, np.concatenate(want))
        for seq, n in keep.items():
            session.commit(seq, n)
            assert session.length(seq) == starts[seq] + n
        peek(session, likes)
    session.clear(2)
    session.copy(0, 2)
    session.clear(0)
    require_state(session, 2, likes[0])


@every_strategy
@pytest.mark.parametrize("start", [250, 255, 256, 257])
def test_the_edge_of_a_page(strategy: str, start: int) -> None:
    session, like = session_of(strategy, n_ctx=512), plain()
    evaluate(session, start)
    np.testing.assert_array_equal(verify(session, 8), like.logits(start, start + 8))
    now = Moment(session)
    free = session.memory.parts[0].pages.free
    for n in range(9):
        now.back()
        session.commit(0, n)
        assert session.memory.parts[0].pages.free == free + (start <= 256 and start + n <= 256)
        peek(session, [like])
        verify(session, 2)
        session.commit(0, 1)
        require_state(session, 0, like)


@every_strategy
def test_the_end_of_the_context(strategy: str) -> None:
    session, like = session_of(strategy, n_ctx=40), plain()
    evaluate(session, 36)
    now = Moment(session)
    with pytest.raises(RequestError, match="41 tokens do not fit in a context of 40"):
        verify(session, 5)
    now.require_now()
    np.testing.assert_array_equal(verify(session, 4), like.logits(36, 40))
    session.commit(0, 2)
    with pytest.raises(RequestError, match="41 tokens do not fit"):
        verify(session, 3)
    peek(session, [like])
    verify(session, 2)
    session.commit(0, 2)
    assert session.length() == 40
    require_state(session, 0, like)
    with pytest.raises(RequestError, match="41 tokens do not fit"):
        session.decode(1)
    if session.can_remove(0, 39):
        session.remove(0, 39)
        require_state(session, 0, like)


@every_strategy
@pytest.mark.parametrize("sure", [508, 0])
def test_a_prompt_beside_a_draft(strategy: str, sure: int) -> None:
    session = session_of(strategy, n_ctx=600, n_seqs=2)
    likes = [plain(), plain(seed=1)]
    evaluate(session, 7, seq=1)
    session.verify([(1, likes[1].tokens[7:10])])
    session.commit(1, 2)
    items = [(0, likes[0].tokens[:508]), (1, likes[1].tokens[9:13])]
    found = session.verify(items, sure=[sure, 0])
    np.testing.assert_array_equal(found.logits[508:], likes[1].logits(9, 13))
    np.testing.assert_array_equal(found.logits[507], likes[0].logits(507, 508)[0])
    session.commit(0, 508)
    session.commit(1, 2)
    peek(session, likes)
    for seq in (0, 1):
        at = session.length(seq)
        np.testing.assert_array_equal(verify(session, 4, seq), likes[seq].logits(at, at + 4))
        session.commit(seq, 1)
        require_state(session, seq, likes[seq])


@every_strategy
def test_more_due_tokens_than_a_pass_takes_along(strategy: str) -> None:
    """A long accepted part of a longer draft, then a prompt that leaves no room beside it."""
    session = session_of(strategy, n_ctx=600, n_seqs=2)
    wide = tiny().session(n_ctx=600, n_seqs=2, rollback=strategy, n_rs_seq=40)
    likes = [plain(), plain(seed=1)]
    for s in (session, wide):
        window = s.plan.options.n_rs_seq
        evaluate(s, 5)
        verify(s, window)
        s.commit(0, window - 1)
        items = [(1, likes[1].tokens[:510]), (0, likes[0].tokens[window + 4 : window + 6])]
        s.verify(items, sure=[510, 0], want="last")
        s.commit(0, 1)
        s.commit(1, 510)
        peek(s, likes)


@every_strategy
@pytest.mark.parametrize("kind", ["q8_0", "q4_k"])
def test_rounds_of_the_demo_model(strategy: str, kind: str) -> None:
    model = demo() if kind == "q8_0" else demo(kind="q4_k_m")
    like = Plain(model, PROMPTS["p200"]["ids"])
    session = model.session(n_ctx=256, rollback=strategy, n_rs_seq=4)
    session.prefill(like.tokens[:90])
    for n in (5, 0, 3, 1, 4, 2):
        at = session.length()
        logits = session.verify([(0, like.tokens[at : at + 5])], hidden=True).logits
        np.testing.assert_array_equal(logits, like.logits(at, at + 5))
        session.commit(0, n if session.can_commit(0, n) else 5)
        peek(session, [like])
