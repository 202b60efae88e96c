"""Which rules of a grammar may be terminals of a lexer that prefers the longest match.

A lexer that has matched a terminal and sees a character with which it, or another terminal, can go
on, goes on. That loses nothing unless this character may also follow the matched terminal by the
grammar. So a rule is a terminal if neither it nor any other terminal or character of the grammar
is ever cut off that way: FIRST and FOLLOW sets as in Aho, Lam, Sethi, Ullman, Compilers, 4.4, and
automata as in section 3.9 there, over classes of characters that the grammar does not tell apart.
Characters that share their first byte of UTF-8 count as one, since the lexer reads bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

from .gbnf_automata import Automaton, Letters, TooLarge, bits
from .gbnf_rules import Choice, Part, Repeat, Rules
from .gbnf_tokens import Token

# In characters and classes, repeated ones as often as they may come. The lexer's work can grow
# faster than the size of a terminal.
_MAX_REGULAR = 2000
# A bound on the work here, not on grammars.
_MAX_STEPS = 500_000
Key = TypeVar("Key", str, int)


def references(part: Part) -> Counter[str]:
    """How often a part, if all that is in it comes as often as it may, has each rule in it."""
    found: Counter[str] = Counter()
    for token, times in _leaves(part, 1):
        if token.kind == "name":
            found[token.value] += times
    return found


def _leaves(part: Part, times: int) -> Iterator[tuple[Token, int]]:
    """All tokens of a part, with how often they may come; at least once is counted for "any"."""
    waiting: list[tuple[Part, int]] = [(part, times)]
    while waiting:
        part, times = waiting.pop()
        if isinstance(part, Repeat):
            most = max(part.least, 1) if part.most is None else part.most
            waiting.append((part.part, times * most))
        elif isinstance(part, Choice):
            waiting += [(item, times) for sequence in part.alternatives for item in sequence]
        else:
            yield part, times


def regular_rules(rules: Rules) -> dict[str, int]:
    """Rules that lead neither to themselves nor to a rule that does, and their sizes if these are
    not too large for a terminal."""
    sizes: dict[str, int] = {}
    used = {name: references(rule) for name, rule in rules.items()}
    users: dict[str, list[str]] = {name: [] for name in rules}
    waits = {name: len(names) for name, names in used.items()}
    for name, names in used.items():
        for other in names:
            users[other].append(name)
    ready = [name for name, n in waits.items() if n == 0]
    while ready:
        name = ready.pop()
        size = sum(n * max(1, len(t.value)) for t, n in _leaves(rules[name], 1) if t.kind == "text")
        size += sum(n for t, n in _leaves(rules[name], 1) if t.kind == "class")
        size += sum(sizes[other] * n for other, n in used[name].items())
        if size > _MAX_REGULAR:
            continue
        sizes[name] = size
        for user in users[name]:
            waits[user] -= 1
            if waits[user] == 0:
                ready.append(user)
    return sizes


def safe_terminals(rules: Rules, regular: dict[str, int]) -> set[str]:
    """The largest set of regular rules found that the lexer may have as terminals; none for a
    grammar that is too large to tell."""
    tokens = [token for rule in rules.values() for token, _ in _leaves(rule, 1)]
    try:
        letters = Letters(tokens)
    except TooLarge:
        return set()
    automata: dict[str, Automaton] = {}
    for name in regular:
        try:
            automata[name] = Automaton(rules, name, letters)
        except TooLarge:
            continue
    budget = _Budget(_MAX_STEPS)
    try:
        while unsafe := _unsafe(rules, automata, letters, budget):
            for name in unsafe:
                del automata[name]
    except TooLarge:
        return set()
    return set(automata)


class _Budget:
    """Steps of work that are left."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Raises TooLarge where there are fewer."""
        self._left -= steps
        if self._left < 0:
            raise TooLarge


def _unsafe(
    rules: Rules, automata: dict[str, Automaton], letters: Letters, budget: _Budget
) -> set[str]:
    """Terminals by which some terminal or character would be cut off. Raises TooLarge."""
    sets = _Sets(rules, automata, letters, budget)
    used = {name: automata[name] for name in sets.follow if name in automata}
    found = set()
    for name, automaton in used.items():
        for character, follow in sets.follow_of_letters.items():
            budget.spend()
            going_on = _after_letter(character, automaton)
            if letters.first_bytes(going_on) & letters.first_bytes(follow):
                found.add(name)
        for shorter, other in used.items():
            going_on = _after_text(other, automaton, budget)
            if letters.first_bytes(going_on) & letters.first_bytes(sets.follow[shorter]):
                found.add(name)
    return found


def _after_letter(letters: int, longer: Automaton) -> int:
    """The letters by which a terminal goes on after one of these."""
    found = 0
    for letter in bits(letters & longer.out[0]):
        found |= longer.out[longer.steps[0][letter]]
    return found


def _after_text(shorter: Automaton, longer: Automaton, budget: _Budget) -> int:
    """The letters by which a terminal goes on after a text of another one. Raises TooLarge."""
    found, seen, waiting = 0, {(0, 0)}, [(0, 0)]
    while waiting:
        one, two = waiting.pop()
        budget.spend(1 + len(longer.steps[two]))
        for letter in longer.steps[two].keys() & shorter.steps[one].keys():
            pair = shorter.steps[one][letter], longer.steps[two][letter]
            if pair in seen:
                continue
            seen.add(pair)
            waiting.append(pair)
            if shorter.ends[pair[0]]:
                found |= longer.out[pair[1]]
    return found


class _Sets:
    """FOLLOW sets of a grammar some of whose rules are terminals, as sets of letters.

    follow: of the rules that are reached from root without going into terminals. follow_of_letters:
    of the characters and classes in those that are no terminals, by their own sets of letters."""

    def __init__(
        self, rules: Rules, automata: dict[str, Automaton], letters: Letters, budget: _Budget
    ) -> None:
        self._rules, self._automata, self._letters = rules, automata, letters
        self._budget = budget
        self._first: dict[str, tuple[bool, int]] = {name: (False, 0) for name in rules}
        for name, automaton in automata.items():
            self._first[name] = automaton.nullable, automaton.out[0]
        self._find_first()
        self.follow: dict[str, int] = {"root": 0}
        self.follow_of_letters: dict[int, int] = {}
        self._changed = True
        while self._changed:
            self._changed = False
            for name in list(self.follow):
                if name not in automata:
                    self._visit(rules[name], self.follow[name])

    def _find_first(self) -> None:
        inner = [name for name in self._rules if name not in self._automata]
        changed = True
        while changed:
            changed = False
            for name in inner:
                found = self._first_of(self._rules[name])
                changed = changed or found != self._first[name]
                self._first[name] = found

    def _first_of(self, part: Part) -> tuple[bool, int]:
        """Whether a part may be empty, and the letters with which it begins."""
        self._budget.spend()
        if isinstance(part, Repeat):
            nullable, first = self._first_of(part.part)
            return nullable or part.least == 0, first if part.most != 0 else 0
        if isinstance(part, Token):
            if part.kind == "name":
                return self._first[part.value]
            masks = self._masks(part)
            return not masks, masks[0] if masks else 0
        nullable, first = False, 0
        for sequence in part.alternatives:
            goes_on = True
            for item in sequence:
                item_nullable, item_first = self._first_of(item)
                first |= item_first
                goes_on = item_nullable
                if not goes_on:
                    break
            nullable = nullable or goes_on
        return nullable, first

    def _masks(self, token: Token) -> list[int]:
        """The letters of a class, or of each character of a literal."""
        if token.kind == "class":
            return [self._letters.of(token.ranges)]
        return [self._letters.of([(ord(c), ord(c))]) for c in token.value]

    def _visit(self, part: Part, follow: int) -> None:
        """Adds to the sets what a part with these letters behind it says."""
        if isinstance(part, Repeat):
            if part.most != 0:
                _, first = self._first_of(part.part)
                self._visit(part.part, follow if part.most == 1 else follow | first)
        elif isinstance(part, Choice):
            for sequence in part.alternatives:
                behind = follow
                for item in reversed(sequence):
                    self._visit(item, behind)
                    nullable, first = self._first_of(item)
                    behind = first | behind if nullable else first
        elif part.kind == "name":
            self._add(self.follow, part.value, follow)
        else:
            for mask in reversed(self._masks(part)):
                self._add(self.follow_of_letters, mask, follow)
                follow = mask

    def _add(self, sets: dict[Key, int], key: Key, follow: int) -> None:
        known = sets.get(key)
        if known is None or follow & ~known:
            sets[key] = follow | (known or 0)
            self._changed = True
