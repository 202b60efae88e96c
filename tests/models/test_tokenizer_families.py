"""Every family of pre-tokenizers: cuts as in the models' own files, in linear time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import pytest
from pretokenizer_sources import GPT2, SOURCES, isolated
from regex_steps import Steps
from riverrun.graph.errors import TokenizerError
from riverrun.models.tokenizer import Tokenizer, load_tokenizer
from riverrun.models.tokenizer.pretokenizers import FAMILIES, PRETOKENIZERS, PreTokenizer
from tokenizer_json import metadata_of
from tokenizer_texts import TEXTS
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import PreTokenizer as Step

BYTE_LEVEL = [family for family in FAMILIES if not family.spaced]
NFC = ("qwen2", "qwen35", "command-r", "tiny_aya")


@cache
def trained() -> Engine:
    """A vocabulary whose merges cross all kinds of characters, so that ids tell where a text was
    cut."""
    engine = Engine(models.BPE())
    engine.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000, show_progress=False, initial_alphabet=ByteLevel.alphabet()
    )
    engine.train_from_iterator([t[:400] for t in TEXTS.values()] * 2, trainer)
    return engine


@cache
def ours(pre: str) -> Tokenizer:
    model = {"vocab": trained().get_vocab(), "merges": merges()}
    source = {"model": model, "added_tokens": [], "normalizer": None}
    metadata = metadata_of(source, {}, pre) | {"tokenizer.ggml.add_bos_token": False}
    return load_tokenizer(metadata, pre)


@cache
def merges() -> list[str]:
    found = json.loads(trained().to_str())["model"]["merges"]
    return [m if isinstance(m, str) else " ".join(m) for m in found]


def theirs(pre: str, steps: list[Step]) -> Engine:
    pairs = [tuple(merge.split(" ")) for merge in merges()]
    kind = PRETOKENIZERS[pre]
    model = models.BPE(trained().get_vocab(), pairs, ignore_merges=kind.ignore_merges)  # type: ignore[arg-type]
    engine = Engine(model)
    last = [] if steps[-1] is GPT2 else [ByteLevel(add_prefix_space=False, use_regex=False)]
    if GPT2 in steps[:-1]:
        # The alphabet comes last; until then texts are cut by its expression alone.
        cut = isolated(PRETOKENIZERS["gpt-2"].patterns[0] + r"|\s+")
        steps = [cut if step is GPT2 else step for step in steps]
    engine.pre_tokenizer = pre_tokenizers.Sequence([*steps, *last])
    if pre in NFC:
        engine.normalizer = normalizers.NFC()
    return engine


@pytest.mark.parametrize("pre", SOURCES)
def test_cuts_are_those_of_the_source(pre: str) -> None:
    tokenizer, source = ours(pre), theirs(pre, SOURCES[pre])
    for name, text in TEXTS.items():
        assert tokenizer.encode(text) == source.encode(text).ids, name


def by_threes(digits: str) -> list[str]:
    """The definition: groups of three from the end."""
    first = len(digits) % 3
    ends = [0, *([first] if first else []), *range(first + 3, len(digits) + 1, 3)]
    return [digits[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("pre", ["tiny_aya", "cohere2moe", "afmoe", "superbpe"])
def test_digits_are_grouped_from_the_end(pre: str) -> None:
    tokenizer = ours(pre)
    for length in (*range(1, 20), 200, 20_001):
        digits = ("1234567890" * (length // 10 + 1))[:length]
        parts = [tokenizer.encode(part) for part in by_threes(digits)]
        assert tokenizer.encode(digits) == [token for part in parts for token in part]
    if pre in ("tiny_aya", "cohere2moe"):
        # Where the number does not end with a word, groups start at its beginning.
        assert tokenizer.encode("1234x") == tokenizer.encode("123") + tokenizer.encode("4x")


def test_one_family_for_each_name() -> None:
    names = [name for family in FAMILIES for name in family.names]
    assert len(names) == len(set(names)) == len(PRETOKENIZERS)
    for name in ("qwen99", "whitespace"):
        with pytest.raises(TokenizerError, match=f"m: tokenizer.ggml.pre: .*'{name}'"):
            load_tokenizer(metadata_of(SOURCE, {}, name), "m")


SOURCE = {"model": {"vocab": {"a": 0}, "merges": []}, "added_tokens": [], "normalizer": None}
CHARS = ("a", "A", "ǅ", "中", "\u0301", "1", "½", " ", "\t", "\n", "\r", ".", "'", "$", "_", "\x00")
TAILS = ("", "a", "A", ".", "\n", " 1")
PATTERNS = sorted(
    {pattern for family in FAMILIES for pattern in family.patterns}
    | {family.grouping.runs for family in FAMILIES if family.grouping}
)


@pytest.fixture
def deep() -> Iterator[None]:
    """Repeats of groups nest in the counting of steps."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    yield
    sys.setrecursionlimit(before)


def steps_of(pattern: str, text: str) -> int:
    steps = Steps(pattern)
    steps.cut(text)
    return steps.count


@pytest.mark.parametrize("pattern", PATTERNS, ids=[p[:24] for p in PATTERNS])
def test_steps_grow_with_the_length_of_a_run(deep: None, pattern: str) -> None:
    if "++" in pattern and sys.version_info < (3, 11):
        pytest.skip("the parser of this Python has no possessive repeats")
    for char in CHARS:
        for tail in TAILS:
            few, many = (steps_of(pattern, char * n + tail) for n in (16, 64))
            assert many < 5 * few, (char, tail)


def test_steps_of_a_cascade_of_blanks() -> None:
    (pattern,) = PRETOKENIZERS["jais-2"].patterns
    for char in " \t\n":
        few, many = (steps_of(pattern, char * n + "a") for n in (4096, 16384))
        assert many < 5 * few


@pytest.mark.parametrize(
    "pattern", [r"\s+$", r"\d{1,3}(?=(?:\d{3})*\b)", r"(?=(\d{3})+(?!\d))", r"(a|b)+c|x"]
)
def test_steps_that_grow_faster_are_seen(deep: None, pattern: str) -> None:
    char = {"\\s": " ", "(a": "a"}.get(pattern[:2], "1")
    few, many = (steps_of(pattern, char * n + "z") for n in (16, 64))
    assert many > 8 * few


@pytest.mark.parametrize("family", BYTE_LEVEL, ids=lambda family: family.names[0])
def test_steps_cut_as_the_engine_does(family: PreTokenizer) -> None:
    for pattern in family.patterns:
        if ("++" in pattern and sys.version_info < (3, 11)) or "&&" in pattern:
            continue
        split = Split(Regex(pattern), "removed", invert=True)
        for text in ("Hello wörld's 1234  a\n\n b\t.. x/\r\n", "ａ中文 e\u0301 ½ $5 'T  "):
            found = [piece for piece, _ in split.pre_tokenize_str(text)]
            assert Steps(pattern).cut(text) == found


@pytest.mark.full
@pytest.mark.parametrize("family", BYTE_LEVEL, ids=lambda family: family.names[0])
def test_a_megabyte_of_one_character(family: PreTokenizer) -> None:
    tokenizer = ours(family.names[0])
    for char in ("A", " ", "1", "中", "\u0301"):
        text = char * (1_000_000 // len(char.encode())) + "a"
        assert tokenizer.decode(tokenizer.encode(text)) == text
