"""Special ids of a checkpoint, and what its authors recommend for sampling."""

from __future__ import annotations

from typing import Any

from .config import Config
from .json_files import NUMBER, Form, Members

# Names of Hugging Face, and of GGUF where they differ.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
_ROLES |= {"cls": "cls", "mask": "mask"}
_SAMPLING = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
GENERATION: Form = Members(may=dict.fromkeys(_SAMPLING, NUMBER))  # of generation_config.json


def special_keys(
    config: Config,
    described: dict[str, Any],
    settings: dict[str, Any],
    generation: dict[str, Any],
    added: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    """tokenizer.ggml.*_token_id and add_*_token. described: tokenizer.json; settings:
    tokenizer_config.json; generation: generation_config.json; added: tokens by id.

    An id comes from the token that the tokenizer's settings name, else from config.json. Ends that
    only generation_config.json lists become the ends of a turn and of a message."""
    ids: dict[str, int] = {}
    by_text = {str(token["content"]): number for number, token in added.items()}
    by_text |= {text: n for text, n in _vocab(described).items() if text not in by_text}
    size = config.integer("vocab_size")
    for role, name in _ROLES.items():
        text = settings.get(f"{role}_token")
        text = text.get("content") if isinstance(text, dict) else text
        found = by_text.get(text) if isinstance(text, str) else None
        found = config.values.get(f"{role}_token_id") if found is None else found
        if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < size:
            ids[name] = found
    ids |= _further_ends(config, generation, ids, size)
    keys: dict[str, Any] = {f"tokenizer.ggml.{name}_token_id": n for name, n in ids.items()}
    for role in ("bos", "eos"):
        adds = settings.get(f"add_{role}_token")
        adds = _adds(described, role, ids.get(role), by_text) if adds is None else adds
        if isinstance(adds, bool):
            keys[f"tokenizer.ggml.add_{role}_token"] = adds
    return keys


def sampling_keys(generation: dict[str, Any]) -> dict[str, Any]:
    """general.sampling.* of generation_config.json."""
    found = {}
    for name, key in _SAMPLING.items():
        value = generation.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"general.sampling.{key}"] = int(value) if name == "top_k" else float(value)
    return found


def _vocab(described: dict[str, Any]) -> dict[str, int]:
    found = (described.get("model") or {}).get("vocab")
    return found if isinstance(found, dict) else {}


def _further_ends(
    config: Config, generation: dict[str, Any], ids: dict[str, int], size: int
) -> dict[str, int]:
    listed = generation.get("eos_token_id", config.values.get("eos_token_id"))
    ends = [n for n in (listed if isinstance(listed, list) else [listed]) if isinstance(n, int)]
    ends = [n for n in dict.fromkeys(ends) if 0 <= n < size]
    found: dict[str, int] = {}
    if ends and "eos" not in ids:
        found["eos"] = ends[0]
    others = [n for n in ends if n not in (ids.get("eos"), found.get("eos"))]
    return found | dict(zip(("eot", "eom"), others, strict=False))


def _adds(
    described: dict[str, Any], role: str, token: int | None, by_text: dict[str, int]
) -> bool | None:
    """Whether the tokenizer's template puts this token at its end of a text, None where there is no
    template."""
    processor = described.get("post_processor") or {}
    for part in processor.get("processors") or [processor]:
        if part.get("type") == "TemplateProcessing":
            single = part.get("single") or [{}]
            end = (single[0 if role == "bos" else -1].get("SpecialToken") or {}).get("id")
            return token is not None and isinstance(end, str) and by_text.get(end) == token
    return None
