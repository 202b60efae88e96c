"""What a caller gives to a chat template, as the plain data that a template may see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...graph.errors import RequestError

# Names of a message's reasoning, the one that most templates read first.
REASONING = ("reasoning_content", "thinking", "reasoning")
_MOST_LEVELS = 200
# Of a subclass, such as an enumeration, templates get what it stands for.
_BASES: dict[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__}


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """Messages as dicts, without the keys whose value is None; a message's reasoning stands under
    all names that templates read it by.

    Raises RequestError for what is no list of mappings (or dataclasses, or pydantic models) with a
    role, for none at all, and for values that are no JSON."""
    found = [_message(message, i) for i, message in enumerate(_listed(messages, "messages"))]
    if not found:
        raise RequestError("messages: expected at least one, got none")
    return found


def plain_dicts(items: Any, what: str) -> list[dict[str, Any]] | None:
    """Tools or documents as dicts, None for None. Raises RequestError for anything else."""
    if items is None:
        return None
    found = [plain(item, f"{what}[{i}]") for i, item in enumerate(_listed(items, what))]
    for i, item in enumerate(found):
        if not isinstance(item, dict):
            raise RequestError(f"{what}[{i}]: expected a dict, got {type(item).__name__}")
    return found


def plain(value: Any, where: str, level: int = 0) -> Any:
    """A value of the types of JSON, and tuples. where: how messages call it.

    Raises RequestError for anything that cannot be one."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if level > _MOST_LEVELS:
        raise RequestError(f"{where}: expected at most {_MOST_LEVELS} levels of nesting")
    if isinstance(value, np.generic):
        return plain(value.item(), where, level + 1)
    for kind, base_value in _BASES.items():
        if isinstance(value, kind):
            return base_value(value)
    if isinstance(value, Mapping):
        return {
            plain(key, f"a key of {where}", level + 1): plain(item, f"{where}.{key}", level + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        made = [plain(item, f"{where}[{i}]", level + 1) for i, item in enumerate(value)]
        return tuple(made) if isinstance(value, tuple) else made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return plain(fields, where, level + 1)
    if callable(getattr(value, "model_dump", None)):
        return plain(value.model_dump(), where, level + 1)
    raise RequestError(
        f"{where}: expected text, numbers, lists and dicts, got {type(value).__name__}"
    )


def _listed(items: Any, what: str) -> Sequence[Any]:
    if isinstance(items, Sequence) and not isinstance(items, str | bytes):
        return items
    raise RequestError(f"{what}: expected a list of dicts, got {type(items).__name__}")


def _message(given: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    message = plain(given, where)
    if not isinstance(message, dict):
        raise RequestError(f"{where}: expected a dict, got {type(given).__name__}")
    message = {key: value for key, value in message.items() if value is not None}
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}: expected a role, a text, got {message.get('role')!r}")
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message
