"""Compiled plans of a model, shared by its sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from ..backends import Plan

# Plans that are kept for sessions to come. Those in use are kept by what is bound to them.
SPARE = 64


class PlanCache:
    """Plans by what they were compiled for; of those that nobody asked for in a long time, the
    cache lets go."""

    def __init__(self, spare: int = SPARE) -> None:
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._spare, self._lock = spare, threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def get(self, key: Hashable, compiled: Callable[[], Plan]) -> Plan:
        """The plan of this key, compiled when it is not there. From any thread; those that want
        others do not wait for it."""
        found = self._held(key)
        if found is None:
            with self._lock:
                making = self._making.setdefault(key, threading.Lock())
            with making:
                found = self._held(key) or self._make(key, compiled)
        return found

    def _held(self, key: Hashable) -> Plan | None:
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
            return self._plans.get(key)

    def _make(self, key: Hashable, compiled: Callable[[], Plan]) -> Plan:
        try:
            plan = compiled()
            with self._lock:
                self._plans[key] = plan
                if len(self._plans) > self._spare:
                    self._plans.popitem(last=False)
        finally:
            with self._lock:
                self._making.pop(key, None)
        return plan

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._plans.clear()
