"""Finite automata of regular rules, over the letters that a grammar tells apart.

Source: Glushkov's positions and the subset construction, as in Aho, Lam, Sethi, Ullman, Compilers,
3.9. Sets of letters and of positions are integers with a bit for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from .gbnf_rules import Part, Repeat, Rules
from .gbnf_tokens import LAST_CHARACTER, Token

# Bounds on the work here, not on grammars.
_MAX_LETTERS, _MAX_POSITIONS, _MAX_STATES, _MAX_DEPTH = 300, 300, 100, 100


class TooLarge(Exception):
    """A rule or a grammar is beyond the bounds of this file."""


class Letters:
    """Ranges of characters of which a grammar has all or none wherever it has a character."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        """tokens: all of the grammar. Raises TooLarge."""
        starts = {0}
        for token in tokens:
            for first, last in _ranges(token):
                starts |= {first, last + 1}
        self._starts = sorted(starts - {LAST_CHARACTER + 1})
        self.n = len(self._starts)
        if self.n > _MAX_LETTERS:
            raise TooLarge
        ends = [*self._starts[1:], LAST_CHARACTER + 1]
        self._first_bytes = [
            (2 << _first_byte(end - 1)) - (1 << _first_byte(start))
            for start, end in zip(self._starts, ends, strict=True)
        ]

    def of(self, ranges: Iterable[tuple[int, int]]) -> int:
        """The set of the letters of these ranges of characters."""
        found = 0
        for first, last in ranges:
            low, high = (bisect_right(self._starts, c) - 1 for c in (first, last))
            found |= (2 << high) - (1 << low)
        return found

    def first_bytes(self, letters: int) -> int:
        """The set of first bytes of these letters in UTF-8."""
        found = 0
        for letter in bits(letters):
            found |= self._first_bytes[letter]
        return found


def bits(number: int) -> list[int]:
    """The places of the bits that are set."""
    return [i for i in range(number.bit_length()) if number >> i & 1]


def _ranges(token: Token) -> Iterable[tuple[int, int]]:
    if token.kind == "text":
        return [(ord(c), ord(c)) for c in token.value]
    return token.ranges


def _first_byte(code: int) -> int:
    """Of a character in UTF-8; for surrogates as if they had one."""
    if code < 0x80:
        return code
    if code < 0x800:
        return 0xC0 | code >> 6
    return 0xE0 | code >> 12 if code < 0x10000 else 0xF0 | code >> 18


class Automaton:
    """steps[state][letter] is the next state, from state 0 at the start of a text; ends: whether
    the text may end in a state; out: the set of letters by which it goes on."""

    def __init__(self, rules: Rules, name: str, letters: Letters) -> None:
        """Raises TooLarge."""
        self._rules, self._letters = rules, letters
        # Position 0 is before the text and has no letter.
        self._at, self._follow = [0], [0]
        self.nullable, first, last = self._add(rules[name], 0)
        self._follow[0] = first
        self.steps: list[dict[int, int]] = []
        self.ends: list[bool] = []
        self._build(last)
        self.out = [sum(1 << letter for letter in step) for step in self.steps]

    def _add(self, part: Part, depth: int) -> tuple[bool, int, int]:
        """Adds the positions of a part: whether it may be empty, its first and last positions."""
        if depth > _MAX_DEPTH:
            raise TooLarge
        if isinstance(part, Repeat):
            return self._add_repeated(part, depth)
        if isinstance(part, Token):
            if part.kind == "name":
                return self._add(self._rules[part.value], depth + 1)
            if part.kind == "class":
                return self._join([self._position(self._letters.of(part.ranges))])
            masks = [self._letters.of([(ord(c), ord(c))]) for c in part.value]
            return self._join([self._position(mask) for mask in masks])
        nullable, first, last = False, 0, 0
        for sequence in part.alternatives:
            found = self._join([self._add(item, depth + 1) for item in sequence])
            nullable, first, last = nullable or found[0], first | found[1], last | found[2]
        return nullable, first, last

    def _position(self, letters: int) -> tuple[bool, int, int]:
        if len(self._at) > _MAX_POSITIONS:
            raise TooLarge
        self._at.append(letters)
        self._follow.append(0)
        own = 1 << len(self._at) - 1
        return False, own, own

    def _add_repeated(self, part: Repeat, depth: int) -> tuple[bool, int, int]:
        copies = []
        n = max(part.least, 1) if part.most is None else part.most
        for i in range(n):
            nullable, first, last = self._add(part.part, depth + 1)
            copies.append((nullable or i >= part.least, first, last))
        if part.most is None:
            self._connect(copies[-1][2], copies[-1][1])
        return self._join(copies)

    def _join(self, parts: list[tuple[bool, int, int]]) -> tuple[bool, int, int]:
        """Parts one after another."""
        nullable, first, last = True, 0, 0
        for part_nullable, part_first, part_last in parts:
            self._connect(last, part_first)
            first |= part_first if nullable else 0
            last = part_last | (last if part_nullable else 0)
            nullable = nullable and part_nullable
        return nullable, first, last

    def _connect(self, last: int, first: int) -> None:
        for position in bits(last):
            self._follow[position] |= first

    def _build(self, last: int) -> None:
        having = [
            sum(1 << p for p, letters in enumerate(self._at) if letters >> letter & 1)
            for letter in range(self._letters.n)
        ]
        numbers, waiting = {1: 0}, [1]
        while waiting:
            state = waiting.pop(0)
            self.ends.append(bool(state & last))
            self.steps.append({})
            follow = 0
            for position in bits(state):
                follow |= self._follow[position]
            for letter, positions in enumerate(having):
                target = follow & positions
                if not target:
                    continue
                if target not in numbers:
                    numbers[target] = len(numbers)
                    waiting.append(target)
                self.steps[-1][letter] = numbers[target]
            if len(numbers) > _MAX_STATES:
                raise TooLarge
