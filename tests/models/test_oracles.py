"""The record of what was compared with what: it is what the tests do, and it has every
architecture."""

from __future__ import annotations

import ast
import json

import pytest
from oracles import COMPARISONS, MERGED, RECORD, VECTORS, VOCABULARIES, record
from paths import ROOT
from pretokenizer_sources import SOURCES
from riverrun.models.architecture import architectures
from riverrun.models.tokenizer.pretokenizers import PRETOKENIZERS

MODELS = ROOT / "tests" / "models"


def test_the_stored_record_is_that_of_the_tests() -> None:
    assert RECORD.read_text(encoding="utf-8") == record(), "make support"


@pytest.mark.parametrize("arch", architectures())
def test_every_architecture_is_compared_with_something_outside(arch: str) -> None:
    outside = [made for made in COMPARISONS.values() if not made.own]
    assert any(made.cases.get(arch) for made in outside)


def test_every_case_is_of_an_architecture() -> None:
    assert {arch for made in COMPARISONS.values() for arch in made.cases} <= set(architectures())


@pytest.mark.parametrize("name", COMPARISONS)
def test_the_tests_take_their_cases_from_the_record(name: str) -> None:
    """The file itself, or the rig that it shares with the tests of cards."""
    tree = ast.parse((MODELS / f"{name}.py").read_text())
    tests = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    rigs = [n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module]
    assert tests and ("oracles" in rigs or "golden_rig" in rigs)


def test_a_record_of_names_that_there_are() -> None:
    named = {kind.pre for kind in VOCABULARIES.values()} | {pre for _, pre in VECTORS.values()}
    assert named - {"llama"} <= PRETOKENIZERS.keys() >= SOURCES.keys()
    assert set(MERGED) <= VOCABULARIES.keys()
    kept = json.loads(RECORD.read_text(encoding="utf-8"))["tokenizers"]
    assert kept["ids"]["gemma4"] == ["Gemma 2", "Gemma 3", "Yi"]
    assert kept["cuts"] == list(SOURCES)
