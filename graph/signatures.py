"""Signature and text of the builder's op methods, for `help(g.rms_norm)` and for editors."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from .node import Value
from .op import Op

Call = TypeVar("Call", bound=Callable[..., Any])


def documented(call: Call, cls: type[Op]) -> Call:
    """The call that builds nodes of an op in a graph, its first argument, with the op's name,
    signature and text."""
    method: Any = call
    method.__name__, method.__qualname__ = cls.name, f"Graph.{cls.name}"
    graph = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = signature(cls)
    method.__signature__ = takes.replace(parameters=[graph, *takes.parameters.values()])
    method.__doc__ = inspect.getdoc(cls) or ""
    return call


def signature(cls: type[Op]) -> inspect.Signature:
    """Inputs as values, by place or name; attributes and the node's name by name alone. It returns
    a value, or a tuple with all outputs that the op can have."""
    kinds = inspect.Parameter
    parameters = []
    for name in cls.inputs:
        plain = name.strip("?*")
        if name.startswith("*"):
            parameters.append(kinds(plain, kinds.VAR_POSITIONAL, annotation=Value))
        elif name.endswith("?"):
            form = kinds.POSITIONAL_OR_KEYWORD
            parameters.append(kinds(plain, form, default=None, annotation=Value | None))
        else:
            parameters.append(kinds(plain, kinds.POSITIONAL_OR_KEYWORD, annotation=Value))
    types = get_type_hints(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        default = kinds.empty if field.default is dataclasses.MISSING else field.default
        parameters.append(
            kinds(field.name, kinds.KEYWORD_ONLY, default=default, annotation=types[field.name])
        )
    parameters.append(kinds("name", kinds.KEYWORD_ONLY, default="", annotation=str))
    several: Any = tuple.__class_getitem__((Value,) * len(cls.outputs))
    gives = several if len(cls.outputs) > 1 else Value
    return inspect.Signature(parameters, return_annotation=gives)
