"""Which tokens reasoning and text were read from, however the text came."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import server_rig  # noqa: F401, which skips where the server's packages are missing
from chat_outputs import parser_of
from riverrun.models.chat.output import Content, Delta, Reasoning
from riverrun.server.answers import merged_deltas
from riverrun.server.token_places import TokenPlaces

# Pieces of text, each with how many tokens it is.
CALL = ("<tool_call>", '{"name": "now", "arguments": {}}', "</tool_call>")
PIECES = (
    *(("<think>", 1), ("\n", 1), ("Let", 1), (" me", 1), (".", 1), ("\n", 1), ("</think>", 1)),
    *(("\n\n", 1), ("a <", 1), ("🎈", 3), (" <tool", 1), ("s>", 1), (" ", 1), ("b.\n", 1)),
    *((text, 1) for text in CALL),
    *(("\nI", 1), (" th", 2), ("ink>", 1)),
)
THOUGHT = [(2, 5)]  # "Let me."
SAID = [(8, 16), (19, 23)]  # "a <🎈 <tools> b." and "I think>"


@dataclass
class Pieces:
    """A request's text."""

    pieces: tuple[tuple[str, int], ...]

    def piece(self, at: int) -> str:
        return self.pieces[at][0]

    def piece_end(self, at: int) -> int:
        return sum(n for _, n in self.pieces[: at + 1])


def found(parts: list[str], pieces: tuple[tuple[str, int], ...] = PIECES) -> Any:
    """The tokens of reasoning and of text, neighbours joined, of an answer in these parts."""
    places, parser = TokenPlaces(Pieces(pieces)), parser_of("hermes")  # type: ignore[arg-type]
    thought, said = list[tuple[int, int]](), list[tuple[int, int]]()

    def note(deltas: list[Delta]) -> None:
        for delta in merged_deltas(deltas):
            first, end = places.tokens(delta)
            if not isinstance(delta, Content | Reasoning):
                assert first == end
                continue
            into = said if isinstance(delta, Content) else thought
            if into and into[-1][1] == first:
                first = into.pop()[0]
            into.append((first, end))

    for part in parts:
        note(parser.feed(part))
    note(parser.finish())
    return thought, said


def test_token_by_token_and_all_at_once() -> None:
    texts = [text for text, _ in PIECES]
    assert found(texts) == found(["".join(texts)]) == (THOUGHT, SAID)


@pytest.mark.parametrize("seed", range(20))
def test_in_parts_of_several_pieces(seed: int) -> None:
    rng, parts = random.Random(seed), [""]
    for text, _ in PIECES:
        if rng.random() < 0.4:
            parts.append("")
        parts[-1] += text
    assert found(parts) == (THOUGHT, SAID)


def test_pieces_of_several_deltas_are_given_once() -> None:
    pieces = (("<think>Hm</think>a", 1), (" b", 1), (" <tool_call>x", 1))
    assert found([text for text, _ in pieces], pieces) == ([(0, 1)], [(1, 3)])
