"""Every strategy, after any commit from a pass of any length, by number of sequences and window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from riverrun.engine.session import Session
from riverrun.graph.errors import RequestError
from rollback_rig import STRATEGIES, Moment, Plain, forgettable, plain, require_state, tiny

SIZES = (1, 2, 4, 9, 17, 65)
WINDOWS = (1, 3, 8)
PROMPT = (5, 1, 7, 3)  # tokens of each sequence before the rounds
CASES = [
    pytest.param(strategy, n_seqs, window, t, id=f"{strategy}-{n_seqs}seq-rs{window}-t{t}")
    for strategy in STRATEGIES
    for n_seqs in (1, 4)
    for window in WINDOWS
    for t in SIZES
]


def drafts(t: int, n_seqs: int) -> list[int]:
    """Tokens of each sequence's pass, unequal."""
    return [t, t // 2 + 1, 1, -(-t // 3)][:n_seqs]


def begun(device: str, strategy: str, n_seqs: int, window: int, variant: str = "qwen35") -> Session:
    """A session whose sequences have had a prompt and a round of which one token was rejected, so
    that rings have turned and something is due."""
    session = tiny(variant, device).session(
        n_ctx=256, n_seqs=n_seqs, rollback=strategy, n_rs_seq=window
    )
    for seq in range(n_seqs):
        tokens = plain(device, seq, variant=variant).tokens
        session.evaluate([(seq, tokens[: PROMPT[seq]])], want="none")
        at = session.length(seq)
        session.verify([(seq, tokens[at : at + 3])])
        session.commit(seq, 2)
    return session


def verify(session: Session, sizes: Sequence[int], likes: Sequence[Plain]) -> None:
    """One pass over all sequences; its logits are those of plain decoding."""
    starts = [session.length(seq) for seq in range(len(sizes))]
    items = [
        (seq, like.tokens[at : at + n])
        for seq, (like, at, n) in enumerate(zip(likes, starts, sizes, strict=True))
    ]
    logits = session.verify(items).logits
    want = [like.logits(at, at + n) for like, at, n in zip(likes, starts, sizes, strict=True)]
    np.testing.assert_array_equal(logits, np.concatenate(want))


def commits(sizes: Sequence[int], n: int) -> list[int]:
    """How many each sequence keeps when the first keeps n: other numbers for the others."""
    return [n, *((n * (seq + 2) + seq) % (t + 1) for seq, t in enumerate(sizes[1:]))]


def check_commits(
    session: Session,
    strategy: str,
    window: int,
    sizes: Sequence[int],
    likes: Sequence[Plain],
    wanted: Sequence[int],
) -> int:
    """From the pass that is pending, commit each of these numbers; how many were refused."""
    now, refused = Moment(session), 0
    for n in wanted:
        for seq, keep in enumerate(commits(sizes, n)):
            forgotten = sizes[seq] - keep
            can = forgotten <= forgettable(strategy, window, sizes[seq])
            assert session.can_commit(seq, keep) == can
            if can:
                session.commit(seq, keep)
                continue
            refused += 1
            before = Moment(session)
            with pytest.raises(RequestError, match=f"cannot keep {keep} of {sizes[seq]}"):
                session.commit(seq, keep)
            before.require_now()
            session.commit(seq, sizes[seq])
        for seq, like in enumerate(likes):
            require_state(session, seq, like)
        now.back()
    return refused


def check(
    device: str,
    strategy: str,
    n_seqs: int,
    window: int,
    t: int,
    wanted: Sequence[int],
    variant: str = "qwen35",
) -> int:
    """Commit each of these numbers of a pass of t tokens; how many were refused."""
    session = begun(device, strategy, n_seqs, window, variant)
    likes = [plain(device, seq, variant=variant) for seq in range(n_seqs)]
    sizes = drafts(t, n_seqs)
    verify(session, sizes, likes)
    return check_commits(session, strategy, window, sizes, likes, wanted)
