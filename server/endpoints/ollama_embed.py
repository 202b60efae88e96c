"""/api/embed and /api/embeddings: vectors of texts, as Ollama has them."""

from __future__ import annotations

import numpy as np

from ...engine.embedding_options import EmbeddingOptions
from ..embedding import embedded, shortened
from ..endpoint import Call, endpoint
from ..failures import ollama_error
from ..http import Answer
from ..ollama import use
from ..wire.ollama import OllamaEmbedBody, OllamaEmbeddingsBody


@endpoint("/api/embed", OllamaEmbedBody, summary="Embed texts, as Ollama does.", error=ollama_error)
async def embed(call: Call[OllamaEmbedBody]) -> Answer:
    """Embed texts, at length 1; without any, load the model."""
    body = call.body
    used = await use(call)
    vectors, n_tokens = list[np.ndarray](), 0
    if body.input:
        cut = body.truncate is not False
        vectors, n_tokens = await embedded(used.served, body.input, cut=cut)
    found = shortened(vectors, body.dimensions or None)
    return Answer(
        {
            "model": used.served.name,
            "embeddings": [vector.tolist() for vector in found],
            **used.times(),
            "prompt_eval_count": n_tokens,
        }
    )


@endpoint(
    "/api/embeddings",
    OllamaEmbeddingsBody,
    summary="Embed one text, as Ollama did.",
    error=ollama_error,
)
async def embeddings(call: Call[OllamaEmbeddingsBody]) -> Answer:
    """Embed a text, at the length that the model gives it."""
    used = await use(call)
    if not call.body.prompt:
        return Answer({"embedding": []})
    options = EmbeddingOptions(normalize=False)
    vectors, _ = await embedded(used.served, call.body.prompt, options, cut=True)
    return Answer({"embedding": vectors[0].tolist()})
