"""/api/tags, /api/show, /api/ps, /api/version: what there is, as Ollama tells it."""

from __future__ import annotations

import time
from typing import Any

from ..endpoint import Call, endpoint
from ..facts import Facts, all_metadata, facts_of, fills_in
from ..failures import bad_request, ollama_error
from ..generating import apart
from ..http import Answer
from ..ollama import FOREVER, stamp
from ..served import Served
from ..store import Known
from ..wire.body import Nothing
from ..wire.ollama import OllamaShowBody

# Of Ollama, whose interface this is: clients look at it to learn what they may ask for.
VERSION = "0.13.0"


@endpoint("/api/version", summary="The version of Ollama's interface.", error=ollama_error)
async def version(call: Call[Nothing]) -> Answer:
    """Which one it is."""
    return Answer({"version": VERSION})


@endpoint("/api/tags", summary="All models, as Ollama lists them.", error=ollama_error)
async def tags(call: Call[Nothing]) -> Answer:
    """All models."""
    return Answer({"models": await apart(_listed, list(call.service.store.known.values()))})


def _listed(known: list[Known]) -> list[dict[str, Any]]:
    found = []
    for each in known:
        facts = facts_of(each)
        entry = _entry(each.name, facts)
        found.append({**entry, "modified_at": stamp(each.modified), "size": each.size})
    return found


@endpoint(
    "/api/ps", summary="The models that are loaded, as Ollama lists them.", error=ollama_error
)
async def ps(call: Call[Nothing]) -> Answer:
    """What is loaded."""
    store, found = call.service.store, []
    for served in store.loaded:
        known = store.find(served.name)
        facts = await apart(facts_of, known)
        usual = call.service.options.keep_alive
        size = _bytes(served)
        on_card = served.model.device.startswith("cuda")
        found.append(
            {
                **_entry(known.name, facts),
                "size": size,
                "size_vram": size if on_card else 0,
                "expires_at": FOREVER if known.fixed else _expires(served, usual),
                "context_length": served.n_ctx,
            }
        )
    return Answer({"models": found})


def _bytes(served: Served) -> int:
    """Bytes of the weights and of the session."""
    return served.model.source.nbytes + served.engine.session.plan.bytes.device


def _expires(served: Served, usual: float) -> str:
    stay = usual if served.keep_alive is None else served.keep_alive
    if stay < 0:
        return FOREVER
    unused = 0.0 if served.busy else time.monotonic() - served.last_used
    return stamp(time.time() + max(0.0, stay - unused))


@endpoint(
    "/api/show", OllamaShowBody, summary="What a model is, as Ollama tells it.", error=ollama_error
)
async def show(call: Call[OllamaShowBody]) -> Answer:
    """One model, which need not be loaded."""
    body = call.body
    known = call.service.store.find(body.model or body.name)
    return Answer(await apart(_shown, known, bool(body.verbose)))


def _shown(known: Known, verbose: bool) -> dict[str, Any]:
    facts = facts_of(known)
    metadata = all_metadata(known.path) if verbose else facts.metadata
    return {
        "modelfile": f"FROM {known.path.name}\n",
        "parameters": "",
        "template": facts.template,
        "license": str(facts.metadata.get("general.license") or ""),
        "details": _details(facts),
        "model_info": {**metadata, "general.parameter_count": facts.n_params},
        "capabilities": capabilities(known, facts),
        "modified_at": stamp(known.modified),
    }


def capabilities(known: Known, facts: Facts) -> list[str]:
    """What a model is for, in Ollama's words."""
    if facts.pooled:
        return ["embedding"]
    found = {
        "completion": True,
        "tools": facts.has_tools,
        "thinking": facts.has_thinking,
        "insert": fills_in(known.path, known.modified),
    }
    return [name for name, has in found.items() if has]


def _entry(name: str, facts: Facts) -> dict[str, Any]:
    return {"name": name, "model": name, "digest": facts.digest, "details": _details(facts)}


def _details(facts: Facts) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": facts.size_label,
        "quantization_level": facts.quantization,
    }


async def _managed(call: Call[Nothing]) -> Answer:
    raise bad_request(
        "models are not managed over this interface: they are the files of the folder given as "
        "--models; put them there, or take them away"
    )


for _path, _method in (
    ("/api/pull", "POST"),
    ("/api/push", "POST"),
    ("/api/create", "POST"),
    ("/api/copy", "POST"),
    ("/api/delete", "DELETE"),
):
    endpoint(_path, summary="Refused: models are files.", methods=(_method,), error=ollama_error)(
        _managed
    )
