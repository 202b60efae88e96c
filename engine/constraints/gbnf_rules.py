"""The rules of a grammar in GBNF as trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .gbnf_tokens import GbnfError, Token

# Trees are walked by recursion, and llguidance takes only some 25 parentheses in each other. So
# parentheses of every fourth level become a rule of their own.
_LEVELS, _MAX_REPEATS = 4, 3


@dataclass
class Repeat:
    """A part that comes `least` to `most` times; most None: without an end."""

    part: Part
    least: int
    most: int | None


@dataclass
class Choice:
    """One of several alternatives, each a sequence of parts that may be empty."""

    alternatives: list[list[Part]] = field(default_factory=lambda: [[]])


# Tokens here are of kind name, text or class.
Part = Token | Repeat | Choice
Rules = dict[str, Choice]


def parse_rules(tokens: list[Token]) -> Rules:
    """The rules by name, and others under names that GBNF cannot have.

    Raises GbnfError for tokens that make no rules, for a rule that is defined twice or not at all,
    and where there is no rule root."""
    rules: Rules = {}
    references: list[Token] = []
    place = 0
    while True:
        while tokens[place].kind == "newline":
            place += 1
        name = tokens[place]
        if name.kind == "end":
            break
        if name.kind != "name":
            raise GbnfError(name.at, f"expected a rule, name ::= ..., got {name.text}")
        if tokens[place + 1].kind != "define":
            raise GbnfError(name.at, f"expected ::= after {name.text}, the name of a rule")
        if name.text in rules:
            raise GbnfError(name.at, f"the rule {name.text} is defined twice")
        rules[name.text] = Choice()
        end = _parse_body(tokens, place + 2, rules, rules[name.text])
        references += [token for token in tokens[place + 2 : end] if token.kind == "name"]
        place = end
    _check_names(rules, references)
    return rules


def _parse_body(tokens: list[Token], place: int, rules: Rules, body: Choice) -> int:
    """Fills the alternatives of a rule; the place behind them."""
    stack, opened = [body], list[Token]()
    while not _ends_rule(tokens, place, nested=bool(opened)):
        token = tokens[place]
        if token.kind == "open":
            _open(token, stack, opened, rules)
        else:
            _take(token, stack, opened)
        place += 1
    if opened:
        raise GbnfError(opened[-1].at, "this ( is never closed")
    return place


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


def _open(token: Token, stack: list[Choice], opened: list[Token], rules: Rules) -> None:
    group = Choice()
    opened.append(token)
    part: Part = group
    if len(opened) % _LEVELS == 0:
        name = f"({token.at}"
        rules[name] = group
        part = Token("name", token.at, token.text, name)
    stack[-1].alternatives[-1].append(part)
    stack.append(group)


def _take(token: Token, stack: list[Choice], opened: list[Token]) -> None:
    """One token of a rule's alternatives; `opened` has the parentheses around it."""
    sequence = stack[-1].alternatives[-1]
    if token.kind == "close":
        if not opened:
            raise GbnfError(token.at, "this ) closes nothing")
        opened.pop()
        stack.pop()
    elif token.kind == "bar":
        stack[-1].alternatives.append([])
    elif token.kind == "repeat":
        _repeat(token, sequence)
    elif token.kind in ("name", "text", "class"):
        sequence.append(token)
    elif token.kind != "newline":
        raise GbnfError(token.at, f"{token.text} is not allowed within a rule")


def _repeat(token: Token, sequence: list[Part]) -> None:
    if not sequence:
        raise GbnfError(token.at, f"nothing stands before {token.text} to repeat")
    least, most = token.times
    last = sequence[-1]
    if _repeats(last) == _MAX_REPEATS:
        raise GbnfError(token.at, f"more than {_MAX_REPEATS} repetitions of the same part")
    sequence[-1] = Repeat(last, least, most)


def _repeats(part: Part) -> int:
    return 1 + _repeats(part.part) if isinstance(part, Repeat) else 0


def _check_names(rules: Mapping[str, Choice], references: list[Token]) -> None:
    for token in references:
        if token.text not in rules:
            raise GbnfError(token.at, f"there is no rule {token.text}")
    if "root" not in rules:
        raise GbnfError(None, "there is no rule root, with which a text begins")
