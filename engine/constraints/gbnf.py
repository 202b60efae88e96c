"""Grammars in GBNF, the notation of llama.cpp, rewritten in the Lark notation of llguidance.

Source of the notation: llama.cpp, grammars/README.md. GBNF has no lexer: every way to read a text
counts. llguidance's lexer takes the longest terminal that matches, whatever may follow. So a rule
becomes a terminal only where that is the same (`safe_terminals`), and all else is read character
by character, which is exact, too, with some hundred times the work for each token."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from ...graph.errors import RequestError
from .gbnf_rules import Choice, Part, Repeat, Rules, parse_rules
from .gbnf_terminals import references, regular_rules, safe_terminals
from .gbnf_tokens import GbnfError, Token, tokens_of

_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.M)
_EMPTY = '""'
_SIGNS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


def is_gbnf(text: str) -> bool:
    """Whether a grammar has rules of the form `name ::= ...`."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str) -> str:
    """The same grammar for llguidance. Raises RequestError, with line, column and excerpt of this
    text, for one that is no GBNF, has no rule `root`, refers to a rule that it does not have or
    defines one twice."""
    try:
        rules = parse_rules(tokens_of(text))
    except GbnfError as error:
        raise RequestError(error.describe(text)) from None
    regular = regular_rules(rules)
    # Of a text that is one terminal nothing follows it, so that the longest match is the only one.
    terminals = {"root"} if "root" in regular else safe_terminals(rules, regular)
    return _lark(rules, terminals)


def _lark(rules: Rules, terminals: set[str]) -> str:
    """The rules in Lark: terminals as T0, T1, with all that they are made of, others as r0, r1."""
    numbers = {name: i for i, name in enumerate(rules)}
    whole = {name: f"T{i}" for name, i in numbers.items()}
    mixed = {name: f"{'T' if name in terminals else 'r'}{i}" for name, i in numbers.items()}
    lines = [f"start: {mixed['root']}"]
    for name in _reached(rules, ["root"], terminals):
        if name not in terminals:
            lines.append(f"{mixed[name]}: {_written(rules[name], mixed, by_character=True)}")
    for name in _reached(rules, sorted(terminals), set()):
        lines.append(f"{whole[name]}: {_written(rules[name], whole, by_character=False)}")
    return "\n".join(lines)


def _reached(rules: Rules, start: list[str], closed: set[str]) -> list[str]:
    """The rules that these lead to, themselves included, without going on from closed ones."""
    found = dict.fromkeys(start)
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name not in closed:
            new = [used for used in references(rules[name]) if used not in found]
            found.update(dict.fromkeys(new))
            waiting += dict.fromkeys(new)
    return list(found)


def _written(part: Part, names: Mapping[str, str], by_character: bool) -> str:
    if isinstance(part, Repeat):
        if part.most == 0:
            return _EMPTY
        most = "" if part.most is None else part.most
        sign = _SIGNS.get((part.least, part.most)) or f"{{{part.least},{most}}}"
        inner = _written(part.part, names, by_character)
        return f"{inner}{sign}" if isinstance(part.part, Choice) else f"({inner}){sign}"
    if isinstance(part, Choice):
        alternatives = []
        for sequence in part.alternatives:
            written = []
            for item in sequence:
                written.append(_written(item, names, by_character))
            alternatives.append(" ".join(written) or _EMPTY)
        return f"({' | '.join(alternatives)})"
    if part.kind == "text":
        return _literal(part, by_character)
    return names[part.value] if part.kind == "name" else part.value


def _literal(token: Token, by_character: bool) -> str:
    texts = list(token.value) if by_character else [token.value]
    # Strings of Lark are those of JSON without any control character.
    written = [json.dumps(t, ensure_ascii=False).replace("\x7f", "\\u007f") for t in texts]
    return " ".join(written) or _EMPTY
