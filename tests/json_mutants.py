"""Values of JSON with one thing wrong."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, 1.5, float("inf"), float("nan")),
    *("", "x", "1", "\ud800", "\0", [], {}, [[]], [1], ["a"], [None], {"a": 1}, {"content": 3}),
)
DEEP = b'{"a":' * 50000
MOST_MEMBERS, MOST_ITEMS = 60, 12  # of an object or list that are looked into

Path = tuple[Any, ...]


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """The ways to every value within: keys and places."""
    yield at
    if isinstance(value, dict):
        for key in list(value)[:MOST_MEMBERS]:
            yield from paths(value[key], (*at, key))
    elif isinstance(value, list):
        for i in range(min(len(value), MOST_ITEMS)):
            yield from paths(value[i], (*at, i))


def mutant(value: Any, rng: random.Random) -> tuple[str, Any]:
    """What is wrong, and the value: a member missing, under another name, or another value."""
    made = copy.deepcopy(value)
    at = rng.choice(list(paths(made)))
    if not at:
        return "all", rng.choice(ODD)
    holder = made
    for key in at[:-1]:
        holder = holder[key]
    key, how = at[-1], rng.random()
    found = holder[key]
    if how < 0.2:
        del holder[key]
    elif how < 0.3 and isinstance(holder, dict):
        holder[rng.choice(("x", "", "é"))] = holder.pop(key)
    elif how < 0.4 and isinstance(found, str):
        holder[key] = found[:-1] + rng.choice("aé\0🙂")
    elif how < 0.5 and isinstance(found, (int, float)):
        holder[key] = found + rng.choice((-1, 1, 0.5, 1000, 2**33))
    else:
        holder[key] = rng.choice(ODD)
    return ".".join(map(str, at)), made


def spoiled(raw: bytes, rng: random.Random) -> tuple[str, bytes]:
    """What is wrong, and a file of JSON: a mutant of its value, or of its bytes."""
    if rng.random() < 0.9:
        what, value = mutant(json.loads(raw), rng)
        return what, json.dumps(value).encode()
    at = rng.randrange(len(raw))
    piece = rng.choice((b"", b"\xff", DEEP, b"[" * 100000, rng.randbytes(3)))
    return f"bytes at {at}", raw[:at] + piece + raw[at + rng.choice((0, 1, 4)) :]
