"""/v1/embeddings: vectors of texts."""

from __future__ import annotations

import base64

import numpy as np

from ..embedding import embedded, shortened
from ..endpoint import Call, endpoint
from ..http import Answer
from ..wire.openai import EmbeddingBody


@endpoint("/v1/embeddings", EmbeddingBody, summary="Embeddings of texts.")
async def embeddings(call: Call[EmbeddingBody]) -> Answer:
    """Embed texts."""
    body = call.body
    served = await call.model(body.model)
    vectors, n_tokens = await embedded(served, body.input)
    vectors = shortened(vectors, body.dimensions)
    coded = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _coded(v) if coded else v.tolist()}
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return Answer({"object": "list", "data": data, "model": served.name, "usage": usage})


def _coded(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
