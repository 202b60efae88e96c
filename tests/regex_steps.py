"""How many steps a backtracking engine takes to cut a text by a pattern.

The count is that of a plain engine without any of Oniguruma's shortcuts, so that what grows
linearly here does so there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from importlib import import_module
from typing import Any

try:
    _parser: Any = import_module("re._parser")
except ModuleNotFoundError:  # Python 3.10
    _parser = import_module("sre_parse")

Then = Callable[[int], int]  # from a position to the match's end, -1 for none
_UNICODE = ("Lu", "Ll", "Lt", "Lm", "Lo", "Han", "L", "M", "N", "P", "S")
_STANDS_FOR = {chr(0xF0000 + i): name for i, name in enumerate(_UNICODE)}
_ONE_CHARACTER = ("IN", "LITERAL", "NOT_LITERAL", "CATEGORY", "RANGE")
_LIMIT = 2**32 - 1


class Steps:
    """Counts the steps of one pattern; `cut` gives the matches too."""

    def __init__(self, pattern: str) -> None:
        for char, name in _STANDS_FOR.items():
            pattern = pattern.replace(rf"\p{{{name}}}", char)
        # An intersection takes as many steps as its first part.
        pattern = re.sub(r"&&\[\^.\]", "", pattern)
        self._tree = list(_parser.parse(pattern))
        self.count = 0

    def cut(self, text: str) -> list[str]:
        """All matches, found as a search from left to right finds them."""
        at, found = 0, []
        while at < len(text):
            end = self._run(text, self._tree, 0, at, lambda stop: stop)
            if end > at:
                found.append(text[at:end])
            at = max(end, at + 1)
        return found

    def _run(self, text: str, nodes: list[Any], index: int, at: int, then: Then) -> int:
        self.count += 1
        if index == len(nodes):
            return then(at)
        name, value = str(nodes[index][0]), nodes[index][1]

        def rest(stop: int) -> int:
            return self._run(text, nodes, index + 1, stop, then)

        if name in ("MAX_REPEAT", "POSSESSIVE_REPEAT"):
            return self._repeat(text, value, at, rest, name == "POSSESSIVE_REPEAT")
        if name == "BRANCH":
            ends = (self._run(text, list(branch), 0, at, rest) for branch in value[1])
            return next((end for end in ends if end >= 0), -1)
        if name == "SUBPATTERN":
            return self._run(text, list(value[3]), 0, at, rest)
        if name in ("ASSERT", "ASSERT_NOT"):
            return rest(at) if self._looks(text, value, at) == (name == "ASSERT") else -1
        if name == "AT":
            return rest(at) if self._is_at(text, str(value), at) else -1
        return rest(at + 1) if at < len(text) and _fits(name, value, text[at]) else -1

    def _repeat(self, text: str, value: Any, at: int, rest: Then, keeps: bool) -> int:
        least, most, body = value[0], min(int(value[1]), _LIMIT), list(value[2])
        if len(body) > 1 or str(body[0][0]) not in _ONE_CHARACTER:
            return self._repeat_group(text, body, (least, most), at, rest)
        name, what = str(body[0][0]), body[0][1]
        stop = at
        while stop < len(text) and stop - at < most and _fits(name, what, text[stop]):
            stop += 1
            self.count += 1
        while stop - at >= least:
            end = rest(stop)
            if end >= 0 or keeps:
                return end
            stop -= 1
        return -1

    def _repeat_group(
        self, text: str, body: list[Any], times: tuple[int, int], at: int, rest: Then
    ) -> int:
        least, most = times

        def again(stop: int) -> int:
            if stop == at:
                return -1
            return self._repeat_group(text, body, (max(least - 1, 0), most - 1), stop, rest)

        end = self._run(text, body, 0, at, again) if most else -1
        return rest(at) if end < 0 and not least else end

    def _looks(self, text: str, value: Any, at: int) -> bool:
        direction, body = value
        start = at if direction > 0 else at - 1
        return start >= 0 and self._run(text, list(body), 0, start, lambda stop: stop) >= 0

    @staticmethod
    def _is_at(text: str, where: str, at: int) -> bool:
        if where == "AT_END":
            return at == len(text) or text[at] == "\n"
        assert where == "AT_BOUNDARY"
        sides = [0 <= i < len(text) and _is_word(text[i]) for i in (at - 1, at)]
        return sides[0] != sides[1]


def _is_word(char: str) -> bool:
    return char == "_" or unicodedata.category(char)[0] in "LMN"


def _fits(name: str, value: Any, char: str) -> bool:
    if name == "IN":
        negated = str(value[0][0]) == "NEGATE"
        return any(_fits(str(n), v, char) for n, v in value[negated:]) != negated
    if name == "LITERAL":
        return _is(chr(value), char)
    if name == "NOT_LITERAL":
        return not _is(chr(value), char)
    if name == "RANGE":
        return value[0] <= ord(char) <= value[1]
    assert name == "CATEGORY", name
    kind = str(value).removeprefix("CATEGORY_")
    wanted = {"SPACE": char.isspace(), "DIGIT": char.isdecimal()}[kind.removeprefix("NOT_")]
    return wanted != kind.startswith("NOT_")


def _is(literal: str, char: str) -> bool:
    name = _STANDS_FOR.get(literal)
    if name == "Han":
        return "CJK UNIFIED" in unicodedata.name(char, "")
    if name:
        return unicodedata.category(char).startswith(name)
    return literal == char or literal == char.lower()
