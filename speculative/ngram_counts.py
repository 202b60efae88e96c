"""How often which token followed an n-gram of one to four tokens, and the file of such counts.

The file, little-endian i32 throughout, is a run of records: four tokens (the places behind a
shorter n-gram hold -1), the number of followers, and per follower its token and count."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..graph.errors import RequestError
from .ngrams import WIDTH

MAX_N = 4
UNUSED = -1
MOST = 2**31 - 1


class Followers:
    """The tokens that followed an n-gram, their number, and the first to be most frequent."""

    __slots__ = ("best", "counts", "total")

    def __init__(self, token: int, count: int) -> None:
        self.counts = {token: count}
        self.total, self.best = count, token

    def add(self, token: int, count: int) -> None:
        """The token followed so often more. A count stays within i32."""
        was = self.counts.get(token, 0)
        now = self.counts[token] = min(was + count, MOST)
        self.total += now - was
        if now > self.counts[self.best]:
            self.best = token


class Counts:
    """Followers by n-gram (bytes of i32). One that followed once, the usual case, takes no
    object of its own."""

    def __init__(self) -> None:
        self._table: dict[bytes, int | Followers] = {}

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        """Forget all."""
        self._table.clear()

    def get(self, gram: bytes) -> Followers | None:
        """What followed the n-gram; not to be changed."""
        entry = self._table.get(gram)
        return Followers(entry, 1) if isinstance(entry, int) else entry

    def add(self, gram: bytes, token: int, count: int = 1) -> None:
        """The token followed the n-gram so often more."""
        entry = self._table.get(gram)
        if entry is None:
            self._table[gram] = token if count == 1 else Followers(token, count)
            return
        if isinstance(entry, int):
            entry = self._table[gram] = Followers(entry, 1)
        entry.add(token, count)

    def add_text(self, tokens: array[int], start: int) -> None:
        """Count the tokens from `start` on behind the n-grams before them."""
        first = max(start - MAX_N, 0)
        raw = tokens[first:].tobytes()
        for at in range(start, len(tokens)):
            end, token = WIDTH * (at - first), tokens[at]
            for n in range(1, min(MAX_N, at) + 1):
                self.add(raw[end - WIDTH * n : end], token)

    def items(self) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
        """Every n-gram and its followers, the most frequent first: reading them back in this
        order leaves the same one the first."""
        for gram in self._table:
            found = self.get(gram)
            assert found is not None
            best = (found.best, found.counts[found.best])
            yield gram, [best, *(item for item in found.counts.items() if item != best)]

    def merge(self, other: Counts) -> None:
        """Add another's counts."""
        for gram, followers in other.items():
            for token, count in followers:
                self.add(gram, token, count)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file whole or not at all. Raises RequestError when it cannot be written."""
        words = array("i")
        for gram, followers in self.items():
            words.frombytes(gram)
            words.extend([UNUSED] * (MAX_N - len(gram) // WIDTH))
            words.append(len(followers))
            for item in followers:
                words.extend(item)
        data = np.frombuffer(words, np.int32).astype("<i4").tobytes() if words else b""
        partial = Path(f"{os.fspath(path)}.{os.getpid()}.part")
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        except OSError as e:
            partial.unlink(missing_ok=True)
            raise RequestError(f"{path}: cannot write n-gram counts: {e.strerror}") from e

    @classmethod
    def read(cls, path: str | os.PathLike[str], sizes: range, n_vocab: int | None) -> Counts:
        """The counts of a file whose n-grams have one of these sizes and whose tokens are below
        n_vocab. Raises RequestError for a damaged one, or one made for another purpose."""
        try:
            data = Path(path).read_bytes()
        except OSError as e:
            raise RequestError(f"{path}: cannot read n-gram counts: {e.strerror}") from e
        if len(data) % 4:
            raise RequestError(f"{path}: expected a multiple of 4 bytes, got {len(data)}")
        return _Reader(path, np.frombuffer(data, "<i4").tolist(), sizes, n_vocab).counts()


def check_place(path: Path) -> None:
    """Raise RequestError for a path that no file of counts could be written to later."""
    if path.exists() and not path.is_file():
        raise RequestError(f"{path}: is not a regular file; name one for n-gram counts")
    if not os.access(path.parent, os.W_OK):
        raise RequestError(
            f"{path}: n-gram counts cannot be written in {path.parent}; check the path"
        )


class _Reader:
    """Reads the words of a file, refusing what no writer leaves."""

    def __init__(
        self, path: str | os.PathLike[str], words: list[int], sizes: range, n_vocab: int | None
    ) -> None:
        self._path, self._words, self._sizes = path, words, sizes
        self._top = MOST if n_vocab is None else n_vocab - 1

    def counts(self) -> Counts:
        """All records."""
        counts, at = Counts(), 0
        while at < len(self._words):
            at = self._record(counts, at)
        return counts

    def _record(self, counts: Counts, at: int) -> int:
        words = self._words
        if len(words) - at < MAX_N + 1:
            raise self._error(at, f"a record of {MAX_N + 1} words or more", len(words) - at)
        gram = array("i")
        for place in range(at, at + MAX_N):
            if words[place] == UNUSED and gram:
                break
            gram.append(self._token(place))
        for place in range(at + len(gram), at + MAX_N):
            if words[place] != UNUSED:
                raise self._error(place, f"{UNUSED} behind the n-gram's end", words[place])
        if len(gram) not in self._sizes:
            wanted = f"{self._sizes.start} to {self._sizes.stop - 1}"
            raise self._error(at, f"an n-gram of {wanted} tokens", len(gram))
        key = gram.tobytes()
        if counts.get(key) is not None:
            raise self._error(at, "each n-gram once", f"{gram.tolist()} again")
        return self._followers(counts, key, at + MAX_N)

    def _followers(self, counts: Counts, key: bytes, at: int) -> int:
        words, n, start = self._words, self._words[at], at + 1
        room = (len(words) - start) // 2
        if not 1 <= n <= room:
            raise self._error(at, f"1 to {room} followers, as many as the file has room for", n)
        seen: set[int] = set()
        for place in range(start, start + 2 * n, 2):
            token, count = self._token(place), words[place + 1]
            if token in seen:
                raise self._error(place, "each follower once", f"token {token} again")
            if count < 1:
                raise self._error(place + 1, "a count of 1 or more", count)
            seen.add(token)
            counts.add(key, token, count)
        return start + 2 * n

    def _token(self, place: int) -> int:
        token = self._words[place]
        if not 0 <= token <= self._top:
            raise self._error(place, f"a token from 0 to {self._top}", token)
        return token

    def _error(self, place: int, expected: str, got: object) -> RequestError:
        return RequestError(
            f"{self._path}: n-gram counts, byte {4 * place}: expected {expected}, got {got}"
        )
