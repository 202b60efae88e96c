"""Weights that are kept on another device than the rest of their layer: experts, of whose many
matrices a token reads a few, and tensors that a caller names."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence

from ..graph.errors import RequestError
from ..models import ModelFile
from .session_plan import mib

PROCESSOR = "cpu"
Overrides = Sequence[tuple[str, str]]


def check_overrides(overrides: Overrides) -> None:
    """Raise RequestError for what is not pairs of a regular expression and a device's name."""
    for pair in overrides:
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(map(_is_text, pair)):
            raise RequestError(
                f"override_tensor should be pairs (regex, device) of texts, got {pair!r}"
            )
        try:
            re.compile(pair[0])
        except re.error as error:
            raise RequestError(
                f"override_tensor: {pair[0]!r} is no regular expression: {error}"
            ) from None


def moved_weights(source: ModelFile, n_cpu_moe: int, overrides: Overrides) -> dict[str, str]:
    """The device's name of every weight that is to be elsewhere than its layer: by the first of the
    overrides whose expression is found in its name, else on the processor, if it holds experts of
    the first n_cpu_moe layers.

    Raises RequestError for an expression that is found in none, and for a model without experts."""
    found: dict[str, str] = {}
    for regex, device in overrides:
        names = [name for name in source.specs if re.search(regex, name)]
        if not names:
            raise RequestError(
                f"override_tensor={regex!r} is found in none of the model's tensors, whose names "
                f"are like {next(iter(source.specs))!r} and {list(source.specs)[-1]!r}"
            )
        found |= {name: device for name in names if name not in found}
    if n_cpu_moe:
        wants = [w for w in source.arch.wants() if w.experts and w.name in source.specs]
        if not wants:
            raise RequestError(
                f"n_cpu_moe={n_cpu_moe} keeps experts on the processor, and this model "
                f"({source.arch.name}) has none"
            )
        first = [w.name for w in wants if w.layer is not None and w.layer < n_cpu_moe]
        found |= {name: PROCESSOR for name in first if name not in found}
    return found


def places_line(
    source: ModelFile, devices: Sequence[str], places: Mapping[str, str], moved: Container[str]
) -> str:
    """One line of how many bytes of weights lie on which device, and which were moved there.
    devices: all, first the one of weights without a place of their own."""
    parts = []
    for device in devices:
        names = [n for n in source.specs if places.get(n, devices[0]) == device]
        size = mib(sum(source.specs[n].nbytes for n in names))
        there = _summary(n for n in names if n in moved)
        parts.append(f"{size} on {device}" + (f" ({there})" if there else ""))
    return f"weights: {', '.join(parts)}"


def _summary(names: Iterable[str]) -> str:
    """Tensors in few words: those of blocks by kind, with the numbers of the blocks."""
    kinds: dict[str, list[int]] = {}
    others = []
    for name in names:
        match = re.fullmatch(r"blk\.(\d+)\.(.+?)(?:\.weight)?", name)
        if match:
            kinds.setdefault(match[2], []).append(int(match[1]))
        else:
            others.append(name)
    blocks: dict[str, list[str]] = {}
    for kind, numbers in sorted(kinds.items()):
        blocks.setdefault(_ranges(sorted(numbers)), []).append(kind)
    groups = [f"{', '.join(kinds)} of blk.{where}" for where, kinds in blocks.items()]
    return "; ".join([*groups, *others])


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as 0-3,7."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""
