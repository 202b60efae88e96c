"""An array module whose arrays do not turn into numpy's by themselves, as a GPU's do not.

A module has `ndarray`, `asarray` and `asnumpy`. Functions and operators of numpy come back to it by
numpy's protocols; what would silently move data to the host raises TypeError."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

HOST_DATA = "Implicit conversion to a NumPy array is not allowed"


class DeviceArray(NDArrayOperatorsMixin):
    """A numpy array in hiding; results of functions, operators and methods hide as well."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = np.asarray(hidden)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(HOST_DATA)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **rest: Any) -> Any:
        if any(isinstance(x, np.ndarray) and x.ndim for x in inputs):
            raise TypeError(f"Unsupported type numpy.ndarray in {ufunc.__name__}")
        return _hide(getattr(ufunc, method)(*map(_bare, inputs), **_bare(rest)))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(t is np.ndarray for t in types):
            raise TypeError(f"Unsupported type numpy.ndarray in {func.__name__}")
        return _hide(func(*_bare(args), **_bare(kwargs)))

    def __getitem__(self, key: Any) -> Any:
        return _hide(self.hidden[_bare(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type numpy.ndarray in assignment")
        self.hidden[_bare(key)] = _bare(value)

    def __len__(self) -> int:
        return len(self.hidden)

    def __index__(self) -> int:
        return self.hidden.__index__()

    def __float__(self) -> float:
        return float(self.hidden)

    def __bool__(self) -> bool:
        return bool(self.hidden)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # above all numpy's ways to the memory
        found = getattr(self.hidden, name)
        if not callable(found):
            return _hide(found)
        return lambda *args, **kwargs: _hide(found(*_bare(args), **_bare(kwargs)))


def _bare(x: Any) -> Any:
    if isinstance(x, DeviceArray):
        return x.hidden
    if isinstance(x, (list, tuple)):
        return type(x)(_bare(v) for v in x)
    return {k: _bare(v) for k, v in x.items()} if isinstance(x, dict) else x


def _hide(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic)):
        return DeviceArray(x)
    if isinstance(x, (list, tuple)) and any(isinstance(v, np.ndarray) for v in x):
        return type(x)(map(_hide, x))
    return x


ndarray = DeviceArray


def asarray(x: Any) -> DeviceArray:
    """A copy on the device."""
    return DeviceArray(np.array(_bare(x)))


def asnumpy(x: Any) -> np.ndarray:
    """A copy on the host."""
    return np.array(_bare(x))
