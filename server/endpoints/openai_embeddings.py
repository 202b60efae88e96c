"""/v1/embeddings: vectors of texts."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from ...engine.embedding import embed, text_ids
from ...engine.embedding_options import EmbeddingOptions
from ..endpoint import Call, endpoint
from ..failures import bad_request
from ..generating import apart
from ..http import Answer
from ..served import Served
from ..wire.openai import EmbeddingBody

MOST_INPUTS = 2048


@endpoint("/v1/embeddings", EmbeddingBody, summary="Embeddings of texts.")
async def embeddings(call: Call[EmbeddingBody]) -> Answer:
    """Embed texts."""
    body = call.body
    served = await call.model(body.model)
    vectors, n_tokens = await embedded(served, body.input)
    vectors = _shortened(vectors, body.dimensions)
    coded = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _coded(v) if coded else v.tolist()}
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Answer({"object": "list", "data": data, "model": served.name, "usage": usage})


async def embedded(served: Served, given: Any) -> tuple[list[np.ndarray], int]:
    """The vectors of a text or several, and how many tokens they have. Raises ApiError and
    RequestError."""
    several = isinstance(given, list) and given and isinstance(given[0], str | list)
    texts = given if several else [given]
    if len(texts) > MOST_INPUTS:
        raise bad_request(f"input: at most {MOST_INPUTS} texts, got {len(texts)}", "input")
    ids = [text_ids(served.model, text, i) for i, text in enumerate(texts)]
    for each in ids:
        served.check_length(each)
    async with served.embedding:
        found = await apart(embed, served.model, ids, EmbeddingOptions())
    if any(each.ndim != 1 for each in found):
        raise bad_request(f"{served.name} gives a row for each token, not one of a text")
    return found, sum(map(len, ids))


def _shortened(vectors: list[np.ndarray], dimensions: int | None) -> list[np.ndarray]:
    """The first so many values of each, at length 1 again."""
    if dimensions is None:
        return vectors
    if vectors and dimensions > len(vectors[0]):
        raise bad_request(f"dimensions: expected at most {len(vectors[0])}", "dimensions")
    cut = [vector[:dimensions] for vector in vectors]
    return [vector / (np.linalg.norm(vector) or 1) for vector in cut]


def _coded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
