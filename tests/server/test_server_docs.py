"""The tables of fields in docs/server.md against the bodies, both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import server_rig  # noqa: F401, which skips where the server's packages are missing
from paths import ROOT
from riverrun.server.endpoint import scan_endpoints
from riverrun.server.wire.body import Body
from riverrun.server.wire.ollama import OllamaMessage, OllamaOptions
from riverrun.server.wire.sampling import OPENAI_IGNORED, SAMPLERS_REFUSED, Sampling

# Endpoints that take the body of another one, which has a row.
ALIKE = {"/completions": "/completion", "/apply-template": "/v1/chat/completions"}
SHARED: Mapping[str, set[str]] = {
    "sampling": set(Sampling.model_fields),
    "bookkeeping": set(OPENAI_IGNORED),
    "samplers": set(SAMPLERS_REFUSED),
}
BODIES: dict[str, type[Body]] = {
    **{made.path: made.body for made in scan_endpoints() if made.body},
    "options": OllamaOptions,
    "messages": OllamaMessage,
}


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def rows(page: str) -> dict[str, tuple[set[str], ...]]:
    """What the page says is honoured, ignored and refused, by the first cell of the row."""
    found = {}
    for line in re.findall(r"^\| `.*\|$", page.partition("\n## Fields of requests\n")[2], re.M):
        first, *cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3:
            assert first not in found
            found[first.strip("`")] = tuple(map(fields, cells))
    return found


def fields(cell: str) -> set[str]:
    names = set(re.findall(r"`([^`]+)`", cell))
    return names.union(*(SHARED[word] for word in re.findall(r"\*(\w+)\*", cell)))


def test_every_body_has_a_row_and_every_row_a_body(page: str) -> None:
    assert set(rows(page)) == set(BODIES) - set(ALIKE)
    for path, other in ALIKE.items():
        assert BODIES[path] is BODIES[other]
        assert (
            f"`{path}` takes what `{other}` does" in page or f"`{path}` what `{other}` does" in page
        )


@pytest.mark.parametrize("name", sorted(set(BODIES) - set(ALIKE)))
def test_rows_name_all_fields_and_no_others(page: str, name: str) -> None:
    body = BODIES[name]
    wanted = (set(body.model_fields), set(body.ignored), set(body.refused))
    assert rows(page)[name] == wanted
    assert not wanted[0] & wanted[1] and not wanted[0] & wanted[2] and not wanted[1] & wanted[2]


@pytest.mark.parametrize("word", SHARED)
def test_what_the_words_stand_for(page: str, word: str) -> None:
    (line,) = re.findall(rf"^\| \*{word}\* \| (.*) \|$", page, re.M)
    named = set(re.findall(r"`([^`]+)`", line.partition(" (also")[0]))
    assert named == SHARED[word]
