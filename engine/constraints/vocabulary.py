"""A tokenizer's vocabulary in the form that llguidance works on."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from ...graph.errors import RequestError
from ...models.tokenizer import Tokenizer, TokenType
from .library import llguidance

# How llguidance tells a token that only its name in a grammar can stand for from one of text.
# The byte occurs in no UTF-8 text.
_NAMED = b"\xff"
# Longer pieces do not fit the library's tree of tokens.
_LONGEST_PIECE = 1000
_INFINITY = np.float32(np.inf)
# For each byte of a bit mask the bounds of 8 logits: none where the bit is set, else -inf.
_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    _INFINITY,
    -_INFINITY,
).astype(np.float32)


class Vocabulary:
    """Rows of bytes for llguidance, and what leads from its bit masks back to token ids.

    Row i is token i. A user-defined token whose text is in angle brackets, such as <think>, can be
    meant by its name in a grammar or be a piece of text, so that it has a second row. The last row
    is an end token of the library's own; ends of generation are decided outside it.

    source: the file of the tokenizer. fingerprint: equal for equal rows and ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises RequestError for a tokenizer without a vocabulary or without end tokens."""
        self.source = tokenizer.source
        self.n_vocab = tokenizer.n_vocab
        self.ends = tokenizer.eog_ids
        if not self.ends:
            raise RequestError(
                f"{tokenizer.source}: a constraint needs a vocabulary with an end token, and this "
                "one has none"
            )
        pieces = [_piece(tokenizer, token) for token in range(self.n_vocab)]
        self.second_rows = {}
        for token in range(self.n_vocab):
            if _is_nameable(tokenizer, token):
                self.second_rows[token] = len(pieces)
                pieces.append(pieces[token])
                pieces[token] = _NAMED + pieces[token]
        pieces.append(_NAMED + b"<end of generation>")
        self.fingerprint = _fingerprint(self.n_vocab, self.ends, pieces)
        self.n_words = -(-len(pieces) // 32)
        self.library_tokenizer = llguidance().LLTokenizer(_Wrapper(tokenizer, pieces))
        self._end_ids = np.array(sorted(self.ends))
        self._second_ids = np.fromiter(self.second_rows, np.intp, len(self.second_rows))
        self._second_rows = np.fromiter(self.second_rows.values(), np.intp, len(self.second_rows))
        # All rows but the library's end token, and all but the tokens that end a generation.
        self._legal = _words(self.n_words, [len(pieces) - 1])
        self._going_on = _words(self.n_words, [len(pieces) - 1, *self.ends])

    def require_same(self, tokenizer: Tokenizer) -> None:
        """Raises RequestError unless the tokenizer has this vocabulary: as many tokens, each of
        the same bytes and kind, and the same end tokens."""
        if tokenizer.n_vocab == self.n_vocab:
            other = vocabulary_of(tokenizer)
            if other is self or other.fingerprint == self.fingerprint:
                return
        raise RequestError(
            f"the constraint was compiled for the vocabulary of {self.source} ({self.n_vocab} "
            f"tokens), the model has that of {tokenizer.source} ({tokenizer.n_vocab}); compile it "
            "with this model's constraint()"
        )

    def any_legal(self, words: np.ndarray) -> bool:
        """Whether a mask, u32 [n_words], has a token of the vocabulary in it."""
        return bool((words & self._legal).any())

    def goes_on(self, words: np.ndarray) -> bool:
        """Whether a mask, u32 [n_words], has a token in it that does not end a generation."""
        return bool((words & self._going_on).any())

    def bounds(self, words: np.ndarray, may_end: bool) -> np.ndarray:
        """From a mask, u32 [n_words]: +inf for each legal token and -inf for others, f32 [n_vocab].

        may_end: the tokens that end a generation are legal as well."""
        rows = np.take(_BOUNDS, words.view(np.uint8), axis=0, mode="clip").reshape(-1)
        if self._second_ids.size:
            second = rows[self._second_rows]
            rows[self._second_ids] = np.maximum(rows[self._second_ids], second)
        if may_end:
            rows[self._end_ids] = _INFINITY
        return rows[: self.n_vocab]


class _Wrapper:
    """What LLTokenizer reads; it keeps this object, which must not keep the tokenizer alive."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes]) -> None:
        self.tokens = pieces
        self.eos_token_id = len(pieces) - 1
        self._tokenizer = weakref.ref(tokenizer)

    def __call__(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        return tokenizer.encode(text, add_special=False) if tokenizer else []


def _fingerprint(n_vocab: int, ends: Iterable[int], pieces: Sequence[bytes]) -> bytes:
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    digest = hashlib.sha256(repr((n_vocab, sorted(ends))).encode())
    digest.update(lengths.tobytes() + b"".join(pieces))
    return digest.digest()


def _piece(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of a token for the library, none for one that is never legal."""
    piece = tokenizer.token_bytes(token)
    if not piece:
        if tokenizer.token_type(token) != TokenType.CONTROL:
            return b""
        piece = _NAMED + tokenizer.token_bytes(token, special=True)
    elif piece.startswith(_NAMED):
        return b""
    return b"" if token in tokenizer.suppress_ids or len(piece) > _LONGEST_PIECE else piece


def _is_nameable(tokenizer: Tokenizer, token: int) -> bool:
    text = tokenizer.token_text(token)
    return (
        text[0] == "<" and text[-1] == ">" and tokenizer.token_type(token) == TokenType.USER_DEFINED
    )


def _words(n_words: int, cleared: Sequence[int]) -> np.ndarray:
    bits = np.ones(32 * n_words, np.uint8)
    bits[list(cleared)] = 0
    return np.packbits(bits, bitorder="little").view(np.uint32)


_made: weakref.WeakKeyDictionary[Tokenizer, Vocabulary] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of a tokenizer, made once for each: about 0.6 s for 150 thousand tokens."""
    with _making:
        if tokenizer not in _made:
            _made[tokenizer] = Vocabulary(tokenizer)
        return _made[tokenizer]
