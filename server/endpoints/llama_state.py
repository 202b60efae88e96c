"""/props and /slots: what the server is and does at the moment, and states of slots in files."""

from __future__ import annotations

import time
from typing import Any

from ...engine.request import Request
from ..endpoint import Call, endpoint
from ..failures import ApiError, bad_request
from ..generating import apart
from ..http import Answer
from ..served import Served
from ..slots import erase_slot, restore_slot, save_slot
from ..wire.body import Nothing
from ..wire.llama import SlotBody


@endpoint("/props", summary="What is served, with which defaults.")
async def props(call: Call[Nothing]) -> Answer:
    """The main model, or the one that the query names."""
    service = call.service
    served = await call.model(call.request.query_params.get("model"))
    model, tokenizer = served.model, served.model.tokenizer
    templates = model.source.chat_templates.sources
    speculation = served.speculation
    defaults = {**vars(service.defaults), "logit_bias": []}
    return Answer(
        {
            "default_generation_settings": {"n_ctx": served.n_ctx, "params": defaults},
            "total_slots": served.engine.session.n_seqs,
            "model_alias": served.name,
            "model_path": model.source.path.name,
            "n_ctx": served.n_ctx,
            "modalities": {"vision": False, "audio": False},
            "chat_template": templates.get("default", ""),
            "bos_token": _text(tokenizer, tokenizer.bos_id),
            "eos_token": _text(tokenizer, tokenizer.eos_id),
            "build_info": f"riverrun on {model.device}",
            "is_sleeping": False,
            "speculative": {
                "kinds": list(speculation.kinds) if speculation else [],
                "draft_max": speculation.longest if speculation else 0,
            },
            "memory": served.engine.session.plan.summary,
        }
    )


def _text(tokenizer: Any, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


@endpoint("/slots", summary="What each sequence is doing.")
async def slots(call: Call[Nothing]) -> Answer:
    """All slots of the loaded models, or of the one that the query names."""
    named = call.request.query_params.get("model")
    loaded = [await call.model(named)] if named else call.service.store.loaded
    return Answer([slot for served in loaded for slot in _slots(served)])


def _slots(served: Served) -> list[dict[str, Any]]:
    running = {r.seq: r for r in served.requests if r.seq >= 0 and r.result is None}
    found = []
    for seq in range(served.engine.session.n_seqs):
        request = running.get(seq)
        slot = {
            "id": seq,
            "model": served.name,
            "n_ctx": served.n_ctx,
            "is_processing": request is not None,
            "speculative": served.speculation is not None,
        }
        found.append(slot if request is None else {**slot, **_doing(request)})
    return found


def _doing(request: Request) -> dict[str, Any]:
    timings = request.timings
    return {
        "stage": request.stage.value,
        "n_prompt_tokens": len(request.prompt),
        "n_prompt_tokens_cache": timings.cache_n,
        "n_decoded": len(request.tokens),
        "n_remain": -1 if request.left is None else request.left,
        "params": {
            "n_predict": request.options.max_tokens,
            "temperature": request.sampler.params.temperature,
        },
    }


@endpoint("/slots/{slot}", SlotBody, summary="Save, restore or erase what a slot holds.")
async def slot_action(call: Call[SlotBody]) -> Answer:
    """Do what the query's `action` says."""
    request = call.request
    served = await call.model(request.query_params.get("model"))
    seq = _slot_number(served, request.path_params["slot"])
    action, began = request.query_params.get("action"), time.perf_counter()
    if action == "erase":
        n = await apart(erase_slot, served, seq)
        return Answer({"id_slot": seq, "n_erased": n})
    if action not in ("save", "restore"):
        raise bad_request(f"action: expected save, restore or erase, got {action!r}", "action")
    folder, name = call.service.options.slot_save_path, call.body.filename
    if folder is None:
        raise ApiError(
            403, "slots cannot be saved; start the server with --slot-save-path", "permission_error"
        )
    work = save_slot if action == "save" else restore_slot
    n, size = await apart(work, served, seq, folder, name)
    words = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    ms = 1e3 * (time.perf_counter() - began)
    return Answer(
        {
            "id_slot": seq,
            "filename": name,
            words[0]: n,
            words[1]: size,
            "timings": {f"{action}_ms": ms},
        }
    )


def _slot_number(served: Served, text: str) -> int:
    n = served.engine.session.n_seqs
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) < n):
        raise bad_request(f"slots are from 0 to {n - 1}, got {text[:40]!r}", "id_slot")
    return int(text)
