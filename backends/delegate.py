"""Wrappers of backends, plans and bound plans that pass on whatever they do not change."""

from __future__ import annotations

from typing import Any


class PassedOn:
    """A member whose value is that of `inner`; what an instance sets itself comes first."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance.inner, self.name)


class Delegate:
    """First base of a wrapper: `class Watched(Delegate, Backend)`, with the wrapped object in
    `inner`.

    Public methods and attributes that a wrapper class does not define are inner's own: those that
    its other bases have, and those that only inner's class has. Properties of the other bases stay,
    since they are computed from members that the wrapper may have changed. A wrapper that changes a
    method must also define those whose default calls it (`run` and `start` of a bound plan)."""

    inner: Any

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in dir(cls):
            owner = next((c for c in cls.__mro__ if name in vars(c)), object)
            kept = name.startswith("_") or owner is object or issubclass(owner, Delegate)
            if not kept and not isinstance(vars(owner)[name], property):
                setattr(cls, name, PassedOn(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.inner, name)
