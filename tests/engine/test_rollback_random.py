"""Long random runs: whatever is drafted, kept and removed, memory is that of plain decoding."""

from __future__ import annotations

import random

import numpy as np
import pytest
from riverrun.engine.session import Session
from riverrun.graph.errors import RequestError
from rollback_rig import HYBRID, STRATEGIES, Moment, Plain, forgettable, peek, plain, tiny
from tiny_models import N_VOCAB

N_SEQS, MOST = 3, 120
RUNS = [
    *((strategy, "cpu", window, 150) for strategy in STRATEGIES for window in (3, 8)),
    *((strategy, "reference", 4, 15) for strategy in STRATEGIES),
]
OTHERS = [(variant, strategy) for variant in HYBRID for strategy in STRATEGIES]


class Driver:
    """Takes random steps in a session whose sequences each commit a prefix of their stream."""

    def __init__(
        self, strategy: str, device: str, window: int, seed: int, variant: str = "qwen35"
    ) -> None:
        self.rng = random.Random(seed)
        self.strategy, self.window = strategy, window
        self.likes: list[Plain] = [plain(device, seq, variant=variant) for seq in range(N_SEQS)]
        model = tiny(variant, device)
        self.session: Session = model.session(
            n_ctx=256, n_seqs=N_SEQS, rollback=strategy, n_rs_seq=window
        )
        self.kept = self.forgotten = self.refused = self.removed = 0

    def round(self) -> None:
        """Passes over some sequences, then a commit for each of them."""
        seqs = self.rng.sample(range(N_SEQS), self.rng.randint(1, N_SEQS))
        passes = self.rng.choice((1, 1, 1, 2, 3))
        sizes = [[self.rng.randint(1, self.window + 1) for _ in seqs] for _ in range(passes)]
        keep, sure, drafts = [], [], []
        for i, seq in enumerate(seqs):
            total = sum(s[i] for s in sizes)
            least = total - forgettable(self.strategy, self.window, total)
            keep.append(self.rng.randint(least, total))
            certain = self.rng.random() < 0.2
            sure.append(self.rng.randint(0, min(keep[i], sizes[0][i])) if certain else 0)
            at = self.session.length(seq)
            wrong = [self.rng.randrange(N_VOCAB) for _ in range(total - keep[i])]
            drafts.append(self.likes[seq].tokens[at : at + keep[i]] + wrong)
        done = [0] * len(seqs)
        for number, of_pass in enumerate(sizes):
            items = [(seq, drafts[i][done[i] : done[i] + of_pass[i]]) for i, seq in enumerate(seqs)]
            logits = self.session.verify(items, sure=sure if number == 0 else None).logits
            self.check_logits(seqs, logits, of_pass, done, keep)
            done = [a + b for a, b in zip(done, of_pass, strict=True)]
        for seq, n, total in zip(seqs, keep, done, strict=True):
            self.commit(seq, n, total)

    def check_logits(
        self,
        seqs: list[int],
        logits: np.ndarray,
        sizes: list[int],
        done: list[int],
        keep: list[int],
    ) -> None:
        """Rows of tokens that will stay are those of plain decoding."""
        first = 0
        for i, seq in enumerate(seqs):
            n, at = min(sizes[i], keep[i] - done[i]), self.session.length(seq) + done[i]
            if n > 0:
                want = self.likes[seq].logits(at, at + n)
                np.testing.assert_array_equal(logits[first : first + n], want)
            first += sizes[i]

    def commit(self, seq: int, n: int, total: int) -> None:
        for wrong in (self.rng.randint(0, total), total + 1, -1):
            if not self.session.can_commit(seq, wrong):
                self.require_refused("cannot keep", lambda w=wrong: self.session.commit(seq, w))
        assert self.session.can_commit(seq, n)
        self.session.commit(seq, n)
        self.kept, self.forgotten = self.kept + n, self.forgotten + total - n

    def remove(self) -> None:
        """Forget committed tokens, as far as that goes."""
        seq = self.rng.randrange(N_SEQS)
        start = max(0, self.session.length(seq) - self.rng.randint(0, self.window + 1))
        if self.session.can_remove(seq, start):
            self.removed += self.session.length(seq) - start
            self.session.remove(seq, start)
        else:
            self.require_refused("cannot go back", lambda: self.session.remove(seq, start))

    def move(self) -> None:
        """Settle a sequence, save and restore it, or put a copy of another in its place."""
        seq, other = self.rng.sample(range(N_SEQS), 2)
        what = self.rng.randrange(3)
        if what == 0:
            self.session.settle(seq)
        elif what == 1:
            data = self.session.save(seq)
            self.session.clear(seq)
            self.session.restore(data, seq)
        else:
            self.session.clear(seq)
            self.session.copy(other, seq)
            self.likes[seq] = self.likes[other]

    def require_refused(self, message: str, call: object) -> None:
        now = Moment(self.session)
        with pytest.raises(RequestError, match=message):
            call()  # type: ignore[operator]
        now.require_now()
        self.refused += 1


@pytest.mark.parametrize("strategy,device,window,rounds", RUNS)
def test_random_rounds(strategy: str, device: str, window: int, rounds: int) -> None:
    run(Driver(strategy, device, window, seed=window), rounds)


@pytest.mark.parametrize("variant,strategy", OTHERS)
def test_random_rounds_of_every_architecture(variant: str, strategy: str) -> None:
    run(Driver(strategy, "cpu", 3, seed=3, variant=variant), 20)


def run(driver: Driver, rounds: int) -> None:
    """Random rounds, each of which leaves what plain decoding leaves."""
    for _ in range(rounds):
        driver.round()
        if driver.rng.random() < 0.3:
            driver.remove()
        if driver.rng.random() < 0.1:
            driver.move()
        for seq in range(N_SEQS):
            if driver.session.length(seq) > MOST:
                driver.session.clear(seq)
        peek(driver.session, driver.likes)
    assert min(driver.kept, driver.forgotten, driver.refused) > rounds
    assert driver.removed >= rounds // 15
