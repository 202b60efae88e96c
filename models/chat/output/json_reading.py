"""JSON in an answer: values cut exactly at their ends, and calls written as objects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from .parser import OutputParser
from .reading import SPACE, Give, Reading, Waiting, gathered

_STRING_STOP = re.compile(r'["\\]')
_BARE_STOP = re.compile(r"[\s,\]}]")
# The keys under which models give arguments.
ARGUMENTS = ("arguments", "parameters")


def read_value(text: Reading, give: Give, stops: Sequence[str] = ()) -> Waiting[bool]:
    """Give the text of one JSON value as it comes, from after white space to its exact end.

    Whether it is JSON beyond its strings and brackets is not looked at. stops: what cannot occur
    in JSON outside strings, such as the marker of a call's end; it ends a value that is not whole,
    and is not read. Returns whether the value is whole."""
    yield from text.skip_space()
    first = yield from text.peek()
    if first == '"':
        give(text.advance(1))
        return (yield from _rest_of_string(text, give))
    if first and first in "{[":
        return (yield from _nested(text, give, stops))
    return (yield from _bare(text, give, stops))


def read_string(text: Reading) -> Waiting[str | None]:
    """The text that a JSON string stands for. None, with nothing but white space read, where no
    string comes next; None as well for one that does not end or is none."""
    yield from text.skip_space()
    if (yield from text.peek()) != '"':
        return None
    raw, whole = yield from gathered(lambda give: read_value(text, give))
    return decoded(raw) if whole else None


def decoded(raw: str) -> str | None:
    """The text that a JSON string stands for, None for what is no string."""
    try:
        value = json.loads(raw, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _rest_of_string(text: Reading, give: Give) -> Waiting[bool]:
    while True:
        rest = text.rest
        found = _STRING_STOP.search(rest)
        if found is None:
            if rest:
                give(text.advance(len(rest)))
        elif found.group() == '"':
            give(text.advance(found.end()))
            return True
        elif found.end() < len(rest):
            give(text.advance(found.end() + 1))
            continue
        elif found.start():
            give(text.advance(found.start()))
        if not (yield from text.more()):
            if text.rest:
                give(text.advance(len(text.rest)))
            return False


def _nested(text: Reading, give: Give, stops: Sequence[str]) -> Waiting[bool]:
    """A value in brackets. The kinds of brackets are not told apart."""
    depth = 0
    marks = "".join(sorted({stop[0] for stop in stops}))
    ends = re.compile(f'[][{{}}"{re.escape(marks)}]')
    while True:
        rest = text.rest
        found = ends.search(rest)
        if found is None:
            if rest:
                give(text.advance(len(rest)))
            if not (yield from text.more()):
                return False
            continue
        mark = found.group()
        if mark in marks:
            if found.start():
                give(text.advance(found.start()))
            if (yield from text.comes(*stops)):
                return False
        piece = text.advance(found.end() if mark not in marks else 1)
        if piece:
            give(piece)
        if mark == '"':
            if not (yield from _rest_of_string(text, give)):
                return False
        elif mark not in marks:
            depth += 1 if mark in "[{" else -1
            if not depth:
                return True


def _bare(text: Reading, give: Give, stops: Sequence[str]) -> Waiting[bool]:
    """A number, a word, or what is no JSON."""
    while True:
        char = yield from text.peek()
        if not char or _BARE_STOP.match(char):
            return bool(char)
        if (yield from text.comes(*stops)):
            return False
        give(text.advance(1))


def read_call(
    parser: OutputParser,
    stops: Sequence[str] = (),
    known: Callable[[str], bool] = lambda name: True,
) -> Waiting[bool]:
    """Read a call written as `{"name": NAME, "arguments": {...}}`, white space before it allowed.

    Keys may come in any order; arguments stream as soon as the name is known; those given as a
    string of JSON are that JSON. stops: as for `read_value`, and not read. known: whether an object
    with this name is a call at all. Returns whether it was a call; where it was none, no part of it
    was given, and the caller goes back (`Reading.hold`)."""
    text, started, early = parser.text, False, ""
    if not (yield from text.take("{", space=True)):
        return False
    while True:
        if started and (yield from text.take("}", space=True)):
            parser.end_call()
            return True
        yield from text.take(",", space=True)
        key = yield from read_string(text)
        if key is None or not (yield from text.take(":", space=True)):
            return started
        if key == "name" and not started:
            name = yield from read_string(text)
            if not name or not known(name):
                return False
            text.release()
            parser.start_call(name)
            started = True
            parser.arguments(early)
        elif key in ARGUMENTS:
            if started:
                whole = yield from read_arguments(text, parser.arguments, stops)
            else:
                early, whole = yield from gathered(lambda give: read_arguments(text, give, stops))
            if not whole:
                return started
        elif not (yield from read_value(text, _dropped, stops)):
            return started


def read_arguments(text: Reading, give: Give, stops: Sequence[str] = ()) -> Waiting[bool]:
    """Give the arguments of a call as they come: one JSON value; the text of a string is given
    for the string, {} for null. Returns whether they are whole."""
    yield from text.skip_space()
    first = yield from text.peek()
    if first and first in '"n':
        raw, whole = yield from gathered(lambda found: read_value(text, found, stops))
        inner = decoded(raw) if first == '"' else {"null": "{}"}.get(raw)
        give(raw if inner is None else inner.strip(SPACE) or "{}")
        return whole
    return (yield from read_value(text, give, stops))


def _dropped(text: str) -> None:
    pass
