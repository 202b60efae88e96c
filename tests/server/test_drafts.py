"""What requests may ask of drafts: none, some of the server's drafters, fewer drafts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_rig import GREEDY, Server, serving

# N-grams of a prompt that repeats itself are drafted at any length.
REPEATING = {**GREEDY, "prompt": "a = [1, 2, 3, 4]\n" * 12, "max_tokens": 40}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(spec="ngram-simple,mtp") as made:
        yield made


@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_round_has_more_drafts_than_asked(server: Server, most: int) -> None:
    plain = server.post("/v1/completions", **REPEATING, speculative=False)
    body = {**REPEATING, "speculative.n_max": most, "speculative": "ngram-simple"}
    found = server.post("/v1/completions", **body)
    assert found["choices"] == plain["choices"]
    timings = found["timings"]
    assert 0 < len(timings["draft_accepted_per_position"]) <= most
    assert timings["draft_n"] <= most * timings["draft_rounds"]


def test_none_at_all(server: Server) -> None:
    for body in ({"speculative": False}, {"speculative.n_max": 0}):
        assert "draft_n" not in server.post("/v1/completions", **REPEATING, **body)["timings"]


def test_sets_of_drafters_are_opened_once(server: Server) -> None:
    for kinds in ("mtp,ngram-simple", "ngram-simple, mtp", "mtp", "mtp,mtp", "ngram-simple"):
        server.post("/v1/completions", **GREEDY, speculative=kinds)
    asked = [
        served.drafts(kinds, None) for served in [server.served] for kinds in ("mtp", "mtp,mtp")
    ]
    assert asked[0] == asked[1]
    assert server.served.drafts("ngram-simple,mtp", None) == {"draft_max": None}


def test_others_are_refused(server: Server) -> None:
    error = server.post("/v1/completions", 400, **GREEDY, speculative="ngram-cache")["error"]
    assert "ngram-simple" in error["message"]
    assert error["param"] == "speculative"
