"""Embeddings of texts, as all interfaces need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.embedding import embed, text_ids
from ..engine.embedding_options import EmbeddingOptions
from .failures import bad_request
from .generating import apart
from .long_texts import beginning
from .served import Served

MOST_INPUTS = 2048


async def embedded(
    served: Served, given: Any, options: EmbeddingOptions | None = None, cut: bool = False
) -> tuple[list[np.ndarray], int]:
    """The vectors of a text or several, and how many tokens they have. cut: texts too long for the
    context lose their ends instead of being refused. Raises ApiError and RequestError."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    texts = given if several else [given]
    if len(texts) > MOST_INPUTS:
        raise bad_request(f"input: at most {MOST_INPUTS} texts, got {len(texts)}", "input")
    ids = await apart(_encoded, served, texts, cut)
    for each in ids:
        served.check_length(each)
    async with served.embedding:
        found = await apart(embed, served.model, ids, options or EmbeddingOptions())
    if any(each.ndim != 1 for each in found):
        raise bad_request(f"{served.name} gives a row for each token, not one of a text")
    return found, sum(map(len, ids))


def _encoded(served: Served, texts: Sequence[Any], cut: bool) -> list[list[int]]:
    """The token ids of texts, or of ids as they are."""
    found = []
    for i, text in enumerate(texts):
        far = beginning(served, text) if isinstance(text, str) else None
        if far is not None and not cut:
            raise served.too_long(far[1], "at least ")
        ids = text_ids(served.model, text if far is None else far[0], i)
        found.append(_cut(served, ids) if cut else ids)
    return found


def _cut(served: Served, ids: list[int]) -> list[int]:
    """As many tokens as the context holds, the one that the tokenizer ends texts with among
    them."""
    if len(ids) <= served.n_ctx:
        return ids
    tokenizer = served.model.tokenizer
    ending = ids[-1:] if tokenizer.add_eos or tokenizer.add_sep else []
    return [*ids[: served.n_ctx - len(ending)], *ending]


def shortened(vectors: list[np.ndarray], dimensions: int | None) -> list[np.ndarray]:
    """The first so many values of each, at length 1 again."""
    if dimensions is None:
        return vectors
    if vectors and dimensions > len(vectors[0]):
        raise bad_request(f"dimensions: expected at most {len(vectors[0])}", "dimensions")
    cut = [vector[:dimensions] for vector in vectors]
    return [vector / (np.linalg.norm(vector) or 1) for vector in cut]
