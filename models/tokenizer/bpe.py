"""Byte-level BPE vocabularies (`tokenizer.ggml.model` = "gpt2").

Sources: Sennrich et al. 2016 (BPE); the byte alphabet is that of OpenAI's GPT-2 encoder."""

from __future__ import annotations

import re
from itertools import count
from typing import cast

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Engine

from ...graph.errors import RequestError, TokenizerError
from .base import Tokenizer
from .pretokenizers import PreTokenizer, find_pretokenizer
from .special import Defaults, read_specials, strip_sides
from .vocab import Metadata, TokenType, Vocab, read_vocab, scalar, strings, warn

# The regex engine gives up (and takes the thread down) after 10 million steps back in one run
# of white space.
_MAX_BLANK_RUN = 4_000_000
# From here on the call without character offsets saves half the time and memory.
_LONG_TEXT = 16_384
_HIDDEN = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)


def _alphabet() -> dict[str, int]:
    """The printable character that stands for each byte: itself, or one from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = count(256)
    return {chr(b if b in printable else next(spare)): b for b in range(256)}


_BYTE_OF = _alphabet()
# Characters of Latin-1 that stand for no byte must not pass for one.
_TO_LATIN1 = str.maketrans(
    {chr(c): "\uffff" for c in range(256)} | {char: chr(byte) for char, byte in _BYTE_OF.items()}
)


class BpeTokenizer(Tokenizer):
    """Byte-level BPE over the pieces that a pre-tokenizer cuts."""

    def __init__(self, metadata: Metadata, source: str) -> None:
        kind = _pretokenizer(metadata, source)
        vocab = read_vocab(metadata, source, need_types=False, need_scores=False)
        merges = _read_merges(metadata, source)
        defaults = Defaults(add_bos=kind.add_bos, clean_spaces=kind.clean_spaces)
        specials = read_specials(metadata, vocab, defaults)
        super().__init__(vocab, specials, strip_sides(metadata, vocab))
        model, self._spelled = _build_model(vocab, merges, kind.ignore_merges)
        self._engine = Engine(model)
        self._engine.pre_tokenizer = pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(p), "isolated") for p in kind.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        if len(text) < _LONG_TEXT:
            ids = self._engine.encode(text).ids
        else:
            _check_blank_runs(text)
            ids = self._engine.encode_batch_fast([text])[0].ids
        if not self._spelled.keys().isdisjoint(ids):
            ids = [part for i in ids for part in self._spelled.get(i, (i,))]
        return ids

    def _decode_normal(self, text: str) -> bytes:
        try:
            return text.translate(_TO_LATIN1).encode("latin-1")
        except UnicodeEncodeError:
            parts = (bytes([_BYTE_OF[c]]) if c in _BYTE_OF else c.encode() for c in text)
            return b"".join(parts)


def _pretokenizer(metadata: Metadata, source: str) -> PreTokenizer:
    name = cast("str | None", scalar(metadata, "tokenizer.ggml.pre", str, source))
    if name is None:
        warn(
            source,
            "tokenizer.ggml.pre is missing, using 'default'; texts may be cut otherwise than in "
            "training: convert the model again",
        )
        name = "default"
    return find_pretokenizer(name, source)


def _read_merges(metadata: Metadata, source: str) -> list[tuple[str, str]]:
    """The pairs in order of rank. Raises TokenizerError for one without a space inside."""
    key = "tokenizer.ggml.merges"
    listed = strings(metadata, key, source)
    # A leading space belongs to the left part.
    spaces = [merge.find(" ", 1) for merge in listed]
    pairs = [(merge[:at], merge[at + 1 :]) for merge, at in zip(listed, spaces, strict=True)]
    if min(spaces, default=1) < 1 or not all(right for _, right in pairs):
        index = next(i for i, at in enumerate(spaces) if at < 1 or not pairs[i][1])
        raise TokenizerError(
            f"{source}: {key}[{index}] must be two parts with a space between, got "
            f"{listed[index][:40]!r}; convert the model again"
        )
    # Of a repeated merge the first counts.
    return list(dict.fromkeys(pairs)) if len(set(listed)) < len(listed) else pairs


def _build_model(
    vocab: Vocab, merges: list[tuple[str, str]], ignore_merges: bool
) -> tuple[models.BPE, dict[int, list[int]]]:
    """The BPE model, and how to spell those of its symbols that are no tokens.

    Control tokens are kept out, so that no text is merged into one. Merges may lead to symbols
    that are not in the vocabulary: these get numbers behind it, and stand for their bytes."""
    ids = dict(vocab.ids)
    for token, kind in zip(vocab.tokens, vocab.types, strict=True):
        if kind in _HIDDEN:
            del ids[token]
    symbols = {left for left, _ in merges} | {right for _, right in merges}
    symbols |= {left + right for left, right in merges} | _BYTE_OF.keys()
    numbers = {s: len(vocab.tokens) + i for i, s in enumerate(sorted(symbols - ids.keys()))}
    spelled = {n: [ids[c] for c in s if c in ids] for s, n in numbers.items()}
    return models.BPE({**ids, **numbers}, merges, ignore_merges=ignore_merges), spelled


def _check_blank_runs(text: str) -> None:
    if len(text) > _MAX_BLANK_RUN:
        found = re.search(rf"\s{{{_MAX_BLANK_RUN}}}", text)
        if found:
            raise RequestError(
                f"text to encode may hold at most {_MAX_BLANK_RUN} characters of white space in "
                f"a row, got more at {found.start()}; shorten the run"
            )
