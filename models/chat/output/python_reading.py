"""Calls written as in Python, `[f(a="x", b=1), g()]`, and Python's literals as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence

from .parser import OutputParser
from .reading import Give, Reading, Waiting, gathered

_NAME = re.compile(r"[^\W\d][\w.-]*")
_DEEPEST = 60  # levels of lists and dicts; what lies deeper is given as text
_STRING = re.compile(r"([rRbBuUfF]{0,2})(\"\"\"|'''|\"|')")
_AFTER_VALUE = (",", ")", "]", "}", ":")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_JSON_WORDS = ("true", "false", "null")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_ESCAPES |= {"\\": "\\", "'": "'", '"': '"', "/": "/", "\n": ""}
_HEX = {"x": 2, "u": 4, "U": 8}
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def read_calls(parser: OutputParser, stops: Sequence[str] = ()) -> Waiting[bool]:
    """Read a list of calls with named arguments; each argument streams, as JSON.

    stops: markers that end the calls wherever they stand; not read. Returns whether there was a
    call. What is no call any more is not read; with none before it nothing was given, and the
    caller goes back (`Reading.hold`)."""
    text, found = parser.text, False
    if not (yield from text.take("[", space=True)):
        return False
    while not found or (yield from text.take(",", space=True)):
        if not (yield from read_call(parser, stops)):
            return found
        found = True
        text.hold()
    yield from text.take("]", space=True)
    return True


def read_call(
    parser: OutputParser,
    stops: Sequence[str] = (),
    name_of: Callable[[str], str | None] = lambda written: written,
) -> Waiting[bool]:
    """Read one call, `f(a="x")`, as `read_calls` does. name_of: the function's name by what is
    written for it, None for what is no call."""
    text = parser.text
    yield from text.skip_space()
    name = name_of((yield from _name(text)))
    if not name or not (yield from text.take("(")):
        return False
    key = yield from _key(text)
    if key is None and not (yield from text.take(")", space=True)):
        return False
    text.release()
    parser.start_call(name)
    parser.arguments("{" if key is not None else "{}")
    while key is not None:
        parser.arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
        if not (yield from _Values(text, parser.arguments, stops).read(0)):
            return True
        key = None
        if (yield from text.take(",", space=True)):
            key = yield from _key(text)
            if key is None and text.ended and _NAME.fullmatch(text.rest):
                parser.arguments(f", {json.dumps(text.advance(len(text.rest)))[:-1]}")
                return True
        if key is not None:
            parser.arguments(", ")
        elif (yield from text.take(")", space=True)):
            parser.arguments("}")
        else:
            return True
    parser.end_call()
    return True


def _name(text: Reading) -> Waiting[str]:
    found = ""
    while (char := (yield from text.peek())) and _NAME.fullmatch(found + char):
        found += text.advance(1)
    return found


def _key(text: Reading) -> Waiting[str | None]:
    """The name of an argument, with its sign of equality. None, and only space read, for none."""
    yield from text.skip_space()
    n = 0
    while len(found := (yield from text.peek(n + 1))) > n and _NAME.fullmatch(found):
        n += 1
    after = n
    while len(found := (yield from text.peek(after + 1))) > after and found[-1].isspace():
        after += 1
    if not n or found[after:] != "=":
        return None
    text.advance(after + 1)
    return found[:n]


class _Values:
    """Reads Python's literals and gives them as JSON. Words that are none become strings.

    The methods return whether a value was whole."""

    def __init__(self, text: Reading, give: Give, stops: Sequence[str]) -> None:
        self._text, self._give, self._stops = text, give, stops

    def read(self, depth: int) -> Waiting[bool]:
        """One value. depth: levels around it."""
        text = self._text
        yield from text.skip_space()
        first = yield from text.peek()
        if not first or (yield from text.comes(*self._stops)):
            return False
        if depth < _DEEPEST and first in "[(":
            return (yield from self._list(_PAIRS[first], depth + 1))
        if depth < _DEEPEST and first == "{":
            return (yield from self._dict(depth + 1))
        if string := _STRING.match((yield from text.peek(5))):
            text.advance(string.end())
            return (yield from self._string(string.group(2), "r" in string.group(1).lower()))
        return (yield from self._atom())

    def _list(self, end: str, depth: int) -> Waiting[bool]:
        text = self._text
        text.advance(1)
        self._give("[")
        n = 0
        while not (yield from text.take(end, space=True)):
            if n and not (yield from text.take(",", space=True)):
                return False
            if n and (yield from text.take(end, space=True)):
                break
            self._give(", " if n else "")
            if not (yield from self.read(depth)):
                return False
            n += 1
        self._give("]")
        return True

    def _dict(self, depth: int) -> Waiting[bool]:
        """A dict; a set is given as a list."""
        text, n, is_set = self._text, 0, False
        text.advance(1)
        while not (yield from text.take("}", space=True)):
            if n and not (yield from text.take(",", space=True)):
                return False
            if n and (yield from text.take("}", space=True)):
                break
            key, whole = yield from gathered(
                lambda give: _Values(text, give, self._stops).read(depth)
            )
            if not whole:
                return False
            if not n:
                is_set = not (yield from text.comes(":", space=True))
            self._give(", " if n else "[" if is_set else "{")
            self._give(key if is_set or key.startswith('"') else json.dumps(key))
            if not is_set:
                if not (yield from text.take(":", space=True)):
                    return False
                self._give(": ")
                if not (yield from self.read(depth)):
                    return False
            n += 1
        self._give(("]" if is_set else "}") if n else "{}")
        return True

    def _string(self, quote: str, raw: bool) -> Waiting[bool]:
        """The rest of a string. A quote behind which no value can end is a part of it: models
        write texts with apostrophes between single quotes."""
        text = self._text
        marks = re.compile(f"[{re.escape(quote[0])}\\\\{_first_letters(self._stops)}]")
        self._give('"')
        while True:
            rest = text.rest
            found = marks.search(rest)
            self._say(text.advance(found.start() if found else len(rest)))
            if found is None:
                if not (yield from text.more()):
                    return False
            elif (yield from text.comes(*self._stops)):
                return False
            elif (yield from text.take(quote)):
                if (yield from self._ends_behind(quote)):
                    self._give('"')
                    return True
                self._say(quote)
            elif found.group() == "\\" and not raw:
                yield from self._escape()
            elif found.group() == "\\":
                yield from text.peek(2)
                self._say(text.advance(2))
            else:
                self._say(text.advance(1))

    def _ends_behind(self, quote: str) -> Waiting[bool]:
        text = self._text
        if len(quote) == 3:
            return True
        if (yield from text.comes(*_AFTER_VALUE, *self._stops, space=True)):
            return True
        return text.ended and not text.rest.strip()

    def _escape(self) -> Waiting[None]:
        """What a backslash and what follows it stand for; themselves where they are no escape."""
        text = self._text
        kind = (yield from text.peek(2))[1:]
        n = _HEX.get(kind, 0)
        digits = (yield from text.peek(2 + n))[2:]
        text.advance(2)
        if n and len(digits) == n and re.fullmatch("[0-9a-fA-F]+", digits):
            code = int(digits, 16)
            if code <= 0x10FFFF:
                text.advance(n)
                # Halves of a pair are told by their escapes, which JSON has as well.
                self._give(json.dumps(chr(code))[1:-1])
                return
        self._say(_ESCAPES.get(kind, "\\" + kind))

    def _atom(self) -> Waiting[bool]:
        """A number, a word, or any text up to where a value ends, brackets in it balanced."""
        text, found, open_brackets = self._text, "", list[str]()
        while char := (yield from text.peek()):
            if (yield from text.comes(*self._stops)):
                break
            if not open_brackets and char in ",)]}:":
                break
            if open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
            elif char in _PAIRS:
                open_brackets.append(_PAIRS[char])
            found += text.advance(1)
        if found:
            self._give(_as_json(found.strip()))
        return bool(char) and bool(found) and not open_brackets

    def _say(self, piece: str) -> None:
        """A piece of a string."""
        if piece:
            self._give(json.dumps(piece, ensure_ascii=False)[1:-1])


def _as_json(atom: str) -> str:
    """The JSON text of a word or number; a string where it is neither."""
    if atom in _JSON_WORDS or atom in _WORDS:
        return _WORDS.get(atom, atom)
    if len(atom) <= 400 and re.fullmatch(r"[-+]?[0-9.][\w.+-]*", atom):
        try:
            return json.dumps(ast.literal_eval(atom), allow_nan=False)
        except (ValueError, TypeError, SyntaxError):
            pass
    return json.dumps(atom, ensure_ascii=False)


def _first_letters(stops: Sequence[str]) -> str:
    return re.escape("".join(sorted({stop[0] for stop in stops})))
