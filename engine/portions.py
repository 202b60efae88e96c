"""How much of a prompt a pass holds while others decode, who stand still meanwhile.

Short passes let them go on soon. But a pass over prompts is followed by one of those that decode,
and where weights are what takes time, few tokens take hardly less than many: both are the
prompt's loss."""

from __future__ import annotations

from .buckets import MAX_TOKENS

TIME = 2 / 3  # share of all time that passes over prompts get at least
# A token's time in passes twice as long, as a share of its time in shorter ones: less than RATE is
# worth the longer passes. GUESS: until these were seen.
RATE, GUESS = 0.7, 0.65
LEAST = 16  # tokens
FAST, RISE = 0.5, 0.1  # shares of a shorter and of a longer time in what a pass is taken to take


class Portions:
    """The smallest powers of two, LEAST to MAX_TOKENS, that lose no more than TIME and RATE say, by
    the times of passes so far."""

    def __init__(self) -> None:
        self._each: dict[int, float] = {}  # seconds of a token in passes of up to so many
        self._decode_s = 0.0

    def note_prompts(self, tokens: int, seconds: float) -> None:
        """A pass over prompts, of so many tokens, took so long."""
        size = LEAST
        while size < tokens:
            size *= 2
        if tokens >= LEAST and size <= MAX_TOKENS:
            self._each[size] = _moved(self._each.get(size), seconds / tokens)

    def note_decoding(self, seconds: float) -> None:
        """A pass of those that decode took so long."""
        self._decode_s = _moved(self._decode_s or None, seconds)

    def tokens(self) -> int:
        """Tokens of prompts in the next pass, at most."""
        if not self._each:
            return MAX_TOKENS
        size, least_s = LEAST, self._decode_s * TIME / (1 - TIME)
        while size < MAX_TOKENS and not (
            size * self._of(size) >= least_s and self._of(2 * size) >= RATE * self._of(size)
        ):
            size *= 2
        return size

    def _of(self, size: int) -> float:
        """Seconds of a token in passes of this size, as far as is known."""
        longer = [of for of in self._each if of >= size]
        return self._each[min(longer)] if longer else GUESS * self._each[max(self._each)]


def _moved(old: float | None, new: float) -> float:
    """The average with the newest time in it."""
    if old is None:
        return new
    return old + (FAST if new < old else RISE) * (min(new, 2 * old) - old)
