"""How many drafts pay, from measured acceptance and measured times of passes.

With a_i the chance that draft i stays once those before it have, k drafts give 1 + a_1 + a_1 a_2 +
... tokens for the time of a pass of 1 + k tokens and of k drafts; the best k is the one with the
most tokens a second."""

from __future__ import annotations

from ..engine.buckets import token_bucket

PRIOR, WEIGHT = 0.7, 3.0  # an untried drafter counts as if so many drafts had done so well
MEMORY = 0.9  # of what was seen, kept from round to round: some ten rounds count
GAIN = 1.03  # drafting has to be better than plain decoding by this much
GUESSED_SLOPE = 0.06  # of a one-token pass: what another token is taken to add until it is timed
FIRST_PAUSE, LONGEST_PAUSE = 16, 256  # rounds without drafts before another try


class Times:
    """Seconds of passes by their number of tokens, as moving averages.

    Sizes that were not seen are read off the line through the nearest ones that were."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}

    def note(self, tokens: int, seconds: float) -> None:
        """A pass of so many tokens took so long. Outliers upwards count for little: they are
        other work on the machine."""
        old = self.seen.get(tokens)
        if old is None:
            self.seen[tokens] = seconds
        else:
            self.seen[tokens] = old + (0.05 if seconds > 2 * old else 0.2) * (seconds - old)

    def of(self, tokens: int) -> float:
        """What a pass of so many tokens takes, 0.0 if none was ever seen."""
        if tokens in self.seen or not self.seen:
            return self.seen.get(tokens, 0.0)
        below = [n for n in self.seen if n < tokens]
        above = [n for n in self.seen if n > tokens]
        if below and above:
            a, b = max(below), min(above)
            share = (tokens - a) / (b - a)
            return self.seen[a] + share * (self.seen[b] - self.seen[a])
        near = max(below) if below else min(above)
        return (
            self.seen[near] * (1 + GUESSED_SLOPE * (tokens - 1)) / (1 + GUESSED_SLOPE * (near - 1))
        )


class Length:
    """The length of one drafter's drafts.

    most: the longest. After a pause one draft of `probe` tokens is tried again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._tried = [WEIGHT] * most
        self._stayed = [WEIGHT * PRIOR] * most
        self._draft_s = 0.0  # seconds of a drafted token
        self._pause, self._left = FIRST_PAUSE, 0

    def choose(self, times: Times) -> int:
        """How many drafts to ask for in this round, 0 for none."""
        if self._left > 0:
            self._left -= 1
            return 0
        best = self.best(times)
        if best == 0:
            self._left = self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            # The pause ends with a try, however bad things looked before.
            self._forgive()
        return best

    def best(self, times: Times) -> int:
        """The number of drafts with the most tokens a second, by what is known now."""
        plain = times.of(1)
        if plain == 0.0:
            return self.most
        best, rate = 0, GAIN / plain
        tokens, chance = 1.0, 1.0
        for k in range(1, self.most + 1):
            chance *= self._stayed[k - 1] / self._tried[k - 1]
            tokens += chance
            # Passes take as long as the largest one of their plan.
            if k < self.most and k + 1 != token_bucket(k + 1):
                continue
            now = tokens / (times.of(1 + k) + k * self._draft_s)
            if now > rate:
                best, rate = k, now
        return best

    def note(self, drafted: int, accepted: int, seconds: float) -> None:
        """A draft of so many tokens took so long, and so many of them stayed."""
        if drafted == 0:
            return
        each = seconds / drafted
        self._draft_s = (
            each if self._draft_s == 0.0 else self._draft_s + 0.2 * (each - self._draft_s)
        )
        for i in range(min(drafted, accepted + 1)):
            self._tried[i] = MEMORY * self._tried[i] + 1
            self._stayed[i] = MEMORY * self._stayed[i] + (i < accepted)
        if accepted == drafted:
            self._pause = FIRST_PAUSE

    def _forgive(self) -> None:
        """Make the next estimate just good enough for a short try."""
        for i in range(self.most):
            self._tried[i] = 1.0
            self._stayed[i] = PRIOR if i == 0 else 0.5


def _guess(tokens: int) -> float:
    """What a pass takes, in one-token passes, before its size was timed."""
    return 1 + GUESSED_SLOPE * (tokens - 1)
