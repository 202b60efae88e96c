"""Fields of dataclasses that a caller fills in: what a value may be, and how the command offers it.

    top_k: int = option(40, "--top-k", help="Keep the k likeliest tokens; 0: all.",
                        check=integer(-2**31, 2**31 - 1, "<= 0 turns it off"))

declares the field, the check of it (`check_fields`, in Python a RequestError that names the field)
and the option `--top-k` of every command that takes the dataclass (tools/parameters.py)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from numbers import Integral, Real
from typing import Any

from .errors import RequestError

KEY = "option"
DECLARED: Any = object()  # Option.absent: the field's own default


@dataclass(frozen=True)
class Check:
    """What a value may be. want: in words; fits: whether a value is that; least: the lower end of
    a range of integers, where there is one."""

    want: str
    fits: Callable[[Any], bool]
    least: int | None = None

    def fault(self, value: object) -> str:
        """What is wrong with a value, "" for nothing."""
        return "" if self.fits(value) else f"expected {self.want}, got {value!r}"


@dataclass(frozen=True)
class Option:
    """How a command offers a field.

    flags: its names, none for a positional argument; metavar: what stands for its value; help: one
    line, or what makes it when it is shown; check: None where every value of the type will do;
    absent: its value when the command line does not have it, DECLARED for the field's default;
    shown: words in the place of that value in the help; unset: the number that stands for None;
    read: the value from its text, raising ValueError (from the list of texts where it is
    repeatable); kind: the type of what is typed, where it is not the field's."""

    flags: tuple[str, ...]
    metavar: str | None = None
    help: str | Callable[[], str] = ""
    check: Check | None = None
    absent: Any = DECLARED
    shown: str = ""
    unset: Any = None
    read: Callable[[Any], Any] | None = None
    kind: type | None = None
    repeatable: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What messages call it: its flags, or what stands for its value."""
        return self.flags or (self.metavar or "",)

    @property
    def limits(self) -> Check | None:
        """Its check in the words of the command, where a number stands for None."""
        if self.check is None or self.unset is None:
            return self.check
        return dataclasses.replace(
            self.check, want=self.check.want.replace("None", str(self.unset))
        )


def option(default: Any, *flags: str, factory: Any = MISSING, **how: Any) -> Any:
    """A field with this default that the command offers under these names; how: the other fields
    of Option. factory: makes the default, where `default` is MISSING."""
    return field(default=default, default_factory=factory, metadata={KEY: Option(flags, **how)})


def limited(default: Any, check: Check) -> Any:
    """A field with this default and a check, which no command offers."""
    return field(default=default, metadata={KEY: check})


def options_of(cls: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The fields of a dataclass that a command offers, in order."""
    for each in dataclasses.fields(cls):
        if isinstance(each.metadata.get(KEY), Option):
            yield each, each.metadata[KEY]


def check_fields(instance: Any) -> None:
    """Raise RequestError for the first field whose value its check refuses, naming the field, what
    was expected and what came. None passes where it is the default."""
    kind: Any = type(instance)
    for name, check, default in _checks(kind):
        value = getattr(instance, name)
        if value is None and default is None:
            continue
        fault = check.fault(value)
        if fault:
            raise RequestError(f"{name}: {fault}", name)


@cache
def _checks(cls: Any) -> tuple[tuple[str, Check, Any], ...]:
    """The fields of a dataclass that have a check, with it and their default; requests are checked
    by these while others wait."""
    found = []
    for each in dataclasses.fields(cls):
        declared = each.metadata.get(KEY)
        check = declared.check if isinstance(declared, Option) else declared
        if check is not None:
            found.append((each.name, check, each.default))
    return tuple(found)


def integer(least: int, most: int, note: str = "") -> Check:
    """An integer from least to most, both included; a bool is none."""
    want = f"an integer in {least} .. {most}" + (f" ({note})" if note else "")
    return Check(want, lambda value: is_integer(value) and least <= value <= most, least)


def number(want: str, fits: Callable[[float], bool] = lambda value: True) -> Check:
    """A finite number for which `fits` holds; want: that in words."""
    return Check(want, lambda v: is_number(v) and math.isfinite(v) and fits(v))


def one_of(names: Sequence[str]) -> Check:
    """One of these texts."""
    return Check(f"one of {', '.join(names)}", lambda value: value in names)


def is_number(value: object) -> bool:
    """Whether this is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_integer(value: object) -> bool:
    """Whether this is an integer; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)
