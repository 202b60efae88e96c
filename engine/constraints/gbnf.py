"""Grammars in GBNF, the notation of llama.cpp, rewritten in the Lark notation of llguidance.

Source of the notation: llama.cpp, grammars/README.md. GBNF has no lexer: every way to read a text
counts. llguidance's lexer takes the longest terminal that matches, whatever may follow. So a
grammar becomes either one terminal, if its root never leads back to itself, or rules whose
terminals are single characters. Both are exact; the second needs more work for each token."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ...graph.errors import RequestError
from .gbnf_tokens import GbnfError, Token, tokens_of

_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.M)
_EMPTY = '""'
_SIGNS = {(0, None): "*", (1, None): "+", (0, 1): "?"}
# In characters and classes: the lexer's work can grow faster than the size of a terminal.
_MAX_TERMINAL = 2000
_MAX_DEPTH = 500


def is_gbnf(text: str) -> bool:
    """Whether a grammar has rules of the form `name ::= ...`."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str) -> str:
    """The same grammar for llguidance. Raises RequestError, with line, column and excerpt of this
    text, for one that is no GBNF, has no rule `root`, refers to a rule that it does not have or
    defines one twice."""
    try:
        rules = _parse(tokens_of(text))
        _check_names(rules)
    except GbnfError as error:
        raise RequestError(error.describe(text)) from None
    regular = _small_regular_rules(rules)
    if "root" in regular:
        return _lark({name: rules[name] for name in regular}, "T", _in_one)
    return _lark(rules, "r", _by_character)


# Text in Lark, tokens of kind name, text and class, and lists of these.
_Part = str | Token | list["_Part"]


@dataclass
class _Item:
    """A part of a rule. size: characters and classes in it, repeated ones as often as they may
    come; uses: the same for the rules in it."""

    part: _Part
    size: int = 0
    uses: Counter[str] = field(default_factory=Counter)

    def times(self, least: int, most: int | None) -> _Item:
        """This item repeated; most None: without an end."""
        if most == 0:
            return _Item(_EMPTY)
        sign = _SIGNS.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
        factor = max(least, 1) if most is None else most
        uses = Counter({name: n * factor for name, n in self.uses.items()})
        return _Item(["(", self.part, ")", sign], self.size * factor, uses)


@dataclass
class _Group:
    """Alternatives in the making, of a rule or between the parentheses that `opened` begins."""

    opened: Token | None = None
    alternatives: list[list[_Item]] = field(default_factory=lambda: [[]])

    def add(self, item: _Item) -> None:
        """Goes on with the last alternative."""
        self.alternatives[-1].append(item)

    def repeat(self, token: Token) -> None:
        """Repeats the last item. Raises GbnfError where there is none."""
        if not self.alternatives[-1]:
            raise GbnfError(token.at, f"nothing stands before {token.text} to repeat")
        self.add(self.alternatives[-1].pop().times(*token.times))

    def closed(self) -> _Item:
        """All alternatives as one item."""
        parts: list[_Part] = []
        size, uses = 0, Counter[str]()
        for alternative in self.alternatives:
            parts.append(" | " if parts else "(")
            for item in alternative or [_Item(_EMPTY)]:
                parts += [item.part, " "]
                size += item.size
                uses.update(item.uses)
        return _Item([*parts, ")"], size, uses)


@dataclass
class _Rule:
    body: _Item
    references: list[Token]


def _parse(tokens: list[Token]) -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {}
    place = 0
    while True:
        while tokens[place].kind == "newline":
            place += 1
        name = tokens[place]
        if name.kind == "end":
            return rules
        if name.kind != "name":
            raise GbnfError(name.at, f"expected a rule, name ::= ..., got {name.text}")
        if tokens[place + 1].kind != "define":
            raise GbnfError(name.at, f"expected ::= after {name.text}, the name of a rule")
        if name.text in rules:
            raise GbnfError(name.at, f"the rule {name.text} is defined twice")
        body, end = _parse_body(tokens, place + 2)
        references = [token for token in tokens[place + 2 : end] if token.kind == "name"]
        rules[name.text] = _Rule(body, references)
        place = end


def _parse_body(tokens: list[Token], place: int) -> tuple[_Item, int]:
    """The alternatives of a rule, and the place behind them."""
    stack = [_Group()]
    while not _ends_rule(tokens, place, nested=len(stack) > 1):
        _take(tokens[place], stack)
        place += 1
    if stack[-1].opened:
        raise GbnfError(stack[-1].opened.at, "this ( is never closed")
    return stack[0].closed(), place


def _ends_rule(tokens: list[Token], place: int, nested: bool) -> bool:
    """Line ends separate rules, but not within parentheses nor right after ::= and |, unless a
    new rule begins there."""
    kind = tokens[place].kind
    if kind == "name" and tokens[place - 1].kind == "newline":
        return tokens[place + 1].kind == "define"
    if kind == "newline" and not nested:
        while tokens[place].kind == "newline":
            place -= 1
        return tokens[place].kind not in ("define", "bar")
    return kind == "end"


def _take(token: Token, stack: list[_Group]) -> None:
    """One token of a rule's alternatives."""
    if token.kind == "open":
        if len(stack) > _MAX_DEPTH:
            raise GbnfError(token.at, f"more than {_MAX_DEPTH} parentheses are open")
        stack.append(_Group(token))
    elif token.kind == "close":
        if len(stack) == 1:
            raise GbnfError(token.at, "this ) closes nothing")
        item = stack.pop().closed()
        stack[-1].add(item)
    elif token.kind == "bar":
        stack[-1].alternatives.append([])
    elif token.kind == "repeat":
        stack[-1].repeat(token)
    elif token.kind == "name":
        stack[-1].add(_Item(token, 0, Counter([token.text])))
    elif token.kind == "text":
        stack[-1].add(_Item(token, len(token.value)))
    elif token.kind == "class":
        stack[-1].add(_Item(token, 1))
    elif token.kind != "newline":
        raise GbnfError(token.at, f"{token.text} is not allowed within a rule")


def _check_names(rules: Mapping[str, _Rule]) -> None:
    for rule in rules.values():
        for token in rule.references:
            if token.text not in rules:
                raise GbnfError(token.at, f"there is no rule {token.text}")
    if "root" not in rules:
        raise GbnfError(None, "there is no rule root, with which a text begins")


def _small_regular_rules(rules: Mapping[str, _Rule]) -> list[str]:
    """Rules that lead neither to themselves nor to a rule that does, and are not too large."""
    sizes: dict[str, int] = {}
    users: dict[str, list[str]] = {name: [] for name in rules}
    waits = {name: len(rule.body.uses) for name, rule in rules.items()}
    for name, rule in rules.items():
        for used in rule.body.uses:
            users[used].append(name)
    ready = [name for name, n in waits.items() if n == 0]
    while ready:
        name = ready.pop()
        body = rules[name].body
        size = body.size + sum(sizes[used] * n for used, n in body.uses.items())
        if size > _MAX_TERMINAL:
            continue
        sizes[name] = size
        for user in users[name]:
            waits[user] -= 1
            if waits[user] == 0:
                ready.append(user)
    return list(sizes)


def _lark(rules: Mapping[str, _Rule], letter: str, literal: Callable[[str], str]) -> str:
    """The rules in Lark, their names one letter and a number."""
    names = {name: f"{letter}{i}" for i, name in enumerate(rules)}
    written = {"name": names.__getitem__, "text": literal, "class": str}
    lines = [f"start: {names['root']}"]
    for name, rule in rules.items():
        parts = (
            part if isinstance(part, str) else written[part.kind](part.value)
            for part in _flat(rule.body.part)
        )
        lines.append(f"{names[name]}: {''.join(parts)}")
    return "\n".join(lines)


def _in_one(text: str) -> str:
    """A literal of Lark, whose strings are JSON's without any control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _by_character(text: str) -> str:
    return f"({' '.join(map(_in_one, text))})" if text else _EMPTY


def _flat(part: _Part) -> Iterator[str | Token]:
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += reversed(part)
        else:
            yield part
