"""Characters that stand for those of control tokens in the texts that a template is given, so that
in what it renders the control tokens of its own can be told from those that messages spell out."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...graph.errors import RequestError

# The Private Use Area of Unicode's basic plane: JSON has one escape of four digits for each.
_FIRST, _LAST = 0xE000, 0xF8FF
# Characters of the names of roles and fields, which templates look at, and those that JSON escapes.
_NO_MARKS = "_-.\"'\\"
_TAG = re.compile(r"\{[{%](.*?)[}%]\}", re.DOTALL)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


@dataclass(frozen=True)
class StandIns:
    """What is put in the place of which characters.

    A control token is found in a rendered text only where none of its marks came from a message,
    however the template joined, cut or trimmed them: each mark (a character that is no letter,
    digit, space, quote, backslash, "_", "-" or ".") has a stand-in wherever messages have it. A
    token without marks has one for its first character where a message spells it out as a whole.
    Messages keep the texts that the template itself looks for (`</think>`), unless they could be
    part of a control token.

    of: the stand-in of each character."""

    of: Mapping[str, str]
    _covered: re.Pattern[str]
    _kept: frozenset[str]

    @property
    def originals(self) -> dict[str, str]:
        """The character of each stand-in."""
        return {stand_in: original for original, stand_in in self.of.items()}

    def cover(self, value: Any) -> Any:
        """A value of the types of JSON with stand-ins in all its texts, keys included."""
        if isinstance(value, str):
            return self._covered.sub(self._replaced, value)
        if isinstance(value, dict):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.cover(item) for item in value)
        return value

    def settle(self, rendered: str) -> str:
        """A rendered text where the template wrote ASCII JSON, which has stand-ins in escapes, and
        would have had characters beyond ASCII so."""
        for original, stand_in in self.of.items():
            meant = stand_in if original.isascii() else json.dumps(original)[1:-1]
            rendered = rendered.replace(json.dumps(stand_in)[1:-1], meant)
        return rendered

    def uncover(self, text: str) -> str:
        """A text with the characters that its stand-ins stand for."""
        return text.translate({ord(stand_in): c for stand_in, c in self.originals.items()})

    def _replaced(self, found: re.Match[str]) -> str:
        text = found[0]
        return text if text in self._kept else self.of[text[0]] + text[1:]


def stand_ins(controls: Sequence[str], source: str, values: Any) -> StandIns:
    """Stand-ins for what a template is rendered with.

    controls: the texts of a vocabulary's control tokens; source: the template; values: what is to
    be covered. Raises RequestError where the texts leave no characters for it."""
    marks, plain, kept = _split(tuple(controls), source)
    originals = sorted(marks | {text[0] for text in plain})
    used = "".join([source, *controls, *_texts(values)])
    chosen = dict(zip(originals, _free(used), strict=False))
    if len(chosen) < len(originals):
        raise RequestError(
            "messages: expected texts that leave some of the private use characters U+E000 to "
            "U+F8FF free, which stand for those of control tokens; got nearly all of them"
        )
    # Longest first; what the template looks for goes before the marks in it.
    texts = [*sorted(kept | plain, key=len, reverse=True), *marks]
    return StandIns(chosen, re.compile("|".join(map(re.escape, texts)) or "(?!)"), kept)


@lru_cache(8)
def _split(
    controls: tuple[str, ...], source: str
) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The marks of control tokens, the tokens without marks, and the template's texts with marks
    that no control token overlaps."""
    of = {text: {c for c in text if _is_mark(c)} for text in controls if text}
    marks: frozenset[str] = frozenset().union(*of.values())
    heads = {text[:n] for text in of for n in range(1, len(text) + 1)}
    tails = {text[-n:] for text in of for n in range(1, len(text) + 1)}
    inside = "\0".join(of)
    kept = frozenset(
        literal
        for literal in _literals(source)
        if not marks.isdisjoint(literal)
        and literal not in inside
        and not any(text in literal for text in of)
        and not any(literal[n:] in heads or literal[: n + 1] in tails for n in range(len(literal)))
    )
    return marks, frozenset(text for text, has in of.items() if not has), kept


def _is_mark(character: str) -> bool:
    return not (character.isalnum() or character.isspace() or character in _NO_MARKS)


def _literals(source: str) -> Iterator[str]:
    """The texts in quotes of a template's statements and expressions."""
    for tag in _TAG.finditer(source):
        for quoted in _LITERAL.findall(tag[1]):
            try:
                yield ast.literal_eval(quoted)
            except (SyntaxError, ValueError):
                continue


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _free(used: str) -> Iterator[str]:
    """Private use characters that a text has neither as such nor as an escape of JSON."""
    taken = {*used, *(chr(int(code, 16)) for code in re.findall(r"\\u([0-9a-fA-F]{4})", used))}
    return (chr(code) for code in range(_FIRST, _LAST + 1) if chr(code) not in taken)
