"""From dataclasses to the options of a command, and from what was typed to their instances.

A command is a function whose parameters are dataclasses with fields made by `graph.fields.option`:

    @command
    def run(loading: Loading, sampling: SamplerParams, session: Chosen[SessionOptions]) -> None: ...

Each such field is an option of it; a value that its check refuses is a usage error naming the
option. A `Chosen[T]` gives the values instead of an instance, for what a command still completes.
Other parameters are typer's own. `Annotated[T, Offer(...)]` leaves fields out, or changes how they
are offered."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

import typer

from ..graph.fields import DECLARED, Option, options_of
from .misuse import misuse, usage_errors

T = TypeVar("T")
_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}
# Options without this one on the command line are errors.
REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Offer:
    """Which fields of a dataclass a command offers, and what is otherwise than declared.

    only: these fields; without: all but these; changed: attributes of `Option` by field."""

    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    changed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options(self, cls: Any) -> Iterator[tuple[Field[Any], Option]]:
        """The fields offered and how."""
        for each, option in options_of(cls):
            if each.name not in self.without and (not self.only or each.name in self.only):
                yield each, replace(option, **self.changed.get(each.name, {}))


@dataclass(frozen=True)
class Chosen(Generic[T]):
    """Values of a dataclass's fields from the command line, of which the class may not be complete.
    values: by field, without those that are left to the class."""

    cls: type[T]
    values: Mapping[str, Any]

    def make(self, **more: Any) -> T:
        """The instance, `more` going before what was typed. What the class refuses of its options
        is a usage error."""
        with usage_errors({each.name: option.names for each, option in options_of(self.cls)}):
            return self.cls(**{**self.values, **more})


@dataclass(frozen=True)
class Group:
    """A parameter of a command function that stands for a dataclass."""

    name: str
    cls: type
    offer: Offer
    whole: bool  # an instance is wanted, not a Chosen

    def parameters(self) -> list[inspect.Parameter]:
        """A parameter for typer for each field offered."""
        return [_parameter(each, option) for each, option in self.offer.options(self.cls)]

    def collect(self, typed: Mapping[str, Any]) -> Any:
        """The instance or the Chosen from the values of all parameters."""
        values = {}
        for each, option in self.offer.options(self.cls):
            value = _value(each, option, typed[parameter_name(each, option)])
            if value is not None or each.default is None or each.default is MISSING:
                values[each.name] = value
        chosen: Chosen[Any] = Chosen(self.cls, values)
        return chosen.make() if self.whole else chosen


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function with the options of its dataclasses as parameters, for typer."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: list[Group] = []
    own: list[str] = []
    for name, plain in inspect.signature(function).parameters.items():
        group = group_of(name, hints[name])
        if group:
            groups.append(group)
            parameters += group.parameters()
        else:
            own.append(name)
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(plain.replace(annotation=hints[name], kind=kind))

    def call(**typed: Any) -> None:
        made = {group.name: group.collect(typed) for group in groups}
        function(**made, **{name: typed[name] for name in own})

    call.__name__, call.__doc__, call.__module__ = (
        function.__name__,
        function.__doc__,
        function.__module__,
    )
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.checks = {  # type: ignore[attr-defined]
        parameter_name(each, option): option.limits
        for group in groups
        for each, option in group.offer.options(group.cls)
        if option.limits
    }
    return call


def group_of(name: str, hint: Any) -> Group | None:
    """What a parameter stands for, None unless its annotation is a dataclass with options."""
    inner, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    whole = get_origin(inner) is not Chosen
    cls = inner if whole else get_args(inner)[0]
    if not is_dataclass(cls) or not isinstance(cls, type):
        return None
    offer = next((note for note in notes if isinstance(note, Offer)), Offer())
    return Group(name, cls, offer, whole)


def parameter_name(each: Field[Any], option: Option) -> str:
    """How typer calls it: after its longest name, `--top-k` is top_k."""
    return max(option.flags, key=len).strip("-").replace("-", "_") if option.flags else each.name


def absent_value(each: Field[Any], option: Option) -> Any:
    """The value when the option is not given, as typer has it."""
    if option.absent is not DECLARED:
        return option.absent
    if option.repeatable:
        return None
    default = None if each.default is MISSING else each.default
    return option.unset if default is None else default


def typed_as(each: Field[Any], option: Option) -> type:
    """The type of what is typed."""
    if option.kind:
        return option.kind
    name = str(each.type).split("|")[0].strip()
    if option.read is None and name not in _TYPES:
        raise TypeError(f"option of field {each.name}: a {name} needs `read` or `kind`")
    return str if option.read else _TYPES[name]


def help_of(option: Option) -> str:
    """The line of help."""
    return option.help() if callable(option.help) else option.help


def _parameter(each: Field[Any], option: Option) -> inspect.Parameter:
    kind = typed_as(each, option)
    absent = None if option.read else absent_value(each, option)
    shown: dict[str, Any] = {"help": help_of(option)}
    if option.metavar:
        shown["metavar"] = option.metavar
    if option.shown:
        shown["show_default"] = option.shown
    least = option.check.least if option.check else None
    if least is not None and least >= -1:
        shown["min"] = least if option.unset is None else min(least, option.unset)
    annotation: Any = kind if absent is not None else kind | None
    if option.repeatable:
        annotation = list[str] | None
    if kind is bool:
        # A flag says the opposite of its field's default.
        absent = False
    info = typer.Option(*option.flags, **shown) if option.flags else typer.Argument(**shown)
    return inspect.Parameter(
        parameter_name(each, option),
        inspect.Parameter.KEYWORD_ONLY,
        default=absent,
        annotation=Annotated[annotation, info],
    )


def _value(each: Field[Any], option: Option, typed: Any) -> Any:
    """The field's value. Raises typer.BadParameter, naming the option."""
    absent = absent_value(each, option)
    if typed_as(each, option) is bool:
        return typed != bool(absent)
    if typed is None or (option.repeatable and not typed):
        return _no_value(each, option)
    if option.unset is not None and typed == option.unset:
        return None
    typed = _unicode(option.names, typed)
    value = _read(option, option.read, typed) if option.read else typed
    fault = option.limits.fault(value) if option.limits else ""
    if fault:
        raise misuse(f"{each.name}: {fault}", *option.names)
    return value


def _no_value(each: Field[Any], option: Option) -> Any:
    if option.absent is not DECLARED:
        return option.absent
    return each.default_factory() if each.default_factory is not MISSING else None


def _read(option: Option, read: Callable[[Any], Any], typed: Any) -> Any:
    """What `read` makes of the texts."""
    try:
        return read(typed)
    except ValueError as error:
        raise misuse(str(error), *option.names) from None


def _unicode(names: tuple[str, ...], typed: Any) -> Any:
    """A text or several, also where the locale is not one of UTF-8. Raises typer.BadParameter for
    one with bytes that are not UTF-8."""
    if isinstance(typed, list):
        return [_unicode(names, text) for text in typed]
    if not isinstance(typed, str):
        return typed
    # Of bytes that the locale does not know, Python makes surrogates.
    at = next((place for place, c in enumerate(typed) if "\ud800" <= c <= "\udfff"), -1)
    if at < 0:
        return typed
    try:
        return os.fsencode(typed).decode("utf-8")
    except UnicodeError:
        raise misuse(
            f"expected UTF-8, got the byte {ord(typed[at]) & 0xFF:#04x} at place {at} of {typed!r}",
            *names,
        ) from None
