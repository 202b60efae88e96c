"""JSON files of a checkpoint, and the forms that what is read of them must have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ...graph.errors import ModelError

REMEDY = "fetch the file again"


@dataclass(frozen=True)
class Leaf:
    """A value that passes a test; `words` say what it should be."""

    words: str
    test: Callable[[Any], bool]


@dataclass(frozen=True)
class Members:
    """An object with these members; those of `may` can be absent or null. Others are not read."""

    needed: dict[str, Form] = field(default_factory=dict)
    may: dict[str, Form] = field(default_factory=dict)


@dataclass(frozen=True)
class Each:
    """An object of which every key and every value has a form."""

    value: Form
    key: Leaf


# A list stands for lists of its only item's form; a pair for values that are no list, and for
# lists; a function for the form that it gives, which may hold itself.
Form: TypeAlias = "Leaf | Members | Each | list[Any] | tuple[Form, Form] | Callable[[], Form]"


def _text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _finite(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) < math.inf and abs(value) <= 1e38


TEXT = Leaf("a text", _text)
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
ID = Leaf("a number of 0 or more", _whole)
NUMBER = Leaf("a finite number", _finite)


def parse(raw: bytes, source: str) -> dict[str, Any]:
    """An object of JSON. source: names it in messages. Raises ModelError for what is none."""
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise ModelError(f"{source} is not valid JSON ({error}); {REMEDY}") from None
    except RecursionError:
        raise ModelError(f"{source} is nested too deeply; {REMEDY}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{source} should be a JSON object, got {type(found).__name__}; {REMEDY}")
    return found


def read_json(path: Path, form: Form | None = None) -> dict[str, Any]:
    """An object of a JSON file. Raises ModelError for what is none, and for members that have
    another form."""
    found = parse(path.read_bytes(), f"{path}:")
    if form is not None:
        check(path, found, form)
    return found


def optional_json(path: Path, form: Form) -> dict[str, Any]:
    """The same, {} where there is no file."""
    return read_json(path, form) if path.is_file() else {}


def check(path: Path, value: Any, form: Form, where: str = "") -> None:
    """Raise ModelError, naming the member, where a value has another form. where: its name."""
    try:
        _check(value, form, where)
    except _MisfitError as misfit:
        raise ModelError(f"{path}: {misfit}; {REMEDY}") from None
    except RecursionError:
        raise ModelError(f"{path}: is nested too deeply; {REMEDY}") from None


class _MisfitError(Exception):
    """The first value of another form, in words."""


def _check(value: Any, form: Form, where: str) -> None:
    if isinstance(form, Leaf):
        if not form.test(value):
            raise _misfit(where, form.words, value)
    elif isinstance(form, tuple):
        _check(value, form[isinstance(value, list)], where)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise _misfit(where, "a list", value)
        for i, item in enumerate(value):
            _check(item, form[0], f"{where}[{i}]")
    elif isinstance(form, (Members, Each)):
        if not isinstance(value, dict):
            raise _misfit(where, "an object", value)
        _check_object(value, form, where)
    else:
        _check(value, form(), where)


def _check_object(value: dict[str, Any], form: Members | Each, where: str) -> None:
    if isinstance(form, Each):
        for key, item in value.items():
            _check(key, form.key, f"a key of {where}")
            _check(item, form.value, f"{where}[{key!r}]")
        return
    front = f"{where}." if where else ""
    for key, inner in form.needed.items():
        _check(value.get(key), inner, front + key)
    for key, inner in form.may.items():
        if value.get(key) is not None:
            _check(value[key], inner, front + key)


def _misfit(where: str, words: str, value: Any) -> _MisfitError:
    got = ascii(value)
    got = got if len(got) <= 60 else f"{got[:60]}..."
    return _MisfitError(f"{where or 'it'} should be {words}, got {got}")
