"""What is imported when it is first asked for, so that what needs one small part, such as the help
of a command, does not wait for all: public names of packages, and codecs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


class LatePackage(ModuleType):
    """A package after `late_names`: its public names and its modules are there when used."""

    __homes__: Mapping[str, str]

    def __getattr__(self, name: str) -> object:
        found: object
        if name in self.__homes__:
            found = getattr(import_module(self.__homes__[name], self.__name__), name)
        elif find_spec(f"{self.__name__}.{name}"):
            found = import_module(f".{name}", self.__name__)
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__dict__[name] = found
        return found

    def __setattr__(self, name: str, value: object) -> None:
        # Importing a module `verify` must not hide the public function of that name.
        if not (isinstance(value, ModuleType) and name in self.__homes__):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__homes__})


_CODECS: list[str] = []


def late_codecs(module: str) -> None:
    """Import a module, by its full name, when the first codec is looked for: it registers some."""
    _CODECS.append(module)


def import_codecs() -> None:
    """Import the modules of all `late_codecs` that are not there yet."""
    for module in _CODECS:
        import_module(module)


def late_names(package: str, homes: Mapping[str, str]) -> list[str]:
    """Give a package its public names; all of them, for `__all__`.

    homes: the names, a space between two, by the module that defines them, as imports have it."""
    module = sys.modules[package]
    places = {name: home for home, names in homes.items() for name in names.split()}
    module.__dict__["__homes__"] = places
    module.__class__ = LatePackage
    return sorted(places)
