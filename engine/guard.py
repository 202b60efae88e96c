"""Who may use a session: one call at a time, and while a generation owns it, that generation alone.

Both marks are weak references. So a call that an exception leaves anywhere, and a generation that
is dropped, free the session without having to run another line."""

from __future__ import annotations

import weakref
from typing import Any

from ..graph.errors import SessionBusy


class Call:
    """A call in progress; it lives as long as the frame that made it."""

    __slots__ = ("__weakref__",)


class Guard:
    """Marks of one session."""

    def __init__(self) -> None:
        self._calls: dict[str, weakref.ref[Call]] = {}
        self._owner: weakref.ref[Any] | None = None

    def enter(self, call: Call, owner: object = None) -> None:
        """Begin a call, for an owner or for nobody. Raises SessionBusy while another call runs or
        another owner has the session."""
        mine = weakref.ref(call)
        running = self._calls.setdefault("running", mine)
        if running is not mine:
            if running() is not None:
                raise SessionBusy(
                    "this session is in use by another thread; give each thread its own session"
                )
            self._calls["running"] = mine
        holder = self._owner() if self._owner is not None else None
        if holder is not None and holder is not owner:
            self.leave(call)
            raise SessionBusy(
                "this session belongs to a generation that has not ended; take it to its end, "
                "close it, or use another session"
            )

    def leave(self, call: Call) -> None:
        """End a call."""
        running = self._calls.get("running")
        if running is not None and running() is call:
            del self._calls["running"]

    def claim(self, owner: object) -> None:
        """Reserve the session for an owner until `release`, or until the owner is gone.

        Raises SessionBusy while it is in use."""
        call = Call()
        try:
            self.enter(call, owner)
            self._owner = weakref.ref(owner)
        finally:
            self.leave(call)

    def release(self, owner: object) -> None:
        """Give the session back, if this owner has it."""
        if self._owner is not None and self._owner() is owner:
            self._owner = None
