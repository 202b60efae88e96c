"""/v1/models: what can be named."""

from __future__ import annotations

from typing import Any

from ..endpoint import Call, endpoint
from ..http import Answer
from ..store import Known
from ..wire.body import Nothing


@endpoint("/v1/models", summary="The models that requests may name.")
async def models(call: Call[Nothing]) -> Answer:
    """All models."""
    known = call.service.store.known.values()
    return Answer({"object": "list", "data": [_model(call, each) for each in known]})


@endpoint("/v1/models/{model:path}", summary="One of them.")
async def model(call: Call[Nothing]) -> Answer:
    """One model."""
    found = call.service.store.find(call.request.path_params["model"])
    return Answer(_model(call, found))


def _model(call: Call[Nothing], known: Known) -> dict[str, Any]:
    served = call.service.store.of(known.name)
    return {
        "id": known.name,
        "object": "model",
        "created": int(known.modified),
        "owned_by": "riverrun",
        "meta": {
            "size": known.size,
            "loaded": served is not None,
            **({} if served is None else _meta(served.model)),
        },
    }


def _meta(model: Any) -> dict[str, Any]:
    hp = model.source.arch.hp
    return {
        "n_vocab": model.n_vocab,
        "n_ctx_train": model.n_ctx_train,
        "n_embd": hp.n_embd,
        "architecture": model.source.arch.name,
    }
