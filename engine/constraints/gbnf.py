"""Grammars in GBNF, the notation of llama.cpp, rewritten in the Lark notation of llguidance."""

from __future__ import annotations

import re

from ...graph.errors import RequestError
from .library import llguidance

_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.M)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.S)
_LARK_TOKEN = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])*/')


def is_gbnf(text: str) -> bool:
    """Whether a grammar has rules of the form `name ::= ...`."""
    return _RULE.search(text) is not None


def gbnf_to_lark(text: str) -> str:
    """The same grammar for llguidance. Raises RequestError for a text that is no GBNF."""
    llguidance()
    from llguidance.gbnf_to_lark import gbnf_to_lark as convert

    plain = _ESCAPE.sub(_character, text)
    try:
        lark = convert(plain)
    except RecursionError:
        raise RequestError("GBNF nested too deeply") from None
    except Exception as error:
        raise RequestError(f"GBNF: {error}") from None
    return _LARK_TOKEN.sub(lambda m: r"/(.|\n)/" if m[0] == "/./" else m[0], lark)


def _character(escape: re.Match[str]) -> str:
    r"""\uXXXX and \UXXXXXXXX as the converter can take them; other escapes as they stand."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise RequestError(f"GBNF: {escape[0]} is no Unicode character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)
