"""How many drafts pay, from measured acceptance and measured times.

With a_i the chance that draft i stays once those before it have, k drafts give 1 + a_1 + a_1 a_2 +
... tokens for the time of a pass of 1 + k tokens and of k drafts; the best k is the one with the
most tokens a second. Times are noisy and guesses are rare where drafting does not pay, so what
drafts lose against plain decoding is kept within a budget, whatever the estimates say."""

from __future__ import annotations

from functools import cache

from ..engine.buckets import MAX_TOKENS, TOKENS

PRIOR, WEIGHT = 0.6, 2.0  # before it is tried, a draft counts as if so many had done so well
MEMORY = 0.96  # of what was seen, kept from draft to draft
FADING = 0.98  # and from round to round, so that old failures do not count for ever
GAIN = 1.03  # drafting has to be better than plain decoding by this much
GUESSED_SLOPE = 0.06  # of a one-token pass: what another token is taken to add until it is timed
GUESSED_DRAFT = 0.1  # of a one-token pass: what drafting a token is taken to cost
ONCE = 1.5  # times what other sizes suggest: more is not believed of a single time
HOPE = 0.8  # of the slope seen so far, by which sizes beyond are judged: tried rather than not
BESIDE = 0.2  # share of the newest time in what rounds take beside passes and drafts
NEWEST = 0.05  # share of the newest time in an average, once there are enough
START, SHARE, MOST = 1.0, 0.02, 10.0  # the budget: at first, more a round, at most; in passes
NOISE = 0.15  # relative; the time of a plain pass is trusted as far as this over sqrt(times seen)
FEWEST_SEEN = 3  # plain passes timed before the first draft
LONGEST_UNSEEN, PER_SEEN = 64, 2  # rounds until plain decoding is timed again, fewer at first
CLEAR = 1.25  # a gain that is beyond doubt
STALL = 3  # times longer than expected: what is beyond was not for the drafts
FIRST_PAUSE, LONGEST_PAUSE = 16, 128  # rounds without drafts where costs alone speak against them
LOOK = 4  # rounds between two looks at whether drafts pay, while they do not
LONGEST_REST = 32  # such rounds at most, since other drafters may fill the budget meanwhile
RECENT = 2  # rounds without drafts after which a model drafter has little to catch up on


class Times:
    """Seconds of passes by their number of tokens, as moving averages.

    Sizes that were not seen are read off the line through ones that were."""

    def __init__(self) -> None:
        self._mean: dict[int, float] = {}
        self._count: dict[int, int] = {}
        self._unseen: dict[int, int] = {}
        self._beside: dict[bool, float] = {}
        self._judged: dict[int, float] = {}  # what `of` gave: each sequence of a round asks alike

    def note(self, tokens: int, seconds: float, passes: int = 1) -> None:
        """Passes of so many tokens took so long each. Outliers upwards count for little: they are
        other work on the machine. Of the first few the shortest counts: caches that are still cold
        would make plain passes, which come first, look slow, and drafts cheap."""
        self._judged = {}
        for size in self._unseen:
            self._unseen[size] += passes
        self._unseen[tokens] = 0
        n = self._count[tokens] = self._count.get(tokens, 0) + passes
        old = self._mean.setdefault(tokens, seconds)
        share = max(passes / n, passes * NEWEST)
        if seconds > 2 * old:
            share = NEWEST / 2
        elif seconds < old / 2:
            share = 1.0
        elif n <= FEWEST_SEEN:
            share = float(seconds < old)
        self._mean[tokens] = old + share * (seconds - old)

    def note_beside(self, drafts: bool, seconds: float) -> None:
        """A round, with drafts or without, took so long beside its pass and the drafting."""
        old = self._beside.setdefault(drafts, seconds)
        share = 1.0 if seconds < old / 2 else NEWEST / 2 if seconds > 2 * old else BESIDE
        self._beside[drafts] = old + share * (seconds - old)

    @property
    def beside(self) -> float:
        """What a round with drafts takes more, beside its pass and the drafting, than one without:
        0.0 until both were seen."""
        if len(self._beside) < 2:
            return 0.0
        return max(0.0, self._beside[True] - self._beside[False])

    def seen(self, tokens: int) -> int:
        """How many passes of this size were timed."""
        return self._count.get(tokens, 0)

    def unseen(self, tokens: int) -> int:
        """How many passes of other sizes were timed since the last of this one."""
        return self._unseen.get(tokens, 0)

    def judges(self, tokens: int) -> bool:
        """Whether passes of about as many tokens were timed."""
        seen = (n for n, count in self._count.items() if count >= FEWEST_SEEN)
        return any(tokens <= 2 * n <= 4 * tokens for n in seen)

    def of(self, tokens: int) -> float:
        """What a pass of so many tokens takes, 0.0 if none was ever seen."""
        found = self._judged.get(tokens)
        if found is None:
            found = self._judged[tokens] = self._judge(tokens)
        return found

    def _judge(self, tokens: int) -> float:
        once = self._mean.get(tokens)
        if once is None:
            return self._line(tokens)
        if self._count[tokens] > 1 or len(self._mean) == 1:
            return once
        # A single time may be an outlier, and would never be corrected if it kept drafts away.
        return min(once, ONCE * self._line(tokens))

    def _line(self, tokens: int) -> float:
        """As judged by other sizes."""
        mean = self._mean
        below = [n for n in mean if n < tokens]
        above = [n for n in mean if n > tokens]
        if below and above:
            a, b = max(below), min(above)
            return mean[a] + (tokens - a) / (b - a) * (mean[b] - mean[a])
        if len(below) > 1:
            a, b = min(below), max(below)
            slope = max(0.0, (mean[b] - mean[a]) / (b - a))
            return mean[b] + HOPE * slope * (tokens - b)
        if not below and not above:
            return 0.0
        near = max(below) if below else min(above)
        return mean[near] * _guess(tokens) / _guess(near)


def _guess(tokens: int) -> float:
    """What a pass takes, in one-token passes, before its size was timed."""
    return 1 + GUESSED_SLOPE * (tokens - 1)


class Budget:
    """What drafting may still lose against plain decoding, in plain passes; one for all drafters
    of a session. It grows with the rounds, so that losses stay a small share of the time."""

    def __init__(self) -> None:
        self.left = START

    def earn(self, rounds: int = 1) -> None:
        """So many rounds begin."""
        self.left = min(self.left + rounds * SHARE, MOST)

    def spend(self, lost: float) -> None:
        """A round took so many passes longer than plain decoding of its tokens; negative where
        drafts paid."""
        self.left = min(self.left - lost, MOST)


class Length:
    """The length of one drafter's drafts: `least` to `most` tokens, or none."""

    def __init__(self, times: Times, budget: Budget, most: int, least: int = 0) -> None:
        self._times, self._budget = times, budget
        self.most, self.least = most, max(1, min(least, most))
        self._tried = [0.0] * most
        self._stayed = [0.0] * most
        self._draft_s = 0.0  # seconds of a drafted token
        self._drafts = 0
        self._catch_up_s = 0.0  # seconds of a token that it has not seen, once that is known
        self._idle = 0  # rounds since the last draft
        self._pause = FIRST_PAUSE
        self._rest = 0  # rounds until it is looked again at whether drafts pay
        self._group = 1  # the sequences of the round before
        self._faded = 0  # rounds without drafts that what was seen has yet to fade by
        self._new_text = True

    def begin(self) -> None:
        """The text is a new one: what catching up with it takes is the prompt's, not a draft's."""
        self._new_text = True

    def choose(self, n: int = 1) -> int:
        """How many drafts to ask for, 0 for none, in a round of n sequences."""
        self._idle += 1
        self._rest -= 1
        k = 0
        if self._rest < 0 or n != self._group:
            k = self._look(n)
        self._group = n
        if k == 0:
            self._faded += 1
        return k

    @property
    def resting(self) -> int:
        """Rounds from the next one on in which `choose` gives 0 for as many sequences as before."""
        return max(0, self._rest)

    def far(self, n: int) -> int:
        """Rounds of n sequences until a draft is likely, by what is known now; nobody need rest in
        them, since others may earn what one costs. 0 where too little is known."""
        if not self._times.judges(n):
            return 0
        self._fade()
        return 0 if self._best(n)[0] else max(0, self._rounds_to_draft(n))

    def skip(self, rounds: int) -> None:
        """So many of these rounds are over, for which `choose` was not called."""
        self._idle += rounds
        self._rest -= rounds
        self._faded += rounds

    def _look(self, n: int) -> int:
        """The number of drafts by what is known now."""
        if self._times.seen(n) < FEWEST_SEEN:
            return 0
        self._fade()
        k, gain = self._best(n)
        if self._stale(n, gain):
            return 0
        k = k or self._probe(n)
        self._rest = 0 if k else max(LOOK, min(self._rounds_to_earn(n), LONGEST_REST))
        return k

    def _rounds_to_earn(self, n: int) -> int:
        """Rounds until the budget has what a draft may lose."""
        return int((self._loss(self._lengths(n)[0], n) - self._budget.left) / SHARE)

    def _rounds_to_draft(self, n: int) -> int:
        """The same, or, where costs alone speak against drafts, rounds until one is tried all the
        same."""
        if self._could_pay(n):
            return self._rounds_to_earn(n)
        return max(self._pause - self._idle, int(-self._budget.left / SHARE))

    def _fade(self) -> None:
        """What was seen counts for less, the more rounds there were without drafts."""
        if self._faded:
            share = FADING**self._faded
            self._tried = [share * tried for tried in self._tried]
            self._stayed = [share * stayed for stayed in self._stayed]
            self._faded = 0

    def _stale(self, n: int, gain: float) -> bool:
        """Whether to time plain decoding again: drafts are held against it, and it changes as the
        context fills. A clear gain needs that less."""
        seen = 1 << 30 if gain > CLEAR else self._times.seen(n)
        return self._times.unseen(n) >= min(LONGEST_UNSEEN, PER_SEEN * seen)

    def _probe(self, n: int) -> int:
        """A short draft where none seems to pay, if one may be tried."""
        shortest = self._lengths(n)[0]
        if self._could_pay(n):
            self._pause = FIRST_PAUSE
            return shortest if self._fits(shortest, n) else 0
        # What is known of the costs may be wrong, too.
        if self._idle < self._pause or self._budget.left <= 0:
            return 0
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return shortest

    def note(self, drafted: int, accepted: int, seconds: float, n: int = 1) -> None:
        """A sequence's draft of so many tokens, of which so many stayed, took so long, beside the
        pass that judged it; n as for `choose`."""
        idle, new_text = self._idle, self._new_text
        recent = idle <= RECENT
        # Of what it catches up on, a token takes a drafter no longer than one that it drafts.
        expected = (drafted + (0 if recent else idle)) * self._each()
        self._idle, self._new_text = 0, False
        self._fade()
        if drafted and not new_text:
            if not recent:
                self._note_catch_up(max(0.0, seconds - drafted * self._each()) / idle)
            self._note_time(seconds / drafted, recent)
        for i in range(min(drafted, accepted + 1)):
            self._tried[i] = MEMORY * self._tried[i] + 1
            self._stayed[i] = MEMORY * self._stayed[i] + (i < accepted)
        seen = self._times.seen(n)
        if seen:
            plain = self._times.of(n) / n * (1 - NOISE / min(seen, 1 / NEWEST) ** 0.5)
            # Averages, since stalls would count here and not for plain decoding.
            took = (self._times.of(n * (1 + drafted)) + self._times.beside) / n
            if not new_text:
                took += min(drafted * self._each() if recent else seconds, STALL * expected)
            self._budget.spend((took / plain - 1 - accepted) / n)

    def _note_catch_up(self, each: float) -> None:
        old = self._catch_up_s
        self._catch_up_s = each if each < old else (old + each) / 2

    def _note_time(self, each: float, recent: bool) -> None:
        # Catching up makes drafts look slow; but that is better than not knowing.
        if recent or self._drafts == 0 or each < self._draft_s:
            self._drafts += 1
            share = max(1 / self._drafts, NEWEST)
            if 2 * each < self._draft_s:
                share = 1.0
            elif each > 2 * self._draft_s and self._drafts > 1:
                share = NEWEST / 2
            self._draft_s += share * (each - self._draft_s)

    def waste(self, seconds: float, n: int = 1) -> None:
        """Looking for a sequence's draft took so long, and none was found."""
        plain, new_text = self._times.of(n), self._new_text
        self._idle, self._new_text = 0, False
        if plain and not new_text:
            self._budget.spend(seconds / plain)

    def _best(self, n: int) -> tuple[int, float]:
        """The number of drafts with the most tokens a second, by what is known now, or fewer if
        the budget does not have so many, and what it gains: times as many as plain decoding. 0
        drafts where that is better."""
        best, rate = 0, GAIN / self._times.of(n)
        tokens, chance, near, done = 1.0, 1.0, PRIOR, 0
        for k in self._lengths(n):
            for i in range(done, k):
                # A place in the draft that was seldom reached is taken to be like the one before.
                near = (self._stayed[i] + WEIGHT * near) / (self._tried[i] + WEIGHT)
                chance *= near
                tokens += chance
            done = k
            now = tokens / self._cost(k, n)
            if now > rate:
                best, rate = k, now
        fit = max((k for k in self._lengths(n) if k <= best and self._fits(k, n)), default=0)
        return fit, rate * self._times.of(n)

    def _cost(self, k: int, n: int) -> float:
        """Seconds of a round of n sequences with k drafts each."""
        return self._times.of(n * (1 + k)) + n * k * self._each() + self._times.beside

    def _each(self) -> float:
        """Seconds of a drafted token, as far as is known."""
        return self._draft_s if self._drafts else GUESSED_DRAFT * self._times.of(1)

    def _fits(self, k: int, n: int) -> bool:
        """Whether the budget has what a round with k drafts loses when none stays."""
        return self._loss(k, n) <= self._budget.left

    def _loss(self, k: int, n: int) -> float:
        """What a round with k drafts loses when none stays, in plain passes."""
        behind = self._idle if self._idle > RECENT else 0
        cost = self._cost(k, n) + behind * self._catch_up_s
        return cost / self._times.of(n) - 1

    def _could_pay(self, n: int) -> bool:
        """Whether any length would pay if every draft stayed."""
        plain = self._times.of(n)
        return any((1 + k) * plain > GAIN * self._cost(k, n) for k in self._lengths(n))

    def _lengths(self, n: int) -> tuple[int, ...]:
        return _lengths(n, self.least, self.most)


@cache
def _lengths(n: int, least: int, most: int) -> tuple[int, ...]:
    """The lengths worth considering, ascending: passes take as long as the largest of their plan,
    so that of lengths with the same plan only the longest counts."""
    full = [size // n - 1 for size in TOKENS]
    ends = {most, *(k for k in full if least <= k < most)}
    return tuple(sorted(k for k in ends if n * (1 + k) <= MAX_TOKENS)) or (least,)
