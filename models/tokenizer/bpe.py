"""BPE vocabularies with a table of merges (`tokenizer.ggml.model` = "gpt2", "gemma4").

Sources: Sennrich et al. 2016 (BPE); the byte alphabet is that of OpenAI's GPT-2 encoder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, pairwise
from typing import cast

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from ...graph.errors import RequestError, TokenizerError
from .base import Tokenizer
from .pretokenizers import Grouping, PreTokenizer, find_pretokenizer
from .special import Defaults, read_specials, strip_sides
from .vocab import SPACE, Metadata, TokenType, Vocab, read_vocab, scalar, strings, warn

# The regex engine gives up (and takes the thread down) after 10 million steps back in one run.
_LONGEST_RUN = 4_000_000
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

    def __init__(
        self, metadata: Metadata, source: str, kind: PreTokenizer, normalize: bool = True
    ) -> None:
        """normalize: bring texts to the family's Unicode normal form."""
        vocab = read_vocab(metadata, source, need_types=kind.spaced, need_scores=False)
        merges = _read_merges(metadata, source)
        defaults = Defaults(
            add_bos=kind.add_bos, add_sep=kind.add_sep, clean_spaces=kind.clean_spaces
        )
        specials = read_specials(metadata, vocab, defaults)
        super().__init__(vocab, specials, strip_sides(metadata, vocab))
        self.normalizer = kind.normalizer if normalize else ""
        self._grouped = _Groups(kind.grouping) if kind.grouping else None
        self._engine, self._spelled = self._build(vocab, merges, kind)
        splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in kind.patterns]
        self._engine.pre_tokenizer = pre_tokenizers.Sequence([*splits, *self._last_steps()])
        if self.normalizer:
            self._engine.normalizer = getattr(normalizers, self.normalizer)()

    def _last_steps(self) -> list[pre_tokenizers.PreTokenizer]:
        return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]

    def _build(
        self, vocab: Vocab, merges: list[tuple[str, str]], kind: PreTokenizer
    ) -> tuple[Engine, dict[int, list[int]]]:
        """The BPE model, and how to spell those of its symbols that are no tokens.

        Control tokens are kept out, so that no text is merged into one. Merges may lead to symbols
        that are not in the vocabulary: these get numbers behind it, and stand for their bytes."""
        ids = _visible(vocab, _HIDDEN)
        numbers = _numbers(vocab, ids, _symbols(merges) | _BYTE_OF.keys())
        spelled = {n: [ids[c] for c in s if c in ids] for s, n in numbers.items()}
        model = models.BPE({**ids, **numbers}, merges, ignore_merges=kind.ignore_merges)
        return Engine(model), spelled

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        whole: str | list[str] = text if self._grouped is None else self._grouped.cut(text)
        cut = self._grouped is not None
        if len(text) < _LONG_TEXT:
            ids = self._engine.encode(whole, is_pretokenized=cut).ids
        else:
            _check_runs(text)
            ids = self._engine.encode_batch_fast([whole], is_pretokenized=cut)[0].ids
        if not self._spelled.keys().isdisjoint(ids):
            ids = [part for i in ids for part in self._spelled.get(i, (i,))]
        return ids

    def _decode_normal(self, text: str) -> bytes:
        try:
            return text.translate(_TO_LATIN1).encode("latin-1")
        except UnicodeEncodeError:
            parts = (bytes([_BYTE_OF[c]]) if c in _BYTE_OF else c.encode() for c in text)
            return b"".join(parts)


class SpacedBpeTokenizer(BpeTokenizer):
    """BPE over the characters of a text, with U+2581 for the space, and bytes for what the
    vocabulary lacks: merges by rank over what is otherwise a vocabulary of SentencePiece."""

    def _last_steps(self) -> list[pre_tokenizers.PreTokenizer]:
        return []

    def _build(
        self, vocab: Vocab, merges: list[tuple[str, str]], kind: PreTokenizer
    ) -> tuple[Engine, dict[int, list[int]]]:
        ids = _visible(vocab, _HIDDEN[:2])
        for token, byte in vocab.bytes_of.items():
            del ids[vocab.tokens[token]]
            ids[f"<0x{byte:02X}>"] = token
        token_of = {byte: token for token, byte in vocab.bytes_of.items()}
        numbers = _numbers(vocab, ids, _symbols(merges))
        spelled = {
            number: [i for char in symbol for i in _spell(char, ids, token_of)]
            for symbol, number in numbers.items()
        }
        unknown = None if self.unk_id is None else vocab.tokens[self.unk_id]
        if unknown is not None:
            ids[unknown] = cast(int, self.unk_id)
        model = models.BPE(
            {**ids, **numbers}, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
        return Engine(model), spelled

    def _encode_fragment(self, text: str, first: bool) -> list[int]:
        return super()._encode_fragment(text.replace(" ", SPACE), first)

    def _decode_normal(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()


def load_bpe(metadata: Metadata, source: str, normalize: bool) -> BpeTokenizer:
    """The tokenizer of the pre-tokenizer that the file names; of "gemma4" where that is the name
    of the whole kind."""
    name = cast("str | None", scalar(metadata, "tokenizer.ggml.pre", str, source))
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        name = "gemma4"
    if name is None:
        warn(
            source,
            "tokenizer.ggml.pre is missing, using 'default'; texts may be cut otherwise than in "
            "training: convert the model again",
        )
        name = "default"
    kind = find_pretokenizer(name, source)
    return (SpacedBpeTokenizer if kind.spaced else BpeTokenizer)(metadata, source, kind, normalize)


class _Groups:
    """Cuts numbers into groups of three digits, counted from their ends."""

    def __init__(self, grouping: Grouping) -> None:
        self._runs = pre_tokenizers.Split(Regex(grouping.runs), "removed", invert=True)
        self._digits = re.compile(grouping.digits, re.DOTALL)

    def cut(self, text: str) -> list[str]:
        """The text's pieces, never empty."""
        ends = [0, len(text)]
        for run, (start, stop) in self._runs.pre_tokenize_str(text):
            ends += [start, stop]
            for number in self._digits.finditer(run):
                ends += range(start + number.end() - 3, start + number.start() - 1, -3)
        return [text[a:b] for a, b in pairwise(sorted(set(ends)))]


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


def _visible(vocab: Vocab, hidden: tuple[TokenType, ...]) -> dict[str, int]:
    """The ids of the tokens that a text may be merged into."""
    pairs = zip(vocab.tokens, vocab.types, strict=True)
    return {token: i for i, (token, kind) in enumerate(pairs) if kind not in hidden}


def _symbols(merges: list[tuple[str, str]]) -> set[str]:
    return {s for left, right in merges for s in (left, right, left + right)}


def _numbers(vocab: Vocab, ids: dict[str, int], symbols: set[str]) -> dict[str, int]:
    """Numbers behind the vocabulary for the symbols that are not in it."""
    missing = sorted(symbols - ids.keys())
    return {symbol: len(vocab.tokens) + i for i, symbol in enumerate(missing)}


def _spell(char: str, ids: dict[str, int], token_of: dict[int, int]) -> Iterator[int]:
    if char in ids:
        yield ids[char]
    else:
        yield from (token_of[byte] for byte in char.encode() if byte in token_of)


def _check_runs(text: str) -> None:
    if len(text) > _LONGEST_RUN:
        found = re.search(rf"\s{{{_LONGEST_RUN}}}", text)
        if found:
            raise RequestError(
                f"text to encode may hold at most {_LONGEST_RUN} characters of white space in "
                f"a row, got more at {found.start()}; shorten the run"
            )
