"""Generated text fits what was asked for; masks, checks and acceptance always agree."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import riverrun as rr
from constrained import (
    ENDS,
    generate,
    legal,
    random_logits,
    text_of,
    tokenizer_of,
    tokens_of,
)
from riverrun.engine.constraints import Constraint, compile_constraint
from riverrun.engine.constraints.vocabulary import vocabulary_of
from riverrun.graph.errors import BackendError, RequestError
from riverrun.models.tokenizer import Tokenizer, load_tokenizer
from tokenizer_samples import NORMAL, bpe_metadata

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SUM = """
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
"""
SUM_GBNF = r"""
# the same again
root    ::= product (("\u002b" | "-") product)*
product ::= atom-or ([*/] atom-or)*
atom-or ::= [0-9]{1,3} | "(" root ")"
"""
THINK = """
start: think answer
think[lazy]: /(.|\\n)*<\\/think>/
answer: %json {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
               "additionalProperties": false}
"""
# The mark as a token that only its name stands for.
THINK_NAMED = 'start: /(.|\\n)*/ </think> answer\nanswer: "{" /[a-z]*/ "}"'
WALKED: dict[str, tuple[str, Any]] = {
    "schema": ("json_schema", PERSON),
    "object": ("json_object", None),
    "regex": ("regex", r"(ab|a)*c{2,5}|[\p{L} ]{3,}"),
    "lark": ("grammar", SUM),
    "gbnf": ("grammar", SUM_GBNF),
    "think": ("grammar", THINK),
    "named": ("grammar", THINK_NAMED),
    "limited": ("grammar", 'start: a b\na[max_tokens=3]: /[a-z]*/\nb: "!" /[0-9]+/'),
}


def is_person(value: Any) -> bool:
    if not (
        isinstance(value, dict) and {"name", "age"} <= value.keys() <= set(PERSON["properties"])
    ):
        return False
    tags, after = value.get("tags", []), value.get("next")
    return (
        isinstance(value["name"], str)
        and len(value["name"]) <= 12
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and len(tags) <= 3
        and set(tags) <= {"a", "bc"}
        and (after is None or is_person(after))
    )


def is_sum(text: str) -> bool:
    return re.fullmatch(r"[-+*/()0-9]+", text) is not None and bool(
        compile(re.sub(r"\d+", "1", text), "sum", "eval")
    )


FITS: dict[str, tuple[str, Any, Callable[[str], bool]]] = {
    "schema": ("json_schema", PERSON, lambda text: is_person(json.loads(text))),
    "schema text": ("json_schema", json.dumps(PERSON), lambda text: is_person(json.loads(text))),
    "compact": (
        "json_schema",
        PERSON | {"x-guidance": {"whitespace_flexible": False}},
        lambda text: (
            json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
            == text.replace("\\/", "/")
        ),
    ),
    "any schema": ("json_schema", True, lambda text: [json.loads(text)] != []),
    "object": ("json_object", None, lambda text: isinstance(json.loads(text), dict)),
    "regex": (
        "regex",
        r"[a-f]{2,4}-\d{3}(x|é|中)+",
        lambda text: re.fullmatch(r"[a-f]{2,4}-\d{3}(x|é|中)+", text) is not None,
    ),
    "anchored": (
        "regex",
        "^(yes|no|/maybe)$",
        lambda text: text in ("yes", "no", "/maybe"),
    ),
    "lark": ("grammar", SUM, is_sum),
    "gbnf": ("grammar", SUM_GBNF, is_sum),
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FITS)
def test_generated_text_fits(name: str, seed: int) -> None:
    kind, source, fits = FITS[name]
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, kind, source)
    assert fits(text_of(tokenizer, generate(constraint, tokenizer, seed)))
    assert constraint.finished


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["bpe", "spm", "llama-spm", "phi-3", "qwen35", "llama-bpe"])
def test_json_from_every_kind_of_vocabulary(name: str, seed: int) -> None:
    tokenizer = tokenizer_of(name)
    constraint = compile_constraint(tokenizer, "json_schema", PERSON)
    text = text_of(tokenizer, generate(constraint, tokenizer, seed, 60))
    assert is_person(json.loads(text))


def walk(constraint: Constraint, tokenizer: Tokenizer, seed: int, n: int) -> list[int]:
    """Up to n legal tokens, accepted; the think mark becomes likely half way."""
    rng, tokens = np.random.default_rng(seed), []
    mark = tokenizer.token_id("</think>")
    for step in range(n):
        ids = legal(constraint, tokenizer)
        token = int(rng.choice(ids))
        if step == n // 2 and mark in ids:
            token = mark
        constraint.accept(token)
        tokens.append(token)
    return tokens


@pytest.mark.parametrize(
    "tokenizer", [tokenizer_of("bpe"), tokenizer_of("spm")], ids=["bpe", "spm"]
)
@pytest.mark.parametrize("name", WALKED)
def test_after_rollback_it_equals_a_fresh_one(name: str, tokenizer: Tokenizer) -> None:
    constraint = compile_constraint(tokenizer, *WALKED[name])
    fresh = constraint.clone()
    logits = np.random.default_rng(0).standard_normal(tokenizer.n_vocab).astype(np.float32)
    rng, kept = np.random.default_rng(1), []
    for turn in range(12):
        kept += walk(constraint, tokenizer, turn, int(rng.integers(1, 9)))
        n = int(rng.integers(0, min(len(kept), 10) + 1))
        constraint.rollback(n)
        del kept[len(kept) - n :]
        again = fresh.clone()
        for token in kept:
            again.accept(token)
        assert constraint.mask(logits).tobytes() == again.mask(logits).tobytes()
        assert constraint.finished == again.finished
    with pytest.raises(RequestError, match=f"0 to {len(kept)}, .* got {len(kept) + 1}"):
        constraint.rollback(len(kept) + 1)
    constraint.rollback(len(kept))
    assert constraint.mask(logits).tobytes() == fresh.mask(logits).tobytes()


@pytest.mark.parametrize("name", WALKED)
def test_masks_checks_and_acceptance_agree(name: str) -> None:
    tokenizer = tokenizer_of("bpe")
    constraint = compile_constraint(tokenizer, *WALKED[name])
    for seed in range(10):
        ids = set(legal(constraint, tokenizer))
        for token in range(tokenizer.n_vocab):
            assert constraint.allows(token) == (token in ids) == constraint.validate([token])
        walk(constraint, tokenizer, seed, 2)
    for token in (-1, tokenizer.n_vocab, 10**12):
        assert not constraint.allows(token) and constraint.validate([token]) == 0
        with pytest.raises(RequestError, match="does not fit"):
            constraint.accept(token)


def test_a_clone_goes_its_own_way() -> None:
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, "json_schema", PERSON)
    for token in tokens_of(tokenizer, '{"name":"'):
        constraint.accept(token)
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    before = constraint.mask(logits).copy()
    other = constraint.clone()
    first = other.mask(logits)
    for token in tokens_of(tokenizer, 'x","age":1'):
        other.accept(token)
    assert other.mask(logits).tobytes() != before.tobytes()
    assert constraint.mask(logits).tobytes() == before.tobytes()
    assert constraint.mask(logits) is not first
    other.rollback(10)
    assert other.mask(logits).tobytes() == before.tobytes()
    with pytest.raises(RequestError):
        constraint.clone().rollback(10)


@pytest.mark.parametrize("at", range(9))
def test_drafts_are_trimmed_at_the_first_illegal_one(at: int) -> None:
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, "json_schema", PERSON)
    for token in tokens_of(tokenizer, "{"):
        constraint.accept(token)
    before = constraint.mask(np.zeros(tokenizer.n_vocab, np.float32)).copy()
    good = tokens_of(tokenizer, '"name":"a"')
    bad = tokenizer.token_id("}")
    for wrong in (bad, -1, tokenizer.n_vocab, tokenizer.eos_id, *sorted(tokenizer.eog_ids)):
        if at < 8 or wrong != bad:
            assert constraint.validate([*good[:at], wrong, *good[at + 1 :]]) == at
    assert constraint.validate(good) == 10 and constraint.validate([]) == 0
    assert constraint.mask(np.zeros(tokenizer.n_vocab, np.float32)).tobytes() == before.tobytes()


def test_drafts_past_the_end_are_trimmed() -> None:
    tokenizer = tokenizer_of("demo")
    constraint = compile_constraint(tokenizer, "regex", "ab")
    end, a = sorted(tokenizer.eog_ids)[0], tokens_of(tokenizer, "a")[0]
    ab = tokens_of(tokenizer, "ab")
    assert constraint.validate([*ab, a, a]) == 2
    assert constraint.validate([*ab, end, a]) == 3
    assert constraint.validate([a, end]) == 1
    assert not constraint.finished


@pytest.mark.parametrize("name", ["think", "named"])
@pytest.mark.parametrize("lead", range(8))
def test_a_switch_at_every_place_of_a_window(lead: int, name: str) -> None:
    """Free text, the mark and then the answer, drafted in one window: with one token of the
    answer wrong, with all right, and each partly taken back."""
    tokenizer = tokenizer_of("bpe")
    constraint = compile_constraint(tokenizer, *WALKED[name])
    mark = tokenizer.token_id("</think>")
    assert mark is not None
    answer = tokens_of(tokenizer, '{"n":7}' if name == "think" else "{abcde}")
    free = tokens_of(tokenizer, '{"x}!'[: lead % 6] + "}" * (lead // 6))
    window = [*free, mark, *answer]
    assert constraint.validate(window) == len(window)
    for at in range(len(answer)):
        wrong = [*free, mark, *answer[:at], tokens_of(tokenizer, "?")[0], *answer[at:]]
        assert constraint.validate(wrong) == len(free) + 1 + at
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    for kept in range(len(window) + 1):
        fresh = compile_constraint(tokenizer, *WALKED[name])
        used = fresh.clone()
        for token in window:
            used.accept(token)
        assert used.finished
        used.rollback(len(window) - kept)
        for token in window[:kept]:
            fresh.accept(token)
        assert used.mask(logits).tobytes() == fresh.mask(logits).tobytes()
        assert used.validate(window[kept:]) == len(window) - kept


@pytest.mark.parametrize("seed", range(6))
def test_rounds_with_drafts_give_what_plain_decoding_gives(seed: int) -> None:
    tokenizer = tokenizer_of("demo")
    start = compile_constraint(tokenizer, "json_schema", PERSON)
    plain = generate(start.clone(), tokenizer, seed)
    constraint, tokens, rng = start.clone(), [], np.random.default_rng(seed)

    def logits_at(step: int) -> np.ndarray:
        return random_logits(tokenizer, seed, step, 24)

    while not (tokens and tokens[-1] in tokenizer.eog_ids):
        drafts = plain[len(tokens) :][: int(rng.integers(0, 6))]
        drafts += rng.integers(0, tokenizer.n_vocab + 9, 3).tolist()
        drafts = drafts[: constraint.validate(drafts)]
        for token in drafts:
            constraint.accept(token)
        constraint.rollback(len(drafts))
        for draft in [*drafts, None]:
            token = int(constraint.mask(logits_at(len(tokens))).argmax())
            constraint.accept(token)
            tokens.append(token)
            if token != draft or token in tokenizer.eog_ids:
                break
    assert tokens[:-1] == plain


def test_ends_are_legal_where_the_text_may_end_and_alone_after_it() -> None:
    tokenizer = tokenizer_of("bpe")
    ends = sorted(tokenizer.eog_ids)
    assert [tokenizer.token_text(end) for end in ends] == [text for text, _ in ENDS]
    constraint = compile_constraint(tokenizer, "regex", "ab?")
    a, b = tokens_of(tokenizer, "ab")
    assert legal(constraint, tokenizer) == [a]
    constraint.accept(a)
    assert legal(constraint, tokenizer) == [b, *ends] and not constraint.finished
    constraint.accept(b)
    assert legal(constraint, tokenizer) == ends and constraint.finished
    for end in ends:
        constraint.accept(end)
        assert legal(constraint, tokenizer) == ends and constraint.finished
        constraint.rollback(1)
    constraint.accept(ends[0])
    with pytest.raises(RequestError, match="does not fit the constraint after 3 tokens"):
        constraint.accept(b)
    constraint.rollback(2)
    assert legal(constraint, tokenizer) == [b, *ends] and not constraint.finished
    constraint.accept(ends[1])
    assert constraint.finished and constraint.validate([b]) == 0


def test_an_empty_text_may_end_at_once() -> None:
    tokenizer = tokenizer_of("bpe")
    for kind, source in (("regex", ""), ("regex", "a{0}"), ("grammar", 'root ::= ""')):
        constraint = compile_constraint(tokenizer, kind, source)
        assert constraint.finished and legal(constraint, tokenizer) == sorted(tokenizer.eog_ids)


def test_characters_in_parts() -> None:
    tokenizer = tokenizer_of("bpe")
    constraint = compile_constraint(tokenizer, "regex", "[é中].")
    # Token ids are byte values here.
    assert legal(constraint, tokenizer) == [0xC3, 0xE4]
    constraint.accept(0xE4)
    assert legal(constraint, tokenizer) == [0xB8]
    assert constraint.validate([0xB8, 0xAD, ord("x")]) == 3
    assert constraint.validate([0xB8, ord("x")]) == 1
    constraint.accept(0xB8)
    constraint.rollback(2)
    constraint.accept(0xC3)
    assert legal(constraint, tokenizer) == [0xA9]
    constraint.accept(0xA9)
    following = legal(constraint, tokenizer)
    # No byte that is never part of UTF-8, and none that only continues a character.
    assert set(following) & set(range(128, 256)) == {*range(0xC2, 0xF5)}


def test_a_byte_and_a_piece_of_the_same_text_are_both_legal() -> None:
    tokenizer = tokenizer_of("spm")
    constraint = compile_constraint(tokenizer, "regex", "a| hello")
    texts = {tokenizer.token_text(t) for t in legal(constraint, tokenizer)}
    assert texts == {"a", "<0x61>", "▁", "<0x20>", "▁hello"}


def test_special_tokens_are_no_text_unless_user_defined() -> None:
    tokenizer = tokenizer_of("bpe")
    tool, think = tokenizer.token_id("<tool>"), tokenizer.token_id("<think>")
    assert tool is not None and think is not None
    text = compile_constraint(tokenizer, "regex", "(.|\n)*")
    assert not text.allows(tool) and text.allows(think)
    named = compile_constraint(tokenizer, "grammar", 'start: <tool> "a" <think>')
    assert legal(named, tokenizer) == [tool]
    assert named.validate([tool, *tokens_of(tokenizer, "a"), think]) == 3
    assert named.validate([tool, *tokens_of(tokenizer, "a<")]) == 2
    ending = compile_constraint(tokenizer, "grammar", 'start: "a" <end>')
    end, other = sorted(tokenizer.eog_ids)
    ending.accept(tokens_of(tokenizer, "a")[0])
    assert legal(ending, tokenizer) == [end] and not ending.allows(other)
    ending.accept(end)
    assert ending.finished and legal(ending, tokenizer) == [end, other]


def test_bytes_outside_utf8_do_not_pass_for_a_special_token() -> None:
    # The letter stands for byte 255, by which the library marks special tokens.
    specials = (*ENDS, ("ÿ<tool>", NORMAL))
    tokenizer = load_tokenizer(bpe_metadata(specials=specials, eos_token_id=262), "byte 255")
    assert tokenizer.token_bytes(264) == b"\xff<tool>"
    with pytest.raises(RequestError, match="unknown special token"):
        compile_constraint(tokenizer, "grammar", "start: <tool>")


def test_gbnf_escapes_and_any_character() -> None:
    tokenizer = tokenizer_of("bpe")
    source = r'root ::= "\u00e9\U0001F600\x41" [\u4e00-\u4e2d\]] "/./" . # any'
    constraint = compile_constraint(tokenizer, "grammar", source)
    for good in ("é😀A中/./\n", "é😀A]/./x"):
        assert constraint.validate(tokens_of(tokenizer, good)) == len(good.encode())
    for bad, at in (("é😀A文", 7), ("é😀A丰", 9), ("é😀A中/x", 11), ("e", 0)):
        assert constraint.validate(tokens_of(tokenizer, bad)) == at


def test_tokens_that_must_not_be_sampled_are_illegal() -> None:
    keys = bpe_metadata(specials=ENDS, eos_token_id=262, suppress_tokens=[ord("a")])
    tokenizer = load_tokenizer(keys, "suppressed")
    constraint = compile_constraint(tokenizer, "regex", "[ab]+")
    # Token ids are byte values here.
    assert legal(constraint, tokenizer) == [ord("b")]
    assert not constraint.allows(ord("a"))


def test_rows_beyond_the_vocabulary_stay_illegal() -> None:
    tokenizer = tokenizer_of("bpe")
    constraint = compile_constraint(tokenizer, "regex", "[a-z]+")
    n = tokenizer.n_vocab
    logits = np.random.default_rng(0).standard_normal(n + 100).astype(np.float32)
    logits[n:] = 1000
    before = logits.copy()
    masked = constraint.mask(logits)
    assert masked.shape == (n + 100,) and np.isneginf(masked[n:]).all()
    assert (logits == before).all()
    ids = legal(constraint, tokenizer)
    padded = constraint.mask(logits)
    assert (padded[ids] == logits[ids]).all() and np.isfinite(padded).sum() == len(ids)
    assert constraint.mask(logits) is padded
    for wrong in (logits[: n - 1], logits.astype(np.float64), logits[None]):
        with pytest.raises(BackendError, match=rf"logits: expected float32 \[{n}\] or more"):
            constraint.mask(wrong)


def test_white_space_in_json_comes_to_an_end() -> None:
    tokenizer = tokenizer_of("bpe")
    constraint = compile_constraint(tokenizer, "json_object")
    space, brace = tokens_of(tokenizer, " {")
    constraint.accept(brace)
    assert constraint.validate([space] * 100) == 64


def test_a_vocabulary_is_made_once_and_goes_with_its_tokenizer() -> None:
    tokenizer = load_tokenizer(bpe_metadata(specials=ENDS, eos_token_id=262), "gone")
    constraint = compile_constraint(tokenizer, "regex", "a")
    assert vocabulary_of(tokenizer) is vocabulary_of(tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None
    assert np.isfinite(constraint.mask(np.zeros(264, np.float32))).sum() == 1


def test_a_finished_constraint_ends_a_generation_that_ignores_the_end_token() -> None:
    model = rr.load(rr.DEMO_MODEL)
    made = model.generate(
        "x = ",
        40,
        temperature=0,
        ignore_eos=True,
        constraint=model.constraint("regex", "[0-9]{3}"),
    )
    assert made.result.finish_reason == "stop"
    assert len(made.result.text) == 3
