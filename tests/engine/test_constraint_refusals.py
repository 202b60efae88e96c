"""What cannot be a constraint is refused with a short reason, whatever it is."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np
import pytest
from constrained import legal, tokenizer_of, tokens_of
from riverrun.engine.constraints import compile_constraint, library
from riverrun.engine.constraints.grammar import Compiled
from riverrun.engine.constraints.kinds import check_source
from riverrun.graph.errors import RequestError
from riverrun.models.tokenizer import load_tokenizer
from tokenizer_samples import CONTROL, USER, bpe_metadata

NESTED: dict[str, Any] = {}
for _ in range(3000):
    NESTED = {"items": NESTED}

ENDLESS: dict[str, Any] = {}
ENDLESS |= {"a": ENDLESS, "b": [ENDLESS]}

WRONG: list[tuple[str, Any, str]] = [
    (
        "jsonschema",
        {},
        "expected one of json_schema, json_object, regex, grammar, got 'jsonschema'",
    ),
    ("json_schema", "{", "json_schema: not JSON: Expecting property name"),
    ("json_schema", "[1]", r"json_schema: expected an object, got list '\[1\]'"),
    ("json_schema", None, "json_schema: expected an object, got NoneType"),
    ("json_schema", {"type": {1}}, "json_schema: cannot be written as JSON"),
    ("json_schema", NESTED, "json_schema: nested too deeply"),
    ("json_schema", ENDLESS, "json_schema: nested too deeply"),
    ("json_schema", "[" * 100_000, "json_schema: nested too deeply"),
    ("json_schema", {"type": "text"}, "json_schema: Invalid type: text"),
    ("json_schema", {"not": {}, "if": {}}, r'json_schema: Unimplemented keys: \["if", "not"\]'),
    ("json_schema", {"type": "string", "format": "odd"}, "json_schema: Unknown format: odd"),
    (
        "json_schema",
        {"$ref": "http://example.org/a"},
        "json_schema: Resource 'http://example.org/a'",
    ),
    ("json_schema", {"type": "string", "pattern": "a(?=b)"}, "look-ahead and look-behind"),
    ("json_schema", {"enum": []}, "json_schema: Unsatisfiable schema"),
    ("json_schema", {"const": "\ud800"}, "json_schema: expected valid Unicode, got the lone"),
    ("json_schema", '{"const": "\\ud800"}', "json_schema: expected valid Unicode, got the lone"),
    ("json_schema", b"{}", "json_schema: expected an object, got bytes"),
    ("json_schema", {"minimum": float("nan")}, "json_schema: cannot be written as JSON"),
    ("json_schema", {"type": "array", "uniqueItems": True}, r"Unimplemented keys: ..uniqueItems"),
    ("json_schema", {"if": {}, "then": {}}, r'Unimplemented keys: \["if", "then"\]'),
    ("json_schema", {"propertyNames": {"pattern": "a"}}, "Unimplemented keys: ..propertyNames"),
    ("json_schema", {"dependentRequired": {"a": ["b"]}}, "Unimplemented keys: ..dependentReq"),
    ("grammar", 'start: "\udcff"', r"grammar: expected valid Unicode, got the lone surrogate"),
    ("grammar", 'root ::= "\udcff"', r"grammar: expected valid Unicode, got the lone surrogate"),
    ("json_object", {}, "json_object: takes no source; give a schema as json_schema"),
    ("regex", "a(", "(?s)regex: invalid regex .*unclosed group"),
    ("regex", r"\bword", "regex: .*lookarounds not supported"),
    ("regex", "a\ud800", r"regex: expected valid Unicode, got the lone surrogate '\\ud800' at 1"),
    ("regex", b"a", "regex: expected a str, got bytes"),
    ("regex", "a" * 8193, "regex: expected at most 8192 characters, got 8193"),
    ("grammar", "start: other", r'grammar: at 1\(8\): unknown name: "other"'),
    ("grammar", 'start: "a', r"grammar: 1\(10\): lexer error"),
    ("grammar", 'rule: "a"', "grammar: no start rule found"),
    ("grammar", "start: <nothing>", 'grammar: .*unknown special token: "<nothing>"'),
    ("grammar", b"root ::= other", "grammar: expected a str, got bytes"),
    ("grammar", None, "grammar: expected a str, got NoneType"),
]


@pytest.mark.parametrize(("kind", "source", "message"), WRONG)
def test_wrong_sources(kind: str, source: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        compile_constraint(tokenizer_of("bpe"), kind, source)
    text = str(caught.value)
    assert len(text.splitlines()) <= 3 and len(text) < 600


@pytest.mark.parametrize(("kind", "source", "message"), WRONG)
def test_what_needs_no_vocabulary_is_found_without_one(
    kind: str, source: Any, message: str
) -> None:
    if source == "start: <nothing>":
        check_source(kind, source)
        return
    with pytest.raises(RequestError, match=message) as caught:
        check_source(kind, source)
    with pytest.raises(RequestError) as compiled:
        compile_constraint(tokenizer_of("bpe"), kind, source)
    assert str(caught.value) == str(compiled.value)


@pytest.mark.parametrize("source", ['root ::= "a" other', 'x ::= "a"', 'root ::= "a"{3,1}'])
def test_places_in_gbnf_are_found_without_a_vocabulary(source: str) -> None:
    with pytest.raises(RequestError, match="grammar: GBNF"):
        check_source("grammar", source)


@pytest.mark.parametrize("source", ['root ::= ("a"+)*', 'start: "a" <tool> | <[12]>'])
def test_right_sources_need_no_vocabulary(source: str) -> None:
    check_source("grammar", source)


def chain(rule: Callable[[int], str], last: str) -> Callable[[int], str]:
    return lambda n: "\n".join([rule(i) for i in range(n)] + [last.format(n)])


def references(n: int) -> str:
    named = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": named | {f"d{n}": {"type": "null"}}})


HOSTILE: dict[str, tuple[str, str]] = {
    "a chain of rules": (
        "grammar",
        "start: r0\n" + chain(lambda i: f"r{i}: r{i + 1}", 'r{}: "a"')(3500),
    ),
    "a chain of nested rules": (
        "grammar",
        "start: r0\n"
        + chain(lambda i: f"r{i}: " + "(" * 25 + f"r{i + 1}" + ")" * 25, 'r{}: "a"')(900),
    ),
    "a chain of terminals": (
        "grammar",
        "start: R0\n" + chain(lambda i: f"R{i}: R{i + 1}", 'R{}: "a"')(3500),
    ),
    "terminals that double": (
        "grammar",
        "start: R0\n" + chain(lambda i: f"R{i}: R{i + 1} R{i + 1}", 'R{}: "a"')(60),
    ),
    "parentheses": ("grammar", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "GBNF parentheses": ("grammar", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "many alternatives": ("grammar", "start: " + " | ".join(f'"{i}"' for i in range(5000))),
    "a chain of references": ("json_schema", references(4000)),
    "nothing but itself": ("json_schema", '{"$ref": "#"}'),
    "a rule without an end": ("grammar", 'start: "" start'),
    "regex parentheses": ("regex", "(" * 4000 + "a" + ")" * 4000),
    "a huge repeat": ("regex", "((a{1000}){1000}){1000}"),
    "many states": ("regex", "(a|b)*a(a|b){2000}"),
    "intersections": ("grammar", "start: A\nA: /.*a.{9000}/ & /.*b.{9000}/ & ~/.*c.{9000}/"),
    "an impossible length": (
        "json_schema",
        '{"type": "array", "items": {"type": "integer"}, "minItems": 1000000000}',
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sources_are_refused_or_work(name: str) -> None:
    tokenizer = tokenizer_of("bpe")
    try:
        constraint = compile_constraint(tokenizer, *HOSTILE[name])
        for _ in range(8):
            ids = legal(constraint, tokenizer)
            constraint.accept(ids[0])
        constraint.rollback(8)
    except RequestError as error:
        assert len(str(error).splitlines()) <= 3 and len(str(error)) < 600


def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_SECONDS", 0.01)
    slow = "start: R0\n" + chain(lambda i: f"R{i}: (R{i + 1})*", 'R{}: "a"')(1000)
    with pytest.raises(RequestError, match=r"grammar: takes longer than 0\.01 s to compile"):
        compile_constraint(tokenizer_of("bpe"), "grammar", slow)


def test_too_much_work_at_one_step_is_refused_and_taken_back() -> None:
    """The library's matcher stays in its error; the constraint goes on from before it."""
    tokenizer = tokenizer_of("bpe")
    many = " | ".join(f'"{i:04}"' for i in range(2500))
    constraint = compile_constraint(tokenizer, "grammar", f'start: "a" ("b" x | "c")\nx: {many}')
    a, b, c = tokens_of(tokenizer, "abc")
    constraint.accept(a)
    assert legal(constraint, tokenizer) == [b, c]
    with pytest.raises(RequestError, match=r"takes too much work at this point: .*2501 items"):
        constraint.accept(b)
    assert constraint.validate([c]) == 1 and constraint.validate([b, c]) == 0
    assert legal(constraint, tokenizer) == [b, c]
    constraint.rollback(1)
    assert constraint.validate([a, c]) == 2


def test_work_of_other_generations_makes_no_token_illegal() -> None:
    tokenizer = tokenizer_of("bpe")
    double = chain(lambda i: f"R{i}: R{i + 1} | R{i + 1} R{i + 1}", 'R{}: "a"')(200)
    constraint = compile_constraint(tokenizer, "grammar", "start: R0\n" + double)
    (a,) = tokens_of(tokenizer, "a")
    before = constraint.clone()
    assert constraint.validate([a] * 50) < 50
    assert legal(before, tokenizer) == [a]
    with pytest.raises(RequestError, match="does not fit"):
        before.accept(a + 1)
    before.accept(a)
    assert a in legal(before, tokenizer)


def test_states_of_the_lexer_last_for_any_number_of_generations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each generation makes some 160 states, and the limit is on all of them together."""
    limits = functools.partial(llguidance.LLParserLimits, max_lexer_states=1500)
    monkeypatch.setattr(llguidance, "LLParserLimits", limits)
    tokenizer, rng = tokenizer_of("bpe"), np.random.default_rng(0)
    constraint = compile_constraint(tokenizer, "regex", "(a|b)*a(a|b){60}")
    renewed: list[Compiled] = []
    renew = Compiled.renew
    monkeypatch.setattr(Compiled, "renew", lambda self: (renewed.append(self), renew(self)))
    for _ in range(30):
        generation = constraint.start(tokenizer)
        for _ in range(150):
            assert legal(generation, tokenizer)[:2] == [97, 98]
            generation.accept(int(rng.integers(97, 99)))
    assert len(renewed) >= 2


def test_ids_that_only_the_library_has_are_never_legal() -> None:
    tokenizer = tokenizer_of("bpe")
    for beyond in range(tokenizer.n_vocab + 2, tokenizer.n_vocab + 5):
        with pytest.raises(RequestError, match=r"grammar: .*(allows no token|too large)"):
            compile_constraint(tokenizer, "grammar", f"start: <[{beyond}]>")


def test_a_dead_end_is_told() -> None:
    """What the grammar wants next is a character that this vocabulary has no bytes for."""
    metadata = bpe_metadata(specials=(("<end>", CONTROL),), eos_token_id=262)
    metadata["tokenizer.ggml.suppress_tokens"] = np.array([0xE4], np.int32)
    tokenizer = load_tokenizer(metadata, "no lead byte")
    constraint = compile_constraint(tokenizer, "regex", "a中")
    constraint.accept(ord("a"))
    for _ in range(2):
        with pytest.raises(RequestError, match="allows no token at this point"):
            legal(constraint, tokenizer)
    constraint.rollback(1)
    assert legal(constraint, tokenizer) == [ord("a")]
    with pytest.raises(RequestError, match="regex: the constraint allows no token"):
        compile_constraint(tokenizer, "regex", "中")


def test_vocabularies_that_cannot_be_constrained() -> None:
    nothing = load_tokenizer({"tokenizer.ggml.model": "none"}, "model.gguf")
    endless = load_tokenizer(bpe_metadata(), "model.gguf")
    for tokenizer in (nothing, endless):
        with pytest.raises(
            RequestError, match=r"model.gguf: .* an end token, and this one has none"
        ):
            compile_constraint(tokenizer, "json_object")


def test_very_long_tokens_do_no_harm() -> None:
    metadata = bpe_metadata(specials=(("<end>", CONTROL), ("b" * 5000, USER)), eos_token_id=262)
    tokenizer = load_tokenizer(metadata, "long")
    constraint = compile_constraint(tokenizer, "regex", "b+")
    assert legal(constraint, tokenizer) == [ord("b")]


@pytest.mark.parametrize("kind", ["json_object", "regex", "grammar"])
def test_without_the_package_it_says_what_to_install(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match=r"pip install riverrun\[grammar\]"):
        compile_constraint(tokenizer_of("bpe"), kind, None if kind == "json_object" else "a")
