"""Prompts on a card have the same bits alone, in company and cut elsewhere, where their plans say
so (`Plan.prompt_grid`)."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_rig import needs_cuda
from riverrun.engine.prompts import prompt_grid
from riverrun.engine.sequences import Sequences
from rollback_rig import stream, tiny

pytestmark = needs_cuda
Rows = tuple[np.ndarray, np.ndarray]


def evaluate(sequences: Sequences, prompt: list[int], sizes: list[int]) -> Rows:
    """In passes of these sizes: logits behind the prompt, and behind a token more."""
    sequences.clear(0)
    at = 0
    for n in sizes:
        found = sequences.evaluate([(0, prompt[at : at + n])], kind="prefill")
        at += n
    return np.array(found.logits[0]), np.array(sequences.decode(7))


def require_same(got: Rows, want: Rows) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("variant", ["llama", "qwen35", "gemma3", "qwen35moe"])
def test_company_and_cuts_change_no_bit(variant: str) -> None:
    model = tiny(variant, "cuda")
    plan = model.plan_session(512, n_seqs=4, cache_bytes=0)
    if not prompt_grid(model, plan):
        pytest.skip("this card runs prompts by kernels whose bits depend on company and cuts")
    sequences = Sequences(model, plan)
    prompts = [stream(800 + i, n) for i, n in enumerate((193, 64, 37, 1))]
    alone = [evaluate(sequences, prompt, [len(prompt)]) for prompt in prompts]
    for sizes in ([64, 129], [128, 65], [192, 1]):
        require_same(evaluate(sequences, prompts[0], sizes), alone[0])
    for seq in range(4):
        sequences.clear(seq)
    items = list(enumerate(prompts))
    first = [np.array(row) for row in sequences.evaluate(items, kind="prefill").logits]
    then = sequences.evaluate([(seq, (7,)) for seq, _ in items]).logits
    for seq, want in enumerate(alone):
        require_same((first[seq], np.array(then[seq])), want)
