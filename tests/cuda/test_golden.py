"""The demo model on a card against float32 results of another implementation."""

from __future__ import annotations

import pytest
from cuda_rig import needs_cuda, slow
from demo import PROMPTS
from golden_rig import (
    CUTS,
    FILES,
    check_greedy_continuation,
    check_last_position,
    check_split_prompt,
)

pytestmark = needs_cuda
CASES = [
    pytest.param(kind, name, marks=() if (kind, name) == ("q8_0", "p3") else slow)
    for kind in FILES
    for name in PROMPTS
]


@pytest.mark.parametrize("kind,name", CASES)
def test_greedy_continuation(kind: str, name: str) -> None:
    check_greedy_continuation("cuda", kind, name)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "p3" else slow) for n in PROMPTS]
)
def test_last_position(name: str) -> None:
    check_last_position("cuda", 0.1, name)


@pytest.mark.parametrize("cuts", [pytest.param(c, marks=slow) for c in CUTS], ids=str)
@pytest.mark.parametrize("kind", FILES)
def test_split_prompt(kind: str, cuts: tuple[int, ...]) -> None:
    check_split_prompt("cuda", cuts, kind)
