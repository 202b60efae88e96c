"""`riverrun inspect`: what a model file holds, whether it runs here, and what it would take."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..engine.session_options import SessionOptions
from ..engine.sizes import mib
from ..graph.errors import GgufError, RequestError
from .messages import printable
from .misuse import misuse
from .options import Json
from .parameters import Chosen, Offer, command

if TYPE_CHECKING:
    from rich.table import Table

    from ..engine import Inspection
    from ..models.gguf import Metadata

File: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="GGUF file, or any file of a set of shards.")
]
Key: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="KEY", help="With --metadata: this key's whole value.")
]
Tensors: TypeAlias = Annotated[
    bool, typer.Option("--tensors", help="Also list the tensors: type, shape, bytes.")
]
Keys: TypeAlias = Annotated[
    bool, typer.Option("--metadata", help="Also list the keys; with KEY print its value alone.")
]
LONGEST = 64  # items of an array, or characters of a text, that a list of keys shows


@command
def inspect(
    file: File,
    session: Annotated[
        Chosen[SessionOptions], Offer(only=("n_ctx", "cache_type_k", "cache_type_v"))
    ],
    key: Key = None,
    tensors: Tensors = False,
    metadata: Keys = False,
    as_json: Json = False,
) -> None:
    """Tell what a model file holds, whether it runs here, and the memory of a context, without
    loading it."""
    from ..engine import inspect as read

    if key is not None and not metadata:
        raise misuse(f"needs --metadata, got {key!r} without it", "KEY")
    found = read(file, **session.values)
    if key is not None:
        _print_value(found, key, as_json)
    elif as_json:
        print(json.dumps(_object(found, tensors, metadata)))
    else:
        _print_tables(found, tensors, metadata)


def _object(found: Inspection, tensors: bool, metadata: bool) -> dict[str, Any]:
    """What --json prints. tensor_list: the rows, metadata: the keys with their values, where they
    are asked for."""
    out = found.as_dict()
    if tensors:
        out["tensor_list"] = [
            {"name": t.name, "type": t.type_name, "shape": list(t.shape), "bytes": t.nbytes}
            for t in found.tensors.values()
        ]
    if metadata:
        out["metadata"] = {key: _short_value(found.metadata, key) for key in found.metadata}
    return out


def _print_value(found: Inspection, key: str, as_json: bool) -> None:
    """The value of a key: a text as it stands, an array one item a line. On a terminal without
    control characters."""
    if key not in found.metadata:
        near = get_close_matches(key, list(found.metadata), 1)
        hint = f"did you mean {near[0]}?" if near else "--metadata lists those that it has"
        raise RequestError(f"{found.path}: there is no key {key!r}; {hint}")
    value = _plain(found.metadata[key])
    if as_json:
        print(json.dumps({key: value}))
        return
    for item in value if isinstance(value, list) else [value]:
        text = item if isinstance(item, str) and not isinstance(value, list) else json.dumps(item)
        safe = "\n".join(printable(line) for line in text.split("\n"))
        print(safe if sys.stdout.isatty() else text)


def _print_tables(found: Inspection, tensors: bool, metadata: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A line of a file or of another program's input is never broken.
        console.width = 1 << 14
    for table in _tables(found, tensors, metadata):
        with console.capture() as lines:
            console.print(table)
        print("\n".join(line.rstrip() for line in lines.get().splitlines()), end="\n\n")


def _tables(found: Inspection, tensors: bool, metadata: bool) -> Iterator[Table]:
    yield _table(("", ""), _facts(found))
    types = [(name, str(s.count), str(s.bytes)) for name, s in found.types.items()]
    if types:
        yield _table(("type", "tensors", "bytes"), types, right=(1, 2))
    if tensors:
        rows = [
            (t.name, t.type_name, " x ".join(map(str, t.shape)), str(t.nbytes))
            for t in found.tensors.values()
        ]
        yield _table(("tensor", "type", "shape", "bytes"), rows, right=(3,))
    if metadata:
        keys = [(key, found.metadata.value_type(key), _shown(found, key)) for key in found.metadata]
        yield _table(("key", "type", "value"), keys)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=any(head), padding=(0, 2, 0, 0))
    for at, name in enumerate(head):
        side = "right" if at in right else "left"
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _facts(found: Inspection) -> list[tuple[str, str]]:
    """The lines of the summary."""
    words = found.tokenizer
    known = [words.model, words.pre and f"pre-tokenizer {words.pre}"]
    known += [f"{words.n_tokens} tokens"] if words.n_tokens is not None else []
    return [
        ("file", str(found.path) + _more(len(found.shards) - 1, "shard")),
        ("architecture", found.architecture or "not told"),
        ("name", found.name or "not told"),
        ("parameters", f"{found.n_params} in {len(found.tensors)} tensors"),
        ("weights", f"{mib(found.n_bytes)}, {found.bits_per_weight or 0:.2f} bits per weight"),
        ("context", str(found.context_length or "not told")),
        ("tokenizer", ", ".join(filter(None, known)) or "none"),
        ("chat template", "yes" if found.chat_template else "no"),
        *_memory(found),
        *([("missing", f"the last {found.missing_bytes} bytes")] if found.missing_bytes else []),
        ("supported", "yes" if found.supported else f"no: {found.why}"),
    ]


def _more(n: int, what: str) -> str:
    return f" and {n} more {what}{'s' if n > 1 else ''}" if n > 0 else ""


def _memory(found: Inspection) -> Iterator[tuple[str, str]]:
    if found.memory is None:
        return
    nbytes = found.memory.device + found.memory.host
    parts = f"attention {mib(found.memory.attention)}"
    if found.memory.recurrent:
        parts += f", recurrent state {mib(found.memory.recurrent)}"
    total = mib(found.n_bytes + nbytes)
    yield "memory", f"{mib(nbytes)} for {found.n_ctx} tokens ({parts}), {total} with the weights"


def _shown(found: Inspection, key: str) -> str:
    """A value in a line."""
    try:
        value = _plain(found.metadata[key])
    except GgufError:
        return "(text that is not UTF-8)"
    if isinstance(value, list):
        cut = len(value) > 8
        inner = ", ".join(_cut(json.dumps(item, ensure_ascii=False)) for item in value[:8])
        return f"[{inner}, ... {len(value)} items]" if cut else f"[{inner}]"
    return _cut(value) if isinstance(value, str) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def _short_value(metadata: Metadata, key: str) -> Any:
    """A value for JSON; of a long array how long it is, and its first items."""
    try:
        value = _plain(metadata[key])
    except GgufError:
        return None
    if isinstance(value, list) and len(value) > LONGEST:
        return {"n_items": len(value), "first": value[:LONGEST]}
    return value


def _plain(value: Any) -> Any:
    """A metadata value in JSON's types: what is no number there is a text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
