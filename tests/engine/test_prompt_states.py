"""Which states along prompts stay where room is short: those at the ends of earlier prompts, from
which later ones part."""

from __future__ import annotations

import numpy as np
import pytest
from riverrun.backends.base import KeptParts
from riverrun.engine.prompt_states import PromptStates, planned

LAST, CHUNK = 4, 512  # tokens behind a prompt's last state, and between its others
THOUGHTS = 80  # tokens of an answer's that a template leaves out later


def state() -> KeptParts:
    return {"ssm_state.0": [np.zeros(1, np.float32)]}


class Text:
    """A chat in one sequence, each of whose prompts goes on from what is kept."""

    def __init__(self, states: PromptStates, seq: int) -> None:
        self.states, self.seq = states, seq
        self.ends: list[int] = []
        self.length = 0

    def ask(self, more: int, back: int) -> int:
        """A prompt of so many more tokens than the last one, which parts from the text where a
        prompt so many before the last one ended; how many tokens it evaluates beside those that
        changed."""
        states, seq = self.states, self.seq
        parts_at = self.ends[-1 - back] if back < len(self.ends) else 0
        end = self.length + more - THOUGHTS * back
        begin = next((at for at, _ in states.before(seq, parts_at)), 0)
        states.cut(seq, begin)
        last = (end - LAST) // LAST * LAST
        room = states.room(seq, 4)
        for at in sorted({*planned(end, room - 1, CHUNK), last}):
            if at > begin and states.make_room(seq, at, 4, end=at == last):
                states.add(seq, at, state())
        self.ends = [*(at for at in self.ends if at <= parts_at), last]
        self.length = end
        return parts_at - begin


@pytest.mark.parametrize("more", [500, 1500, 3000])
@pytest.mark.parametrize("turns", [1, 3, 5])
def test_chats_go_on_where_a_prompt_ended(turns: int, more: int) -> None:
    """Two chats in turn, with room for 13 states: at every so many turns a template leaves out what
    was thought since the last time."""
    states = PromptStates(2, limit=13 * 4)
    texts = [Text(states, seq) for seq in range(2)]
    for turn in range(20):
        back = turns - 1 if turn and turn % turns == 0 else 0
        for text in texts:
            assert text.ask(more, back) <= CHUNK
    assert states.nbytes <= states.limit


def test_ends_follow_a_text_to_other_places() -> None:
    states = PromptStates(1, limit=4 * 4, parked=1)
    states.make_room(0, 600, 4, end=True)
    for at in (600, 1200, 1800, 4000):
        states.add(0, at, state())
    states.share(0, 1, 4000)
    states.order([1])
    states.cut(0, 0)
    states.add(0, 5000, state())
    assert 600 in states.positions(1) and len(states.positions(1)) == 3


def test_ends_of_tokens_that_are_others_count_no_more() -> None:
    states = PromptStates(1, limit=3 * 4)
    for cut, left in ((None, [3000, 9000, 9600]), (2000, [6000, 9000, 9600])):
        states.cut(0, 0)
        states.make_room(0, 3000, 4, end=cut is None)
        states.add(0, 3000, state())
        if cut is not None:
            states.make_room(0, 3000, 4, end=True)
            states.cut(0, cut)
        for at in (3000, 6000, 9000, 9600):
            states.add(0, at, state())
        assert states.positions(0) == left
