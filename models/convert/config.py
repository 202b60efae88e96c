"""The configuration of a checkpoint, config.json, with errors that name the key."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from ...graph.errors import ModelError
from .json_files import ID, NUMBER, TEXT, Form, Leaf, Members, check, read_json

T = TypeVar("T")


class Needed(Enum):
    """The type of NEEDED."""

    token = 0


NEEDED: Final = Needed.token
_FORM: Form = Members(may={"architectures": [TEXT]})  # others are looked at when asked for
_NUMBERS = (
    *("rope_theta", "factor", "attention_factor", "mscale", "mscale_all_dim", "low_freq_factor"),
    *("high_freq_factor", "beta_fast", "beta_slow", "extrapolation_factor"),
)
_ROPE: Form = Members(
    may={
        **dict.fromkeys(_NUMBERS, NUMBER),
        **{key: [NUMBER] for key in ("long_factor", "short_factor")},
        **dict.fromkeys(("rope_type", "type"), TEXT),
        "mrope_section": [ID],
        "partial_rotary_factor": Leaf("0 to 1", lambda v: NUMBER.test(v) and 0 <= v <= 1),
        "original_max_position_embeddings": Leaf("above 0", lambda v: NUMBER.test(v) and v >= 1),
    }
)


class Config:
    """What config.json says; of models with several parts, what it says of the text model.

    The getters take several names where publishers spell a key in several ways; the first one that
    is there and not null counts. Each raises ModelError, naming the key, for a value of another
    type, and for one that is missing where there is no default."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        text = values.get("text_config")
        self.path = path
        self.values: dict[str, Any] = {**values, **text} if isinstance(text, dict) else values
        names = values.get("architectures")
        self.architectures: tuple[str, ...] = tuple(names) if isinstance(names, list) else ()
        self.model_type: str = self.string("model_type", default="")

    @classmethod
    def read(cls, folder: Path) -> Config:
        """The configuration of a checkpoint's folder. Raises ModelError where there is none."""
        path = folder / "config.json"
        if not path.is_file():
            raise ModelError(f"{path}: no such file; name the folder of a Hugging Face checkpoint")
        return cls(path, read_json(path, _FORM))

    def completed(self, defaults: dict[str, Any]) -> Config:
        """With these values where the file has none."""
        given = {name: value for name, value in self.values.items() if value is not None}
        return Config(self.path, defaults | given)

    def get(self, *names: str) -> Any:
        """The first of these that is there, as it stands in the file, or None."""
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)

    def integer(
        self, *names: str, default: T | Needed = NEEDED, within: range | None = None
    ) -> int | T:
        """A whole number. within: those that it may be, where others would cost the memory or the
        time of what they count."""
        found = self._typed(names, (int,), "a whole number", default)
        if within is not None and isinstance(found, int) and found not in within:
            raise self.fault(names[0], f"{within.start} to {within.stop - 1}", found)
        return found

    def number(self, *names: str, default: T | Needed = NEEDED) -> float | T:
        """A number, as a float."""
        found = self._typed(names, (int, float), "a number", default)
        try:
            return float(found) if isinstance(found, int) else found
        except OverflowError:
            raise self.fault(names[0], "a number that f64 holds", found) from None

    def flag(self, *names: str, default: T | Needed = NEEDED) -> bool | T:
        """true or false."""
        return self._typed(names, (bool,), "true or false", default)

    def string(self, *names: str, default: T | Needed = NEEDED) -> str | T:
        """A text."""
        return self._typed(names, (str,), "a text", default)

    def items(
        self, *names: str, default: T | Needed = NEEDED, count: int | None = None
    ) -> list[Any] | T:
        """A list. count: how many items it should have."""
        found = self._typed(names, (list,), "a list", default)
        if count is not None and isinstance(found, list) and len(found) != count:
            raise self.fault(names[0], f"a list of {count}", f"{len(found)} items")
        return found

    def fault(self, name: str, want: str, got: object) -> ModelError:
        """The error for a value that makes no sense."""
        return ModelError(f"{self.path}: {name} should be {want}, got {str(got)[:80]}")

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary parameters, of layers that see all where kinds of layers have their own: those of
        rope_parameters, or rope_theta and rope_scaling of older files."""
        found = self.rope_of("full_attention")
        return found if found else self._rope()

    def rope_of(self, kind: str) -> dict[str, Any]:
        """Rotary parameters of one kind of layers, {} where it has none of its own."""
        found = self._rope().get(kind)
        if not isinstance(found, dict):
            return {}
        check(self.path, found, _ROPE, f"rope_parameters.{kind}")
        return {name: value for name, value in found.items() if value is not None}

    def _rope(self) -> dict[str, Any]:
        found = self.get("rope_parameters", "rope_scaling") or {}
        if not isinstance(found, dict):
            raise self.fault("rope_parameters", "an object", found)
        found = dict(found)
        for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            if self.get(name) is not None:
                found.setdefault(name, self.get(name))
        if "type" in found:
            found.setdefault("rope_type", found["type"])
        check(self.path, found, _ROPE, "rope_parameters")
        return {name: value for name, value in found.items() if value is not None}

    def _typed(
        self, names: tuple[str, ...], kinds: tuple[type, ...], want: str, default: Any
    ) -> Any:
        value = self.get(*names)
        if value is None:
            if default is NEEDED:
                raise ModelError(f"{self.path}: {' or '.join(names)} is missing, expected {want}")
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.fault(next(n for n in names if self.get(n) is not None), want, value)
        return value
