"""Stop strings over pieces against a reading of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from riverrun.engine.stop import StopMatcher
from riverrun.graph.errors import RequestError


def run(stops, pieces):
    """What a stream emits in all, whether it stopped, and the matcher."""
    matcher = StopMatcher(stops)
    emitted, stopped = "", False
    for piece in pieces:
        text, stopped = matcher.feed(piece)
        emitted += text
        if stopped:
            break
    return emitted + matcher.finish(), stopped, matcher


def whole_text(stops, text):
    """The text before the earliest stop, and the shortest stop there."""
    found = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


@pytest.mark.parametrize(
    "pieces",
    [
        ["Hello STOP world"],
        ["Hello ST", "OP world"],
        ["Hello ", "ST", "O", "P world"],
        ["Hello S", "TO", "P"],
        list("Hello STOP world"),
    ],
)
def test_a_stop_is_found_however_it_is_split(pieces):
    emitted, stopped, matcher = run(["STOP"], pieces)
    assert (emitted, stopped, matcher.matched) == ("Hello ", True, "STOP")


def test_text_is_withheld_only_while_it_can_match():
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("go S") == ("go ", False)
    assert matcher.feed("TO") == ("", False)
    assert matcher.feed("RE S") == ("STORE ", False)
    assert matcher.feed("TOP and more") == ("", True)
    assert matcher.feed("anything") == ("", True)
    assert matcher.finish() == ""
    assert matcher.matched == "STOP"


def test_a_near_miss_at_the_end_is_released():
    emitted, stopped, matcher = run(["STOP"], ["a S", "TO"])
    assert (emitted, stopped, matcher.matched) == ("a STO", False, None)


def test_a_repeated_beginning_keeps_the_later_start():
    matcher = StopMatcher(["aab"])
    assert matcher.feed("aaa") == ("a", False)
    assert matcher.feed("a") == ("a", False)
    assert matcher.feed("b") == ("", True)


@pytest.mark.parametrize("order", [1, -1])
def test_overlapping_stops_the_earliest_start_wins(order):
    stops = ["bcd", "abc"][::order]
    for pieces in (["xabcd"], list("xabcd"), ["xab", "cd"]):
        emitted, stopped, matcher = run(stops, pieces)
        assert (emitted, stopped, matcher.matched) == ("x", True, "abc")


def test_of_stops_with_one_start_the_shortest_ends_the_stream_at_once():
    matcher = StopMatcher(["\n\nHuman:", "\n"])
    assert matcher.feed("text\n") == ("text", True)
    assert matcher.matched == "\n"


def test_a_stop_inside_a_longer_one_waits_for_it():
    assert run(["abcd", "bc"], ["ab", "c", "d"])[:2] == ("", True)
    assert run(["abcd", "bc"], ["ab", "c", "e"])[:2] == ("a", True)
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.feed("abc") == ("", False)
    assert matcher.finish() == "a"
    assert matcher.matched == "bc"
    assert matcher.feed("more") == ("", True)


def test_without_stops_everything_passes_at_once():
    matcher = StopMatcher([])
    assert matcher.feed("any text") == ("any text", False)
    assert matcher.finish() == ""


def test_an_empty_piece_changes_nothing():
    assert run(["STOP"], ["a S", "", "TOP"])[:2] == ("a ", True)


@pytest.mark.parametrize("stops", [[""], ["a", ""], "STOP", [None], [7]])
def test_what_is_no_stop_string_is_refused(stops):
    with pytest.raises(RequestError, match="stop: expected"):
        StopMatcher(stops)


@st.composite
def split_text(draw):
    text = draw(st.text("abc", max_size=30))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@settings(derandomize=True, max_examples=500, deadline=None)
@given(STOPS, split_text())
def test_any_split_gives_what_the_whole_text_gives(stops, split):
    text, pieces = split
    emitted, _, matcher = run(stops, pieces)
    assert (emitted, matcher.matched) == whole_text(stops, text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(STOPS, split_text())
def test_nothing_is_withheld_that_no_continuation_needs(stops, split):
    _, pieces = split
    matcher = StopMatcher(stops)
    fed, emitted = "", ""
    for piece in pieces:
        more, stopped = matcher.feed(piece)
        fed, emitted = fed + piece, emitted + more
        if stopped:
            return
        held = fed[len(emitted) :]
        assert not held or any(s.startswith(held) and s != held for s in stops)
