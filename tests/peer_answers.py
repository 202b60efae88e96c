"""A model's answers beside those that another engine gave from the same file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import riverrun as rr


def check_answer(
    model: rr.Model, prompt: str, tokens: Sequence[int], margins: Sequence[float], limit: float
) -> None:
    """Each token is the best after those before it, or behind the best by less than `limit` where
    the other engine took it from the second best by no more.

    margins: by how much each was the best there, in logits; met within `limit` where larger."""
    ids = model.tokenize(prompt)
    rows = model.session(512).evaluate([(0, [*ids, *tokens[:-1]])], want="all").logits
    rows = rows[len(ids) - 1 :]
    second, best = np.sort(rows, -1)[:, -2:].T
    behind = best - rows[np.arange(len(tokens)), tokens]
    sure = np.array(margins) > limit
    assert not behind[sure].any()
    assert behind.max() < limit
    np.testing.assert_allclose((best - second)[sure], np.array(margins)[sure], atol=limit)
