"""The names of the ways in which recurrent state forgets tokens."""

from __future__ import annotations

from ...graph.errors import RequestError

# What `rollback=` may be: the strategies of rollback.py, and two that stand for some of them.
ROLLBACKS = ("auto", "replay", "snapshots", "checkpoint:host", "checkpoint:device", "checkpoint")


def check_rollback(name: str) -> None:
    """Raise RequestError unless `rollback=` may have this value."""
    if name not in ROLLBACKS:
        raise RequestError(
            f"rollback should be one of {', '.join(ROLLBACKS)}, got {name!r}", "rollback"
        )
