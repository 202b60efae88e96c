"""The tokens of a grammar in GBNF, and errors that show their place in its text."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass

# llama.cpp refuses more than 2000.
_MAX_TIMES = 100_000
LAST_CHARACTER = 0x10FFFF
_EXCERPT = 60
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)+")
_NAME = re.compile(r"[\w-]+")
_TIMES = re.compile(r"\{\s*(\d+)\s*(,\s*(\d*)\s*)?\}")
_CONTROL_ESCAPES = {"t": "\t", "r": "\r", "n": "\n"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_SIGNS = {"(": "open", ")": "close", "|": "bar"}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class GbnfError(Exception):
    """What is wrong, and where in the text: an index into it, None for the whole."""

    def __init__(self, at: int | None, message: str) -> None:
        super().__init__(message)
        self.at = at

    def describe(self, text: str) -> str:
        """The message with line and column, both from 1, and the line with a mark below it."""
        if self.at is None:
            return f"GBNF: {self}"
        before = text[: self.at]
        start = max(before.rfind("\n"), before.rfind("\r")) + 1
        line = re.split(r"[\r\n]", text[start:], maxsplit=1)[0]
        column = self.at - start
        cut = max(0, column - _EXCERPT // 2)
        shown = line[cut : cut + _EXCERPT].replace("\t", " ")
        number = len(re.findall(r"\r\n?|\n", before)) + 1
        mark = " " * (column - cut) + "^"
        return f"GBNF, line {number}, column {column + 1}: {self}\n  {shown}\n  {mark}"


@dataclass(frozen=True)
class Token:
    """kind: name, define, text, class, open, close, bar, repeat, newline or end.

    at: index into the grammar. text: as it stands there. value: of name the name, of text its
    characters without escapes, of class a regular expression in Lark. ranges: of class, the first
    and the last code point of each range of characters in it, ascending. times: of repeat, how
    often at least and at most, None for any number."""

    kind: str
    at: int
    text: str
    value: str = ""
    ranges: tuple[tuple[int, int], ...] = ()
    times: tuple[int, int | None] = (1, 1)


def tokens_of(text: str) -> list[Token]:
    """All tokens, the last of kind "end". Raises GbnfError for what is none."""
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        space = _SPACE.match(text, at)
        if space:
            at = space.end()
            continue
        token, at = _token(text, at)
        tokens.append(token)
    tokens.append(Token("end", len(text), "the end of the grammar"))
    return tokens


def _token(text: str, at: int) -> tuple[Token, int]:
    """The token that starts here, and the place behind it."""
    sign = text[at]
    if sign in "\r\n":
        return Token("newline", at, "the end of the line"), at + 1
    if text.startswith("::=", at):
        return Token("define", at, "::="), at + 3
    if sign in _SIGNS:
        return Token(_SIGNS[sign], at, sign), at + 1
    if sign in _REPEATS:
        return Token("repeat", at, sign, times=_REPEATS[sign]), at + 1
    if sign == ".":
        return Token("class", at, sign, "/(?s:.)/", ((0, LAST_CHARACTER),)), at + 1
    if sign in _READERS:
        return _READERS[sign](text, at)
    name = _NAME.match(text, at)
    if name:
        return Token("name", at, name[0], name[0]), name.end()
    if sign in "<!":
        raise GbnfError(at, "tokens in angle brackets are not supported in GBNF; use Lark for them")
    raise GbnfError(at, f"{sign!r} has no meaning here")


def _repetition(text: str, at: int) -> tuple[Token, int]:
    found = _TIMES.match(text, at)
    if found is None:
        raise GbnfError(at, "expected a repetition {m}, {m,} or {m,n}")
    numbers = [n for n in (found[1], found[3]) if n]
    if any(len(n) > 9 or int(n) > _MAX_TIMES for n in numbers):
        raise GbnfError(at, f"a repetition of more than {_MAX_TIMES} is not supported")
    least = int(found[1])
    most = least if found[2] is None else int(found[3]) if found[3] else None
    if most is not None and most < least:
        raise GbnfError(at, f"the repetition {found[0]} ends below its start; expected m <= n")
    return Token("repeat", at, found[0], times=(least, most)), found.end()


def _literal(text: str, start: int) -> tuple[Token, int]:
    characters: list[str] = []
    at = start + 1
    while text[at : at + 1] != '"':
        character, at = _character(text, at, start, 'this " is never closed')
        characters.append(character)
    return Token("text", start, text[start : at + 1], "".join(characters)), at + 1


def _class(text: str, start: int) -> tuple[Token, int]:
    at = start + 1
    negated = text[at : at + 1] == "^"
    at += negated
    ranges: list[tuple[int, int]] = []
    while text[at : at + 1] != "]":
        first, after = _character(text, at, start, "this [ is never closed")
        last = first
        if text[after : after + 1] == "-" and text[after + 1 : after + 2] not in ("]", ""):
            last, after = _character(text, after + 1, start, "this [ is never closed")
        if last < first:
            raise GbnfError(at, f"the range {text[at:after]} ends before its start")
        ranges.append((ord(first), ord(last)))
        at = after
    if not ranges:
        raise GbnfError(start, "the class has no characters")
    written = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)
    regex = f"/[{'^' * negated}{written}]/"
    found = _complement(ranges) if negated else tuple(sorted(ranges))
    return Token("class", start, text[start : at + 1], regex, found), at + 1


def _complement(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    start = 0
    for first, last in [*sorted(ranges), (LAST_CHARACTER + 1, 0)]:
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    return tuple(found)


def _character(text: str, at: int, start: int, unclosed: str) -> tuple[str, int]:
    """A character of a literal or class, escaped or not, and the place behind it.

    An escaped punctuation mark stands for itself."""
    if at >= len(text):
        raise GbnfError(start, unclosed)
    if text[at] != "\\":
        return text[at], at + 1
    letter = text[at + 1 : at + 2]
    if letter in _HEX_DIGITS:
        return _coded_character(text, at, _HEX_DIGITS[letter])
    if letter in _CONTROL_ESCAPES:
        return _CONTROL_ESCAPES[letter], at + 2
    if letter and letter in string.punctuation:
        return letter, at + 2
    raise GbnfError(at, f"{text[at : at + 2]} is no escape")


def _coded_character(text: str, at: int, n_digits: int) -> tuple[str, int]:
    end = at + 2 + n_digits
    digits = text[at + 2 : end]
    if len(digits) < n_digits or not set(digits) <= set(string.hexdigits):
        raise GbnfError(at, f"expected {n_digits} hexadecimal digits after {text[at : at + 2]}")
    code = int(digits, 16)
    if 0xD800 <= code < 0xE000 or code > LAST_CHARACTER:
        raise GbnfError(at, f"{text[at:end]} is no Unicode character")
    return chr(code), end


_READERS: dict[str, Callable[[str, int], tuple[Token, int]]] = {
    '"': _literal,
    "[": _class,
    "{": _repetition,
}
