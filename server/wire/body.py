"""What all bodies share: every field is honoured, known to be harmless, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from ..logs import log_once

_NEUTRAL: tuple[Any, ...] = (None, False, "", [], {})


class Body(BaseModel):
    """A body. Its fields are honoured.

    ignored: names that change nothing in an answer; refused: names that would, and cannot be
    honoured, each with the values at which they ask for nothing besides null, false and empty."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    ignored: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _sorted_out(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = _names(cls)
        kept = {}
        for name, value in given.items():
            if name in known:
                kept[name] = value
            elif name in cls.ignored:
                log_once(f"the field {name!r} of a request changes nothing here")
            elif name not in cls.refused:
                raise ValueError(f"{name}: unknown field{_near(name, known)}")
            elif not _asks_nothing(value, cls.refused[name]):
                raise ValueError(f"{name}: not supported, and it would change the answer")
        return kept


def _names(cls: type[BaseModel]) -> set[str]:
    found = set(cls.model_fields)
    return found | {field.alias for field in cls.model_fields.values() if field.alias}


def _asks_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value == each and type(value) is type(each) for each in (*_NEUTRAL, *neutral))


def _near(name: str, known: set[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


class Nothing(Body):
    """No body."""
